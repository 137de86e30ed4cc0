// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates

import { once } from 'node:events';
import { createServer as createHttp, type RequestListener, type Server } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import fc from 'fast-check';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { HttpAdapter } from '../../adapters/http/http-adapter.ts';
import { renderRequest } from '../../adapters/http/render-request.ts';
import type { Outcome, SendOptions } from '../../gateway/domain/attempts/adapter.ts';
import { buildCredentialScrubber, scrub } from '../../gateway/domain/calls/redact.ts';
import { GatewayError } from '../../gateway/domain/errors.ts';
import type { Json, JsonObject } from '../../gateway/domain/json.ts';
import { ExpressionError, type RequestTemplate, type Tool, type Upstream } from '../../gateway/domain/policy.ts';
import { AGENT_KEY, testerYaml } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { useGateway, useUpstream } from '../support/use-gateway.ts';

describe('scrub', () => {
  it('replaces a secret in every JSON encoding', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', minLength: 6, maxLength: 30 }), fc.string(), (secret, around) => {
        const hex = Array.from({ length: secret.length }, (_, i) => secret.charCodeAt(i).toString(16).padStart(4, '0'));
        const encodings = [
          secret,
          JSON.stringify(secret).slice(1, -1),
          JSON.stringify(secret).slice(1, -1).replaceAll('/', '\\/'),
          hex.map((digits) => `\\u${digits}`).join(''),
          hex.map((digits) => `\\u${digits.toUpperCase()}`).join(''),
        ];
        for (const encoded of encodings) {
          expect(scrub(`${around}<${encoded}>`, [secret])).toContain('<[redacted]>');
        }
      }),
    );
  });

  it('replaces a credential in a URL, in base64 and in hex', () => {
    const credential = 'a/b?c d+ö=~>>>';
    const bytes = Buffer.from(credential);
    const url = encodeURIComponent(credential);
    const encodings = [
      credential,
      url,
      url.replaceAll('%20', '+'),
      url.replaceAll(/%../g, (code) => code.toLowerCase()),
      bytes.toString('base64'),
      bytes.toString('base64').replaceAll('/', '\\/'),
      bytes.toString('base64').replace(/=+$/, ''),
      bytes.toString('base64url'),
      bytes.toString('hex'),
      bytes.toString('hex').toUpperCase(),
    ];
    const scrubCredential = buildCredentialScrubber(['longer than that', credential]);
    for (const encoded of encodings) expect(scrubCredential(`<${encoded}>`)).toBe('<[redacted]>');
    expect(scrubCredential('{"a":"b"}')).toBe('{"a":"b"}');
  });

  it('changes nothing else', () => {
    for (const text of ['', '{"a":"b\\/c"}', 'secre', '\\u0073ecre']) expect(scrub(text, ['secret'])).toBe(text);
    expect(scrub('$& aXb', ['X'])).toBe('$& a[redacted]b');
    expect(scrub('aa.c abc', ['a.c'])).toBe('a[redacted] abc');
  });
});

describe('a request', () => {
  let server: Server;
  let port = 0;
  let listener: RequestListener = (_request, response) => response.end('{}');
  let seen = 0;
  const adapters: HttpAdapter[] = [];

  beforeAll(async () => {
    server = createHttp((request, response) => {
      seen += 1;
      listener(request, response);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    ({ port } = server.address() as AddressInfo);
  });
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });
  beforeEach(() => {
    seen = 0;
  });
  afterEach(async () => {
    await Promise.all(adapters.splice(0).map((adapter) => adapter.close()));
  });

  const upstream = (more: Partial<Upstream> = {}): Upstream => ({
    name: 'u',
    adapter: 'http',
    url: `http://127.0.0.1:${port}/base/`,
    headers: { authorization: 'Bearer abcdef' },
    secrets: ['Bearer abcdef', 'abcdef'],
    timeoutMs: 2_000,
    concurrency: 1,
    breaker: { threshold: 0.5, minimum: 10, windowMs: 1_000, cooldownMs: 1_000 },
    allowPrivate: true,
    expose: 'prefixed',
    ...more,
  });
  const tool = {
    name: 't',
    upstream: 'u',
    noEffect: new Set([400, 404, 422]),
    accepted: new Set([202]),
    maxResultBytes: 1_000,
  } as unknown as Tool;
  const make = (more: Partial<Upstream> = {}) => {
    const adapter = new HttpAdapter(upstream(more), Buffer.alloc(32));
    adapters.push(adapter);
    return adapter;
  };
  const REQUEST = { method: 'POST', path: '/x?y=1', headers: { 'content-type': 'application/json' }, body: '{"a":1}' };
  const send = (options: Partial<SendOptions> = {}, adapter = make(), request = REQUEST) =>
    adapter.send(tool, request, { timeoutMs: 1_000, maySend: () => true, freshConnection: false, ...options });

  it('hides a credential that the answer echoes in its content type, or encoded', async () => {
    listener = (request, response) => {
      const sent = String(request.headers['authorization']);
      const hex = Buffer.from(sent).toString('hex');
      response.writeHead(200, { 'content-type': `text/plain; of="${sent}"` }).end(`${btoa(sent)} ${hex}`);
    };
    expect(await send()).toMatchObject({
      answer: { contentType: 'text/plain; of="[redacted]"', body: '[redacted] [redacted]' },
    });
  });

  it('reports an internal error only as an unreadable answer', async () => {
    listener = (_request, response) => response.writeHead(200).end('{}');
    let failuresLeft = 1;
    const noEffect = {
      has: () => {
        if (failuresLeft-- > 0) throw new Error('Invalid regular expression: /Bearer abcdef/');
        return false;
      },
    };
    const options = { timeoutMs: 1_000, maySend: () => true, freshConnection: false };
    const outcome = await make().send({ ...tool, noEffect } as unknown as Tool, REQUEST, options);
    expect(outcome).toMatchObject({ kind: 'ok_body_lost', detail: 'the answer cannot be read' });
  });

  it('sends method, path below the base, headers, credentials and body, and reads the answer', async () => {
    const got: unknown[] = [];
    listener = (request, response) => {
      let body = '';
      request.on('data', (chunk) => {
        body += chunk;
      });
      request.on('end', () => {
        got.push([request.method, request.url, request.headers['authorization'], body]);
        response.writeHead(201, { 'content-type': 'application/json' }).end('{"n":12345678901234567890}');
      });
    };
    for (const freshConnection of [false, true]) {
      expect(await send({ freshConnection })).toEqual({
        kind: 'ok',
        answer: {
          status: 201,
          contentType: 'application/json',
          body: '{"n":12345678901234567890}',
          encoding: 'utf8',
        },
      });
    }
    expect(got).toEqual(Array(2).fill(['POST', '/base/x?y=1', 'Bearer abcdef', '{"a":1}']));
  });

  it('keeps binary answers, without the credential', async () => {
    const bytes = Buffer.concat([Buffer.from([0xff, 0xfe, 0]), Buffer.from('Bearer abcdef!')]);
    listener = (_request, response) => response.writeHead(200, { 'content-type': 'image/png' }).end(bytes);
    const outcome = await send();
    if (outcome.kind !== 'ok') throw new Error(outcome.kind);
    expect(outcome.answer.encoding).toBe('base64');
    const kept = Buffer.from(outcome.answer.body ?? '', 'base64');
    expect(kept.subarray(0, 3)).toEqual(bytes.subarray(0, 3));
    expect(kept.toString('latin1')).not.toContain('abcdef');
  });

  it('does not follow a redirect', async () => {
    listener = (_request, response) =>
      response.writeHead(307, { location: `http://127.0.0.1:${port}/elsewhere` }).end();
    expect((await send()).kind).toBe('ambiguous');
    expect(seen).toBe(1);
  });

  it('that times out after sending is ambiguous, and the connection is closed', async () => {
    let closed: Promise<unknown> = Promise.resolve();
    listener = (request) => {
      closed = once(request.socket, 'close');
    };
    const outcome = await send({ timeoutMs: 60 });
    expect(outcome).toMatchObject({ kind: 'ambiguous', detail: 'no answer within 60 ms' });
    await closed;
    expect(seen).toBe(1);
  });

  it('that times out in the middle of a body keeps its status and loses the body', async () => {
    for (const [status, kind] of [
      [200, 'ok_body_lost'],
      [404, 'refused'],
      [500, 'ambiguous'],
    ] as const) {
      listener = (_request, response) => {
        response.writeHead(status, { 'content-type': 'application/json' });
        response.write('{"half":');
      };
      expect((await send({ timeoutMs: 80 })).kind).toBe(kind);
    }
  });

  it('that times out before sending, behind a busy connection, is not sent', async () => {
    listener = (_request, response) => setTimeout(() => response.end('{}'), 200);
    const adapter = make();
    const first = send({}, adapter);
    const second = await send({ timeoutMs: 50 }, adapter);
    expect(second).toMatchObject({ kind: 'not_sent' });
    expect((await first).kind).toBe('ok');
    listener = (_request, response) => response.end('{}');
    expect((await send({}, adapter)).kind).toBe('ok');
    expect(seen).toBe(2);
  });

  it('is not sent if the port is closed, the name is unknown, or maySend returns false', async () => {
    const gone = createServer().listen(0, '127.0.0.1');
    await once(gone, 'listening');
    const { port: free } = gone.address() as AddressInfo;
    gone.close();
    await once(gone, 'close');
    expect((await send({}, make({ url: `http://127.0.0.1:${free}` }))).kind).toBe('not_sent');
    expect((await send({}, make({ url: 'http://no-such-host.invalid' }))).kind).toBe('not_sent');
    for (const freshConnection of [false, true]) {
      expect(await send({ maySend: () => false, freshConnection })).toMatchObject({
        kind: 'not_sent',
        abandoned: true,
      });
    }
    expect(seen).toBe(0);
  });

  it('calls maySend once, right before the first byte', async () => {
    listener = (_request, response) => response.end('{}');
    let checks = 0;
    const adapter = make();
    const maySend = () => {
      checks += 1;
      expect(seen).toBe(checks - 1);
      return true;
    };
    await send({ maySend }, adapter);
    await send({ maySend }, adapter);
    expect(checks).toBe(2);
  });

  it('reads at most maxResultBytes of the tool', async () => {
    const answerWith = (length: number, status = 200) => {
      listener = (_request, response) => response.writeHead(status).end('x'.repeat(length));
    };
    answerWith(1_000);
    expect((await send()).kind).toBe('ok');
    answerWith(1_001);
    expect(await send()).toMatchObject({ kind: 'ok_body_lost', answer: { status: 200, body: null } });
    answerWith(1_001, 422);
    expect(await send()).toMatchObject({ kind: 'refused', answer: { status: 422, body: null } });
    answerWith(1_001, 500);
    expect((await send()).kind).toBe('ambiguous');
    listener = (_request, response) => {
      const more = () => {
        while (!response.destroyed && response.write('x'.repeat(65_536)));
      };
      response.on('drain', more);
      more();
    };
    expect((await send()).kind).toBe('ok_body_lost');
  });

  it.each<[string, string | null, Outcome['kind']]>([
    ['silence and a cut', null, 'ambiguous'],
    ['half a status line', 'HTTP/1.1 2', 'ambiguous'],
    ['garbage', '\x00\x01 nonsense\r\n\r\n', 'ambiguous'],
    ['headers only', 'HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n', 'ok_body_lost'],
    ['half a body', 'HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab', 'ok_body_lost'],
    ['half a refusal', 'HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nab', 'refused'],
    ['half a failure', 'HTTP/1.1 500 Oh\r\ncontent-length: 5\r\n\r\nab', 'ambiguous'],
    ['a broken chunk', 'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n', 'ok_body_lost'],
    ['early hints and a cut', 'HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n', 'ambiguous'],
    [
      'an unexpected upgrade',
      'HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n',
      'ambiguous',
    ],
    [
      'early hints, then an answer',
      'HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}',
      'ok',
    ],
    ['an empty answer', 'HTTP/1.1 204 No Content\r\n\r\n', 'ok'],
    ['an answer until the end of the connection', 'HTTP/1.0 200 OK\r\n\r\nabc', 'ok'],
  ])('that ends in %s has the right outcome', async (_name, text, kind) => {
    const sockets = new Set<Socket>();
    const wire = createServer((socket) => {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.once('data', () => (text === null ? socket.destroy() : socket.end(text, 'latin1')));
    }).listen(0, '127.0.0.1');
    await once(wire, 'listening');
    try {
      const url = `http://127.0.0.1:${(wire.address() as AddressInfo).port}`;
      for (const freshConnection of [false, true])
        expect((await send({ freshConnection }, make({ url }))).kind).toBe(kind);
    } finally {
      for (const socket of sockets) socket.destroy();
      wire.close();
    }
  });

  it('opens a fresh connection if required, and leaves none open', async () => {
    const sockets = new Set<unknown>();
    listener = (request, response) => {
      sockets.add(request.socket);
      response.end('{}');
    };
    const adapter = make();
    for (let i = 0; i < 3; i++) await send({ freshConnection: true }, adapter);
    expect(sockets.size).toBe(3);
    sockets.clear();
    for (let i = 0; i < 3; i++) await send({}, adapter);
    expect(sockets.size).toBe(1);
  });
});

describe('a rendered request', () => {
  const template = (more: Partial<RequestTemplate> = {}): RequestTemplate => ({
    method: 'POST',
    pathTemplate: '/x',
    path: () => '/x',
    query: {},
    headers: {},
    ...more,
  });
  const tool = (once: Tool['once']) => ({ name: 't', effect: 'write', once }) as Tool;
  const input = { args: { a: 1 }, agent: 'me' };

  it('has the same bytes for the same input', () => {
    const body = template({ body: ({ args }) => ({ z: 1, a: args as Json }), query: { q: () => ['1', 2, null, 'ü'] } });
    const first = renderRequest(tool({ by: 'idempotent' }), body, input, 'txn');
    expect(renderRequest(tool({ by: 'idempotent' }), body, { ...input }, 'txn')).toEqual(first);
    expect(first.body).toBe('{"a":{"a":1},"z":1}');
    expect(first.path).toBe('/x?q=1&q=2&q=%C3%BC');
    expect(first.headers['oncegate-txn']).toBe('txn');
  });

  it('carries the txn in the header or field of the contract, whatever the arguments contain', () => {
    const header = renderRequest(
      tool({ by: 'key', header: 'X-Key', lifetimeMs: 1 }),
      template({ headers: { 'x-key': () => 'mine' } }),
      input,
      'txn',
    );
    expect(header.headers['x-key']).toBe('txn');
    const field = renderRequest(
      tool({ by: 'key', field: ['meta', 'key'], lifetimeMs: 1 }),
      template({ body: () => ({ meta: { key: 'mine', other: 1 } }) }),
      input,
      'txn',
    );
    expect(JSON.parse(field.body ?? '')).toEqual({ meta: { key: 'txn', other: 1 } });
  });

  it.each(['a\r\nx: y', 'a\nb', 'a\0', '\u20ac', '\x7f'])('refuses the header value %j', (value) => {
    const act = () =>
      renderRequest(tool({ by: 'idempotent' }), template({ headers: { x: () => value } }), input, 'txn');
    expect(act).toThrow(GatewayError);
  });

  it('that cannot be built is an error of the arguments', () => {
    const failing = template({
      path: () => {
        throw new ExpressionError('no');
      },
    });
    expect(() => renderRequest(tool({ by: 'idempotent' }), failing, input, 'txn')).toThrow(/cannot be built/);
  });

  it('has a limited body, checked before it is serialized', () => {
    const render = (copies: number, args: Json) => {
      const repeating = template({ body: () => Array.from({ length: copies }, () => args) });
      return () => renderRequest(tool({ by: 'idempotent' }), repeating, { ...input, args: args as JsonObject }, 'txn');
    };
    const text = 'x'.repeat(100_000);
    expect(render(80, { text })().body).toHaveLength(80 * 100_012 - 1 + 2);
    expect(render(200, { text })).toThrow(/cannot be built.*the body is longer than 8388608 characters/);
    // Three gigabytes, which exceeds the longest possible string.
    expect(render(30_000, { text })).toThrow(GatewayError);
    // Arguments of this size passed `limits.body`.
    expect(render(1, { text: 'x'.repeat(9_000_000) })().body).toHaveLength(9_000_013);
  });

  it('has a limited query', () => {
    const many = template({ query: { a: () => Array.from({ length: 20_000 }, () => 'x') } });
    expect(() => renderRequest(tool({ by: 'idempotent' }), many, input, 'txn')).toThrow(
      /path and query are longer than 16384/,
    );
  });
});

describe('through the gateway', () => {
  /** Answers with JSON that is nested too deep for recursion. */
  const hostile = useHttpServer((request, response) => {
    const body = `${'['.repeat(200_000)}${']'.repeat(200_000)}`;
    response.writeHead(Number(request.url?.slice(1)), { 'content-type': 'application/json' }).end(body);
  });
  const world = useUpstream();
  const { database, gateway } = useGateway({
    upstream: world,
    policies: () => `
upstreams:
  world: { adapter: http, url: "${world.url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
  inside: { adapter: http, url: "http://localhost:${world.port}", timeout: 2s }
  hostile: { adapter: http, url: "${hostile.url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
tools:
  world.keyed:
    upstream: world
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    retry: { attempts: 2, base: 20ms, max: 50ms }
  world.read:
    upstream: world
    effect: read
    request: { method: GET, path: "/read/items/\${args.id}" }
    retry: { attempts: 2, base: 20ms, max: 50ms }
  world.lenient:
    upstream: world
    request: { method: POST, path: /none/mail, body: "\${args}" }
    once: { by: idempotent }
    noEffect: [409, 503]
    retry: { attempts: 1, base: 10s, max: 10s }
  world.small:
    upstream: world
    request: { method: POST, path: /echo, body: "\${args}" }
    once: { by: idempotent }
    result: { maxBytes: 100 }
  hostile.write:
    upstream: hostile
    request: { method: POST, path: "/\${args.status}", body: {} }
    once: { by: none }
  hostile.redacted:
    upstream: hostile
    request: { method: PUT, path: "/\${args.status}", body: {} }
    once: { by: none }
    redact: [result.secret]
  inside.keyed:
    upstream: inside
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    retry: { attempts: 2, base: 10ms, max: 10ms }
${testerYaml('[{ allow: "*", approve: never }]')}`,
  });

  it('a private address is refused, nothing is sent, and the key is not bound', async () => {
    const refused = await gateway.call('inside.keyed', { id: 'inside' }, { key: 'inside' });
    expect(refused.status).toBe(503);
    expect(refused.body).toMatchObject({ code: 'unavailable', retry: 'after_delay' });
    expect(refused.headers.get('retry-after')).toMatch(/^\d+$/);
    expect(await world.requests('inside')).toEqual([]);
    expect((await gateway.call('world.keyed', { id: 'inside' }, { key: 'inside' })).status).toBe(200);
  });

  it('a read of an upstream that is down is 503 too, and its key is not bound', async () => {
    await world.kill();
    const down = await gateway.call('world.read', { id: 'unread' }, { key: 'unread' });
    expect(down.body).toMatchObject({ status: 503, code: 'unavailable', retry: 'after_delay' });
    await world.restart();
    const up = await gateway.call('world.read', { id: 'another' }, { key: 'unread' });
    expect(up.body).toMatchObject({ state: 'succeeded', replayed: false, txn: down.body.txn });
  });

  it('an upstream that is down is 503, and the same key works when it is up again', async () => {
    await world.kill();
    const down = await gateway.call('world.keyed', { id: 'down' }, { key: 'down' });
    expect(down.status).toBe(503);
    expect(down.body).toMatchObject({ code: 'unavailable', retry: 'after_delay' });
    expect(await database.query('select 1 from calls where tool = $1 and key = $2', ['world.keyed', 'down'])).toEqual(
      [],
    );
    await world.restart();
    const up = await gateway.call('world.keyed', { id: 'down' }, { key: 'down' });
    expect(up.status).toBe(200);
    expect(up.body).toMatchObject({ replayed: false, txn: down.body.txn });
    expect(await world.effects('down')).toHaveLength(1);
  });

  it('noEffect of a tool replaces the default list', async () => {
    for (const status of [409, 503]) {
      await world.plan({ match: { id: `n${status}` }, do: [{ reply: status }] });
      const failed = await gateway.call('world.lenient', { id: `n${status}` });
      expect(failed.status).toBe(502);
      expect(failed.body.upstream.status).toBe(status);
    }
    await world.plan({ match: { id: 'n404' }, do: [{ reply: 404 }] });
    expect((await gateway.call('world.lenient', { id: 'n404' }, { headers: { prefer: 'wait=1' } })).status).toBe(504);
  });

  it('an answer that is too large is a success without a body', async () => {
    await world.plan({ match: { id: 'big' }, do: ['apply', { big: 5_000_000 }] });
    const answer = await gateway.call('world.small', { id: 'big' }, { key: 'big' });
    expect(answer.status).toBe(200);
    expect(answer.body).toMatchObject({ state: 'succeeded', result: null, outcome: 'body_unavailable' });
    expect((await gateway.call('world.small', { id: 'big' }, { key: 'big' })).body).toEqual({
      ...answer.body,
      replayed: true,
    });
  });

  it.each([
    ['hostile.write', 200],
    ['hostile.write', 422],
    ['hostile.redacted', 200],
    ['hostile.redacted', 422],
  ])('a very deeply nested answer breaks nothing: %s, %i', async (tool, status) => {
    for (const replayed of [false, true]) {
      const response = await fetch(`${gateway.url}/v1/tools/${tool}`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${AGENT_KEY}`,
          'content-type': 'application/json',
          'idempotency-key': `${tool}-${status}`,
        },
        body: JSON.stringify({ status }),
      });
      expect(response.status).toBe(status === 200 ? 200 : 502);
      expect(response.headers.get('oncegate-state')).toBe(status === 200 ? 'succeeded' : 'failed');
      expect(response.headers.get('idempotent-replayed')).toBe(replayed ? 'true' : null);
      await response.arrayBuffer();
    }
    const { body } = await gateway.get(`/v1/calls?tool=${tool}&limit=1`);
    expect(body.items).toHaveLength(1);
  });
});
