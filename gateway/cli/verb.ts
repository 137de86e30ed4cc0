import type { Output } from './output.ts';

/**
 * A verb of the command line: one file that exports one of these, and one line in the table of main.ts. Help, usage
 * lines and the checking of arguments are made from what it declares.
 */
export interface Verb {
  /** One word or two: `calls`, `key new`. */
  readonly name: string;
  /** What it does, in half a line. */
  readonly summary: string;
  readonly operands?: readonly Operand[];
  readonly options?: Readonly<Record<string, Option>>;
  /** Resolves with the exit code: 0 good, 1 what was asked about is not good. */
  readonly run: (invocation: Invocation) => Promise<number>;
}

export interface Operand {
  readonly name: string;
  readonly optional?: boolean;
  /** The last one may take every word that is left. */
  readonly many?: boolean;
  /** It is one of these words, which stand for it in help. */
  readonly choices?: readonly string[];
  /** What its name does not say. */
  readonly help?: string;
}

export interface Option {
  readonly help: string;
  /** What stands for its value in help, `TEXT`; absent: a flag. */
  readonly value?: string;
  readonly required?: boolean;
  readonly choices?: readonly string[];
  /** May be there more than once. */
  readonly many?: boolean;
}

/** Everything a verb touches of the process it runs in. */
export interface Io {
  readonly stdout: Sink;
  readonly stderr: Sink;
  readonly stdin: AsyncIterable<Uint8Array | string>;
  readonly env: NodeJS.ProcessEnv;
  readonly cwd: string;
  readonly isTty: boolean;
  /** Asks whoever sits at the terminal for a line; absent where nobody does. */
  readonly ask?: (question: string) => Promise<string>;
  /** Has this told when somebody presses Ctrl-C, instead of ending; gives what ends that. */
  readonly onInterrupt?: (told: () => void) => () => void;
}

export interface Sink {
  /** False: it has more than it likes, and says `drain` when it has not. */
  readonly write: (text: string) => unknown;
  readonly once?: (event: 'drain', told: () => void) => unknown;
  /** The width of a terminal. */
  readonly columns?: number | undefined;
}

export interface Invocation {
  readonly io: Io;
  readonly out: Output;
  readonly json: boolean;
  readonly operands: readonly string[];
  /** The value of an option that takes one. */
  readonly text: (option: string) => string | undefined;
  /** The values of one that may be there more than once. */
  readonly texts: (option: string) => readonly string[];
  readonly flag: (option: string) => boolean;
}

/** Wrong usage: exit code 2 and the verb's usage line. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** What was asked about is not good: exit code 1. The message stands by itself, as one or more lines. */
export class NotGood extends Error {
  override readonly name = 'NotGood';
  readonly code: string;
  /** Further members of the error object that `--json` prints. */
  readonly members: Readonly<Record<string, unknown>>;

  constructor(code: string, message: string, members: Readonly<Record<string, unknown>> = {}) {
    super(message);
    this.code = code;
    this.members = members;
  }
}

/** `oncegate resolve <txn> --verdict applied|not_applied|retry --reason TEXT [--result JSON] [--json]` */
export function usageOf(verb: Verb): string {
  return usageWords(verb).join(' ');
}

/** The same, in the pieces between which a line may end. */
export function usageWords(verb: Verb): string[] {
  const options = Object.entries(verb.options ?? {}).map(([name, option]) => {
    const text = optionText(name, option);
    return `${option.required ? text : `[${text}]`}${option.many ? '...' : ''}`;
  });
  return [`oncegate ${headOf(verb)}`, ...options, '[--json]'];
}

/** `call <txn>` */
export function headOf({ name, operands = [] }: Verb): string {
  const shown = operands.map(({ name: of, optional, choices }) => {
    if (choices !== undefined) return choices.join('|');
    return optional ? `[${of}]` : `<${of}>`;
  });
  return [name, ...shown].join(' ');
}

export function optionText(name: string, { value, choices }: Option): string {
  // Nine states in a usage line would bury the rest of it.
  const shown = choices !== undefined && choices.length <= 3 ? choices.join('|') : value;
  return shown === undefined ? `--${name}` : `--${name} ${shown}`;
}
