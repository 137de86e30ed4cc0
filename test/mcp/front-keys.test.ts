import { createHash } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY } from '../support/gateway.ts';
import { requestLegacy, requestNewest } from './clients.ts';
import { useMcpGateway } from './front.ts';

const { upstream, gateway } = useMcpGateway();
beforeEach(() => upstream.reset());

const OWN = 'oncegate/idempotency-key';
const call = async (name: string, args: object, meta: object = {}, headers: Record<string, string> = {}) =>
  (await requestLegacy(gateway, 'tools/call', { name, arguments: args, _meta: meta }, { headers })).answer.result;
// biome-ignore lint/suspicious/noExplicitAny: results of every shape
const txnOf = (result: any): string => result._meta['oncegate/txn'];
const effects = async (id: string) => (await upstream.effects(id)).length;

describe('the key of a call', () => {
  it('is its own, then the header, then the id of its framework: the first that is there', async () => {
    const framework = { 'claudecode/toolUseId': 'toolu_order' };
    const header = { 'idempotency-key': 'k-header' };
    const all = await call('world__charge', { id: 'a' }, { [OWN]: 'k-own', ...framework }, header);
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

  it('is the business key of the tool for a call that brings none', async () => {
    const first = await call('world__by_order', { id: 'order-1' });
    const again = await call('world__by_order', { id: 'order-1' });
    expect(txnOf(again)).toBe(txnOf(first));
    expect(again._meta['oncegate/replayed']).toBe(true);
    expect(await effects('order-1')).toBe(1);
  });

  it('is the same here and at /v1/tools: one call, one effect', async () => {
    const http = await gateway.call('world.charge', { id: 'shared' }, { key: 'shared-1' });
    const mcp = await call('world__charge', { id: 'shared' }, { [OWN]: 'shared-1' });
    expect(txnOf(mcp)).toBe(http.body.txn);
    expect(mcp).toMatchObject({ structuredContent: http.body.result, _meta: { 'oncegate/replayed': true } });
    const newest = await requestNewest(gateway, 'tools/call', {
      name: 'world__charge',
      arguments: { id: 'shared' },
      _meta: { [OWN]: 'shared-1' },
    });
    expect(txnOf(newest.answer.result)).toBe(http.body.txn);
    expect(await effects('shared')).toBe(1);
  });

  it('with other arguments is refused, and nothing is sent', async () => {
    await call('world__charge', { id: 'first' }, { [OWN]: 'reused' });
    const other = await call('world__charge', { id: 'second' }, { [OWN]: 'reused' });
    expect(other).toMatchObject({ isError: true, structuredContent: { code: 'key_reused', status: 422 } });
    expect(await effects('second')).toBe(0);
  });

  it('makes simultaneous calls of both fronts one', async () => {
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, i) =>
        i % 2 === 0
          ? call('world__mail', { id: 'storm' }, { [OWN]: 'storm-1' }).then(txnOf)
          : gateway.call('world.mail', { id: 'storm' }, { key: 'storm-1' }).then(({ body }) => body.txn as string),
      ),
    );
    expect(new Set(answers).size).toBe(1);
    expect(await effects('storm')).toBe(1);
  });
});

describe('a repeat without a key', () => {
  it('is told what was recorded, in words that a model understands', async () => {
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

  it('of a call whose answer never arrived is that call', async () => {
    await upstream.plan({ match: { id: 'unheard' }, do: [{ event: 'in' }, { wait: 'go' }] });
    const hangUp = new AbortController();
    const params = { name: 'world__mail', arguments: { id: 'unheard' } };
    const asked = requestLegacy(gateway, 'tools/call', params, { signal: hangUp.signal });
    await upstream.awaitEvent('in');
    hangUp.abort();
    await expect(asked).rejects.toThrow();
    await upstream.release('go');
    const told = await call('world__mail', { id: 'unheard' });
    expect(told.structuredContent).toMatchObject({ t: 'unheard' });
    expect(await effects('unheard')).toBe(1);
  });

  it('of a call that failed is a new wish, once the failure was told', async () => {
    await upstream.plan({ match: { id: 'retry' }, do: [{ reply: 422 }] });
    expect(await call('world__mail', { id: 'retry' })).toMatchObject({ isError: true });
    await expect.poll(async () => (await call('world__mail', { id: 'retry' })).isError).toBeUndefined();
    expect(await effects('retry')).toBe(1);
  });
});

describe('a saga', () => {
  const begin = async () => (await call('oncegate__begin_saga', { name: 'trip' })).structuredContent.saga as string;

  it('is begun, filled through _meta and rolled back with the built-in tools', async () => {
    const saga = await begin();
    const step = await call('world__charge', { id: 's1' }, { 'oncegate/saga': saga });
    const seen = (await gateway.get(`/v1/sagas/${saga}`)).body;
    expect(seen.steps.map(({ txn }: { txn: string }) => txn)).toEqual([txnOf(step)]);
    const back = await call('oncegate__rollback_saga', { saga, reason: 'changed my mind' });
    expect(back.structuredContent).toMatchObject({ state: 'rolled_back', steps: [{ undo: { state: 'done' } }] });
    const routes = (await upstream.effects('s1')).map(({ route }) => route);
    expect(routes).toEqual(['POST /keyed/charge', 'POST /keyed/refund']);
    const late = await call('world__charge', { id: 's2' }, { 'oncegate/saga': saga });
    expect(late).toMatchObject({ isError: true, structuredContent: { code: 'saga_closed' } });
  });

  it('is begun once under one key, and committed', async () => {
    const meta = { [OWN]: 'saga-key' };
    const [one, two] = [await call('oncegate__begin_saga', {}, meta), await call('oncegate__begin_saga', {}, meta)];
    expect(two.structuredContent.saga).toBe(one.structuredContent.saga);
    const { saga } = one.structuredContent;
    await call('world__charge', { id: 's3' }, { 'oncegate/saga': saga, 'oncegate/depends-on': 'none' });
    expect((await call('oncegate__commit_saga', { saga })).structuredContent).toMatchObject({ state: 'committed' });
    const listed = await call('oncegate__list_calls', { saga });
    expect(listed.structuredContent.items).toMatchObject([{ tool: 'world.charge', state: 'succeeded' }]);
  });

  it('is out of reach for a holder of its run that was replaced, as over HTTP', async () => {
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

  it('takes a run only whole and well-formed: a promise that is misread is a promise broken', async () => {
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

  it('is rolled back for real only: a dry run of a built-in tool is refused', async () => {
    const saga = await begin();
    const params = { name: 'oncegate__rollback_saga', arguments: { saga, reason: 'x' } };
    const { answer } = await requestLegacy(gateway, 'tools/call', params, {
      headers: { 'oncegate-dry-run': '?1' },
    });
    expect(answer.error).toMatchObject({ code: -32602 });
    expect((await gateway.get(`/v1/sagas/${saga}`)).body.state).toBe('open');
  });
});
