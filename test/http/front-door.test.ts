import { connect } from 'node:net';
import { beforeEach, describe, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML, type Reply } from '../support/gateway.ts';
import { sendRaw } from '../support/raw.ts';
import { useGateway } from '../support/use-gateway.ts';

const { upstream, gateway } = useGateway({
  config: 'limits: { perAgent: 5/m, perAddress: 3/m, inflight: 2 }\n',
  policies: (url) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  world.read: { upstream: world, effect: read, input: { type: object, properties: { id: { type: string } }, required: [id] }, request: { method: GET, path: "/read/items/\${args.id}" } }
agents:
  tester: { ${keysYaml(AGENT_KEY)}, rules: [{ allow: world.read }] }
  other: { ${keysYaml(OTHER_AGENT_KEY)}, rules: [{ allow: world.read }] }
${PEOPLE_YAML}`,
});
// Each process counts for itself, so a restart resets the limits.
beforeEach(() => gateway.restart());

const times = async (n: number, ask: () => Promise<Reply>) => {
  const answers: Reply[] = [];
  for (let i = 0; i < n; i += 1) answers.push(await ask());
  return answers;
};
const statuses = (answers: readonly Reply[]) => answers.map(({ status }) => status);

describe('the request limits', () => {
  it('admit a number of requests per agent, and say when to retry', async () => {
    const calls = await times(3, () => gateway.call('world.read', { id: 'a' }));
    const lists = await times(3, () => gateway.get('/v1/tools'));
    expect(statuses([...calls, ...lists])).toEqual([200, 200, 200, 200, 200, 429]);
    const refused = lists[2] as Reply;
    expect(refused.headers.get('content-type')).toContain('application/problem+json');
    expect(refused.body).toMatchObject({
      code: 'rate_limited',
      retry: 'after_delay',
      status: 429,
      instance: '/v1/tools',
    });
    const after = Number(refused.headers.get('retry-after'));
    expect(after).toBeGreaterThan(30);
    expect(after).toBeLessThanOrEqual(60);
    // The gateway refuses the request before it reads the body.
    expect((await gateway.call('world.read', 'not json')).status).toBe(429);
    expect((await gateway.call('world.read', { id: 'a' }, { agentKey: OTHER_AGENT_KEY })).status).toBe(200);
    expect((await gateway.admin('GET', '/admin/calls')).status).toBe(200);
  });

  it('count unauthenticated requests by address, without an effect on known callers', async () => {
    const unknown = await times(3, () => gateway.get('/v1/tools', `guess-${Math.random()}`));
    expect(statuses(unknown)).toEqual([401, 401, 401]);
    expect(statuses(await times(2, () => gateway.get('/v1/tools', 'guess')))).toEqual([429, 429]);
    expect((await gateway.request('GET', '/v1/tools')).status).toBe(429);
    expect((await gateway.get('/v1/tools', 'eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.')).status).toBe(429);
    expect((await gateway.get('/v1/tools')).status).toBe(200);
    expect((await gateway.get('/admin/calls', ADMIN_KEY)).status).toBe(200);
  });

  it('cap concurrent requests, however the URL is written', async () => {
    await upstream.plan({ match: { id: 'slow' }, do: [{ event: 'there' }, { wait: 'go' }, { reply: 200 }], times: 2 });
    const slow = [AGENT_KEY, OTHER_AGENT_KEY].map((agentKey) =>
      gateway.call('world.read', { id: 'slow' }, { agentKey }),
    );
    await upstream.awaitEvent('there', 2);
    for (const path of ['/v1/tools', `${gateway.url}/v1/tools`, '/%761/tools', '/v1/proxy/world/x', '/mcp'])
      expect(
        await sendRaw(
          gateway.port,
          `GET ${path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer ${AGENT_KEY}\r\n\r\n`,
        ),
        path,
      ).toContain('limit of 2 concurrent requests');
    await upstream.release('go');
    expect(statuses(await Promise.all(slow))).toEqual([200, 200]);
    expect((await gateway.get('/v1/tools')).status).toBe(200);
  });

  it('free the slots of pipelined requests when their connection closes', async () => {
    await upstream.plan({ match: { id: 'a' }, do: [{ event: 'begun' }, { wait: 'end' }, { reply: 200 }] });
    const socket = connect({ host: '127.0.0.1', port: gateway.port });
    const body = JSON.stringify({ id: 'a' });
    const head = `Host: gateway\r\nAuthorization: Bearer ${AGENT_KEY}\r\nContent-Type: application/json`;
    const first = `POST /v1/tools/world.read HTTP/1.1\r\n${head}\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    socket.write(`${first}${'GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n'.repeat(10)}`);
    await upstream.awaitEvent('begun');
    socket.resetAndDestroy();
    await expect.poll(async () => (await gateway.request('GET', '/v1/tools')).status).not.toBe(503);
    expect((await gateway.get('/v1/tools', OTHER_AGENT_KEY)).status).toBe(200);
    await upstream.release('end');
  });

  it('leave half of the concurrent requests to other agents', async () => {
    await upstream.plan({ match: { id: 'hoard' }, do: [{ event: 'hoarded' }, { wait: 'on' }, { reply: 200 }] });
    const running = gateway.call('world.read', { id: 'hoard' });
    await upstream.awaitEvent('hoarded');
    const refused = await gateway.get('/v1/tools');
    expect(refused).toMatchObject({ status: 429, body: { code: 'rate_limited', retry: 'after_delay' } });
    expect(refused.body.detail).toContain('limit of concurrent requests per agent');
    expect((await gateway.get('/v1/tools', OTHER_AGENT_KEY)).status).toBe(200);
    expect((await gateway.admin('GET', '/admin/calls')).status).toBe(200);
    await upstream.release('on');
    expect((await running).status).toBe(200);
    expect((await gateway.get('/v1/tools')).status).toBe(200);
  });

  it('do not apply to health checks', async () => {
    for (const path of ['/healthz', '/readyz']) {
      const answers = await times(10, () => gateway.request('GET', path));
      expect(new Set(statuses(answers))).toEqual(new Set([200]));
    }
  });
});

it('/openapi.json shows an agent its tools, a person the public part, and an unknown key nothing', async () => {
  const tool = '/v1/tools/world.read';
  expect((await gateway.get('/openapi.json', ADMIN_KEY)).body.paths).not.toHaveProperty(tool);
  expect((await gateway.get('/openapi.json', ADMIN_KEY)).status).toBe(200);
  expect((await gateway.get('/openapi.json')).body.paths).toHaveProperty(tool);
  expect((await gateway.request('GET', '/openapi.json')).status).toBe(200);
  expect((await gateway.get('/openapi.json', 'nobody')).status).toBe(401);
});
