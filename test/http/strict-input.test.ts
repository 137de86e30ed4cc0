import { once } from 'node:events';
import { Agent, type IncomingMessage, request } from 'node:http';
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { AGENT_KEY, OTHER_AGENT_KEY, type Reply } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const MAX_BODY_BYTES = 65_536;

/** Tools whose rules and schemas appear in refusals. */
const STRICT = `
tools:
  strict.many:
    upstream: world
    input:
      type: object
      additionalProperties: false
      properties: { id: { type: string, maxLength: 40 }, amount: { type: integer, minimum: 1 }, when: { type: string } }
      required: [id, amount]
    request: { method: PUT, path: "/idempotent/objects/\${args.id}_many", body: "\${args}" }
    once: { by: idempotent }
  strict.hidden:
    upstream: world
    request: { method: POST, path: /none/hidden, body: "\${args}" }
  strict.forbidden:
    upstream: world
    request: { method: POST, path: /none/forbidden, body: "\${args}" }
`;

const { upstream, database, gateway } = useGateway({
  policies: (url) => ({
    ...buildFaultPolicies(url, {
      rules: [
        '{ allow: strict.many, when: args.amount <= 100 }',
        '{ deny: strict.forbidden }',
        '{ deny: "*.delete_*" }',
        '{ allow: "ghost.*" }',
      ],
    }),
    'strict.yaml': STRICT,
  }),
  config: `limits: { body: ${MAX_BODY_BYTES} }\n`,
});
beforeEach(() => {
  id = uniqueId('strict');
});

/** Sends bytes unchanged, because `fetch` repairs broken strings. */
async function post(path: string, body: Buffer | string, headers: Record<string, string> = {}): Promise<Reply> {
  const response = await fetch(gateway.url + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${AGENT_KEY}`, 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : new Uint8Array(body),
  });
  return { status: response.status, headers: response.headers, body: await response.json() };
}

function expectProblem(reply: Reply, status: number, code: string, retry = 'never'): void {
  expect(reply.headers.get('content-type')).toMatch(/^application\/problem\+json/);
  expect(reply.body).toMatchObject({ status, code, retry });
  expect(reply.status).toBe(status);
  expect(reply.body.type).toMatch(new RegExp(`#${code}$`));
  for (const member of ['title', 'detail', 'instance']) {
    expect(reply.body[member], member).toBeTypeOf('string');
    expect(reply.body[member], member).not.toBe('');
  }
}

const nested = (depth: number) => `{"id":${'['.repeat(depth)}${']'.repeat(depth)}}`;

describe('a body that is not exactly one JSON object', () => {
  it.each<[string, (id: string) => string | Buffer]>([
    ['an empty body', () => ''],
    ['white space only', () => ' \n'],
    ['a duplicate key', (id) => `{"id":"${id}","id":"${id}"}`],
    ['a duplicate key written with an escape', (id) => `{"id":"${id}","\\u0069d":"other"}`],
    ['a duplicate key further down', (id) => `{"id":"${id}","x":{"a":1,"a":1}}`],
    ['a number past 2^53', (id) => `{"id":"${id}","n":9007199254740993}`],
    ['a fraction that loses digits', (id) => `{"id":"${id}","n":0.12345678901234567890}`],
    ['a number that is infinite', (id) => `{"id":"${id}","n":1e400}`],
    ['NaN', (id) => `{"id":"${id}","n":NaN}`],
    ['an escaped lone surrogate', (id) => `{"id":"${id}","x":"\\ud800"}`],
    ['a lone surrogate as a key', (id) => `{"id":"${id}","\\udc00":1}`],
    ['a lone surrogate as bytes', (id) => Buffer.from(`{"id":"${id}","x":"\xed\xa0\x80"}`, 'latin1')],
    ['__proto__', (id) => `{"id":"${id}","__proto__":{"admin":true}}`],
    ['__proto__ written with an escape', (id) => `{"id":"${id}","\\u005f_proto__":1}`],
    ['bytes that are not UTF-8', (id) => Buffer.from(`{"id":"${id}","x":"\xff"}`, 'latin1')],
    ['an overlong encoding', (id) => Buffer.from(`{"id":"${id}","x":"\xc0\xaf"}`, 'latin1')],
    ['a byte order mark', (id) => Buffer.from(`\ufeff{"id":"${id}"}`)],
    ['UTF-16', (id) => Buffer.from(`{"id":"${id}"}`, 'utf16le')],
    ['too many levels of nesting', () => nested(20_000)],
    ['a list', () => '[]'],
    ['a string', () => '"x"'],
    ['null', () => 'null'],
    ['text after the end', (id) => `{"id":"${id}"}{}`],
    ['a NUL after the end', (id) => `{"id":"${id}"}\0`],
    ['a trailing comma', (id) => `{"id":"${id}",}`],
    ['a comment', (id) => `{"id":"${id}"/* */}`],
    ['single quotes', (id) => `{'id':'${id}'}`],
    ['an unescaped line break in a string', (id) => `{"id":"${id}","x":"\n"}`],
    ['a truncated object', (id) => `{"id":"${id}"`],
  ])('is malformed, sends nothing and binds no key: %s', async (_name, body) => {
    const refused = await post('/v1/tools/world.keyed', body(id), { 'idempotency-key': id });
    expectProblem(refused, 400, 'malformed');
    expect(refused.body.instance).toBe('/v1/tools/world.keyed');
    expect(refused.headers.get('oncegate-txn')).toBeNull();
    expect(await upstream.requests(id)).toEqual([]);

    const good = await gateway.call('world.keyed', { id }, { key: id });
    expect(good.status).toBe(200);
    expect(good.body.replayed).toBe(false);
  });

  it('is refused with the location of the fault', async () => {
    const refused = await post('/v1/tools/world.keyed', '{"id":"a",\n "x":{"y":9007199254740993}}');
    expect(refused.body.detail).toMatch(/x.*y/);
    expect(refused.body.detail).toMatch(/line 2/);
  });

  it('is not confused with an unusual valid body, which reaches the upstream unchanged', async () => {
    const body = `{"id":"${id}","t":"\\ud83d\\ude00 \\u0000 \\u2028","n":9007199254740991,"constructor":1,"toString":{"x":-0.5}}`;
    const answer = await post('/v1/tools/world.keyed', body, { 'idempotency-key': id });
    expect(answer.status).toBe(200);
    const [sent] = await upstream.requests(id);
    expect(JSON.parse(sent?.body ?? '')).toEqual(JSON.parse(body));
  });
});

describe('arguments that do not fit the schema', () => {
  it('are refused with every fault, and the key stays free', async () => {
    const refused = await gateway.call('strict.many', { id: 7, amount: 0.5, whn: 'x', extra: null }, { key: id });
    expectProblem(refused, 400, 'invalid_arguments');
    expect(refused.body.faults).toHaveLength(5);
    for (const name of ['id', 'amount', 'whn', 'extra'])
      expect(
        refused.body.faults.some((fault: string) => fault.includes(name)),
        name,
      ).toBe(true);
    expect((await gateway.call('strict.many', { id, amount: 5 }, { key: id })).status).toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('are reported before rules are evaluated, because a rule cannot judge missing arguments', async () => {
    const refused = await gateway.call('strict.many', {});
    expectProblem(refused, 400, 'invalid_arguments');
    expect(refused.body.faults).toHaveLength(2);
  });

  it('reveal nothing about a tool that the agent may not call', async () => {
    expectProblem(await gateway.call('strict.forbidden', { wrong: 1 }), 403, 'denied');
  });
});

describe('a body that is too large or not JSON', () => {
  it('is answered 413, with or without Content-Length', async () => {
    const long = JSON.stringify({ id, pad: 'x'.repeat(MAX_BODY_BYTES) });
    expectProblem(await post('/v1/tools/world.keyed', long, { 'idempotency-key': id }), 413, 'too_large');
    const stream = new ReadableStream({
      start(controller) {
        for (let i = 0; i < 3; i++) controller.enqueue(Buffer.from(long.slice(i * 30_000, (i + 1) * 30_000)));
        controller.close();
      },
    });
    const chunked = await fetch(`${gateway.url}/v1/tools/world.keyed`, {
      method: 'POST',
      headers: { authorization: `Bearer ${AGENT_KEY}`, 'content-type': 'application/json' },
      body: stream,
      duplex: 'half',
    } as RequestInit);
    expect(chunked.status).toBe(413);
    await chunked.arrayBuffer();
    expect((await gateway.call('world.keyed', { id }, { key: id })).status).toBe(200);
  });

  it.each([
    ['413', { 'content-length': String(4 * MAX_BODY_BYTES) }],
    ['413', { 'transfer-encoding': 'chunked' }],
    ['415', { 'content-length': String(4 * MAX_BODY_BYTES), 'content-type': 'text/plain' }],
  ])(
    'is answered %s while the caller still writes, and the connection serves the next request (%j)',
    async (status, as) => {
      const agent = new Agent({ keepAlive: true, maxSockets: 1 });
      const options = { method: 'POST', agent, headers: { authorization: `Bearer ${AGENT_KEY}` } };
      const writing = request(`${gateway.url}/v1/tools/world.keyed`, {
        ...options,
        headers: { ...options.headers, 'content-type': 'application/json', ...as },
      });
      const answered = once(writing, 'response');
      writing.write('x'.repeat(2 * MAX_BODY_BYTES));
      const [refused] = (await answered) as [IncomingMessage];
      expect(String(refused.statusCode)).toBe(status);
      refused.resume();
      await once(refused, 'end');
      const { socket } = writing;
      writing.end('x'.repeat(2 * MAX_BODY_BYTES));

      const next = request(`${gateway.url}/v1/tools/world.keyed`, {
        ...options,
        headers: { ...options.headers, 'content-type': 'application/json', 'idempotency-key': id },
      });
      next.end(JSON.stringify({ id }));
      const [done] = (await once(next, 'response')) as [IncomingMessage];
      expect(done.statusCode).toBe(200);
      expect(next.socket === socket).toBe(true);
      done.resume();
      agent.destroy();
    },
  );

  it.each([
    ['413', 'HTTP/1.1', '/v1/tools/world.keyed', AGENT_KEY, 'application/json'],
    ['413', 'HTTP/1.0', '/v1/tools/world.keyed', AGENT_KEY, 'application/json'],
    ['415', 'HTTP/1.1', '/v1/tools/world.keyed', AGENT_KEY, 'text/plain'],
    ['401', 'HTTP/1.1', '/v1/tools/world.keyed', 'nobody', 'application/json'],
    ['404', 'HTTP/1.1', '/nothing', 'nobody', 'application/json'],
    ['400', 'HTTP/1.1', '/v1/tools/%zz', AGENT_KEY, 'application/json'],
  ])(
    'is answered %s if the caller reads only after writing, with Connection: close (%s %s)',
    async (status, version, path, key, type) => {
      const socket = connect({ host: '127.0.0.1', port: gateway.port });
      const body = 'x'.repeat(100 * MAX_BODY_BYTES);
      const head = [`POST ${path} ${version}`, 'Host: a', 'Connection: close', `Authorization: Bearer ${key}`];
      socket.write(`${head.join('\r\n')}\r\nContent-Type: ${type}\r\nContent-Length: ${body.length}\r\n\r\n`);
      const written = promisify<string, void>(socket.write.bind(socket) as never);
      for (let at = 0; at < body.length; at += MAX_BODY_BYTES) await written(body.slice(at, at + MAX_BODY_BYTES));
      const received = await text(socket);
      expect(received).toMatch(new RegExp(`^HTTP/1.1 ${status} [\\s\\S]*\\r\\nconnection: close\\r\\n`, 'i'));
      expect(received).toContain(`"status":${status}`);
    },
  );

  it('is accepted at exactly the limit', async () => {
    const frame = JSON.stringify({ id, pad: '' }).length;
    const body = JSON.stringify({ id, pad: 'x'.repeat(MAX_BODY_BYTES - frame) });
    expect(Buffer.byteLength(body)).toBe(MAX_BODY_BYTES);
    expect((await post('/v1/tools/world.keyed', body)).status).toBe(200);
  });

  it.each(['text/plain', 'application/x-www-form-urlencoded', 'application/json-patch+json', 'application/jsonx', '/'])(
    'is answered 415 as %s',
    async (type) => {
      const refused = await post('/v1/tools/world.keyed', JSON.stringify({ id }), {
        'content-type': type,
        'idempotency-key': id,
      });
      expectProblem(refused, 415, 'unsupported_media');
    },
  );

  it.each(['application/json; charset=utf-8', 'Application/JSON', 'application/json;charset="UTF-8"'])(
    'is accepted as %s',
    async (type) => {
      const answer = await post('/v1/tools/world.keyed', JSON.stringify({ id }), { 'content-type': type });
      expect(answer.status).toBe(200);
    },
  );
});

describe('a body for an unknown path', () => {
  it.each([
    ['invalid JSON', '{', {}],
    ['a `__proto__`', '{"__proto__":1}', {}],
    ['too large', 'x'.repeat(2 * MAX_BODY_BYTES), {}],
    ['another type', 'x', { 'content-type': 'image/png' }],
    ['an invalid type', 'x', { 'content-type': 'nothing' }],
  ])('is not inspected: %s', async (_what, body, headers) => {
    expectProblem(await post('/nothing', body, headers), 404, 'not_found');
  });

  it('is not waited for, and its connection serves the next request', async () => {
    const socket = connect({ host: '127.0.0.1', port: gateway.port });
    let received = '';
    socket.on('data', (bytes) => {
      received += bytes;
    });
    const pieces = '1\r\nx\r\n'.repeat(20_000);
    socket.write(
      'POST /nothing HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n',
    );
    socket.write(pieces);
    await expect.poll(() => received, { timeout: 5_000 }).toContain('HTTP/1.1 404 ');
    socket.write(`${pieces}0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n`);
    await expect.poll(() => received, { timeout: 5_000 }).toContain('HTTP/1.1 200 ');
    socket.destroy();
  });
});

describe('an unauthenticated caller', () => {
  it.each<[string, Record<string, string>]>([
    ['no key', {}],
    ['another scheme', { authorization: `Basic ${Buffer.from(`a:${AGENT_KEY}`).toString('base64')}` }],
    ['the bare key', { authorization: AGENT_KEY }],
    ['an empty bearer', { authorization: 'Bearer ' }],
    ['an unknown key', { authorization: 'Bearer no-such-key' }],
    ['two words', { authorization: `Bearer ${AGENT_KEY} ${AGENT_KEY}` }],
    ['the digest of a key', { authorization: `Bearer sha256:${AGENT_KEY}` }],
  ])('gets 401 with %s', async (_name, headers) => {
    const refused = await gateway.request('POST', '/v1/tools/world.keyed', {
      body: JSON.stringify({ id }),
      headers: { 'content-type': 'application/json', ...headers },
    });
    expectProblem(refused, 401, 'unauthenticated');
    expect(refused.headers.get('www-authenticate')).toMatch(/^Bearer/);
    for (const path of ['/v1/tools', '/v1/calls', '/v1/calls/x', '/admin/calls'])
      expectProblem(await gateway.request('GET', path, { headers }), 401, 'unauthenticated');
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('gets 401 before the body arrives', async () => {
    const writing = request(`${gateway.url}/v1/tools/world.keyed`, {
      method: 'POST',
      headers: { authorization: 'Bearer nobody', 'content-type': 'application/json', 'content-length': '1000' },
    });
    const answered = once(writing, 'response');
    writing.write('{');
    const [refused] = (await answered) as [IncomingMessage];
    expect(refused.statusCode).toBe(401);
    writing.destroy();
  });

  it('is not confused with one who writes the scheme in another case', async () => {
    const answer = await gateway.request('POST', '/v1/tools/world.keyed', {
      body: JSON.stringify({ id }),
      headers: { 'content-type': 'application/json', authorization: `bEARER ${AGENT_KEY}` },
    });
    expect(answer.status).toBe(200);
  });
});

describe('a call that policy does not allow', () => {
  it('is refused with the name of the denying rule', async () => {
    const denied = await gateway.call('strict.forbidden', { id }, { key: id });
    expectProblem(denied, 403, 'denied');
    expect(denied.body.detail).toMatch(/tester rule \d+ \(.*faults\.yaml:\d+/);
    expect(denied.body.rule).toMatch(/^tester rule \d+/);
    expect((await gateway.call('world.keyed', { id }, { key: id })).status).toBe(200);
  });

  it('is refused with a note that no rule matches', async () => {
    const denied = await gateway.call('strict.hidden', { id });
    expectProblem(denied, 403, 'denied');
    expect(denied.body.detail).toMatch(/No rule/);
    expect(denied.body).not.toHaveProperty('rule');
  });

  it('is refused with the rules whose condition is false', async () => {
    const denied = await gateway.call('strict.many', { id, amount: 101 }, { key: id });
    expectProblem(denied, 403, 'denied');
    expect(denied.body.detail).toMatch(/tester rule \d+/);
    expect((await gateway.call('strict.many', { id, amount: 100 }, { key: id })).status).toBe(200);
  });

  it('gets 404 for an unknown tool only if a rule covers the name', async () => {
    expectProblem(await gateway.call('ghost.walk', {}, { key: id }), 404, 'unknown_tool');
    expectProblem(await gateway.call('ghost__walk', {}, { key: id }), 404, 'unknown_tool');
    expectProblem(await gateway.call('nowhere.walk', {}, { key: id }), 403, 'denied');
    expectProblem(await gateway.call('ghost.delete_all', {}, { key: id }), 403, 'denied');
    expectProblem(await gateway.call('ghost.walk', {}, { agentKey: OTHER_AGENT_KEY }), 403, 'denied');
    expectProblem(await gateway.call('constructor', {}), 403, 'denied');
    expectProblem(await gateway.call('%00', {}), 403, 'denied');
    expect((await gateway.call('world.keyed', { id }, { key: id })).status).toBe(200);
  });

  it('writes one audit entry per denial', async () => {
    const count = async () =>
      Number(
        (
          await database.query<{ n: string }>(
            `select count(*) as n from audit_entries where entry like '%"tool":"strict.hidden"%' and entry like '%"what":"denied"%'`,
          )
        )[0]?.n,
      );
    const before = await count();
    await gateway.call('strict.hidden', { id });
    expect(await count()).toBe(before + 1);
  });
});

describe('an unknown route', () => {
  it('is answered with a problem document', async () => {
    expectProblem(await gateway.get('/v2/tools'), 404, 'not_found');
    expectProblem(await gateway.get('/v1/tools/a/b'), 404, 'not_found');
    expectProblem(await gateway.get(`/v1/calls/${'x'.repeat(600)}`), 400, 'malformed');
    expectProblem(await gateway.get('/v1/calls/%zz'), 400, 'malformed');
    expectProblem(await gateway.request('PUT', '/v1/tools/world.keyed', { key: AGENT_KEY }), 404, 'not_found');
  });
});
