import { suggestNearest } from './name-suggestions.ts';
import { wrapText } from './output.ts';
import { formatOption, formatSyntax, formatUsage, listUsageParts, UsageError, type Verb } from './verb.ts';

const ENVIRONMENT = [
  ['ONCEGATE_URL', 'URL of the gateway (default http://127.0.0.1:8080)'],
  ['ONCEGATE_KEY', 'bearer key of a person'],
] as const;

/** In the overview, the summary of a verb with a longer syntax goes on the next line. */
const MAX_SYNTAX_WIDTH = 16;
const HELP_WIDTH = 80;

/** Takes a thunk, because `help` is itself an entry of the table of verbs. */
export function buildHelpVerb(listVerbs: () => readonly Verb[]): Verb {
  return {
    name: 'help',
    summary: 'show this list, or the options of one verb',
    operands: [{ name: 'verb', optional: true, many: true }],
    run: async ({ out, operands }) => {
      const verbs = listVerbs();
      const name = operands.join(' ');
      const chosen =
        name === '' ? verbs : verbs.filter((verb) => verb.name === name || verb.name.startsWith(`${name} `));
      if (chosen.length === 0) {
        const names = verbs.map((verb) => verb.name);
        throw new UsageError(`there is no verb ${JSON.stringify(name)}${await suggestNearest(name, names)}`);
      }
      out.printJson({ verbs: chosen.map(describeVerb) });
      const lines =
        name === ''
          ? formatOverview(verbs)
          : chosen.flatMap((verb, index) => (index === 0 ? formatDetails(verb) : ['', ...formatDetails(verb)]));
      for (const line of lines) out.printLine(line);
      return 0;
    },
  };
}

export function formatOverview(verbs: readonly Verb[]): string[] {
  const heads = verbs.map(formatSyntax);
  const short = heads.map((head) => head.length).filter((length) => length <= MAX_SYNTAX_WIDTH);
  const width = Math.max(...short, ...ENVIRONMENT.map(([name]) => name.length));
  const entry = (head: string, summary: string): string[] =>
    head.length <= width
      ? [`  ${head.padEnd(width)}  ${summary}`]
      : [`  ${head}`, `  ${' '.repeat(width)}  ${summary}`];
  return [
    'oncegate: a gateway that sends each allowed tool call of an agent once',
    '',
    'usage: oncegate <verb> [options]',
    '',
    ...verbs.flatMap((verb, index) => entry(heads[index] ?? '', verb.summary)),
    '',
    ...ENVIRONMENT.map(([name, what]) => `  ${name.padEnd(width)}  ${what}`),
    '',
    'Every verb takes --json and --help.',
    'Exit codes: 0 success, 1 failure or a negative result, 2 wrong usage.',
  ];
}

function formatDetails(verb: Verb): string[] {
  const options = Object.entries(verb.options ?? {}).map(([name, option]) => ({
    text: formatOption(name, option),
    help: option.help,
    // Up to three choices are already shown beside the option.
    choices: option.choices === undefined || option.choices.length <= 3 ? [] : option.choices,
  }));
  const operands = (verb.operands ?? []).flatMap(({ name, help }) =>
    help === undefined ? [] : [{ text: `<${name}>`, help, choices: [] }],
  );
  const all = [...operands, ...options];
  const width = Math.max(0, ...all.map(({ text }) => text.length));
  const lines = all.flatMap(({ text, help, choices }) =>
    [help, ...(choices.length === 0 ? [] : [`(${choices.join(', ')})`])]
      .flatMap((words) => wrapText(words, HELP_WIDTH - 4 - width))
      .map((line, index) => `  ${(index === 0 ? text : '').padEnd(width)}  ${line}`),
  );
  return [...wrapUsage(verb), '', `  ${verb.summary}`, ...(all.length === 0 ? [] : ['']), ...lines];
}

/** Breaks the usage line between options, never between an option and its value. */
export function wrapUsage(verb: Verb): string[] {
  const lines: string[] = [];
  let line = 'usage:';
  for (const word of listUsageParts(verb)) {
    if (line.length + 1 + word.length > HELP_WIDTH) {
      lines.push(line);
      line = '        ';
    }
    line += ` ${word}`;
  }
  return [...lines, line];
}

function describeVerb(verb: Verb): object {
  const { name, summary, operands = [], options = {} } = verb;
  return { name, summary, usage: formatUsage(verb), operands, options };
}
