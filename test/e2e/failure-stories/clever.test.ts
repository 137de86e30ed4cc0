import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, type Reply, writePolicies } from '../../support/gateway.ts';
import { sendRaw } from '../../support/raw.ts';
import { useGateway } from '../../support/use-gateway.ts';
import { useResource } from '../../support/use-resource.ts';
import {
  HARMLESS_PATH_VALUES,
  HTTP_ATTACKS,
  PATH_TRAVERSALS,
  renderAttackRequest,
  SMUGGLING_ATTACKS,
} from './attack-requests.ts';
import {
  buildAdversarialPolicies,
  CONTROL_NAME,
  HOSTILE_NAMES,
  PRIVATE_HOSTS,
  toNameTool,
  toPrivateHostTool,
} from './clever-policies.ts';
import { TestDnsServer } from './dns-server.ts';
import { ForbiddenListener } from './forbidden-listener.ts';
import { CREDENTIAL, findUndeclared, HostileServices, type ObservedServiceRequest } from './hostile-services.ts';

const forbidden = useResource(ForbiddenListener.start, (listener) => listener.close());
let forbiddenUrl = '';
beforeAll(() => {
  forbiddenUrl = `http://127.0.0.1:${forbidden.port}/`;
});
const world = useResource(
  () => HostileServices.start(forbiddenUrl),
  (services) => services.close(),
);
const dnsServer = useResource(
  () => TestDnsServer.start({ ...HOSTILE_NAMES, [CONTROL_NAME]: [['127.0.0.1']] }),
  (server) => server.close(),
);
const { gateway } = useGateway({
  upstream: 'none',
  env: () => dnsServer.env,
  policies: () =>
    buildAdversarialPolicies({ world: world.host, forbiddenPort: forbidden.port, credential: CREDENTIAL }),
});

beforeEach(() => {
  world.requests.length = 0;
  world.messages.length = 0;
});
/** After each attack: the gateway has contacted only declared services, with only declared requests. */
afterEach(() => {
  expect(forbidden.connections.splice(0), 'the forbidden listener').toEqual([]);
  expect(world.requests.map(undeclared).filter((why) => why !== undefined)).toEqual([]);
});

const undeclared = (observed: ObservedServiceRequest) => findUndeclared(observed, world.host);

describe('the forbidden listener', () => {
  it('records connections to each of its addresses from an upstream that may reach them', async () => {
    const addresses = ['127.0.0.1', '127.0.0.2', '::1', '127.0.0.1'];
    for (const [i, address] of addresses.entries()) {
      if (address === '::1' && !forbidden.hasIpv6) continue;
      expect((await gateway.call(`control.n${i}`, {})).status).toBe(502);
      expect(forbidden.connections.splice(0)).toEqual([expect.stringMatching(new RegExp(`^(?:::ffff:)?${address}$`))]);
    }
    expect(await sendRaw(forbidden.port, 'x')).toBe('');
    expect(forbidden.connections.splice(0)).toHaveLength(1);
  });

  it('is complemented by the services, which notice undeclared requests', () => {
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

const expectPrivateAddressRefusal = (reply: Reply) => {
  expect(reply.body).toMatchObject({ status: 503, code: 'unavailable' });
  expect(reply.body.detail).toContain('is a private address');
};

describe('a private upstream without allowPrivate', () => {
  it.each(PRIVATE_HOSTS.map((host, i) => [host, toPrivateHostTool(i)]))(
    'is refused when written as %s',
    async (_host, tool) => {
      expectPrivateAddressRefusal(await gateway.call(tool, {}));
    },
  );
});

describe('a host name that resolves to', () => {
  const plain = Object.entries(HOSTILE_NAMES).filter(([, answers]) => answers.length === 1);
  it.each(plain.map(([name, [addresses]]) => [addresses?.join(' and '), name]))(
    '%s is refused',
    async (_addresses, name) => {
      expectPrivateAddressRefusal(await gateway.call(toNameTool(name), {}));
      expect(dnsServer.countLookups(name)).toBe(1);
    },
  );

  it('a public address first, and to loopback on the next attempt, is refused', async () => {
    expectPrivateAddressRefusal(await gateway.call(toNameTool('rebinding.example'), {}));
    expect(dnsServer.countLookups('rebinding.example')).toBe(3);
  });

  it('a public address first, and to loopback on the next pooled connection, is refused', async () => {
    const name = 'rebinding-later.example';
    // The first connection fails slowly, and calls in the meantime wait for it.
    await expect
      .poll(async () => (await gateway.call(toNameTool(name), {})).body.detail, { timeout: 20_000, interval: 0 })
      .toContain('is a private address');
    expect(dnsServer.countLookups(name)).toBeGreaterThanOrEqual(2);
  });
});

describe('an answer that points to another address', () => {
  const statuses = ['300', '301', '302', '303', '305', '307', '308', '401', '407', '426'];
  const others = ['refresh', 'link', 'alt-svc', 'content-location', 'www-authenticate', 'report-to'];
  it.each([...statuses, ...others, 'early-hints', 'switching', 'body'])('by %s is not followed', async (way) => {
    const [read, write] = await Promise.all([
      gateway.call('world.redirect', { way }),
      gateway.call('world.write_redirect', { way }),
    ]);
    expect([200, 502]).toContain(read.status);
    expect([200, 502, 504]).toContain(write.status);
    expect(world.requests).toHaveLength(2);
  });
});

describe('an argument in the path', () => {
  it.each(PATH_TRAVERSALS)('that leaves its segment is refused: %j', async (id) => {
    expect((await gateway.call('world.item', { id })).body).toMatchObject({ status: 400, code: 'invalid_arguments' });
    expect(world.requests).toEqual([]);
  });

  it.each(HARMLESS_PATH_VALUES)('that only looks dangerous stays in its segment: %j', async (id) => {
    expect((await gateway.call('world.item', { id })).status).toBe(200);
    expect(world.requests.map(({ url }) => url)).toEqual([`/api/items/${encodeURIComponent(id)}`]);
  });
});

describe('an argument outside of the path', () => {
  it.each(['1&admin=1', '1#admin', '1;admin=1', '1\r\nHost: evil.example', '&q[]=2', '%26admin%3D1', '\0'])(
    'in the query stays a value: %j',
    async (q) => {
      expect((await gateway.call('world.search', { q })).status).toBe(200);
      const [observed] = world.requests;
      expect([...new URL(observed?.url ?? '', 'http://w').searchParams]).toEqual([['q', q]]);
    },
  );

  it.each(['a\r\nx-admin: 1', 'a\nx-admin: 1', 'a\rx', 'a\0', 'a\u010d\u010a', 'a\u2028', 'x'.repeat(9_000)])(
    'in a header is refused: %j',
    async (label) => {
      expect((await gateway.call('world.search', { label })).body.code).toBe('invalid_arguments');
      expect(world.requests).toEqual([]);
    },
  );

  it.each(['{"amount":1,"url":"http://127.0.0.1/"}', '{"amount":1,"amount":2}', '{"amount":1,"__proto__":{"x":1}}'])(
    'in the body is refused: %s',
    async (body) => {
      expect((await gateway.call('world.charge', body)).status).toBe(400);
      expect(world.requests).toEqual([]);
    },
  );
});

describe('a raw request', () => {
  it.each(HTTP_ATTACKS)('$name', async ({ request, status, sent = 0 }) => {
    const text = await sendRaw(gateway.port, renderAttackRequest(request, new URL(forbiddenUrl).host));
    expect(Number(/^HTTP\/1\.1 ([2-5]\d+)/m.exec(text)?.[1] ?? 0), text).toBe(status);
    expect(world.requests).toHaveLength(sent);
  });

  it.each(SMUGGLING_ATTACKS)('that hides a second request: $name', async ({ bytes, answers = 2 }) => {
    const text = await sendRaw(gateway.port, bytes, answers);
    for (const [, status] of text.matchAll(/^HTTP\/1\.1 (\d+)/gm)) expect(['400', '401', '413']).toContain(status);
    expect(world.requests).toEqual([]);
  });
});

describe('over MCP', () => {
  const rpc = (method: string, params: object) =>
    gateway.request('POST', '/mcp', {
      key: AGENT_KEY,
      headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
    });
  const messagesFor = (method: string) => world.messages.filter((message) => message.method === method);

  it.each(['http', 'file', 'gopher'])(
    'a resource at %s is read by the server, never by the gateway',
    async (scheme) => {
      const uri = `${scheme}://127.0.0.1:${forbidden.port}/etc/passwd`;
      const read = await rpc('resources/read', { uri, _meta: { 'oncegate/lock-token': 'forged' } });
      expect(JSON.stringify(read.body)).toContain('from the server itself');
      expect(messagesFor('resources/read').map(({ params }) => params.uri)).toEqual([uri]);
      expect(JSON.stringify(world.messages)).not.toContain('forged');
    },
  );

  it('links, icons and addresses of a server are passed on and not followed', async () => {
    expect((await rpc('tools/list', {})).status).toBe(200);
    const called = await rpc('tools/call', { name: 'server__fetch', arguments: { url: forbiddenUrl } });
    expect(JSON.stringify(called.body)).toContain('resource_link');
    expect(messagesFor('tools/call')).toHaveLength(1);
  });

  it('a redirect of a server is not followed', async () => {
    expect((await gateway.call('away.fetch', {})).status).toBe(503);
  });

  it.each([
    ...['server.fetch/../../world', 'server__fetch\0', 'server__fetch\r\nmcp-method: x', 'server/fetch', 'fetch'],
    ...['http://127.0.0.1/', '../server.fetch', '__proto__', 'server..fetch', 'world__forbidden', 'server__*'],
  ])('the tool name %j is refused', async (name) => {
    const called = await rpc('tools/call', { name, arguments: {} });
    expect(JSON.stringify(called.body)).toMatch(/denied|unknown_tool|-32602|no tool/i);
    expect(messagesFor('tools/call')).toEqual([]);
  });

  it('members beside the name and the arguments do not reach the server', async () => {
    const _meta = { 'oncegate/lock-token': 'forged', 'oncegate/txn': 'forged', progressToken: 'forged', headers: {} };
    const params = { name: 'server__fetch', arguments: {}, _meta, headers: { host: forbiddenUrl }, url: forbiddenUrl };
    expect((await rpc('tools/call', params)).status).toBe(200);
    const [{ params: sent }] = messagesFor('tools/call');
    expect(Object.keys(sent).sort()).toEqual(['_meta', 'arguments', 'name']);
    expect(JSON.stringify(sent)).not.toMatch(/forged|headers/);
  });
});

describe('an imported OpenAPI document', () => {
  it('cannot change the address of its operations', async () => {
    expect((await gateway.call('world.documented', { id: 'a' })).status).toBe(200);
    expect(world.requests.map(({ url }) => url)).toEqual(['/api/documented/a']);
  });

  it.each(['Host', 'X-HTTP-Method-Override', 'X-Original-URL', 'Oncegate-Lock-Token'])(
    'cannot let a caller set %s',
    async (header) => {
      expect((await gateway.call('world.documented', { id: 'a', [header]: 'DELETE' })).status).toBe(400);
    },
  );
});

describe('a token', () => {
  it.each(['jku', 'x5u', 'kid', 'iss'])(
    'that names the address of its key in %s is refused, and the address is not contacted',
    async (member) => {
      const pair = await generateKeyPair('ES256', { extractable: true });
      world.keys = [{ ...(await exportJWK(pair.publicKey)), kid: 'known', alg: 'ES256' }];
      const stranger = await generateKeyPair('ES256');
      const header = { alg: 'ES256', kid: 'known', ...(member === 'iss' ? {} : { [member]: forbiddenUrl }) };
      const token = await new SignJWT({})
        .setProtectedHeader(header)
        .setIssuer(member === 'iss' ? forbiddenUrl : `http://${world.host}/issuer`)
        .setAudience('gate')
        .setExpirationTime('5m')
        .sign(stranger.privateKey);
      expect((await gateway.call('world.item', { id: 'a' }, { agentKey: token })).status).toBe(401);
      expect(world.requests).toEqual([]);
    },
  );
});

describe('a policy', () => {
  const badUrls: readonly (readonly [string, string])[] = [
    ['a user before its host', 'http://public.example@127.0.0.1/'],
    ['a query', 'http://public.example/?x='],
    ['a fragment', 'http://public.example/#x'],
    ['a file', 'file:///etc/passwd'],
    ['another scheme', 'gopher://127.0.0.1:70/'],
    ['a socket', 'unix:/run/docker.sock'],
  ];

  it('with a url that has more than a host and a path is refused', async () => {
    const lines = badUrls.map(([, url], i) => `  bad${i}: { adapter: http, url: "${url}" }`);
    await writePolicies(gateway, { 'badUrls.yaml': `upstreams:\n${lines.join('\n')}\n` });
    const { body, status } = await gateway.admin('POST', '/admin/policies/reload');
    await rm(join(gateway.home, 'policies', 'badUrls.yaml'));
    expect(status).not.toBe(200);
    const faults = JSON.stringify(body);
    for (const [i, [what]] of badUrls.entries()) expect(faults, what).toContain(`badUrls.yaml:${i + 2}:`);
    expect((await gateway.admin('POST', '/admin/policies/reload')).status).toBe(200);
  });
});
