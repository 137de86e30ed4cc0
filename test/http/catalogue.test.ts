// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { describe, expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const SECRET = 'upstream-credential-5f2c';

const { gateway, upstream } = useGateway({
  env: { CATALOGUE_TOKEN: SECRET },
  policies: (url) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, headers: { authorization: "Bearer \${env.CATALOGUE_TOKEN}" } }
tools:
  shop.order:
    upstream: world
    description: Order a thing.
    input: { type: object, properties: { id: { type: string, description: which } }, required: [id] }
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: irreversible }
  shop.find:
    upstream: world
    effect: read
    description: Find a thing.
    input: { type: object, properties: { id: { type: string } } }
    request: { method: GET, path: "/read/items/\${args.id}" }
  shop.delete_all: { upstream: world, request: { method: POST, path: /none/a } }
  shop.conditional: { upstream: world, request: { method: POST, path: /none/b } }
  shop.half_denied: { upstream: world, request: { method: POST, path: /none/c } }
  deep.er.name: { upstream: world, effect: read, request: { method: GET, path: /read/items/deep } }
  other.tool: { upstream: world, request: { method: POST, path: /none/d } }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: shop.conditional
        when: args.size() > 100
      - deny: shop.half_denied
        when: args.size() > 100
      - deny: "*.delete_*"
      - allow: shop.*
      - allow: deep.*
        effect: read
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules:
      - allow: "*"
        effect: read
${PEOPLE_YAML}`,
});

const names = (tools: { name: string }[]) => tools.map((tool) => tool.name).sort();

describe('GET /v1/tools', () => {
  it('lists the tools that the agent may call, and no others', async () => {
    const mine = await gateway.get('/v1/tools');
    expect(mine.status).toBe(200);
    expect(names(mine.body.tools)).toEqual([
      'deep.er.name',
      'shop.conditional',
      'shop.find',
      'shop.half_denied',
      'shop.order',
    ]);
    const theirs = await gateway.get('/v1/tools', OTHER_AGENT_KEY);
    expect(names(theirs.body.tools)).toEqual(['deep.er.name', 'shop.find']);
  });

  it('describes each tool with its schema', async () => {
    const { tools } = (await gateway.get('/v1/tools')).body;
    expect(tools.find((tool: { name: string }) => tool.name === 'shop.order')).toEqual({
      name: 'shop.order',
      description: 'Order a thing.',
      input: {
        type: 'object',
        properties: { id: { type: 'string', description: 'which' } },
        required: ['id'],
      },
      effect: 'write',
      once: 'key',
      undo: 'irreversible',
    });
  });

  it('offers the formats of model vendors', async () => {
    const openai = (await gateway.get('/v1/tools?format=openai', OTHER_AGENT_KEY)).body.tools;
    expect(openai).toContainEqual({
      type: 'function',
      function: {
        name: 'shop__find',
        description: 'Find a thing.',
        parameters: { type: 'object', properties: { id: { type: 'string' } } },
      },
    });
    const anthropic = (await gateway.get('/v1/tools?format=anthropic', OTHER_AGENT_KEY)).body.tools;
    expect(anthropic).toContainEqual({
      name: 'shop__find',
      description: 'Find a thing.',
      input_schema: { type: 'object', properties: { id: { type: 'string' } } },
    });
    for (const { name } of anthropic) expect(name).toMatch(/^[A-Za-z0-9_-]{1,64}$/);
    expect(names(anthropic)).toEqual(['deep__er__name', 'shop__find']);
  });

  it.each(['gemini', '', 'constructor', '__proto__', 'toString', 'openai&format=anthropic'])(
    'refuses the format %j',
    async (format) => {
      const refused = await gateway.get(`/v1/tools?format=${format}`);
      expect(refused.status).toBe(400);
      expect(refused.body.code).toBe('malformed');
    },
  );

  it('offers vendor names that can be called unchanged', async () => {
    for (const { name } of (await gateway.get('/v1/tools?format=anthropic', OTHER_AGENT_KEY)).body.tools) {
      const answer = await gateway.call(name, { id: 'deep' }, { agentKey: OTHER_AGENT_KEY });
      expect(answer.status, name).toBe(200);
      expect(answer.body.tool).toBe(name.replaceAll('__', '.'));
    }
  });

  it('treats the dotted name and the vendor name as one tool', async () => {
    const dotted = await gateway.call('shop.order', { id: 'either' }, { key: 'either' });
    const vendor = await gateway.call('shop__order', { id: 'either' }, { key: 'either' });
    expect(vendor.body).toEqual({ ...dotted.body, replayed: true });
    expect((await gateway.call('shop__delete_all', {})).body.code).toBe('denied');
  });
});

describe('GET /openapi.json', () => {
  it('is OpenAPI 3.1, and adds the tools of the agent whose key is sent', async () => {
    const open = await gateway.request('GET', '/openapi.json');
    expect(open.status).toBe(200);
    expect(open.body.openapi).toBe('3.1.0');
    expect(Object.keys(open.body.paths).filter((path) => /tools\/[^{]/.test(path))).toEqual([]);
    const mine = await gateway.get('/openapi.json', OTHER_AGENT_KEY);
    expect(
      Object.keys(mine.body.paths)
        .filter((path) => /tools\/[^{]/.test(path))
        .sort(),
    ).toEqual(['/v1/tools/deep.er.name', '/v1/tools/shop.find']);
    const refs = JSON.stringify(mine.body).match(/"#\/[^"]+"/g) ?? [];
    for (const ref of new Set(refs)) {
      const found = JSON.parse(ref)
        .split('/')
        .slice(1)
        .reduce((at: Record<string, unknown> | undefined, part: string) => at?.[part] as never, mine.body);
      expect(found, ref).toBeDefined();
    }
    expect((await gateway.get('/openapi.json', 'no-such-key')).status).toBe(401);
  });

  it('contains no credential, address or rule', async () => {
    const all = [
      await gateway.get('/openapi.json'),
      await gateway.get('/v1/tools'),
      await gateway.get('/v1/tools?format=openai'),
      await gateway.request('GET', '/'),
      await gateway.request('GET', '/readyz'),
    ];
    for (const { body } of all) {
      const text = typeof body === 'string' ? body : JSON.stringify(body);
      for (const hidden of [SECRET, upstream.url, 'size() > 100']) expect(text).not.toContain(hidden);
    }
  });
});

it('GET on a tool explains how to call the tool', async () => {
  const reply = await gateway.get('/v1/tools/shop.find?x=1');
  const detail = 'There is no GET /v1/tools/shop.find. Call a tool with POST /v1/tools/{tool}.';
  expect([reply.status, reply.body.code, reply.body.detail]).toEqual([404, 'not_found', detail]);
  expect((await gateway.get('/v1/tolls/shop.find')).body.detail).toBe('There is no GET /v1/tolls/shop.find.');
});
