// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ExpressionError } from '../../gateway/domain/policy.ts';
import { compileBoundedRegex } from '../../gateway/policy/expressions/bounded-regex.ts';
import { compileExpression } from '../../gateway/policy/expressions/compile-expression.ts';
import { compileTemplate } from '../../gateway/policy/expressions/compile-template.ts';
import { compilePolicies, formatFault, type LoadResult } from '../../gateway/policy/load-policies.ts';
import { EXAMPLE_POLICY, measureCpuMs } from './example.ts';

const RUNS = Number(process.env['FUZZ_RUNS'] ?? 2_000);
const SLOW_MS = 250;

/** Loads bytes and checks that this neither throws nor takes long, and that every fault has a position and a message. */
function loadSafely(bytes: Buffer): LoadResult {
  let loaded: LoadResult = { ok: false, faults: [], warnings: [] };
  const spent = measureCpuMs(() => {
    const file = { name: 'f.yaml', file: 'policies/f.yaml', bytes };
    loaded = compilePolicies([file], { PAYMENTS_TOKEN: 'tok-123456' });
  });
  expect(spent).toBeLessThan(SLOW_MS);
  if (!loaded.ok) {
    expect(loaded.faults.length).toBeGreaterThan(0);
    for (const fault of loaded.faults) {
      expect(formatFault(fault)).toMatch(/^policies\/f\.yaml:\d+:\d+: ./);
      expect(fault.message).not.toMatch(/undefined|\[object [A-Z]|could not be loaded|tok-123456/);
    }
  }
  return loaded;
}

const PIECES = [
  ...[
    '{',
    '}',
    '[',
    ']',
    ':',
    ',',
    '- ',
    '"',
    "'",
    '|\n',
    '>',
    '&a ',
    '*a',
    '<<: ',
    '!!',
    '%',
    '---\n',
    '#',
    '\n',
    '\t',
    '  ',
  ],
  ...[
    'null',
    'true',
    '~',
    '.nan',
    '0x1F',
    '1e999',
    '__proto__',
    'constructor',
    'toString',
    '\u0000',
    '\ufeff',
    '\u2028',
    '\ud83d\ude00',
  ],
  ...[
    '${',
    '}',
    '$${',
    '${args}',
    '${env.PAYMENTS_TOKEN}',
    '${file("/dev/stdin")}',
    '${args.a.b}',
    '(',
    ')',
    '&&',
    'has(',
    '.map(x,',
  ],
  ...[
    'pattern: "(a|a)*"',
    '$ref: "#"',
    '$id: x',
    'allOf: [{$ref: "#"}]',
    'type: [object]',
    'properties: 5',
    'once: ',
    'undo: ',
    'tools:',
  ],
];

interface Mutation {
  readonly kind: 'insert' | 'delete' | 'flip' | 'copy' | 'swap';
  readonly at: number;
  readonly to: number;
  readonly piece: string;
}

const mutation: fc.Arbitrary<Mutation> = fc.record({
  kind: fc.constantFrom('insert', 'delete', 'flip', 'copy', 'swap'),
  at: fc.double({ min: 0, max: 1, noNaN: true }),
  to: fc.double({ min: 0, max: 1, noNaN: true }),
  piece: fc.constantFrom(...PIECES),
});

function mutate(bytes: Buffer, { kind, at, to, piece }: Mutation): Buffer {
  const start = Math.floor(at * bytes.length);
  const length = Math.floor(to * 40);
  const rest = bytes.subarray(start);
  const before = bytes.subarray(0, start);
  if (kind === 'insert') return Buffer.concat([before, Buffer.from(piece), rest]);
  if (kind === 'delete') return Buffer.concat([before, rest.subarray(length)]);
  if (kind === 'swap') return Buffer.concat([before, Buffer.from(piece), rest.subarray(length)]);
  if (kind === 'copy') {
    const from = Math.floor(to * bytes.length);
    return Buffer.concat([before, bytes.subarray(from, from + 60), rest]);
  }
  const flipped = Buffer.from(bytes);
  if (flipped.length > 0) flipped[start % flipped.length] = Math.floor(to * 255);
  return flipped;
}

test('mutated policies are loaded or refused, and nothing throws', () => {
  let loadedWell = 0;
  fc.assert(
    fc.property(fc.array(mutation, { minLength: 1, maxLength: 6 }), (mutations) => {
      if (loadSafely(mutations.reduce(mutate, Buffer.from(EXAMPLE_POLICY))).ok) loadedWell += 1;
    }),
    { numRuns: RUNS },
  );
  // The test is useful only if some inputs get past the YAML parser.
  expect(loadedWell).toBeGreaterThan(RUNS / 100);
});

test('arbitrary bytes and arbitrary JSON are loaded or refused', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => void loadSafely(Buffer.from(bytes))),
    { numRuns: 500 },
  );
  const section = fc.constantFrom('upstreams', 'tools', 'agents', 'people');
  fc.assert(
    fc.property(
      fc.dictionary(section, fc.dictionary(fc.string({ maxLength: 8 }), fc.jsonValue({ maxDepth: 4 }))),
      (value) => {
        loadSafely(Buffer.from(JSON.stringify(value)));
      },
    ),
    { numRuns: 500 },
  );
});

test.each([
  ['deep flow lists', `tools: ${'['.repeat(20_000)}`],
  ['deep closed lists', `tools: ${'['.repeat(3_000)}${']'.repeat(3_000)}`],
  [
    'deep schema',
    `upstreams: { u: { adapter: http, url: "http://x" } }\ntools: { t: { upstream: u, input: ${'{ not: '.repeat(300)}{}${' }'.repeat(300)} } }`,
  ],
  ['many keys', `tools:\n${Array.from({ length: 3_000 }, (_, index) => `  t${index}: 1\n`).join('')}`],
  ['long key', `? ${'a'.repeat(100_000)}\n: 1`],
  ['long line', `tools: "${'a'.repeat(500_000)}"`],
  ['open quotes', `tools: "${'\\"'.repeat(50_000)}`],
  ['many documents', '---\n'.repeat(5_000)],
])('%s are loaded or refused in time', (_name, yaml) => {
  const file = { name: 'f.yaml', file: 'f.yaml', bytes: Buffer.from(yaml) };
  expect(measureCpuMs(() => void compilePolicies([file], {}))).toBeLessThan(3_000);
});

test('expressions and templates compile or report a fault, and throw only ExpressionError', () => {
  const word = fc.constantFrom(
    ...[
      'args',
      'args.a',
      'args.list',
      '.map(x, x)',
      '.exists(x, x == 1)',
      '.size()',
      '+',
      '-',
      '*',
      '/',
      '%',
      '==',
      '<',
      '&&',
      '||',
      '!',
    ],
    ...[
      '(',
      ')',
      '[',
      ']',
      '{',
      '}',
      ':',
      '?',
      ',',
      '1',
      '2.5',
      '"s"',
      "'q'",
      'null',
      'true',
      'in',
      'has(args.a)',
      'now',
      'string(',
      'b"x"',
      '3u',
      'type(',
    ],
  );
  fc.assert(
    fc.property(fc.array(word, { maxLength: 9 }), fc.jsonValue(), (words, json) => {
      const source = words.join(' ');
      const scope = { args: { a: json as never, list: [1, 'x', null, { constructor: 1 }] }, now: 0 };
      const faults: string[] = [];
      const site = { variables: ['args', 'now'] as const, reportFault: (message: string) => void faults.push(message) };
      for (const evaluate of [compileExpression(source, site), compileTemplate(`x \${${source}}`, site)]) {
        try {
          JSON.stringify(evaluate(scope));
        } catch (error) {
          expect(error).toBeInstanceOf(ExpressionError);
        }
      }
    }),
    { numRuns: 3_000 },
  );
});

test('an accepted pattern does not stall', () => {
  const piece = fc.constantFrom(
    'a',
    'b',
    '[ab]',
    '.',
    '\\d',
    '(a|b)',
    '(a)',
    '(?:ab)',
    '*',
    '+',
    '?',
    '{2}',
    '{1,3}',
    '{2,}',
    '{0,40}',
    '^',
    '$',
    '|',
    '(',
    ')',
  );
  let admitted = 0;
  fc.assert(
    fc.property(
      fc.array(piece, { minLength: 1, maxLength: 9 }),
      fc.constantFrom('a', 'ab', 'aab', '1'),
      (pieces, unit) => {
        const pattern = compileBoundedRegex(pieces.join(''));
        if ('fault' in pattern) return;
        admitted += 1;
        const length = Math.min(pattern.maxLength, 1_000_000);
        const text = `${unit.repeat(Math.ceil(length / unit.length)).slice(0, Math.max(length - 1, 0))}!`;
        const spent = measureCpuMs(() => void pattern.test(text));
        expect(spent, `${pieces.join('')} over ${length} characters`).toBeLessThan(1_000);
      },
    ),
    { numRuns: 1_500 },
  );
  expect(admitted).toBeGreaterThan(200);
});
