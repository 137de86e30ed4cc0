import type { Output } from './output.ts';

/**
 * A verb of the command line. Each verb is one file, and one entry in the table of main.ts. Help, usage lines and
 * argument checks are derived from it.
 */
export interface Verb {
  /** One word or two: `calls`, `key new`. */
  readonly name: string;
  /** What the verb does, in at most 60 characters. */
  readonly summary: string;
  readonly operands?: readonly Operand[];
  readonly options?: Readonly<Record<string, Option>>;
  /** Returns the exit code: 0 for success, 1 for a failure or a negative result. */
  readonly run: (invocation: Invocation) => Promise<number>;
}

export interface Operand {
  readonly name: string;
  readonly optional?: boolean;
  /** The last operand may take all remaining words. */
  readonly many?: boolean;
  /** The allowed words; help shows them instead of the name. */
  readonly choices?: readonly string[];
  /** Absent if the name says enough. */
  readonly help?: string;
}

export interface Option {
  readonly help: string;
  /** The placeholder of the value in help, such as `TEXT`. A flag has none. */
  readonly value?: string;
  readonly required?: boolean;
  readonly choices?: readonly string[];
  /** The option may be repeated. */
  readonly many?: boolean;
}

/** Everything of its process that a verb uses. */
export interface Io {
  readonly stdout: TextSink;
  readonly stderr: TextSink;
  readonly stdin: AsyncIterable<Uint8Array | string>;
  readonly env: NodeJS.ProcessEnv;
  readonly cwd: string;
  readonly isTty: boolean;
  /** Asks the person at the terminal for a line; absent without a terminal. */
  readonly prompt?: (question: string) => Promise<string>;
  /** Calls the listener on Ctrl-C instead of ending the process. Returns a function that removes it. */
  readonly onInterrupt?: (listener: () => void) => () => void;
}

export interface TextSink {
  /** Returns false when its buffer is full; `drain` follows when it is empty again. */
  readonly write: (text: string) => unknown;
  readonly once?: (event: 'drain', listener: () => void) => unknown;
  /** The width of the terminal. */
  readonly columns?: number | undefined;
}

export interface Invocation {
  readonly io: Io;
  readonly out: Output;
  readonly isJson: boolean;
  readonly operands: readonly string[];
  /** The value of an option that takes one. */
  readonly text: (option: string) => string | undefined;
  /** The values of an option that may be repeated. */
  readonly texts: (option: string) => readonly string[];
  readonly hasFlag: (option: string) => boolean;
}

/** Wrong usage: exit code 2. The message is printed with the usage line of the verb. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}

/** A failure: exit code 1. The message is one or more whole sentences. */
export class VerbError extends Error {
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
export function formatUsage(verb: Verb): string {
  return listUsageParts(verb).join(' ');
}

/** The parts of the usage line; a line may break between them. */
export function listUsageParts(verb: Verb): string[] {
  const options = Object.entries(verb.options ?? {}).map(([name, option]) => {
    const text = formatOption(name, option);
    return `${option.required ? text : `[${text}]`}${option.many ? '...' : ''}`;
  });
  return [`oncegate ${formatSyntax(verb)}`, ...options, '[--json]'];
}

/** `call <txn>` */
export function formatSyntax({ name, operands = [] }: Verb): string {
  const shown = operands.map(({ name: operand, optional, choices }) => {
    if (choices !== undefined) return choices.join('|');
    return optional ? `[${operand}]` : `<${operand}>`;
  });
  return [name, ...shown].join(' ');
}

export function formatOption(name: string, { value, choices }: Option): string {
  // More than three choices would make the usage line too long.
  const shown = choices !== undefined && choices.length <= 3 ? choices.join('|') : value;
  return shown === undefined ? `--${name}` : `--${name} ${shown}`;
}
