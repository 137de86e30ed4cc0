import { parseArgs } from 'node:util';
import { near } from './nearest-name.ts';
import { type Option, optionText, type Verb } from './verb.ts';

/** What was asked for; or what is wrong with it, and of which verb if that much is clear. */
export type Arguments =
  | { readonly verb: Verb; readonly operands: readonly string[]; readonly values: Values }
  | { readonly verb: Verb | undefined; readonly fault: string };

type Values = Readonly<Record<string, string | boolean | readonly string[]>>;

const EVERYWHERE: Readonly<Record<string, Option>> = {
  json: { help: 'one JSON document on standard output' },
  help: { help: 'what the verb does, and its options' },
};

export async function parseArguments(argv: readonly string[], verbs: readonly Verb[]): Promise<Arguments> {
  if (argv.includes('--version') && !argv.some((word) => !word.startsWith('-'))) {
    return parseArguments(['version', ...argv.filter((word) => word !== '--version')], verbs);
  }
  const found = await findVerb(argv, verbs);
  if ('fault' in found) return { verb: undefined, fault: found.fault };
  const { verb } = found;
  const parsed = await parseOptions(verb, found.rest);
  if ('fault' in parsed) return { verb, fault: parsed.fault };
  const { values, operands } = parsed;
  if (values['help'] === true) return helpFor(verb, values, verbs);

  const missing = await missingOf(verb, parsed);
  return missing === undefined ? { verb, operands, values } : { verb, fault: missing };
}

function helpFor(verb: Verb, values: Values, verbs: readonly Verb[]): Arguments {
  const help = verbs.find(({ name }) => name === 'help');
  if (help === undefined) throw new Error('the table has no help');
  const operands = verb === help ? [] : verb.name.split(' ');
  return { verb: help, operands, values: values['json'] === true ? { json: true } : {} };
}

/** The verb's words may have flags between them that every verb knows. */
async function findVerb(
  argv: readonly string[],
  verbs: readonly Verb[],
): Promise<{ verb: Verb; rest: string[] } | { fault: string }> {
  const names = verbs.map(({ name }) => name);
  const at = argv.findIndex((word) => !word.startsWith('-'));
  const first = argv[at];
  const early = argv.slice(0, at < 0 ? argv.length : at);
  const odd = early.find((word) => word !== '--json' && word !== '--help' && word !== '-h');
  if (odd !== undefined) return { fault: `${odd} before the verb: write the verb first` };
  if (first === undefined) {
    const help = verbs.find(({ name }) => name === 'help');
    return help !== undefined && early.some((word) => word !== '--json')
      ? { verb: help, rest: early.filter((word) => word === '--json') }
      : { fault: 'which verb?' };
  }
  const single = verbs.find(({ name }) => name === first);
  if (single !== undefined) return { verb: single, rest: [...early, ...argv.slice(at + 1)] };

  const group = names.filter((name) => name.startsWith(`${first} `));
  if (group.length === 0) return { fault: `there is no verb ${JSON.stringify(first)}${await near(first, names)}` };
  const after = argv.slice(at + 1);
  const secondAt = after.findIndex((word) => !word.startsWith('-'));
  const second = after[secondAt];
  const double = verbs.find(({ name }) => name === `${first} ${second}`);
  if (double !== undefined)
    return { verb: double, rest: [...early, ...after.filter((_, index) => index !== secondAt)] };
  const only = group.length === 1 ? verbs.find(({ name }) => name === group[0]) : undefined;
  if (only !== undefined && after.some((word) => word === '--help' || word === '-h')) {
    return { verb: only, rest: [...early, ...after] };
  }
  if (second === undefined) return { fault: `${first} what? There is: ${group.join(', ')}` };
  const whole = `${first} ${second}`;
  return { fault: `there is no verb ${JSON.stringify(whole)}; there is: ${group.join(', ')}` };
}

interface Parsed {
  readonly operands: readonly string[];
  readonly values: Values;
}

/** Node's own strict mode knows no "did you mean", and takes the last of two equal options in silence. */
async function parseOptions(verb: Verb, args: readonly string[]): Promise<Parsed | { fault: string }> {
  const known: Readonly<Record<string, Option>> = { ...verb.options, ...EVERYWHERE };
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
      return { fault: `there is no ${token.rawName} here${await nearOption(token.rawName, known)}` };
    if (Object.hasOwn(values, token.name) && !option.many) return { fault: `${token.rawName} is there twice` };
    const fault = await optionFault(token, option);
    if (fault !== undefined) return { fault };
    const earlier = values[token.name];
    values[token.name] = option.many
      ? [...(Array.isArray(earlier) ? earlier : []), token.value ?? '']
      : (token.value ?? true);
  }
  return { operands, values };
}

function nearOption(rawName: string, known: Readonly<Record<string, Option>>): Promise<string> {
  return near(
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

async function optionFault(
  { name, rawName, value, inlineValue }: OptionToken,
  option: Option,
): Promise<string | undefined> {
  if (option.value === undefined) return value === undefined ? undefined : `${rawName} takes no value`;
  if (value === undefined || value === '') return `${optionText(name, option)}: the value is missing`;
  if (!inlineValue && /^-./.test(value)) {
    return `${optionText(name, option)}: the value is missing (write ${rawName}=${value} if that is the value)`;
  }
  const { choices } = option;
  if (choices === undefined || choices.includes(value)) return undefined;
  return `${rawName} ${JSON.stringify(value)} is not one of ${choices.join(', ')}${await near(value, choices)}`;
}

async function missingOf(verb: Verb, { operands, values }: Parsed): Promise<string | undefined> {
  const expected = verb.operands ?? [];
  const absent = expected.find(({ optional }, index) => !optional && !operands[index]);
  if (absent !== undefined) return `${absent.choices?.join(' or ') ?? `<${absent.name}>`} is missing`;
  if (operands.some((operand) => operand === '')) return 'an argument is empty';
  const surplus = expected.at(-1)?.many ? undefined : operands[expected.length];
  if (surplus !== undefined) return `${JSON.stringify(surplus)} is one argument too many`;
  for (const [index, { choices }] of expected.entries()) {
    const word = operands[index];
    if (choices === undefined || word === undefined || choices.includes(word)) continue;
    return `${JSON.stringify(word)} is not one of ${choices.join(', ')}${await near(word, choices)}`;
  }
  const needed = Object.entries(verb.options ?? {}).find(
    ([name, { required }]) => required && values[name] === undefined,
  );
  return needed === undefined ? undefined : `${optionText(...needed)} is missing`;
}
