// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { requestLegacy, waitForImport } from '../mcp/clients.ts';
import { useMcpServer } from '../mcp/use-mcp-server.ts';
import { AGENT_KEY, type Reply, testerYaml } from '../support/gateway.ts';
import { pollUntil } from '../support/poll.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

const RETRY = 'retry: { attempts: 3, base: 20ms, max: 100ms, within: 20s }';
const INPUT = 'input: { type: object, properties: { id: { type: string } }, required: [id] }';
const tool = (method: string, path: string, more: string): string =>
  `{ upstream: w, ${INPUT}, request: { method: ${method}, path: ${path} }, ${RETRY}, ${more} }`;
const GRAPHQL = 'failed: has(result.errors)';
const LOOKUP = 'tool: w.lookup, args: { id: "${args.id}" }, applied: result.found';

const mcp = useMcpServer();
const { upstream, gateway } = useGateway({
  policies: (url) => `
upstreams:
  w: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
  m: { adapter: mcp, url: "${mcp.url}", allowPrivate: true, timeout: 2s, import: "*", breaker: { minimum: 1000 } }
tools:
  w.none: ${tool('POST', '/none/mail', `once: { by: none }, ${GRAPHQL}`)}
  w.keyed: ${tool('POST', '/keyed/charge', `once: { by: key, header: Idempotency-Key }, ${GRAPHQL}`)}
  w.put: ${tool('PUT', '"/idempotent/objects/${args.id}"', `once: { by: idempotent }, ${GRAPHQL}`)}
  w.rpc: ${tool('POST', '/none/mail', 'once: { by: none }, failed: "has(result.error) && result.error != null"')}
  w.read: ${tool('GET', '"/read/items/${args.id}"', `effect: read, ${GRAPHQL}`)}
  w.redacted: ${tool('POST', '/none/mail', `once: { by: none }, redact: [args.card, result.errors.*.token], ${GRAPHQL}`)}
  w.plain: ${tool('POST', '/none/mail', 'once: { by: none }, undo: { kind: compensable, tool: w.none, args: { id: "${result.job}" } }')}
  w.done: ${tool('POST', '/none/mail', 'once: { by: none }, accepted: [201], proxy: true')}
  w.lookup: { upstream: w, effect: read, ${INPUT}, request: { method: GET, path: /probed/orders, query: { id: "\${args.id}" } }, redact: [result.order.order.pin] }
  w.shaped: ${tool('POST', '/probed/orders', `once: { by: probe, settles: 50ms, probe: { ${LOOKUP}, result: { id: "\${result.order.id}", of: "\${args.id}", pin: "\${has(result.order.order.pin) ? result.order.order.pin : 'none'}" } } }, undo: { kind: compensable, tool: w.none, args: { id: "\${result.id}" } }`)}
  w.misshaped: ${tool('POST', '/probed/orders', `once: { by: probe, settles: 50ms, probe: { ${LOOKUP}, result: "\${result.nothing.here}" } }`)}
  w.asked: ${tool('POST', '/probed/orders', 'once: { by: probe, settles: 50ms, probe: { tool: w.lookup, args: { id: "${args.id}" }, applied: "has(result.count) && result.count > 0" } }')}
  m.find: { upstream: m, once: { by: none }, failed: "!result.structuredContent.found" }
  m.mail: { upstream: m, once: { by: none }, failed: result.structuredContent.refused }
${testerYaml('[{ allow: "*", approve: never }]')}`,
});
beforeAll(() => waitForImport(gateway, 'm.mail'));
let id = '';
beforeEach(() => {
  id = uniqueId('answer');
});

const call = (name: string, more: object = {}): Promise<Reply> => gateway.call(name, { id, ...more });
const answerWith = (body: unknown, status = 200, apply = false) =>
  upstream.plan({
    match: { id },
    do: [...(apply ? (['apply'] as const) : []), { reply: status, body }],
    times: 'always',
  });
const countEffects = async (): Promise<number> => (await upstream.effects(id)).length;
const REFUSED = { data: null, errors: [{ message: 'no such customer' }] };

describe('a 200 answer for which `failed` is true', () => {
  it.each(['w.none', 'w.keyed', 'w.put'])(
    'is a refusal of %s: 502 with the answer, and nothing happened',
    async (name) => {
      await answerWith(REFUSED);
      const reply = await call(name);
      expect(reply.status).toBe(502);
      expect(reply.body).toMatchObject({
        code: 'tool_failed',
        retry: 'new_key',
        state: 'failed',
        upstream: { status: 200, body: REFUSED },
      });
      expect(await countEffects()).toBe(0);
      expect(await upstream.requests(id)).toHaveLength(1);
    },
  );

  it('is a refusal of a JSON-RPC method, whose successes may have `error: null`', async () => {
    await answerWith({ jsonrpc: '2.0', id: 1, error: { code: -32000, message: 'no funds' } });
    expect((await call('w.rpc')).body).toMatchObject({ code: 'tool_failed', upstream: { status: 200 } });
    id = uniqueId('answer');
    await answerWith({ jsonrpc: '2.0', id: 1, result: 7, error: null }, 200, true);
    expect(await call('w.rpc')).toMatchObject({ status: 200, body: { result: { result: 7 } } });
    expect(await countEffects()).toBe(1);
  });

  it('fails a read at once', async () => {
    await answerWith(REFUSED);
    expect((await call('w.read')).body).toMatchObject({
      code: 'tool_failed',
      upstream: { status: 200, body: REFUSED },
    });
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('proves nothing about an earlier attempt whose outcome is unknown', async () => {
    await upstream.plan({ match: { id, nth: 1 }, do: ['apply', 'drop'] });
    await upstream.plan({ match: { id }, do: [{ reply: 200, body: REFUSED }], times: 'always' });
    const reply = await call('w.put');
    expect(reply.body).toMatchObject({ code: 'in_doubt' });
    expect(await countEffects()).toBe(1);
  });

  it('is a refusal of an MCP tool', async () => {
    const reply = await call('m.find');
    expect(reply.body).toMatchObject({
      code: 'tool_failed',
      upstream: { status: 200, body: { structuredContent: { found: false } } },
    });
  });

  it('is stored and shown without redacted values', async () => {
    await answerWith({ errors: [{ message: 'card 4111-1111 refused', token: 'SECRET-token' }] });
    const reply = await call('w.redacted', { card: '4111-1111' });
    const stored = await gateway.admin('GET', `/admin/calls/${reply.body.txn}`);
    expect(reply.body.upstream.body).toEqual({ errors: [{ message: 'card [redacted] refused', token: '[redacted]' }] });
    expect(JSON.stringify([reply.body, stored.body])).not.toMatch(/4111-1111|SECRET-token/);
  });
});

describe('a 2xx answer for which `failed` cannot be evaluated', () => {
  it.each([
    ['is text', '<html>please log in</html>'],
    ['has no body', ''],
    ['is a list', [{ data: 1 }]],
  ])('that %s leaves the call in doubt, and is neither a success nor a failure', async (_, body) => {
    await answerWith(body, 200, true);
    const reply = await call('w.none');
    expect([reply.status, reply.body.code]).toEqual([504, 'in_doubt']);
    expect(reply.body.detail).toMatch(
      /^The upstream answered 200, but `failed` could not be evaluated: errors is read of a value that is not an object in `has\(result\.errors\)`; /,
    );
    expect(await upstream.requests(id)).toHaveLength(1);
    expect(await countEffects()).toBe(1);
  });

  it('whose body is cut leaves the call in doubt', async () => {
    await upstream.plan({ match: { id }, do: ['apply', 'partial'] });
    const reply = await call('w.none');
    expect([reply.status, reply.body.code]).toEqual([504, 'in_doubt']);
    expect(reply.body.detail).toContain('its body is needed for `failed`');
  });

  it('is asked for again with the same key, where the service knows the key', async () => {
    await upstream.plan({ match: { id, nth: 1 }, do: ['apply', { reply: 200, body: 'maintenance' }] });
    expect(await call('w.keyed')).toMatchObject({ status: 200, body: { state: 'succeeded', attempts: 2 } });
    expect(await countEffects()).toBe(1);
  });

  it('is retried for a read, which then fails', async () => {
    await answerWith('maintenance');
    expect((await call('w.read')).body).toMatchObject({ code: 'tool_failed', upstream: { status: 200 } });
    expect(await upstream.requests(id)).toHaveLength(3);
  });

  it('leaves the call of an MCP tool in doubt', async () => {
    const reply = await call('m.mail');
    expect(reply.body).toMatchObject({ code: 'in_doubt', detail: expect.stringContaining('refused is missing') });
    expect((await mcp.effects()).filter((effect) => effect.id === id)).toHaveLength(1);
  });
});

describe('an answer in `accepted`', () => {
  it('is a success that says that the work was only accepted', async () => {
    await answerWith({ job: 'j1' }, 202, true);
    const reply = await gateway.call('w.plain', { id }, { key: id });
    expect(reply).toMatchObject({
      status: 200,
      body: { state: 'succeeded', outcome: 'accepted', result: { job: 'j1' } },
    });
    const again = await gateway.call('w.plain', { id }, { key: id });
    expect(again.body).toMatchObject({ replayed: true, outcome: 'accepted', result: { job: 'j1' } });
    const { body } = await gateway.admin('GET', `/admin/calls/${reply.body.txn}`);
    expect(body).toMatchObject({ outcome: 'accepted', undo: { kind: 'compensable', args: { id: 'j1' } } });
  });

  it('stays accepted when its body is cut', async () => {
    await upstream.plan({ match: { id }, do: ['apply', { reply: 202, headers: { 'content-length': '99' } }] });
    const reply = await call('w.plain');
    expect(reply.body).toMatchObject({ state: 'succeeded', outcome: 'accepted', result: null });
  });

  it('replaces the default', async () => {
    await answerWith({ job: 'j1' }, 202);
    expect((await call('w.done')).body.outcome).toBeUndefined();
    id = uniqueId('answer');
    await answerWith({ job: 'j1' }, 201);
    expect((await call('w.done')).body.outcome).toBe('accepted');
  });

  it('is a note for a model, and a header through the proxy', async () => {
    await answerWith({ job: 'j1' }, 202);
    const { answer } = await requestLegacy(gateway, 'tools/call', { name: 'w__plain', arguments: { id } });
    expect(answer.result).toMatchObject({
      structuredContent: { job: 'j1' },
      _meta: { 'oncegate/outcome': 'accepted' },
      content: [{}, { text: '(The service accepted this work, and may not have done it yet.)' }],
    });
    id = uniqueId('answer');
    await answerWith({ job: 'j1' }, 201);
    const proxied = await gateway.post('/v1/proxy/w/none/mail', { id });
    expect([proxied.status, proxied.headers.get('oncegate-outcome')]).toEqual([201, 'accepted']);
  });
});

describe('a call that a probe found applied after a kill', () => {
  const killAfterEffect = () =>
    upstream.plan({ match: { id, method: 'POST' }, do: ['apply', { kill: gateway.pid }, 'drop'] });
  const recover = async (name: string, more: object = {}): Promise<Reply['body']> => {
    await killAfterEffect();
    await gateway.call(name, { id, ...more }, { key: id }).catch(() => undefined);
    await gateway.waitForExit();
    await gateway.start();
    const { body } = await pollUntil(
      () => gateway.call(name, { id, ...more }, { key: id }),
      ({ body }) => body.state === 'succeeded',
    );
    expect(await countEffects()).toBe(1);
    return body;
  };

  it('has the result that `probe.result` gives it, and its undo reads that result', async () => {
    const body = await recover('w.shaped');
    const [effect] = await upstream.effects(id);
    expect(body).toMatchObject({ replayed: true, result: { id: effect?.response.id, of: id, pin: 'none' } });
    const stored = await gateway.admin('GET', `/admin/calls/${body.txn}`);
    expect(stored.body).toMatchObject({ outcome: 'probed', undo: { args: { id: effect?.response.id } } });
  });

  it('never shows what the probe tool redacts', async () => {
    const body = await recover('w.shaped', { pin: 'PIN-7788' });
    expect(body.result.pin).toBe('[redacted]');
  });

  it('has the own result of the probe, and says so, when `probe.result` cannot be evaluated', async () => {
    const body = await recover('w.misshaped');
    expect(body.result).toMatchObject({ found: true, count: 1 });
    expect(gateway.output).toContain('nothing is missing in `result.nothing.here`');
  });
});

describe('a probe', () => {
  it.each([
    ['an HTML page', 200, '<html>please log in</html>'],
    ['202, as if the read were still to be done', 202, { count: 0 }],
    ['a list', 200, []],
  ])('that is answered with %s proves nothing', async (_, status, body) => {
    await upstream.plan({ match: { id, method: 'POST' }, do: ['apply', 'drop'] });
    await upstream.plan({ match: { id, method: 'GET' }, do: [{ reply: status, body }], times: 2 });
    const { body: answer } = await pollUntil(
      () => gateway.call('w.asked', { id }, { key: id }),
      (reply) => reply.body.state === 'succeeded',
    );
    expect(answer.result).toMatchObject({ found: true });
    expect(await countEffects()).toBe(1);
  });
});

describe('several tools with one method and path', () => {
  it('work under their own names', async () => {
    expect((await call('w.none')).status).toBe(200);
  });

  it('are denied through the proxy, by name, unless exactly one of them says proxy: true', async () => {
    // w.shaped and w.misshaped have POST /probed/orders; w.done is the proxy target of POST /none/mail.
    const denied = await gateway.post('/v1/proxy/w/probed/orders', { id });
    expect([denied.status, denied.body.code]).toEqual([403, 'denied']);
    expect(denied.body.detail).toContain('w.shaped, w.misshaped, w.asked');
    expect(await upstream.requests(id)).toHaveLength(0);
    const done = await gateway.post('/v1/proxy/w/none/mail', { id });
    expect(done.status).toBe(200);
    const { body } = await gateway.admin('GET', `/admin/calls/${done.headers.get('oncegate-txn')}`);
    expect(body.tool).toBe('w.done');
  });

  it('pass a refusal on as the service wrote it', async () => {
    await answerWith(REFUSED);
    const reply = await gateway.request('POST', '/v1/proxy/w/keyed/charge', {
      key: AGENT_KEY,
      body: JSON.stringify({ id }),
      headers: { 'content-type': 'application/json' },
    });
    expect([reply.status, reply.headers.get('oncegate-state')]).toEqual([200, 'failed']);
    expect(reply.body).toEqual(REFUSED);
  });
});
