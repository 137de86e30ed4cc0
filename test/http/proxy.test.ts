// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { request } from 'node:http';
import { beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, PEOPLE_YAML } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const policies = (url: string) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
  empty: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  world.keyed:
    upstream: world
    input: { type: object, properties: { id: { type: string }, n: { type: integer } }, required: [id] }
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.put:
    upstream: world
    input:
      type: object
      additionalProperties: false
      properties: { id: { type: string }, n: { type: integer }, r: { type: number }, on: { type: boolean }, tags: { type: array, items: { type: integer } }, s: { type: string } }
      required: [id]
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args}" }
    once: { by: idempotent }
  world.put_special:
    upstream: world
    request: { method: PUT, path: /idempotent/objects/special, body: "\${args}" }
    once: { by: idempotent }
  world.read:
    upstream: world
    effect: read
    input: { type: object, properties: { id: { type: string }, page: { type: integer }, constructor: { type: string } } }
    request: { method: GET, path: "/read/items/\${args.id}" }
    retry: { attempts: 1 }
  world.secret:
    upstream: world
    request: { method: POST, path: /none/mail, body: "\${args}" }
  world.status:
    upstream: world
    input: { type: object, properties: { status: { type: integer } } }
    request: { method: POST, path: "/status/\${args.status}" }
    once: { by: idempotent }
    noEffect: [409, 418]
    retry: { attempts: 1, base: 30s, max: 30s }
  world.held:
    upstream: world
    request: { method: POST, path: /none/held, body: "\${args}" }
  world.whoami:
    upstream: world
    input: { type: object, properties: { id: { type: string } } }
    key: "\${agent}/\${args.id}"
    request: { method: POST, path: /echo, query: { by: "\${agent}" }, headers: { x-agent: "\${agent}" }, body: { id: "\${args.id}", agent: "\${agent}" } }
    once: { by: idempotent }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - deny: world.secret
      - allow: world.*
${PEOPLE_YAML}`;

const { upstream, gateway } = useGateway({ policies });
beforeEach(() => {
  id = uniqueId('proxy');
});

interface Answer {
  readonly status: number;
  readonly headers: Record<string, string | string[] | undefined>;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
  readonly body: any;
}

/** Sends the path unchanged, because `fetch` would resolve dots and repair escapes. */
function proxy(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Answer> {
  return sendUnchanged(method, `/v1/proxy/${path}`, body, headers);
}

function sendUnchanged(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const text = body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
    const outgoing = request(
      {
        host: '127.0.0.1',
        port: gateway.port,
        method,
        path,
        agent: false,
        headers: {
          authorization: `Bearer ${AGENT_KEY}`,
          ...(text === undefined
            ? {}
            : { 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(text)) }),
          ...headers,
        },
      },
      (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('end', () => {
          const all = Buffer.concat(chunks).toString('utf8');
          const json = /json/.test(response.headers['content-type'] ?? '') && all !== '';
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            text: all,
            body: json ? JSON.parse(all) : all,
          });
        });
      },
    );
    outgoing.on('error', reject);
    outgoing.end(text);
  });
}

describe('a proxied call', () => {
  it('returns the answer of the upstream, and is replayed under its key', async () => {
    const first = await proxy('POST', 'world/keyed/charge', { id }, { 'idempotency-key': id });
    expect(first.status).toBe(200);
    expect(first.body).toMatchObject({ t: id });
    expect(first.body.id).toMatch(/^eff_/);
    expect(first.headers['oncegate-state']).toBe('succeeded');
    expect(first.headers['idempotent-replayed']).toBeUndefined();
    const again = await proxy('POST', 'world/keyed/charge', { id }, { 'idempotency-key': id });
    expect(again.text).toBe(first.text);
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect(again.headers['content-type']).toBe(first.headers['content-type']);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('is the same call as POST /v1/tools under the same key, in either order', async () => {
    const tool = await gateway.call('world.keyed', { id }, { key: id });
    const proxied = await proxy('POST', 'world/keyed/charge', { id }, { 'idempotency-key': id });
    expect(proxied.headers['oncegate-txn']).toBe(tool.body.txn);
    expect(proxied.headers['idempotent-replayed']).toBe('true');
    expect(proxied.body).toEqual(tool.body.result);

    const put = await proxy('PUT', `world/idempotent/objects/${id}`, { n: 1 }, { 'idempotency-key': `${id}-put` });
    const same = await gateway.call('world.put', { id, n: 1 }, { key: `${id}-put` });
    expect(same.body).toMatchObject({ txn: put.headers['oncegate-txn'], replayed: true });
    expect(await upstream.requests(id)).toHaveLength(2);
  });

  it('under a used key with another request is refused', async () => {
    await proxy('POST', 'world/keyed/charge', { id }, { 'idempotency-key': id });
    const other = await proxy('POST', 'world/keyed/charge', { id, n: 2 }, { 'idempotency-key': id });
    expect(other.status).toBe(422);
    expect(other.body).toMatchObject({ code: 'key_reused' });
  });

  it.each([
    [201, { made: 1 }],
    [202, 'text'],
    [400, { error: 'no' }],
    [404, [1, 2]],
    [422, null],
    [429, { slow: 'down' }],
  ])('passes %i and its body through', async (status, body) => {
    await upstream.plan({ match: { id }, do: [{ reply: status, body }] });
    const first = await proxy('POST', 'world/keyed/charge', { id }, { 'idempotency-key': id });
    expect(first.status).toBe(status);
    if (body !== null) expect(JSON.parse(first.text)).toEqual(body);
    expect(first.headers['oncegate-state']).toBe(status < 300 ? 'succeeded' : 'failed');
    const again = await proxy('POST', 'world/keyed/charge', { id }, { 'idempotency-key': id });
    expect([again.status, again.text]).toEqual([first.status, first.text]);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('passes 204 without a body through', async () => {
    await upstream.plan({ match: { id }, do: [{ reply: 204 }] });
    const none = await proxy('POST', 'world/keyed/charge', { id });
    expect([none.status, none.text]).toEqual([204, '']);
  });

  it('keeps the numbers of the upstream as they are written', async () => {
    await upstream.plan({ match: { id }, do: [{ reply: 200, body: { n: 1 } }] });
    expect((await proxy('POST', 'world/keyed/charge', { id })).text).toBe('{"n":1}');
  });

  it('in doubt is answered with a problem document', async () => {
    const doubt = await proxy('POST', 'world/status/503', undefined, { 'idempotency-key': id, prefer: 'wait=0' });
    expect([202, 504]).toContain(doubt.status);
    const after = await gateway.waitForCall(String(doubt.headers['oncegate-txn']), (call) => call.state === 'in_doubt');
    expect(after.problem.code).toBe('in_doubt');
    const again = await proxy('POST', 'world/status/503', undefined, { 'idempotency-key': id, prefer: 'wait=0' });
    expect(again.status).toBe(504);
    expect(again.headers['content-type']).toMatch(/problem\+json/);
  });

  it('that is held is answered 202 with a Location', async () => {
    const held = await proxy('POST', 'world/none/held', { id }, { prefer: 'wait=0' });
    expect(held.status).toBe(202);
    expect(held.headers['location']).toBe(`/v1/calls/${held.body.txn}`);
    expect(held.body.state).toBe('held');
  });

  it('fails only on the statuses in noEffect of its tool', async () => {
    expect((await proxy('POST', 'world/status/418', undefined, { 'idempotency-key': id })).status).toBe(418);
    const doubt = await proxy('POST', 'world/status/404', undefined, { 'idempotency-key': `${id}b`, prefer: 'wait=1' });
    expect([202, 504]).toContain(doubt.status);
  });
});

describe('the path', () => {
  it.each<[string, string, string]>([
    ['no such path', 'POST', 'world/nowhere'],
    ['a longer path', 'POST', 'world/keyed/charge/x'],
    ['a trailing slash', 'POST', 'world/keyed/charge/'],
    ['a double slash', 'POST', 'world//keyed/charge'],
    ['another method', 'PATCH', 'world/keyed/charge'],
    ['HEAD of a GET tool', 'HEAD', 'world/read/items/x'],
    ['an empty segment', 'GET', 'world/read/items/'],
    ['a dot-dot segment', 'POST', 'world/nowhere/../keyed/charge'],
    ['a dot segment', 'POST', 'world/./keyed/charge'],
    ['an encoded dot-dot segment', 'POST', 'world/nowhere/%2e%2e/keyed/charge'],
    ['an encoded slash instead of one', 'POST', 'world/keyed%2Fcharge'],
    ['another case', 'POST', 'world/Keyed/charge'],
    ['an unknown upstream', 'POST', 'nowhere/keyed/charge'],
    ['an upstream without tools', 'POST', 'empty/keyed/charge'],
    ['a member of Object.prototype as upstream', 'POST', 'constructor/keyed/charge'],
    ['an upstream by its address', 'POST', 'http%3A%2F%2F127.0.0.1/keyed/charge'],
    ['a tool that a rule denies', 'POST', 'world/none/mail'],
  ])('that matches no allowed tool is denied: %s', async (_name, method, path) => {
    const before = (await upstream.requests()).length;
    const denied = await proxy(method, path, method === 'POST' || method === 'PATCH' ? { id } : undefined);
    expect(denied.status).toBe(403);
    if (method !== 'HEAD') expect(denied.body).toMatchObject({ code: 'denied', retry: 'never', status: 403 });
    expect(await upstream.requests()).toHaveLength(before);
  });

  it.each<[string, string, string]>([
    ['an encoded slash', 'a%2Fb', 'a/b'],
    ['an encoded percent', 'a%252Fb', 'a%2Fb'],
    ['a space and an umlaut', 'a%20%C3%BC', 'a \u00fc'],
    ['a question mark and a hash', 'a%3Fb%23c', 'a?b#c'],
    ['dots inside', 'a..b', 'a..b'],
    ['a semicolon', 'a;b=c', 'a;b=c'],
    ['a plus', 'a+b', 'a+b'],
    ['a variable’s own name', '$%7Bargs.id%7D', '${args.id}'],
  ])('passes %s to the upstream as one segment', async (_name, segment, value) => {
    const answer = await proxy('GET', `world/read/items/${segment}`);
    expect(answer.status).toBe(200);
    expect(answer.body.id).toBe(value);
    const sent = (await upstream.requests()).at(-1);
    expect(sent?.url).toBe(`/read/items/${encodeURIComponent(value)}`);
  });

  it('is decoded only once, also if the upstream name is escaped or the URL is absolute', async () => {
    for (const start of ['/v1/proxy/w%6Frld', `http://127.0.0.1:${gateway.port}/v1/proxy/world`]) {
      const answer = await sendUnchanged('GET', `${start}/read/items/a%252Fb%2Fc`);
      expect(answer.status).toBe(200);
      expect(answer.body.id).toBe('a%2Fb/c');
    }
  });

  it.each(['%2e%2e', '..', '.', '%2E'])('with %s as a segment is refused', async (segment) => {
    const before = (await upstream.requests()).length;
    const refused = await proxy('GET', `world/read/items/${segment}`);
    expect(refused.status).toBe(400);
    expect(refused.body.code).toBe('invalid_arguments');
    expect(await upstream.requests()).toHaveLength(before);
  });

  it.each(['%', '%zz', '%ff', '%c0%af', '%ed%a0%80'])('with the escape %s is malformed', async (broken) => {
    const refused = await proxy('GET', `world/read/items/${broken}`);
    expect(refused.status).toBe(400);
    expect(refused.body).toMatchObject({ code: 'malformed' });
  });

  it('prefers a tool with the literal path', async () => {
    const special = await proxy('PUT', 'world/idempotent/objects/special', { x: 1 });
    expect((await gateway.get(`/v1/calls/${special.headers['oncegate-txn']}`)).body.tool).toBe('world.put_special');
    const other = await proxy('PUT', `world/idempotent/objects/${id}`, {});
    expect((await gateway.get(`/v1/calls/${other.headers['oncegate-txn']}`)).body.tool).toBe('world.put');
  });
});

describe('parameters', () => {
  const argsOf = async (answer: Answer) => (await gateway.get(`/v1/calls/${answer.headers['oncegate-txn']}`)).body.args;

  it('become arguments of the type in the schema', async () => {
    const answer = await proxy('PUT', `world/idempotent/objects/${id}?n=-7&r=1.5&on=false&tags=1&s=007`, {});
    expect(answer.status).toBe(200);
    expect(await argsOf(answer)).toEqual({ id, n: -7, r: 1.5, on: false, tags: [1], s: '007' });
    const more = await proxy('PUT', `world/idempotent/objects/${id}?tags=1&tags=2`);
    expect(await argsOf(more)).toEqual({ id, tags: [1, 2] });
  });

  it.each([
    'n=1.5',
    'n=01',
    'n=1e3',
    'n=',
    'n=0x10',
    'n=9007199254740993',
    'on=yes',
    'on=1',
    'r=NaN',
    'tags=x',
    's=1&s=2',
    'zz=1',
  ])('that do not fit the type are refused, not converted: %s', async (query) => {
    const refused = await proxy('PUT', `world/idempotent/objects/${id}?${query}`, {});
    expect(refused.status).toBe(400);
    expect(refused.body.code).toBe('invalid_arguments');
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('may repeat a value of the body, but not contradict it', async () => {
    expect((await proxy('PUT', `world/idempotent/objects/${id}?n=1`, { id, n: 1 })).status).toBe(200);
    const before = (await upstream.requests(id)).length;
    for (const [query, body] of [
      ['', { id: 'other' }],
      ['?n=1', { n: 2 }],
      ['?n=1', { n: '1' }],
      ['?n=1', { n: null }],
      [`?id=other`, {}],
    ] as const) {
      const refused = await proxy('PUT', `world/idempotent/objects/${id}${query}`, body);
      expect(refused.status, JSON.stringify([query, body])).toBe(400);
      expect(refused.body.code).toBe('malformed');
    }
    expect(await upstream.requests(id)).toHaveLength(before);
  });

  it('named like a member of Object.prototype are normal arguments', async () => {
    const answer = await proxy('GET', `world/read/items/${id}?constructor=x&page=2`);
    expect(answer.status).toBe(200);
    expect(await argsOf(answer)).toEqual({ id, constructor: 'x', page: 2 });
    expect((await proxy('GET', `world/read/items/${id}?__proto__=x`)).status).toBe(400);
  });

  it('do not relax the checks of the body', async () => {
    for (const body of ['[]', '{"n":1,"n":1}', '"x"', '{'])
      expect((await proxy('PUT', `world/idempotent/objects/${id}`, body)).body.code, body).toBe('malformed');
    const form = await proxy('PUT', `world/idempotent/objects/${id}`, 'n=1', {
      'content-type': 'application/x-www-form-urlencoded',
    });
    expect(form.status).toBe(415);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('of templates include the agent name, in the request and in the business key', async () => {
    const first = await proxy('POST', 'world/echo', { id });
    expect(first.status).toBe(200);
    expect(first.body).toMatchObject({ url: '/echo?by=tester', body: { id, agent: 'tester' } });
    expect(first.body.headers['x-agent']).toBe('tester');
    expect((await proxy('POST', 'world/echo', { id })).headers['idempotent-replayed']).toBe('true');
  });
});

describe('a caller', () => {
  it('without a key gets 401 for every path', async () => {
    expect((await proxy('POST', 'world/keyed/charge', { id }, { authorization: '' })).status).toBe(401);
    expect((await proxy('POST', 'nowhere/x', { id }, { authorization: 'Bearer x' })).status).toBe(401);
  });

  it('cannot pass its own headers to the upstream', async () => {
    await proxy('POST', 'world/keyed/charge', { id }, { 'x-mine': '1', cookie: 'a=b', 'idempotency-key': id });
    const [sent] = await upstream.requests(id);
    expect(Object.keys(sent?.headers ?? {})).not.toContain('x-mine');
    expect(Object.keys(sent?.headers ?? {})).not.toContain('cookie');
    expect(sent?.headers['authorization']).toBeUndefined();
  });
});
