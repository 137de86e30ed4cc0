// biome-ignore-all lint/suspicious/noTemplateCurlyInString: documents that try templates
import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { JsonObject } from '../../gateway/domain/json.ts';
import { compilePolicies, formatFault, type LoadResult } from '../../gateway/policy/load-policies.ts';
import { toolSchema } from '../../gateway/policy/policy-file-schema.ts';
import { compileValidPolicies } from './example.ts';
import { PETS_IMPORT_POLICY, PETS_OPENAPI, renderToolRequest } from './openapi-example.ts';

const RUNS = Number(process.env['FUZZ_RUNS'] ?? 150);

function load(document: string, name = 'api/pets.yaml'): LoadResult {
  const files = { 'p.yaml': PETS_IMPORT_POLICY.replace('api/pets.yaml', name), [name]: document };
  return compilePolicies(
    Object.entries(files).map(([name, text]) => ({ name, file: `policies/${name}`, bytes: Buffer.from(text) })),
    {},
  );
}

/** Checks that every fault and warning has a position and a readable message. */
function checkFaults(loaded: LoadResult): void {
  for (const fault of [...(loaded.ok ? [] : loaded.faults), ...loaded.warnings]) {
    expect(formatFault(fault)).toMatch(/^policies\/(?:p\.yaml|api\/pets\.(?:yaml|json)):\d+:\d+: ./);
    expect(fault.message).not.toMatch(/undefined|\[object [A-Z]|could not be loaded/);
  }
}

/** Generates mostly valid values, and now and then any JSON. */
const loose = (right: fc.Arbitrary<unknown>) =>
  fc.oneof({ weight: 150, arbitrary: right }, { weight: 1, arbitrary: fc.jsonValue({ maxDepth: 1 }) });
const rarely = <T>(rare: T, ...usual: T[]) =>
  fc.oneof({ weight: 20, arbitrary: fc.constantFrom(...usual) }, { weight: 1, arbitrary: fc.constant(rare) });
const word = fc.constantFrom(
  'id',
  'name',
  'in',
  'constructor',
  'page-size',
  'a b',
  'body',
  '${args}',
  'X"}',
  'é',
  '__x',
  'toString',
  'limit',
);
const { schema } = fc.letrec((tie) => ({
  schema: loose(
    fc.oneof(
      { depthSize: 'small', withCrossShrink: true },
      fc.constantFrom<unknown>(
        { type: 'string' },
        { type: 'integer' },
        {},
        { type: 'boolean', nullable: true },
        { $ref: '#/components/schemas/A' },
        { $ref: 'x.yaml' },
        { type: 'string', pattern: '^a+$' },
        { enum: [1, 'a', null] },
      ),
      fc.record({ type: fc.constant('array'), items: tie('schema') }),
      rarely({ $ref: '#/components/schemas/Nope' }, { type: 'string' }),
      fc.record(
        {
          type: fc.constant('object'),
          properties: fc.dictionary(word, tie('schema'), { maxKeys: 3 }),
          required: fc.array(word, { maxLength: 2 }),
          additionalProperties: fc.oneof(fc.boolean(), tie('schema')),
        },
        { requiredKeys: ['type'] },
      ),
      fc.record({ allOf: fc.array(tie('schema'), { maxLength: 2 }) }),
    ),
  ),
}));
const parameter = loose(
  fc.record(
    {
      name: loose(word),
      in: rarely('path', 'query', 'header', 'cookie', 'else'),
      required: fc.boolean(),
      schema,
      explode: fc.boolean(),
      style: fc.constantFrom('form', 'simple', 'deepObject'),
    },
    { requiredKeys: ['name', 'in'] },
  ),
);
const body = loose(
  fc.record({
    required: fc.boolean(),
    content: fc.dictionary(
      fc.constantFrom('application/json', 'text/plain', 'application/x+json', '*/*'),
      fc.record({ schema }),
      { maxKeys: 2 },
    ),
  }),
);
const operation = loose(
  fc.record(
    {
      operationId: loose(fc.oneof(word, fc.string({ minLength: 12 }))),
      summary: fc.string(),
      parameters: fc.array(parameter, { maxLength: 3 }),
      requestBody: body,
    },
    { requiredKeys: [] },
  ),
);
const path = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom('/a', '/b', '/x y', '/q?a=b', '/..', '/$${args}') },
  {
    weight: 1,
    arbitrary: fc.constantFrom('/a/{id}', '/{id}/{name}', '/${args.id}', 'no', '/{page-size}.json', '/{in}'),
  },
);
const method = rarely('parameters', 'get', 'post', 'put', 'delete', 'patch', 'head', 'trace', 'x-own');
const document = fc.record({
  openapi: fc.constantFrom('3.0.3', '3.1.0'),
  paths: loose(
    fc.dictionary(path, loose(fc.dictionary(method, operation, { minKeys: 1, maxKeys: 3 })), {
      minKeys: 1,
      maxKeys: 3,
    }),
  ),
  components: fc.record({ schemas: fc.record({ A: schema }) }),
});

test('every document is loaded or refused, and each imported tool fits the tool schema', () => {
  let imported = 0;
  fc.assert(
    fc.property(document, (value) => {
      const loaded = load(JSON.stringify(value), 'api/pets.json');
      checkFaults(loaded);
      if (!loaded.ok) return;
      imported += loaded.policies.tools.size;
      for (const tool of loaded.policies.tools.values()) {
        expect(tool.name).toMatch(/^pets\.[\w-]+(?:\.[\w-]+)*$/);
        const { method, pathTemplate } = tool.request ?? {};
        expect(
          toolSchema.safeParse({ upstream: 'pets', input: tool.input, request: { method, path: pathTemplate } })
            .success,
        ).toBe(true);
        expect(tool.once.by).toBe('none');
      }
    }),
    { numRuns: RUNS, interruptAfterTimeLimit: 30_000 },
  );
  // The test is useful only if many documents are imported.
  expect(imported).toBeGreaterThan(RUNS / 20);
});

test('mutated text never throws', () => {
  const piece = fc.constantFrom(
    '$ref: "#/paths"',
    '{',
    '}',
    '[',
    ']',
    ': ',
    '\n',
    '  ',
    '- ',
    '"',
    '&a ',
    '*a',
    '200:',
    'in: path',
    'schema:',
    'type: object',
    '#/components',
    '__proto__',
    '0x',
    '~',
  );
  const edit = fc.record({ at: fc.nat(PETS_OPENAPI.length), cut: fc.nat(20), piece });
  fc.assert(
    fc.property(fc.array(edit, { minLength: 1, maxLength: 4 }), (edits) => {
      checkFaults(
        load(
          edits.reduce((text, { at, cut, piece }) => text.slice(0, at) + piece + text.slice(at + cut), PETS_OPENAPI),
        ),
      );
    }),
    { numRuns: RUNS / 4, interruptAfterTimeLimit: 10_000 },
  );
});

/** Names of parameters of every kind. Each value must be sent exactly as given. */
const names = fc.uniqueArray(
  fc.oneof(
    word.filter((name) => /^[\x21-\x7e]+$/.test(name) && name !== 'constructor'),
    fc.stringMatching(/^[A-Za-z_][\w.-]{0,8}$/),
  ),
  { minLength: 1, maxLength: 6 },
);
const scalar = fc.oneof(
  fc.string({ minLength: 1, unit: 'grapheme' }).filter((text) => text !== '.' && text !== '..'),
  fc.integer(),
  fc.boolean(),
);

test('every argument is sent once, where the document says, and nothing else is sent', () => {
  const header = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$/;
  fc.assert(
    fc.property(
      names.chain((all) =>
        fc.record(
          Object.fromEntries(
            all.map((name) => [
              name,
              fc.record({
                where: fc.constantFrom('path', 'query', 'header', 'body'),
                value: scalar,
                given: fc.boolean(),
              }),
            ]),
          ),
        ),
      ),
      (specs) => {
        const entries = Object.entries(specs).map(([name, spec]) => {
          const misfit =
            spec.where === 'path'
              ? /[{}]/.test(name)
              : spec.where === 'header' && (!header.test(name) || !/^[\x20-\x7e]*$/.test(String(spec.value)));
          const where = misfit ? 'query' : spec.where;
          return { name, value: spec.value, where, given: spec.given || where === 'path' };
        });
        const of = (where: string) => entries.filter((entry) => entry.where === where);
        const pathText = `/r${of('path')
          .map(({ name }) => `/{${name}}`)
          .join('')}`;
        const parameters = entries
          .filter(({ where }) => where !== 'body')
          .map(({ name, where }) => ({ name, in: where, required: where === 'path', schema: {} }));
        const properties = Object.fromEntries(of('body').map(({ name }) => [name, {}]));
        const content = { 'application/json': { schema: { type: 'object', properties } } };
        const post = { operationId: 'op', parameters, requestBody: { content } };
        const files = {
          'p.yaml': PETS_IMPORT_POLICY.replace('.yaml', '.json'),
          'api/pets.json': JSON.stringify({ openapi: '3.1.0', paths: { [pathText]: { post } } }),
        };
        const tool = compileValidPolicies(files).tools.get('pets.op');
        const args = Object.fromEntries(entries.filter(({ given }) => given).map(({ name, value }) => [name, value]));
        const { line, headers, body: sentBody } = renderToolRequest(tool, args as JsonObject);
        const url = new URL(line.slice('POST '.length), 'http://x');
        expect(url.pathname.split('/').slice(2).map(decodeURIComponent)).toEqual(
          of('path').map(({ value }) => String(value)),
        );
        expect([...url.searchParams]).toEqual(
          of('query')
            .filter(({ given }) => given)
            .map(({ name, value }) => [name, String(value)]),
        );
        const { 'content-type': _, ...own } = headers;
        expect(own).toEqual(
          Object.fromEntries(
            of('header')
              .filter(({ given }) => given)
              .map(({ name, value }) => [name.toLowerCase(), String(value)]),
          ),
        );
        expect(sentBody).toEqual(
          Object.fromEntries(
            of('body')
              .filter(({ given }) => given)
              .map(({ name, value }) => [name, value]),
          ),
        );
      },
    ),
    { numRuns: RUNS, interruptAfterTimeLimit: 30_000 },
  );
});
