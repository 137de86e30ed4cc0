import { parseArgs } from 'node:util';
import { suggestNearest } from './name-suggestions.ts';
import { formatOption, type Option, type Verb } from './verb.ts';

/** The command to run; or the fault of the command line, with its verb if that is known. */
export type ParsedCommand =
  | { readonly verb: Verb; readonly operands: readonly string[]; readonly values: Values }
  | { readonly verb: Verb | undefined; readonly fault: string };

type Values = Readonly<Record<string, string | boolean | readonly string[]>>;

const COMMON_OPTIONS: Readonly<Record<string, Option>> = {
  json: { help: 'print one JSON document' },
  help: { help: 'show what the verb does, and its options' },
};

export async function parseArguments(argv: readonly string[], verbs: readonly Verb[]): Promise<ParsedCommand> {
  if (argv.includes('--version') && !argv.some((word) => !word.startsWith('-'))) {
    return parseArguments(['version', ...argv.filter((word) => word !== '--version')], verbs);
  }
  const found = await findVerb(argv, verbs);
  if ('fault' in found) return { verb: undefined, fault: found.fault };
  const { verb } = found;
  const parsed = await parseOptions(verb, found.rest);
  if ('fault' in parsed) return { verb, fault: parsed.fault };
  const { values, operands } = parsed;
  if (values['help'] === true) return buildHelpArguments(verb, values, verbs);

  const missing = await findArgumentFault(verb, parsed);
  return missing === undefined ? { verb, operands, values } : { verb, fault: missing };
}

function buildHelpArguments(verb: Verb, values: Values, verbs: readonly Verb[]): ParsedCommand {
  const help = verbs.find(({ name }) => name === 'help');
  if (help === undefined) throw new Error('The table of verbs has no help verb.');
  const operands = verb === help ? [] : verb.name.split(' ');
  return { verb: help, operands, values: values['json'] === true ? { json: true } : {} };
}

/** Finds the verb, of one or two words. `--json` and `--help` may stand before or between its words. */
async function findVerb(
  argv: readonly string[],
  verbs: readonly Verb[],
): Promise<{ verb: Verb; rest: string[] } | { fault: string }> {
  const names = verbs.map(({ name }) => name);
  const firstAt = argv.findIndex((word) => !word.startsWith('-'));
  const first = argv[firstAt];
  const leadingFlags = argv.slice(0, firstAt < 0 ? argv.length : firstAt);
  const misplaced = leadingFlags.find((word) => word !== '--json' && word !== '--help' && word !== '-h');
  if (misplaced !== undefined) return { fault: `${misplaced} must come after the verb` };
  if (first === undefined) {
    const help = verbs.find(({ name }) => name === 'help');
    return help !== undefined && leadingFlags.some((word) => word !== '--json')
      ? { verb: help, rest: leadingFlags.filter((word) => word === '--json') }
      : { fault: 'the verb is missing' };
  }
  const single = verbs.find(({ name }) => name === first);
  if (single !== undefined) return { verb: single, rest: [...leadingFlags, ...argv.slice(firstAt + 1)] };

  const group = names.filter((name) => name.startsWith(`${first} `));
  if (group.length === 0)
    return { fault: `there is no verb ${JSON.stringify(first)}${await suggestNearest(first, names)}` };
  const after = argv.slice(firstAt + 1);
  const secondAt = after.findIndex((word) => !word.startsWith('-'));
  const second = after[secondAt];
  const double = verbs.find(({ name }) => name === `${first} ${second}`);
  if (double !== undefined)
    return { verb: double, rest: [...leadingFlags, ...after.filter((_, index) => index !== secondAt)] };
  const only = group.length === 1 ? verbs.find(({ name }) => name === group[0]) : undefined;
  if (only !== undefined && after.some((word) => word === '--help' || word === '-h')) {
    return { verb: only, rest: [...leadingFlags, ...after] };
  }
  if (second === undefined) return { fault: `${first} needs a second word: ${group.join(', ')}` };
  const whole = `${first} ${second}`;
  return { fault: `there is no verb ${JSON.stringify(whole)}; use ${group.join(' or ')}` };
}

interface ParsedOptions {
  readonly operands: readonly string[];
  readonly values: Values;
}

/** Node's strict mode is not used: it suggests no names, and silently takes the last of two equal options. */
async function parseOptions(verb: Verb, args: readonly string[]): Promise<ParsedOptions | { fault: string }> {
  const known: Readonly<Record<string, Option>> = { ...verb.options, ...COMMON_OPTIONS };
  const { tokens } = parseArgs({
    args: args.map((word) => (word === '-h' ? '--help' : word)),
    strict: false,
    tokens: true,
    allowPositionals: true,
    options: Object.fromEntries(
      Object.entries(known).map(([name, { value }]) => [name, { type: value === undefined ? 'boolean' : 'string' }]),
    ),
  });
  const operands: string[] = [];
  const values: Record<string, string | boolean | readonly string[]> = {};
  for (const token of tokens) {
    if (token.kind === 'positional') operands.push(token.value);
    if (token.kind !== 'option') continue;
    const option = Object.hasOwn(known, token.name) ? known[token.name] : undefined;
    if (option === undefined)
      return { fault: `unknown option ${token.rawName}${await suggestOption(token.rawName, known)}` };
    if (Object.hasOwn(values, token.name) && !option.many) return { fault: `${token.rawName} is given twice` };
    const fault = await findOptionFault(token, option);
    if (fault !== undefined) return { fault };
    const earlier = values[token.name];
    values[token.name] = option.many
      ? [...(Array.isArray(earlier) ? earlier : []), token.value ?? '']
      : (token.value ?? true);
  }
  return { operands, values };
}

function suggestOption(rawName: string, known: Readonly<Record<string, Option>>): Promise<string> {
  return suggestNearest(
    rawName,
    Object.keys(known).map((name) => `--${name}`),
  );
}

interface OptionToken {
  readonly name: string;
  readonly rawName: string;
  readonly value?: string | undefined;
  readonly inlineValue?: boolean | undefined;
}

async function findOptionFault(
  { name, rawName, value, inlineValue }: OptionToken,
  option: Option,
): Promise<string | undefined> {
  if (option.value === undefined) return value === undefined ? undefined : `${rawName} takes no value`;
  if (value === undefined || value === '') return `${formatOption(name, option)} needs a value`;
  if (!inlineValue && /^-./.test(value)) {
    return `${formatOption(name, option)} needs a value (write ${rawName}=${value} if that is the value)`;
  }
  const { choices } = option;
  if (choices === undefined || choices.includes(value)) return undefined;
  return `${rawName} ${JSON.stringify(value)} is not one of ${choices.join(', ')}${await suggestNearest(value, choices)}`;
}

async function findArgumentFault(verb: Verb, { operands, values }: ParsedOptions): Promise<string | undefined> {
  const expected = verb.operands ?? [];
  const missing = expected.find(({ optional }, index) => !optional && !operands[index]);
  if (missing !== undefined) return `${missing.choices?.join(' or ') ?? `<${missing.name}>`} is missing`;
  if (operands.some((operand) => operand === '')) return 'an argument is an empty string';
  const surplus = expected.at(-1)?.many ? undefined : operands[expected.length];
  if (surplus !== undefined) return `unexpected argument ${JSON.stringify(surplus)}`;
  for (const [index, { choices }] of expected.entries()) {
    const word = operands[index];
    if (choices === undefined || word === undefined || choices.includes(word)) continue;
    return `${JSON.stringify(word)} is not one of ${choices.join(', ')}${await suggestNearest(word, choices)}`;
  }
  const needed = Object.entries(verb.options ?? {}).find(
    ([name, { required }]) => required && values[name] === undefined,
  );
  return needed === undefined ? undefined : `${formatOption(...needed)} is missing`;
}
