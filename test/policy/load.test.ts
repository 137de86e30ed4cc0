// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { ExpressionError } from '../../gateway/domain/policy.ts';
import { renderUndoArguments } from '../../gateway/policy/compile/render-undo-arguments.ts';
import { importMcpTools } from '../../gateway/policy/import-mcp-tools.ts';
import { loadPolicies } from '../../gateway/policy/load-policies.ts';
import { buildPolicyJsonSchema } from '../../gateway/policy/policy-file-schema.ts';
import { compilePolicyText, compileValidPolicies, EXAMPLE_POLICY, HEX_A, HEX_B, UPSTREAM_YAML } from './example.ts';

async function directory(files: Record<string, string>): Promise<string> {
  const dir = await mkdtemp(path.join(tmpdir(), 'oncegate-policies-'));
  onTestFinished(() => rm(dir, { recursive: true }));
  for (const [name, text] of Object.entries(files)) {
    await mkdir(path.dirname(path.join(dir, name)), { recursive: true });
    await writeFile(path.join(dir, name), text);
  }
  return dir;
}

describe('the example policy', () => {
  const policies = compileValidPolicies(EXAMPLE_POLICY, { PAYMENTS_TOKEN: 'tok-123456' });

  test('has upstreams', () => {
    expect(policies.upstreams.get('payments')).toEqual({
      name: 'payments',
      adapter: 'http',
      url: 'https://api.payments.example/v1',
      headers: { authorization: 'Bearer tok-123456' },
      secrets: ['Bearer tok-123456', 'tok-123456'],
      timeoutMs: 10_000,
      concurrency: 32,
      breaker: { threshold: 0.5, minimum: 10, windowMs: 10_000, cooldownMs: 15_000 },
      allowPrivate: true,
      expose: 'prefixed',
    });
    expect(policies.upstreams.get('crm')).toMatchObject({ adapter: 'mcp', import: '*', allowPrivate: false });
  });

  test('has a tool', () => {
    const tool = policies.tools.get('payments.charge');
    expect(tool).toMatchObject({
      effect: 'write',
      once: { by: 'key', header: 'Idempotency-Key', lifetimeMs: 86_400_000 },
      undo: { kind: 'compensable', tool: 'payments.refund' },
      timeoutMs: 5_000,
      retry: { attempts: 5, baseMs: 200, maxMs: 30_000, withinMs: 3_600_000 },
      redact: [['args', 'card']],
      maxResultBytes: 1_048_576,
    });
    const args = { amount: 5, card: 'c1', order_id: 7 };
    expect(tool?.request?.body?.({ args })).toBe(args);
    expect(tool?.request?.path({ args })).toBe('/charges');
    expect(tool?.key?.of({ args })).toBe(7);
    expect(tool?.locks.map(({ keys, mode, for: scope }) => [keys({ args }), mode, scope])).toEqual([
      [['card/c1'], 'exclusive', 'call'],
    ]);
    expect(renderUndoArguments(tool?.undo.template ?? null, { args, result: { id: 'ch_1' } })).toEqual({
      charge: 'ch_1',
      amount: 5,
    });
    expect(() => tool?.key?.of({ args: {} })).toThrow(ExpressionError);
    expect(tool?.faults(args)).toEqual([]);
    expect(tool?.faults({ amount: 'x' })).toEqual(['args must have "card"', 'args.amount must be integer']);
  });

  test('has rules and people', () => {
    const [first] = policies.agents.get('billing-bot')?.rules ?? [];
    expect(first).toMatchObject({
      id: 'billing-bot rule 1 (policies/p.yaml:38)',
      rate: { limit: 20, perMs: 60_000 },
      budget: { max: 200_000, perMs: 86_400_000 },
      approve: { by: ['finance'], quorum: 1, withinMs: 3_600_000 },
    });
    expect(first?.budget?.sum({ args: { amount: 12 } })).toBe(12);
    expect(policies.agents.get('billing-bot')?.keys.map((key) => key.toString('hex'))).toEqual([HEX_A]);
    expect(policies.people.get('alice')).toMatchObject({ roles: ['approver', 'operator'], groups: ['finance'] });
  });
});

describe('defaults', () => {
  const tool = compileValidPolicies(`${UPSTREAM_YAML}tools:\n  a.b.send: { upstream: u }\n`).tools.get('a.b.send');

  test('of a tool', () => {
    expect(tool).toMatchObject({
      description: '',
      input: { type: 'object' },
      effect: 'write',
      once: { by: 'none' },
      undo: { kind: 'none' },
      locks: [],
      timeoutMs: 10_000,
      retry: { attempts: 5, baseMs: 200, maxMs: 30_000, withinMs: 3_600_000 },
      noEffect: new Set([400, 401, 403, 404, 422, 429]),
      redact: [],
      maxResultBytes: 1_048_576,
      repeats: { policy: 'replay', windowMs: 60_000 },
      request: { method: 'POST', pathTemplate: '/send', query: {}, headers: {} },
    });
    expect(tool?.digest).toMatch(/^[0-9a-f]{64}$/);
  });

  test('of the body depend on the method', () => {
    const bodies = ['GET', 'HEAD', 'DELETE', 'PUT'].map((method) => {
      const yaml = `${UPSTREAM_YAML}tools:\n  t: { upstream: u, request: { method: ${method} } }\n`;
      return compileValidPolicies(yaml).tools.get('t')?.request?.body !== undefined;
    });
    expect(bodies).toEqual([false, false, false, true]);
  });

  test('of settles and lifetime', () => {
    const yaml = `${UPSTREAM_YAML}tools:
  r: { upstream: u, effect: read }
  p: { upstream: u, once: { by: probe, probe: { tool: r, args: { id: "\${args.id}" }, applied: result.id == args.id } } }
  k: { upstream: u, once: { by: key, field: meta.key } }
`;
    const { tools } = compileValidPolicies(yaml);
    const once = tools.get('p')?.once;
    expect(once).toMatchObject({ by: 'probe', tool: 'r', settlesMs: 30_000 });
    if (once?.by === 'probe') {
      expect(once.args({ args: { id: 3 } })).toEqual({ id: 3 });
      expect(once.applied({ args: { id: 3 }, result: { id: 3 } })).toBe(true);
    }
    expect(tools.get('k')?.once).toEqual({ by: 'key', field: ['meta', 'key'], lifetimeMs: 86_400_000 });
  });

  test('of an undo may use before of an observation', () => {
    const yaml = `${UPSTREAM_YAML}tools:
  r: { upstream: u, effect: read }
  t:
    upstream: u
    observe: { tool: r, satisfied: observed.state == args.state }
    undo: { kind: reversible, tool: t, args: { state: "\${before.state}" } }
`;
    const t = compileValidPolicies(yaml).tools.get('t');
    expect(t?.observe?.satisfied({ observed: { state: 1 }, args: { state: 1 } })).toBe(true);
    expect(renderUndoArguments(t?.undo.template ?? null, { args: {}, before: { state: 'old' } })).toEqual({
      state: 'old',
    });
  });
});

describe('keys and secrets', () => {
  test('an empty key is skipped, and an agent may have several', () => {
    const yaml = 'agents:\n  a: { keys: ["${env.ONE}", "${env.TWO}", "sha256:${env.THREE}"], rules: [] }\n';
    const keys = compileValidPolicies(yaml, { ONE: `sha256:${HEX_A}`, TWO: '', THREE: '' }).agents.get('a')?.keys;
    expect(keys?.map((key) => key.toString('hex'))).toEqual([HEX_A]);
    expect(
      compileValidPolicies(yaml, { ONE: '', TWO: `sha256:${HEX_A}`, THREE: HEX_B }).agents.get('a')?.keys,
    ).toHaveLength(2);
  });

  test.each([
    ['http://x/hooks/${env.S}/in', 'a-secret-token', ['a-secret-token']],
    ['http://${env.S}/hooks/in', 'host.example', []],
    ['${env.S}/hooks', 'http://host.example/base', []],
    ['http://x/v1/${env.S}', 'short', []],
    ['${env.S}', 'https://host.example/services/a-long-secret-token/', ['a-long-secret-token']],
    ['${env.S}/in', 'https://host.example/a-long-secret-token', ['a-long-secret-token']],
    ['https://${env.S}', 'host.example/a-long-secret-token', ['a-long-secret-token']],
    ['${env.S}', 'https://host.example/api/v2/payments', []],
    ['http://x/${env.S}', 'of two/words', ['of%20two/words', 'of two/words']],
  ])('a value of the environment in the path of %s is a secret, and the host is none', (url, value, secrets) => {
    const yaml = `upstreams:\n  u: { adapter: http, url: "${url}" }\n`;
    expect(compileValidPolicies(yaml, { S: value }).upstreams.get('u')?.secrets).toEqual(secrets);
  });

  test('headers that describe a message are no secrets, unless their value comes from the environment', () => {
    const headers =
      '{ Accept: application/json, accept-language: en-GB-oxendict, content-type: application/json, user-agent: oncegate-demo, api-version: 2026-07-28, x-api-key: literal-key, prefer: "tenant=${env.S}" }';
    const u = compileValidPolicies(`upstreams:\n  u: { adapter: http, url: "http://x", headers: ${headers} }\n`, {
      S: 'a-tenant',
    });
    expect(u.upstreams.get('u')?.secrets).toEqual(['tenant=a-tenant', 'literal-key', 'a-tenant']);
  });

  test('a value of the environment in a command is a secret, unless it is a path', () => {
    const yaml =
      'upstreams:\n  u: { adapter: mcp, command: [node, "${env.HOME}/server.mjs", "--token=${env.S}", "${env.PORT}"] }\n';
    const u = compileValidPolicies(yaml, { S: 'a-secret-token', PORT: '8080', HOME: '/srv/world' }).upstreams.get('u');
    expect(u?.command).toEqual(['node', '/srv/world/server.mjs', '--token=a-secret-token', '8080']);
    expect(u?.secrets).toEqual(['a-secret-token']);
  });

  test('secret files are trimmed, and short values are no secrets', async () => {
    const dir = await directory({ token: ' file-secret \n' });
    const yaml = `upstreams:\n  u: { adapter: http, url: "http://x", headers: { a: "T \${file("${dir}/token")}", b: "\${env.S}" } }\n`;
    const quoted = yaml.replace(`"T \${file("${dir}/token")}"`, `'T \${file("${dir}/token")}'`);
    const u = compileValidPolicies(quoted, { S: 'abc' }).upstreams.get('u');
    expect(u?.headers).toEqual({ a: 'T file-secret', b: 'abc' });
    expect(u?.secrets).toEqual(['T file-secret', 'file-secret']);
  });
});

describe('loading from disk', () => {
  test('reads every YAML file below, separates tests and ignores other files', async () => {
    const dir = await directory({
      'a.yaml': UPSTREAM_YAML,
      'deep/er/b.yml': 'tools:\n  t: { upstream: u }\n',
      'a_test.yaml': 'tests: []\n',
      'notes.txt': '{{{',
      '.hidden.yaml': '{{{',
      'schema.json': '{}',
    });
    const loaded = await loadPolicies({ dir, env: {} });
    expect(loaded).toMatchObject({ ok: true, tests: [] });
    if (loaded.ok) expect([...loaded.policies.tools.keys()]).toEqual(['t']);
  });

  test('reports a missing directory as a fault', async () => {
    expect(await loadPolicies({ dir: '/nope/policies', env: {} })).toEqual({
      ok: false,
      faults: [
        {
          file: '/nope/policies',
          line: 1,
          column: 1,
          message: 'The directory cannot be read (ENOENT). Check that it exists and is readable.',
        },
      ],
      warnings: [],
    });
  });

  test('computes the version from names and bytes, without secrets', () => {
    const yaml = EXAMPLE_POLICY;
    const one = compileValidPolicies(yaml, { PAYMENTS_TOKEN: 'a' }).version;
    expect(one).toMatch(/^[0-9a-f]{16}$/);
    expect(compileValidPolicies(yaml, { PAYMENTS_TOKEN: 'b' }).version).toBe(one);
    expect(compileValidPolicies({ 'other.yaml': yaml }, { PAYMENTS_TOKEN: 'a' }).version).not.toBe(one);
    expect(compileValidPolicies(`${yaml}# x\n`, { PAYMENTS_TOKEN: 'a' }).version).not.toBe(one);
  });
});

test('policies are deeply frozen', () => {
  const policies = compileValidPolicies(EXAMPLE_POLICY, { PAYMENTS_TOKEN: 'x' });
  const tool = policies.tools.get('payments.charge');
  expect(() => (policies.tools as Map<string, unknown>).set('x', 1)).toThrow(TypeError);
  expect(() => (tool as { noEffect: Set<number> } | undefined)?.noEffect.add(500)).toThrow(TypeError);
  expect(() => Object.assign(tool?.retry ?? {}, { attempts: 9 })).toThrow(TypeError);
  expect(() => Object.assign(tool?.input ?? {}, { type: 'x' })).toThrow(TypeError);
});

test('the digest of a contract changes with the contract and with its upstream', () => {
  const digest = (yaml: string) => compileValidPolicies(yaml).tools.get('t')?.digest;
  const base = `${UPSTREAM_YAML}tools:\n  t: { upstream: u, description: x }\n`;
  expect(digest(base)).toBe(digest(`# comment\n${base}`));
  expect(digest(base)).not.toBe(digest(base.replace('description: x', 'description: y')));
  expect(digest(base)).not.toBe(digest(base.replace('u.example', 'evil.example')));
});

test('tools of an MCP server are writes with once: none, unless a contract says otherwise', () => {
  const yaml =
    'upstreams:\n  crm: { adapter: mcp, command: [x], import: "*_x" }\ntools:\n  crm.get_x: { upstream: crm, effect: read }\n';
  const inputSchema = { type: 'object', properties: { id: { type: 'string' } }, required: ['id'] };
  const { policies, skipped } = importMcpTools(compileValidPolicies(yaml), 'crm', [
    { name: 'get_x', description: 'Gets', inputSchema },
    { name: 'put_x', description: 'Puts', inputSchema },
    { name: 'other' },
    { name: 'bad name_x' },
    { name: 'slow_x', inputSchema: { properties: { a: { pattern: '(a*)*' } } } },
  ]);
  expect([...policies.tools.keys()]).toEqual(['crm.get_x', 'crm.put_x']);
  expect(policies.tools.get('crm.get_x')).toMatchObject({ effect: 'read', description: 'Gets', input: inputSchema });
  expect(policies.tools.get('crm.put_x')).toMatchObject({ effect: 'write', once: { by: 'none' } });
  expect(policies.tools.get('crm.put_x')?.faults({})).toEqual(['args must have "id"']);
  expect(skipped.map(({ name }) => name)).toEqual(['crm.bad name_x', 'crm.slow_x']);
});

test('policies/schema.json is up to date (UPDATE=1 writes it)', async () => {
  const file = new URL('../../policies/schema.json', import.meta.url);
  const text = `${JSON.stringify(buildPolicyJsonSchema(), null, 2)}\n`;
  if (process.env['UPDATE'] === '1') await writeFile(file, text);
  expect(JSON.parse(await readFile(file, 'utf8'))).toEqual(JSON.parse(text));
});

test('the example policy fits the JSON Schema', async () => {
  const { Ajv2020 } = await import('ajv/dist/2020.js');
  const validate = new Ajv2020({ strict: false }).compile(buildPolicyJsonSchema());
  const { parse } = await import('yaml');
  expect(validate(parse(EXAMPLE_POLICY)), JSON.stringify(validate.errors)).toBe(true);
  expect(validate({ tool: {} })).toBe(false);
  expect(compilePolicyText('tool: {}').ok).toBe(false);
});
