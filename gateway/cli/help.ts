import { near } from './nearest-name.ts';
import { wrap } from './output.ts';
import { headOf, optionText, UsageError, usageOf, usageWords, type Verb } from './verb.ts';

const ENVIRONMENT = [
  ['ONCEGATE_URL', 'the gateway to ask (default http://127.0.0.1:8080)'],
  ['ONCEGATE_KEY', 'the bearer key of a person, to ask it with'],
] as const;

/** What is longer stands on a line of its own in the overview. */
const LONGEST_BESIDE = 16;
const WIDTH = 80;

/** Made from the table that it is itself a line of, so it gets the table when it runs. */
export function helpOf(table: () => readonly Verb[]): Verb {
  return {
    name: 'help',
    summary: 'this list, or everything about one verb',
    operands: [{ name: 'verb', optional: true, many: true }],
    run: async ({ out, operands }) => {
      const verbs = table();
      const name = operands.join(' ');
      const chosen =
        name === '' ? verbs : verbs.filter((verb) => verb.name === name || verb.name.startsWith(`${name} `));
      if (chosen.length === 0) {
        const names = verbs.map((verb) => verb.name);
        throw new UsageError(`there is no verb ${JSON.stringify(name)}${await near(name, names)}`);
      }
      out.json({ verbs: chosen.map(describe) });
      const lines =
        name === ''
          ? overview(verbs)
          : chosen.flatMap((verb, index) => (index === 0 ? details(verb) : ['', ...details(verb)]));
      for (const line of lines) out.line(line);
      return 0;
    },
  };
}

export function overview(verbs: readonly Verb[]): string[] {
  const heads = verbs.map(headOf);
  const short = heads.map((head) => head.length).filter((length) => length <= LONGEST_BESIDE);
  const width = Math.max(...short, ...ENVIRONMENT.map(([name]) => name.length));
  const entry = (head: string, summary: string): string[] =>
    head.length <= width
      ? [`  ${head.padEnd(width)}  ${summary}`]
      : [`  ${head}`, `  ${' '.repeat(width)}  ${summary}`];
  return [
    'oncegate: every tool call of every agent, once and within policy',
    '',
    'usage: oncegate <verb> [options]',
    '',
    ...verbs.flatMap((verb, index) => entry(heads[index] ?? '', verb.summary)),
    '',
    ...ENVIRONMENT.map(([name, what]) => `  ${name.padEnd(width)}  ${what}`),
    '',
    'Every verb takes --json and --help.',
    'Exit codes: 0 good, 1 what was asked about is not good, 2 wrong usage.',
  ];
}

function details(verb: Verb): string[] {
  const options = Object.entries(verb.options ?? {}).map(([name, option]) => ({
    text: optionText(name, option),
    help: option.help,
    // Up to three are named beside the option already.
    choices: option.choices === undefined || option.choices.length <= 3 ? [] : option.choices,
  }));
  const operands = (verb.operands ?? []).flatMap(({ name, help }) =>
    help === undefined ? [] : [{ text: `<${name}>`, help, choices: [] }],
  );
  const all = [...operands, ...options];
  const width = Math.max(0, ...all.map(({ text }) => text.length));
  const lines = all.flatMap(({ text, help, choices }) =>
    [help, ...(choices.length === 0 ? [] : [`(${choices.join(', ')})`])]
      .flatMap((words) => wrap(words, WIDTH - 4 - width))
      .map((line, index) => `  ${(index === 0 ? text : '').padEnd(width)}  ${line}`),
  );
  return [...usageLines(verb), '', `  ${verb.summary}`, ...(all.length === 0 ? [] : ['']), ...lines];
}

/** An option and its value stay together. */
function usageLines(verb: Verb): string[] {
  const lines: string[] = [];
  let line = 'usage:';
  for (const word of usageWords(verb)) {
    if (line.length + 1 + word.length > WIDTH) {
      lines.push(line);
      line = '        ';
    }
    line += ` ${word}`;
  }
  return [...lines, line];
}

function describe(verb: Verb): object {
  const { name, summary, operands = [], options = {} } = verb;
  return { name, summary, usage: usageOf(verb), operands, options };
}
