import { SignJWT } from 'jose';
import { request } from 'undici';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, OTHER_AGENT_KEY } from '../support/gateway.ts';
import { type IssuerKey, useIssuer } from '../support/issuer.ts';
import { postMcp, requestLegacy, requestNewest } from './clients.ts';
import { useMcpGateway } from './use-mcp-gateway.ts';

const issuer = useIssuer();
let key: IssuerKey;
beforeAll(async () => {
  key = await issuer.addKey('k');
});
const RULES = 'rules: [{ allow: world.*, approve: never }]';
const { upstream, gateway } = useMcpGateway(
  () => `agents: { federated: { jwt: { issuer: "${issuer.url}", audience: gate, allowPrivate: true }, ${RULES} } }`,
);

const token = (audience: string) =>
  new SignJWT({})
    .setProtectedHeader({ alg: 'RS256', kid: key.kid })
    .setIssuer(issuer.url)
    .setAudience(audience)
    .setIssuedAt()
    .setExpirationTime('5m')
    .sign(key.privateKey);
beforeEach(() => upstream.reset());

const charge = (id: string) => ({ name: 'world__charge', arguments: { id } });
const effects = async (id: string) => (await upstream.effects(id)).length;

describe('a caller of /mcp', () => {
  it('without a valid key gets 401 with the address of the resource metadata', async () => {
    for (const key of [null, 'wrong']) {
      const { status, headers } = await requestLegacy(gateway, 'tools/list', {}, { key });
      expect(status).toBe(401);
      const [, url] = /resource_metadata="([^"]+)"/.exec(headers.get('www-authenticate') ?? '') ?? [];
      const metadata = (await (await fetch(url ?? '')).json()) as object;
      expect(metadata).toMatchObject({ resource: `${gateway.url}/mcp`, authorization_servers: [issuer.url] });
    }
  });

  it('is identified by a token for this gateway, but not by a token for another audience', async () => {
    const right = await requestLegacy(gateway, 'tools/call', charge('jwt'), { key: await token('gate') });
    expect(right.answer.result.structuredContent).toMatchObject({ t: 'jwt' });
    const wrong = await requestLegacy(gateway, 'tools/call', charge('jwt2'), { key: await token('elsewhere') });
    expect(wrong.status).toBe(401);
    expect(await effects('jwt2')).toBe(0);
  });

  it('has a token that is never sent to an upstream', async () => {
    const key = await token('gate');
    await requestLegacy(gateway, 'tools/call', charge('kept'), { key });
    for (const { headers } of await upstream.requests('kept')) expect(JSON.stringify(headers)).not.toContain(key);
  });

  it.each(['https://evil.example', 'http://evil.example:8080', 'null', 'http://127.0.0.1.evil.example'])(
    'with the origin %s is refused',
    async (origin) => {
      const { status } = await requestLegacy(gateway, 'tools/call', charge('page'), { headers: { origin } });
      expect(status).toBe(403);
      expect(await effects('page')).toBe(0);
    },
  );

  it('is refused under a rebound host name, and admitted under a loopback name', async () => {
    const ping = async (host: string, origin: string) => {
      const headers = { host, origin, authorization: `Bearer ${AGENT_KEY}`, 'content-type': 'application/json' };
      const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' });
      const accept = 'application/json, text/event-stream';
      const answer = await request(`${gateway.url}/mcp`, {
        method: 'POST',
        headers: { ...headers, accept },
        body,
      });
      await answer.body.dump();
      return answer.statusCode;
    };
    expect(await ping('rebound.example', 'http://rebound.example')).toBe(403);
    expect(await ping(`127.0.0.1:${gateway.port}`, `http://localhost:${gateway.port}`)).toBe(200);
  });
});

describe('a request to /mcp', () => {
  const raw = (params: string) => postMcp(gateway, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":${params}}`);

  it.each([
    ['a duplicate key', '{"name":"world__charge","arguments":{"id":"strict","id":"other"}}'],
    ['a number that would be rounded', '{"name":"world__charge","arguments":{"id":"strict","n":9007199254740993}}'],
    ['a lone surrogate', '{"name":"world__charge","arguments":{"id":"strict\\ud800"}}'],
    ['__proto__', '{"name":"world__charge","arguments":{"id":"strict","__proto__":{}}}'],
    [
      'JSON that is nested too deeply',
      `{"name":"world__charge","arguments":{"id":${'['.repeat(5_000)}${']'.repeat(5_000)}}}`,
    ],
  ])('with %s is refused under its id and sends nothing', async (_, params) => {
    const { status, answer } = await raw(params);
    expect(status).toBe(400);
    expect(answer).toMatchObject({ jsonrpc: '2.0', id: 1, error: { code: -32602 } });
    expect(await effects('strict')).toBe(0);
  });

  it('that is not JSON is refused', async () => {
    const { status, answer } = await raw('{"name":');
    expect(status).toBe(400);
    expect(answer).toMatchObject({ jsonrpc: '2.0', id: null, error: { code: -32700 } });
  });

  it('that is a batch is refused, and nothing is sent', async () => {
    const one = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: charge('batch') };
    const { status, answer } = await postMcp(gateway, JSON.stringify([one, { ...one, id: 2 }]));
    expect(status).toBe(400);
    expect(answer.error.code).toBe(-32600);
    expect(await effects('batch')).toBe(0);
  });

  it.each([
    '[]',
    '7',
    '"x"',
    'null',
    '{}',
    '{"jsonrpc":"2.0","id":1}',
    '{"jsonrpc":"1.0","id":1,"method":"tools/list"}',
  ])('that is not JSON-RPC is refused: %s', async (body) => {
    const { status } = await postMcp(gateway, body);
    expect(status).toBe(400);
  });

  it('that answers an unknown question is accepted and changes nothing', async () => {
    const body = JSON.stringify({ jsonrpc: '2.0', id: 'made-up', result: { action: 'accept' } });
    expect((await postMcp(gateway, body)).status).toBe(202);
  });

  it('with an unknown session is served as for a client without capabilities', async () => {
    for (const session of ['forged', `${'0'.repeat(36)}.esr`, 'x'.repeat(4_000)]) {
      const { answer } = await requestLegacy(gateway, 'tools/call', charge('session'), {
        headers: { 'mcp-session-id': session },
      });
      expect(answer.result.structuredContent).toMatchObject({ t: 'session' });
    }
  });

  it('with a very long id is answered under that id', async () => {
    const id = 'i'.repeat(100_000);
    const { answer } = await postMcp(gateway, JSON.stringify({ jsonrpc: '2.0', id, method: 'tools/list' }));
    expect(answer.id).toBe(id);
  });

  it('with a tool name that is too long gets a protocol error', async () => {
    const { answer } = await requestLegacy(gateway, 'tools/call', { name: 'n'.repeat(513), arguments: {} });
    expect(answer.error).toMatchObject({ code: -32602, message: expect.stringContaining('512 characters') });
  });

  it('that is too large is refused and sends nothing', async () => {
    const huge = JSON.stringify({ name: 'world__charge', arguments: { id: 'huge', pad: 'x'.repeat(8 * 1024 * 1024) } });
    expect((await raw(huge)).status).toBe(413);
    expect(await effects('huge')).toBe(0);
  });

  it('with an unknown method gets a protocol error in every revision', async () => {
    expect((await requestLegacy(gateway, 'tools/destroy', {})).answer.error.code).toBe(-32601);
    expect((await requestNewest(gateway, 'tools/destroy', {})).answer.error.code).toBe(-32601);
  });

  it('in an unknown revision is refused and sends nothing', async () => {
    const { status } = await requestLegacy(gateway, 'tools/call', charge('rev'), { version: '2031-01-01' });
    expect(status).toBe(400);
    expect(await effects('rev')).toBe(0);
  });

  it('with headers that contradict the body is refused', async () => {
    const { status } = await requestNewest(gateway, 'tools/call', charge('liar'), {
      headers: { 'mcp-name': 'world__read' },
    });
    expect(status).toBe(400);
    expect(await effects('liar')).toBe(0);
  });
});

describe('an event stream', () => {
  const open = (session: string, key: string, signal: AbortSignal) =>
    fetch(`${gateway.url}/mcp`, {
      headers: { authorization: `Bearer ${key}`, accept: 'text/event-stream', 'mcp-session-id': session },
      signal,
    });

  it('cannot be opened by another agent, and one agent cannot take every slot', async () => {
    const controller = new AbortController();
    const mine = await open('shared-session', AGENT_KEY, controller.signal);
    expect(mine.status).toBe(200);
    expect((await open('shared-session', OTHER_AGENT_KEY, controller.signal)).status).not.toBe(200);
    const statuses: number[] = [];
    for (let i = 0; i < 200; i += 1)
      statuses.push((await open(`greedy-${i % 2}`, AGENT_KEY, controller.signal)).status);
    expect(statuses.filter((status) => status === 200).length).toBeLessThan(128);
    expect((await open('modest', OTHER_AGENT_KEY, controller.signal)).status).toBe(200);
    controller.abort();
  });
});
