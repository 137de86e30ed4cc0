// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { describe, expect, test } from 'vitest';
import { runPolicyTests } from '../../gateway/policy/policy-tests.ts';
import { compilePolicyText, compileValidPolicies, listPolicyFaults, listPolicyWarnings } from './example.ts';
import { PETS_IMPORT_POLICY, PETS_OPENAPI, renderToolRequest } from './openapi-example.ts';

const FILES = { 'p.yaml': PETS_IMPORT_POLICY, 'api/pets.yaml': PETS_OPENAPI };

/** A policy that imports a document with one operation. */
function withOperation(operation: string, rest = '', version = '3.1.0') {
  const document = `openapi: ${version}\npaths:\n  /x:\n    post: ${operation}\n${rest}`;
  return { 'p.yaml': PETS_IMPORT_POLICY, 'api/pets.yaml': document };
}
const JSON_BODY = (schema: string) =>
  `{ operationId: x, requestBody: { content: { application/json: { schema: ${schema} } } } }`;

describe('operations become tools', () => {
  const { tools } = compileValidPolicies(FILES);

  test('named by operationId, or by method and path', () => {
    expect([...tools.keys()]).toEqual([
      'pets.listPets',
      'pets.createPet',
      'pets.getPet',
      'pets.replacePet',
      'pets.delete_pets_petId',
      'pets.pets_feed',
      'pets.rename',
    ]);
  });

  test('a GET is a read, and every other method is a write with once: none', () => {
    expect([...tools.values()].map((tool) => [tool.request?.method, tool.effect, tool.once.by])).toEqual([
      ['GET', 'read', 'none'],
      ['POST', 'write', 'none'],
      ['GET', 'read', 'none'],
      ['PUT', 'write', 'none'],
      ['DELETE', 'write', 'none'],
      ['POST', 'write', 'none'],
      ['PATCH', 'write', 'none'],
    ]);
  });

  test('parameters become arguments and are sent where the document says', () => {
    const list = tools.get('pets.listPets');
    expect(list?.description).toBe('List pets.');
    expect(Object.keys(list?.input['properties'] ?? {})).toEqual(['limit', 'tag', 'ids', 'page-size', 'X-Trace']);
    expect(renderToolRequest(list, {})).toEqual({ line: 'GET /pets', headers: {}, body: undefined });
    const args = { limit: 5, tag: ['a b', 'c'], ids: [1, 2], 'page-size': 7, 'X-Trace': 't' };
    expect(renderToolRequest(list, args)).toEqual({
      line: 'GET /pets?limit=5&tag=a+b&tag=c&ids=1%2C2&page-size=7',
      headers: { 'x-trace': 't' },
      body: undefined,
    });
    expect(list?.faults({ limit: 0, other: 1 })).toEqual(['args must not have "other"', 'args.limit must be >= 1']);
    expect(renderToolRequest(tools.get('pets.getPet'), { petId: 'a/b' }).line).toBe('GET /pets/a%2Fb');
  });

  test('properties of an object body become arguments beside the parameters', () => {
    const create = tools.get('pets.createPet');
    expect(create?.input['required']).toEqual(['name']);
    expect(create?.faults({ name: 'Rex', id: 1 })).toEqual(['args must not have "id"']);
    expect(create?.faults({ name: 'Rex', age: 0 })).toEqual(['args.age must be > 0']);
    const family = { name: 'Rex', age: null, parent: { name: 'Max' } };
    expect(renderToolRequest(create, family)).toMatchObject({ line: 'POST /pets', body: family });
    expect(create?.faults({ name: 'Rex', parent: {} })).toEqual(['args.parent must have "name"']);
    expect(renderToolRequest(tools.get('pets.replacePet'), { petId: '7', dry: true, name: 'Rex' })).toEqual({
      line: 'PUT /pets/7?dry=true',
      headers: { 'content-type': 'application/json' },
      body: { name: 'Rex' },
    });
  });

  test('the body becomes the argument `body` where a name is ambiguous', () => {
    expect(renderToolRequest(tools.get('pets.rename'), { petId: '7', body: { petId: '8' } })).toEqual({
      line: 'PATCH /pets/7/rename',
      headers: { 'content-type': 'application/merge-patch+json' },
      body: { petId: '8' },
    });
    const list = compileValidPolicies(withOperation(JSON_BODY('{ type: array, items: { type: integer } }'))).tools.get(
      'pets.x',
    );
    expect(renderToolRequest(list, { body: [1, 2] }).body).toEqual([1, 2]);
    const either = compileValidPolicies(
      withOperation(JSON_BODY('{ oneOf: [{ type: object, properties: { a: {} } }] }')),
    ).tools.get('pets.x');
    expect(renderToolRequest(either, { body: { a: 1 } }).body).toEqual({ a: 1 });
  });

  test('an operation without a body sends none', () => {
    expect(renderToolRequest(tools.get('pets.pets_feed'), { petId: '7' }).body).toBeUndefined();
    expect(renderToolRequest(tools.get('pets.delete_pets_petId'), { petId: '7' }).body).toBeUndefined();
  });

  test('a document may be JSON, and two upstreams may import it', () => {
    const document = JSON.stringify({ openapi: '3.1.0', paths: { '/a': { get: { operationId: 'a' } } } });
    const yaml = 'upstreams:\n  s: { adapter: http, url: "http://s", import: ./a.json }\n';
    const both = `${yaml}  t: { adapter: http, url: "http://t", import: a.json }\n`;
    expect([...compileValidPolicies({ 'd/p.yaml': both, 'd/a.json': document }).tools.keys()]).toEqual(['s.a', 't.a']);
    const broken = document.replace('"get"', '"parameters":1,"get"');
    expect(listPolicyFaults({ 'd/p.yaml': both, 'd/a.json': broken })).toHaveLength(1);
  });
});

describe('a declared tool of the same name', () => {
  const declare = (keys: string) =>
    ({ ...FILES, 'p.yaml': `${PETS_IMPORT_POLICY}tools:\n  pets.replacePet: { upstream: pets, ${keys} }\n` }) as const;

  test('wins key by key and adds the contract', () => {
    const tool = compileValidPolicies(declare('once: { by: idempotent }, timeout: 3s, description: Ours.')).tools.get(
      'pets.replacePet',
    );
    expect(tool).toMatchObject({ once: { by: 'idempotent' }, timeoutMs: 3000, description: 'Ours.' });
    expect(renderToolRequest(tool, { petId: '7', dry: true, name: 'R' }).line).toBe('PUT /pets/7?dry=true');
  });

  test('wins inside request too', () => {
    const tool = compileValidPolicies(declare('request: { query: { dry: "false" } }')).tools.get('pets.replacePet');
    expect(renderToolRequest(tool, { petId: '7', dry: true, name: 'R' })).toMatchObject({
      line: 'PUT /pets/7?dry=false',
      body: { name: 'R' },
    });
  });

  test('has no arguments for the key header and the headers of the upstream', () => {
    const parameters = ['Idempotency-Key', 'X-Api-Key'].map(
      (name) => `{ name: ${name}, in: header, required: true, schema: { type: string } }`,
    );
    const files = withOperation(`{ operationId: x, parameters: [${parameters.join(', ')}] }`);
    expect(Object.keys(compileValidPolicies(files).tools.get('pets.x')?.input['properties'] ?? {})).toEqual([
      'Idempotency-Key',
      'X-Api-Key',
    ]);
    const policy = `upstreams:
  pets: { adapter: http, url: "http://pets.example", headers: { x-api-key: secret }, import: api/pets.yaml }
tools:
  pets.x: { upstream: pets, once: { by: key, header: idempotency-key } }
`;
    expect(compileValidPolicies({ ...files, 'p.yaml': policy }).tools.get('pets.x')?.input['properties']).toEqual({});
  });

  test('must belong to that upstream', () => {
    const elsewhere = `${PETS_IMPORT_POLICY}  other: { adapter: http, url: "http://o" }\ntools:\n  pets.getPet: { upstream: other }\n`;
    expect(listPolicyFaults({ ...FILES, 'p.yaml': elsewhere })).toEqual([
      'policies/p.yaml:5:28: The upstream pets imports pets.getPet. Write upstream: pets (got other).',
    ]);
  });

  test('must declare what cannot be imported', () => {
    const upload = '{ operationId: x, requestBody: { required: true, content: { multipart/form-data: {} } } }';
    const why = 'The request body must be JSON (got multipart/form-data).';
    expect(listPolicyWarnings(withOperation(upload))).toEqual([
      `policies/api/pets.yaml:4:5: The operation is not imported as pets.x. ${why}`,
    ]);
    expect(compileValidPolicies(withOperation(upload)).tools.size).toBe(0);
    const declared = (keys: string) => ({
      ...withOperation(upload),
      'p.yaml': `${PETS_IMPORT_POLICY}tools:\n  pets.x: { upstream: pets, ${keys} }\n`,
    });
    expect(listPolicyFaults(declared('effect: write'))).toEqual([
      `policies/p.yaml:4:3: The request and input of pets.x cannot be imported and must be declared here. ${why}`,
    ]);
    expect(listPolicyFaults(declared('input: { type: object }, request: { path: /other }'))).toEqual([]);
    const pattern = withOperation(JSON_BODY('{ type: object, properties: { a: { type: string, pattern: "(a*)*" } } }'));
    expect(listPolicyWarnings(pattern)[0]).toMatch(
      /not imported as pets\.x\. At properties\.a\.pattern of its arguments: The pattern could stall/,
    );
    const own = `${PETS_IMPORT_POLICY}tools:\n  pets.x: { upstream: pets, input: { type: object } }\n`;
    expect(compileValidPolicies({ ...pattern, 'p.yaml': own }).tools.get('pets.x')?.request?.pathTemplate).toBe('/x');
  });
});

describe('the document', () => {
  test('is not read as a policy file, counts for the version, and its tools have rules and tests', () => {
    const agents = `agents:\n  bot: { rules: [{ allow: pets.*, effect: read }, { allow: pets.createPet, when: args.age > 1, approve: never }] }\n`;
    const tests = `tests:
  - { name: reads, agent: bot, tool: pets.getPet, args: { petId: "1" }, expect: allow }
  - { name: old pets, agent: bot, tool: pets.createPet, args: { name: a, age: 2 }, expect: allow }
  - { name: young pets, agent: bot, tool: pets.createPet, args: { name: a, age: 1 }, expect: deny }
  - { name: no writes, agent: bot, tool: pets.rename, args: { petId: "1", body: { petId: "2" } }, expect: deny }
`;
    const loaded = compilePolicyText({ ...FILES, 'agents.yaml': agents, 'p_test.yaml': tests });
    if (!loaded.ok) throw new Error(JSON.stringify(loaded.faults));
    expect(runPolicyTests(loaded.policies, loaded.tests).filter(({ passed }) => !passed)).toEqual([]);
    const version = (pets: string, more = {}) =>
      compileValidPolicies({ ...FILES, 'api/pets.yaml': pets, ...more }).version;
    expect(version(PETS_OPENAPI)).not.toBe(version(`${PETS_OPENAPI}# more\n`));
    expect(version(PETS_OPENAPI)).toBe(version(PETS_OPENAPI, { 'api/unused.json': '{' }));
    const digest = (pets: string) =>
      compileValidPolicies({ ...FILES, 'api/pets.yaml': pets }).tools.get('pets.getPet')?.digest;
    expect(digest(PETS_OPENAPI)).not.toBe(digest(PETS_OPENAPI.replaceAll('/pets/{petId}', '/cats/{petId}')));
    expect(digest(PETS_OPENAPI)).toBe(digest(`${PETS_OPENAPI}# more\n`));
  });

  test.each([
    ['../pets.yaml', 'import must be the path of an OpenAPI document'],
    ['/etc/pets.yaml', 'import must be the path of an OpenAPI document'],
    ['https://x.example/pets.yaml', 'There is no file https:/x.example/pets.yaml'],
    ['api/../../pets.yaml', 'import must be the path of an OpenAPI document'],
    ['pets.txt', 'import must be the path of an OpenAPI document'],
    ['nowhere.yaml', 'There is no file nowhere.yaml below the policies'],
  ])('must not be imported as %s', (file, why) => {
    expect(
      listPolicyFaults({ ...FILES, 'p.yaml': PETS_IMPORT_POLICY.replace('api/pets.yaml', file) }).join('\n'),
    ).toContain(why);
  });

  test.each([
    ['swagger: "2.0"\n', '1:1: The document must be OpenAPI 3.0 or 3.1 (got Swagger 2.0).'],
    ['openapi: 4.0.0\n', '1:10: The document must be OpenAPI 3.0 or 3.1 (got "4.0.0").'],
    ['tools: {}\n', '1:1: The document must be OpenAPI 3.0 or 3.1 (got a map).'],
    ['openapi: 3.1.0\npaths: []\n', '2:1: paths must be a map (got a list).'],
    ['openapi: 3.1.0\nx: &a 1\n', '2:7: YAML anchors are not allowed. Write the value out where it is used.'],
    ['openapi: 3.1.0\npaths:\n  /a:\n    get: 5\n', '4:10: get must be a map (got 5).'],
    [
      'openapi: 3.1.0\npaths:\n  /a/{b}:\n    get: {}\n',
      '4:5: The path has {b}, but no path parameter has this name. Declare it in parameters.',
    ],
    [
      'openapi: 3.1.0\npaths:\n  /a:\n    get: { parameters: [{ $ref: "#/components/parameters/X" }] }\n',
      '4:33: The reference "#/components/parameters/X" leads to nothing in this document.',
    ],
    [
      'openapi: 3.1.0\npaths:\n  /a:\n    get: { operationId: x }\n  /b:\n    get: { operationId: x }\n',
      '6:25: The operationId "x" is already used at policies/api/pets.yaml:4:25. Rename one of them.',
    ],
    [
      'openapi: 3.1.0\npaths:\n  /a: { $ref: "#/paths/~1b" }\n  /b: { $ref: "#/paths/~1a" }\n',
      '3:15: The reference leads back to itself. Remove the cycle.',
    ],
  ])('is refused when it is %j', (document, fault) => {
    expect(listPolicyFaults({ ...FILES, 'api/pets.yaml': document })).toContain(`policies/api/pets.yaml:${fault}`);
  });

  test('reports all its faults at once', () => {
    const document =
      'openapi: 3.1.0\npaths:\n  /a: { get: 1 }\n  /b: { get: { parameters: 2 } }\n  /c/{d}: { get: {} }\n';
    expect(listPolicyFaults({ ...FILES, 'api/pets.yaml': document })).toHaveLength(3);
  });

  test('must be imported by an upstream', () => {
    expect(listPolicyFaults({ 'a.yaml': PETS_OPENAPI })).toEqual([
      'policies/a.yaml:1:1: No upstream imports this OpenAPI document. Name its path in import of an http upstream, or remove it.',
    ]);
  });
});

describe('an unsupported part is reported and left out', () => {
  const parameter = (keys: string) => `{ operationId: x, parameters: [{ name: p, ${keys} }] }`;

  test.each([
    ['in: cookie, schema: { type: string }', 'cookies are not supported'],
    ['in: query, style: deepObject, schema: { type: object }', 'style: deepObject is not supported'],
    ['in: query, schema: { type: object }', 'it must be text, a number, a boolean or'],
    ['in: query, content: { application/json: {} }', 'it has no schema'],
    ['in: header, schema: { type: array, items: {} }', 'a list is supported only in a query'],
    ['in: body, schema: {}', 'in must be path, query or header (got body)'],
  ])('a parameter %s', (keys, why) => {
    expect(listPolicyWarnings(withOperation(parameter(keys))).join()).toContain(`${why}`);
    expect(listPolicyWarnings(withOperation(parameter(keys))).join()).toContain('It is left out.');
    expect(compileValidPolicies(withOperation(parameter(keys))).tools.get('pets.x')?.input['properties']).toEqual({});
    expect(listPolicyWarnings(withOperation(parameter(`required: true, ${keys}`))).join()).toContain(
      'not imported as pets.x',
    );
    expect(compileValidPolicies(withOperation(parameter(`required: true, ${keys}`))).tools.size).toBe(0);
  });

  test.each([
    ...[
      'Host',
      'Transfer-Encoding',
      'Oncegate-Lock-Token',
      'oncegate-txn',
      'X-HTTP-Method-Override',
      'x-method-override',
    ],
    ...[
      'X-HTTP-Method',
      'X-Original-URL',
      'X-Rewrite-URL',
      'X-Forwarded-Host',
      'X-Forwarded-For',
      'X-Host',
      'Forwarded',
    ],
  ])('a header that would change the request: %s', (name) => {
    const header = (more: string) => `{ operationId: x, parameters: [{ name: ${name}, in: header, ${more} }] }`;
    expect(listPolicyWarnings(withOperation(header('schema: {}'))).join()).toContain(
      'a tool must not write this header',
    );
    expect(compileValidPolicies(withOperation(header('schema: {}'))).tools.get('pets.x')?.input['properties']).toEqual(
      {},
    );
    expect(compileValidPolicies(withOperation(header('required: true, schema: {}'))).tools.size).toBe(0);
  });

  test.each([
    ['another document', JSON_BODY('{ $ref: "other.yaml#/X" }'), 'which is not fetched'],
    ['an address', JSON_BODY('{ $ref: "https://x.example/y" }'), 'which is not fetched'],
    ['a dynamic reference', JSON_BODY('{ $dynamicRef: "#x" }'), 'The schema keyword $dynamicRef is not supported.'],
    [
      'one name twice',
      '{ operationId: x, parameters: [{ name: p, in: query, schema: {} }, { name: p, in: header, schema: {} }] }',
      'Two parameters have the name "p"',
    ],
    [
      'a parameter called body',
      '{ operationId: x, parameters: [{ name: body, in: query, schema: {} }], requestBody: { content: { application/json: {} } } }',
      'A parameter must not be named "body"',
    ],
  ])('%s', (_name, operation, why) => {
    expect(listPolicyWarnings(withOperation(operation)).join()).toContain(why);
    expect(compileValidPolicies(withOperation(operation)).tools.size).toBe(0);
  });

  test('an argument named constructor, unless the arguments are the body', () => {
    expect(
      listPolicyWarnings(
        withOperation(parameter('in: query, schema: {}').replace('name: p', 'name: constructor')),
      ).join(),
    ).toContain('An argument must not be named "constructor".');
    const body = compileValidPolicies(
      withOperation(JSON_BODY('{ type: object, properties: { constructor: { type: string } } }')),
    );
    expect(renderToolRequest(body.tools.get('pets.x'), { constructor: 'a' } as never).body).toEqual({
      constructor: 'a',
    });
  });

  test('a parameter without a type accepts no object', () => {
    const tool = compileValidPolicies(withOperation(parameter('in: query, schema: {}'))).tools.get('pets.x');
    expect(tool?.faults({ p: 'a' })).toEqual([]);
    expect(tool?.faults({ p: { a: 1 } })).not.toEqual([]);
  });
});

describe('names of imported tools', () => {
  const named = (...ids: string[]) => {
    const paths = ids.map((id, index) => `  /p${index}: { get: { operationId: ${JSON.stringify(id)} } }\n`);
    const document = `openapi: 3.1.0\npaths:\n${paths.join('')}`;
    return [...compileValidPolicies({ 'p.yaml': PETS_IMPORT_POLICY, 'api/pets.yaml': document }).tools.keys()];
  };

  test('are accepted by policies and models', () => {
    expect(named('repos/list for org', 'a.b', 'Ünï', '_private')).toEqual([
      'pets.repos_list_for_org',
      'pets.a.b',
      'pets._n_',
      'pets._private',
    ]);
    const [long] = named('x'.repeat(300));
    expect(long).toMatch(/^pets\.x{49}_[0-9a-f]{8}$/);
  });

  test('that would be equal all get a hash, in any order', () => {
    const names = named('a/b', 'a b', 'c');
    expect(names).toEqual([
      expect.stringMatching(/^pets\.a_b_[0-9a-f]{8}$/),
      expect.stringMatching(/^pets\.a_b_[0-9a-f]{8}$/),
      'pets.c',
    ]);
    expect(new Set(names).size).toBe(3);
    expect(named('a/b')).toEqual(['pets.a_b']);
    expect(named('a.b', 'a__b')).toEqual([
      expect.stringMatching(/^pets\.a\.b_/),
      expect.stringMatching(/^pets\.a__b_/),
    ]);
  });
});
