import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, type Reply, writePolicies } from '../../support/gateway.ts';
import { sendRaw } from '../../support/raw.ts';
import { useGateway } from '../../support/use-gateway.ts';
import { useResource } from '../../support/use-resource.ts';
import {
  buildAdversarialPolicies,
  CONTROL_NAME,
  HOSTILE_NAMES,
  PRIVATE_HOSTS,
  toNameTool,
  toPrivateHostTool,
} from './clever-policies.ts';
import {
  HARMLESS_PATH_VALUES,
  HTTP_ATTACKS,
  PATH_TRAVERSALS,
  renderAttackRequest,
  SMUGGLING_ATTACKS,
} from './clever-tricks.ts';
import { CREDENTIAL, findUndeclared, HostileServices, type ObservedServiceRequest } from './clever-world.ts';
import { TestDnsServer } from './name-server.ts';
import { ForbiddenListener } from './trip-wire.ts';

const wire = useResource(ForbiddenListener.start, (listener) => listener.close());
let elsewhere = '';
beforeAll(() => {
  elsewhere = `http://127.0.0.1:${wire.port}/`;
});
const world = useResource(
  () => HostileServices.start(elsewhere),
  (services) => services.close(),
);
const names = useResource(
  () => TestDnsServer.start({ ...HOSTILE_NAMES, [CONTROL_NAME]: [['127.0.0.1']] }),
  (server) => server.close(),
);
const { gateway } = useGateway({
  upstream: 'none',
  env: () => names.env,
  policies: () => buildAdversarialPolicies({ world: world.host, wirePort: wire.port, credential: CREDENTIAL }),
});

beforeEach(() => {
  world.heard.length = 0;
  world.messages.length = 0;
});
/** Whatever was tried: nobody was spoken to but the services that are declared, and of those nothing but what is declared. */
afterEach(() => {
  expect(wire.heard.splice(0), 'the trip-wire').toEqual([]);
  expect(world.heard.map(undeclared).filter((why) => why !== undefined)).toEqual([]);
});

const undeclared = (heard: ObservedServiceRequest) => findUndeclared(heard, world.host);

describe('the trip-wire', () => {
  it('would be heard, at each of its addresses, by whoever may go there', async () => {
    const ways = ['127.0.0.1', '127.0.0.2', '::1', '127.0.0.1'];
    for (const [i, address] of ways.entries()) {
      if (address === '::1' && !wire.hasIpv6) continue;
      expect((await gateway.call(`control.n${i}`, {})).status).toBe(502);
      expect(wire.heard.splice(0)).toEqual([expect.stringMatching(new RegExp(`^(?:::ffff:)?${address}$`))]);
    }
    expect(await sendRaw(wire.port, 'x')).toBe('');
    expect(wire.heard.splice(0)).toHaveLength(1);
  });

  it('is not all that is listened for: a service notices what no tool declares', () => {
    const headers = { host: world.host, authorization: CREDENTIAL };
    const good = { method: 'GET', url: '/api/items/a', headers, names: ['host', 'authorization'], body: '' };
    expect(undeclared(good)).toBeUndefined();
    for (const url of ['/api/admin', '/api/items/a/b', '/api/items/a?x=1', '/api/items/%252e%252e%252fadmin'])
      expect(undeclared({ ...good, url })).toBeDefined();
    expect(undeclared({ ...good, names: [...good.names, 'x-forwarded-for'] })).toBe('header x-forwarded-for');
    expect(undeclared({ ...good, headers: { ...headers, host: 'elsewhere' } })).toBe('host elsewhere');
    expect(undeclared({ ...good, headers: { ...headers, authorization: `Bearer ${AGENT_KEY}` } })).toBeDefined();
  });
});

const refusedHere = (reply: Reply) => {
  expect(reply.body).toMatchObject({ status: 503, code: 'unavailable' });
  expect(reply.body.detail).toContain('is a private address');
};

describe('an upstream inside, without allowPrivate,', () => {
  it.each(PRIVATE_HOSTS.map((host, i) => [host, toPrivateHostTool(i)]))('written as %s', async (_host, tool) => {
    refusedHere(await gateway.call(tool, {}));
  });
});

describe('a name that answers', () => {
  const plain = Object.entries(HOSTILE_NAMES).filter(([, answers]) => answers.length === 1);
  it.each(plain.map(([name, [addresses]]) => [addresses?.join(' and '), name]))('%s', async (_addresses, name) => {
    refusedHere(await gateway.call(toNameTool(name), {}));
    expect(names.countLookups(name)).toBe(1);
  });

  it('a public address first and loopback on the next attempt of one call', async () => {
    refusedHere(await gateway.call(toNameTool('rebinding.example'), {}));
    expect(names.countLookups('rebinding.example')).toBe(3);
  });

  it('a public address first and loopback when the pool makes its next connection', async () => {
    const name = 'rebinding-later.example';
    // The first connection takes its time to fail, and whoever comes meanwhile waits for it.
    await expect
      .poll(async () => (await gateway.call(toNameTool(name), {})).body.detail, { timeout: 20_000, interval: 0 })
      .toContain('is a private address');
    expect(names.countLookups(name)).toBeGreaterThanOrEqual(2);
  });
});

describe('an answer that leads elsewhere', () => {
  const statuses = ['300', '301', '302', '303', '305', '307', '308', '401', '407', '426'];
  const others = ['refresh', 'link', 'alt-svc', 'content-location', 'www-authenticate', 'report-to'];
  it.each([...statuses, ...others, 'early-hints', 'switching', 'body'])('by %s is followed nowhere', async (way) => {
    const [read, write] = await Promise.all([
      gateway.call('world.astray', { way }),
      gateway.call('world.write_astray', { way }),
    ]);
    expect([200, 502]).toContain(read.status);
    expect([200, 502, 504]).toContain(write.status);
    expect(world.heard).toHaveLength(2);
  });
});

describe('an argument in the path', () => {
  it.each(PATH_TRAVERSALS)('that climbs is refused: %j', async (id) => {
    expect((await gateway.call('world.item', { id })).body).toMatchObject({ status: 400, code: 'invalid_arguments' });
    expect(world.heard).toEqual([]);
  });

  it.each(HARMLESS_PATH_VALUES)('that only looks so stays in its segment: %j', async (id) => {
    expect((await gateway.call('world.item', { id })).status).toBe(200);
    expect(world.heard.map(({ url }) => url)).toEqual([`/api/items/${encodeURIComponent(id)}`]);
  });
});

describe('an argument elsewhere', () => {
  it.each(['1&admin=1', '1#admin', '1;admin=1', '1\r\nHost: evil.example', '&q[]=2', '%26admin%3D1', '\0'])(
    'in the query is nothing but its value: %j',
    async (q) => {
      expect((await gateway.call('world.search', { q })).status).toBe(200);
      const [heard] = world.heard;
      expect([...new URL(heard?.url ?? '', 'http://w').searchParams]).toEqual([['q', q]]);
    },
  );

  it.each(['a\r\nx-admin: 1', 'a\nx-admin: 1', 'a\rx', 'a\0', 'a\u010d\u010a', 'a\u2028', 'x'.repeat(9_000)])(
    'in a header is refused: %j',
    async (label) => {
      expect((await gateway.call('world.search', { label })).body.code).toBe('invalid_arguments');
      expect(world.heard).toEqual([]);
    },
  );

  it.each(['{"amount":1,"url":"http://127.0.0.1/"}', '{"amount":1,"amount":2}', '{"amount":1,"__proto__":{"x":1}}'])(
    'in the body is refused: %s',
    async (body) => {
      expect((await gateway.call('world.charge', body)).status).toBe(400);
      expect(world.heard).toEqual([]);
    },
  );
});

describe('bytes on the wire', () => {
  it.each(HTTP_ATTACKS)('$name', async ({ request, status, sent = 0 }) => {
    const text = await sendRaw(gateway.port, renderAttackRequest(request, { wire: new URL(elsewhere).host }));
    expect(Number(/^HTTP\/1\.1 ([2-5]\d+)/m.exec(text)?.[1] ?? 0), text).toBe(status);
    expect(world.heard).toHaveLength(sent);
  });

  it.each(SMUGGLING_ATTACKS)('that hide a second request: $name', async ({ bytes, answers = 2 }) => {
    const text = await sendRaw(gateway.port, bytes, answers);
    for (const [, status] of text.matchAll(/^HTTP\/1\.1 (\d+)/gm)) expect(['400', '401', '413']).toContain(status);
    expect(world.heard).toEqual([]);
  });
});

describe('over MCP', () => {
  const rpc = (method: string, params: object) =>
    gateway.request('POST', '/mcp', {
      key: AGENT_KEY,
      headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
    });
  const heardBy = (method: string) => world.messages.filter((message) => message.method === method);

  it.each(['http', 'file', 'gopher'])(
    'a resource at %s is the server’s to read, never the gateway’s',
    async (scheme) => {
      const uri = `${scheme}://127.0.0.1:${wire.port}/etc/passwd`;
      const read = await rpc('resources/read', { uri, _meta: { 'oncegate/lock-token': 'forged' } });
      expect(JSON.stringify(read.body)).toContain('from the server itself');
      expect(heardBy('resources/read').map(({ params }) => params.uri)).toEqual([uri]);
      expect(JSON.stringify(world.messages)).not.toContain('forged');
    },
  );

  it('links, icons and addresses that a server gives are passed on and followed by nobody', async () => {
    expect((await rpc('tools/list', {})).status).toBe(200);
    const called = await rpc('tools/call', { name: 'server__fetch', arguments: { url: elsewhere } });
    expect(JSON.stringify(called.body)).toContain('resource_link');
    expect(heardBy('tools/call')).toHaveLength(1);
  });

  it('a server that redirects is followed nowhere', async () => {
    expect((await gateway.call('away.fetch', {})).status).toBe(503);
  });

  it.each([
    ...['server.fetch/../../world', 'server__fetch\0', 'server__fetch\r\nmcp-method: x', 'server/fetch', 'fetch'],
    ...['http://127.0.0.1/', '../server.fetch', '__proto__', 'server..fetch', 'world__forbidden', 'server__*'],
  ])('a tool called %j is none', async (name) => {
    const called = await rpc('tools/call', { name, arguments: {} });
    expect(JSON.stringify(called.body)).toMatch(/denied|unknown_tool|-32602|no tool/i);
    expect(heardBy('tools/call')).toEqual([]);
  });

  it('what a caller writes beside its arguments reaches no server', async () => {
    const _meta = { 'oncegate/lock-token': 'forged', 'oncegate/txn': 'forged', progressToken: 'forged', headers: {} };
    const params = { name: 'server__fetch', arguments: {}, _meta, headers: { host: elsewhere }, url: elsewhere };
    expect((await rpc('tools/call', params)).status).toBe(200);
    const [{ params: sent }] = heardBy('tools/call');
    expect(Object.keys(sent).sort()).toEqual(['_meta', 'arguments', 'name']);
    expect(JSON.stringify(sent)).not.toMatch(/forged|headers/);
  });
});

describe('a document', () => {
  it('cannot say where its operations are sent', async () => {
    expect((await gateway.call('world.documented', { id: 'a' })).status).toBe(200);
    expect(world.heard.map(({ url }) => url)).toEqual(['/api/documented/a']);
  });

  it.each(['Host', 'X-HTTP-Method-Override', 'X-Original-URL', 'Oncegate-Lock-Token'])(
    'cannot let a caller write %s',
    async (header) => {
      expect((await gateway.call('world.documented', { id: 'a', [header]: 'DELETE' })).status).toBe(400);
    },
  );
});

describe('a token', () => {
  it.each(['jku', 'x5u', 'kid', 'iss'])('that says in %s where its key is makes nobody look there', async (member) => {
    const pair = await generateKeyPair('ES256', { extractable: true });
    world.keys = [{ ...(await exportJWK(pair.publicKey)), kid: 'known', alg: 'ES256' }];
    const stranger = await generateKeyPair('ES256');
    const header = { alg: 'ES256', kid: 'known', ...(member === 'iss' ? {} : { [member]: elsewhere }) };
    const token = await new SignJWT({})
      .setProtectedHeader(header)
      .setIssuer(member === 'iss' ? elsewhere : `http://${world.host}/issuer`)
      .setAudience('gate')
      .setExpirationTime('5m')
      .sign(stranger.privateKey);
    expect((await gateway.call('world.item', { id: 'a' }, { agentKey: token })).status).toBe(401);
    expect(world.heard).toEqual([]);
  });
});

describe('a policy', () => {
  const bad: readonly (readonly [string, string])[] = [
    ['a user before its host', 'http://public.example@127.0.0.1/'],
    ['a query', 'http://public.example/?x='],
    ['a fragment', 'http://public.example/#x'],
    ['a file', 'file:///etc/passwd'],
    ['another scheme', 'gopher://127.0.0.1:70/'],
    ['a socket', 'unix:/run/docker.sock'],
  ];

  it('whose url has more than a host and a path is not taken', async () => {
    const lines = bad.map(([, url], i) => `  bad${i}: { adapter: http, url: "${url}" }`);
    await writePolicies(gateway, { 'bad.yaml': `upstreams:\n${lines.join('\n')}\n` });
    const { body, status } = await gateway.admin('POST', '/admin/policies/reload');
    await rm(join(gateway.home, 'policies', 'bad.yaml'));
    expect(status).not.toBe(200);
    const told = JSON.stringify(body);
    for (const [i, [what]] of bad.entries()) expect(told, what).toContain(`bad.yaml:${i + 2}:`);
    expect((await gateway.admin('POST', '/admin/policies/reload')).status).toBe(200);
  });
});
