import { createHash } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY } from '../support/gateway.ts';
import { requestLegacy, requestNewest } from './clients.ts';
import { useMcpGateway } from './use-mcp-gateway.ts';

const { upstream, gateway } = useMcpGateway();
beforeEach(() => upstream.reset());

const KEY_META = 'oncegate/idempotency-key';
const call = async (name: string, args: object, meta: object = {}, headers: Record<string, string> = {}) =>
  (await requestLegacy(gateway, 'tools/call', { name, arguments: args, _meta: meta }, { headers })).answer.result;
// biome-ignore lint/suspicious/noExplicitAny: results of every shape
const txnOf = (result: any): string => result._meta['oncegate/txn'];
const effects = async (id: string) => (await upstream.effects(id)).length;

describe('the key of a call', () => {
  it('is the first of: the key in _meta, the header, the id of the framework', async () => {
    const framework = { 'claudecode/toolUseId': 'toolu_order' };
    const header = { 'idempotency-key': 'k-header' };
    const all = await call('world__charge', { id: 'a' }, { [KEY_META]: 'k-own', ...framework }, header);
    const two = await call('world__charge', { id: 'b' }, framework, header);
    const one = await call('world__charge', { id: 'c' }, framework);
    const keyOf = async (txn: string) => (await gateway.admin('GET', `/admin/calls/${txn}`)).body.key;
    expect(await Promise.all([all, two, one].map((result) => keyOf(txnOf(result))))).toEqual([
      'k-own',
      'k-header',
      'toolu_order',
    ]);
  });

  it.each(['claudecode/toolUseId', 'openai/toolCallId', 'ai-sdk/toolCallId', 'langchain/toolCallId', 'toolCallId'])(
    'may come from a framework as %s',
    async (name) => {
      const meta = { [name]: `call ${name} with spaces` };
      const first = await call('world__charge', { id: name }, meta);
      const again = await call('world__charge', { id: name }, meta);
      expect(txnOf(again)).toBe(txnOf(first));
      const other = await call('world__charge', { id: name }, { [name]: `another ${name}` });
      expect(txnOf(other)).not.toBe(txnOf(first));
      expect(await effects(name)).toBe(2);
      const { key } = (await gateway.admin('GET', `/admin/calls/${txnOf(first)}`)).body;
      expect(key).toBe(`sha256:${createHash('sha256').update(`call ${name} with spaces`).digest('hex')}`);
    },
  );

  it('is the business key of the tool if the call has none', async () => {
    const first = await call('world__by_order', { id: 'order-1' });
    const again = await call('world__by_order', { id: 'order-1' });
    expect(txnOf(again)).toBe(txnOf(first));
    expect(again._meta['oncegate/replayed']).toBe(true);
    expect(await effects('order-1')).toBe(1);
  });

  it('names the same call over MCP and at /v1/tools', async () => {
    const http = await gateway.call('world.charge', { id: 'shared' }, { key: 'shared-1' });
    const mcp = await call('world__charge', { id: 'shared' }, { [KEY_META]: 'shared-1' });
    expect(txnOf(mcp)).toBe(http.body.txn);
    expect(mcp).toMatchObject({ structuredContent: http.body.result, _meta: { 'oncegate/replayed': true } });
    const newest = await requestNewest(gateway, 'tools/call', {
      name: 'world__charge',
      arguments: { id: 'shared' },
      _meta: { [KEY_META]: 'shared-1' },
    });
    expect(txnOf(newest.answer.result)).toBe(http.body.txn);
    expect(await effects('shared')).toBe(1);
  });

  it('with other arguments is refused, and nothing is sent', async () => {
    await call('world__charge', { id: 'first' }, { [KEY_META]: 'reused' });
    const other = await call('world__charge', { id: 'second' }, { [KEY_META]: 'reused' });
    expect(other).toMatchObject({ isError: true, structuredContent: { code: 'key_reused', status: 422 } });
    expect(await effects('second')).toBe(0);
  });

  it('joins simultaneous calls over MCP and HTTP into one', async () => {
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, i) =>
        i % 2 === 0
          ? call('world__mail', { id: 'storm' }, { [KEY_META]: 'storm-1' }).then(txnOf)
          : gateway.call('world.mail', { id: 'storm' }, { key: 'storm-1' }).then(({ body }) => body.txn as string),
      ),
    );
    expect(new Set(answers).size).toBe(1);
    expect(await effects('storm')).toBe(1);
  });
});

describe('a repeat without a key', () => {
  it('gets the recorded result, with an explanation for the model', async () => {
    const first = await call('world__mail', { id: 'twice' });
    const again = await call('world__mail', { id: 'twice' });
    expect(first.content).toHaveLength(1);
    expect(first._meta).toMatchObject({ 'oncegate/replayed': false });
    expect(again._meta).toMatchObject({ 'oncegate/replayed': true, 'oncegate/txn': txnOf(first) });
    expect(again.content[0]).toEqual(first.content[0]);
    expect(again.content[1].text).toMatch(/made before and was not executed again.*idempotency key/s);
    expect(again.structuredContent).toEqual(first.structuredContent);
    expect(await effects('twice')).toBe(1);
  });

  it('of a call whose answer was lost gets the result of that call', async () => {
    await upstream.plan({ match: { id: 'unheard' }, do: [{ event: 'in' }, { wait: 'go' }] });
    const controller = new AbortController();
    const params = { name: 'world__mail', arguments: { id: 'unheard' } };
    const pending = requestLegacy(gateway, 'tools/call', params, { signal: controller.signal });
    await upstream.awaitEvent('in');
    controller.abort();
    await expect(pending).rejects.toThrow();
    await upstream.release('go');
    const repeated = await call('world__mail', { id: 'unheard' });
    expect(repeated.structuredContent).toMatchObject({ t: 'unheard' });
    expect(await effects('unheard')).toBe(1);
  });

  it('of a failed call is a new call, once the failure was delivered', async () => {
    await upstream.plan({ match: { id: 'retry' }, do: [{ reply: 422 }] });
    expect(await call('world__mail', { id: 'retry' })).toMatchObject({ isError: true });
    await expect.poll(async () => (await call('world__mail', { id: 'retry' })).isError).toBeUndefined();
    expect(await effects('retry')).toBe(1);
  });
});

describe('a saga', () => {
  const begin = async () => (await call('oncegate__begin_saga', { name: 'trip' })).structuredContent.saga as string;

  it('is begun and rolled rolledBack with the built-in tools, and takes steps through _meta', async () => {
    const saga = await begin();
    const step = await call('world__charge', { id: 's1' }, { 'oncegate/saga': saga });
    const seen = (await gateway.get(`/v1/sagas/${saga}`)).body;
    expect(seen.steps.map(({ txn }: { txn: string }) => txn)).toEqual([txnOf(step)]);
    const rolledBack = await call('oncegate__rollback_saga', { saga, reason: 'changed my mind' });
    expect(rolledBack.structuredContent).toMatchObject({ state: 'rolled_back', steps: [{ undo: { state: 'done' } }] });
    const routes = (await upstream.effects('s1')).map(({ route }) => route);
    expect(routes).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
    const late = await call('world__charge', { id: 's2' }, { 'oncegate/saga': saga });
    expect(late).toMatchObject({ isError: true, structuredContent: { code: 'saga_closed' } });
  });

  it('is begun once per key, and committed', async () => {
    const meta = { [KEY_META]: 'saga-key' };
    const [one, two] = [await call('oncegate__begin_saga', {}, meta), await call('oncegate__begin_saga', {}, meta)];
    expect(two.structuredContent.saga).toBe(one.structuredContent.saga);
    const { saga } = one.structuredContent;
    await call('world__charge', { id: 's3' }, { 'oncegate/saga': saga, 'oncegate/depends-on': 'none' });
    expect((await call('oncegate__commit_saga', { saga })).structuredContent).toMatchObject({ state: 'committed' });
    const listed = await call('oncegate__list_calls', { saga });
    expect(listed.structuredContent.items).toMatchObject([{ tool: 'world.charge', state: 'succeeded' }]);
  });

  it('is fenced for a replaced holder of its run, as over HTTP', async () => {
    const take = () =>
      gateway.request('POST', '/v1/runs', {
        key: AGENT_KEY,
        body: JSON.stringify({ name: 'fenced over MCP' }),
        headers: { 'content-type': 'application/json' },
      });
    const { body: first } = await take();
    const old = { 'oncegate/run': first.run, 'oncegate/epoch': first.epoch };
    const saga = (await call('oncegate__begin_saga', {}, old)).structuredContent.saga as string;
    await take();
    for (const [tool, args] of [
      ['oncegate__begin_saga', {}],
      ['oncegate__commit_saga', { saga }],
      ['oncegate__rollback_saga', { saga, reason: 'a zombie wants it' }],
      ['world__charge', { id: 'zombie' }],
    ] as const)
      expect((await call(tool, args, old)).structuredContent).toMatchObject({ code: 'fenced' });
    expect((await gateway.get(`/v1/sagas/${saga}`)).body.state).toBe('open');
    expect(await effects('zombie')).toBe(0);
  });

  it('refuses an incomplete or malformed run in _meta', async () => {
    for (const meta of [
      { 'oncegate/run': 'r' },
      { 'oncegate/epoch': 1 },
      { 'oncegate/run': 'r', 'oncegate/epoch': 1 },
    ]) {
      const params = { name: 'world__charge', arguments: { id: 'fenced' }, _meta: meta };
      expect((await requestLegacy(gateway, 'tools/call', params)).answer.error).toMatchObject({ code: -32602 });
    }
    expect(await effects('fenced')).toBe(0);
  });

  it('cannot be rolled rolledBack in a dry run, because built-in tools refuse dry runs', async () => {
    const saga = await begin();
    const params = { name: 'oncegate__rollback_saga', arguments: { saga, reason: 'x' } };
    const { answer } = await requestLegacy(gateway, 'tools/call', params, {
      headers: { 'oncegate-dry-run': '?1' },
    });
    expect(answer.error).toMatchObject({ code: -32602 });
    expect((await gateway.get(`/v1/sagas/${saga}`)).body.state).toBe('open');
  });
});
