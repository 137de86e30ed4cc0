import { beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, OTHER_AGENT_KEY } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const NO_WAIT = { prefer: 'wait=0' };

const { upstream, database, gateway } = useGateway();
beforeEach(() => {
  id = uniqueId('own');
});

const cancel = (txn: string, key = AGENT_KEY) => gateway.request('POST', `/v1/calls/${txn}/cancel`, { key });
const hold = () => gateway.call('world.held', { id }, { key: id, headers: NO_WAIT });

describe('GET /v1/calls/{txn}', () => {
  it('shows the state, the arguments and the result of a call', async () => {
    const made = await gateway.call('world.keyed', { id, n: 3 }, { key: id });
    const { status, body, headers } = await gateway.get(`/v1/calls/${made.body.txn}`);
    expect(status).toBe(200);
    expect(body).toMatchObject({
      txn: made.body.txn,
      tool: 'world.keyed',
      state: 'succeeded',
      result: made.body.result,
      receipt: made.body.receipt,
      attempts: 1,
      key: id,
      args: { id, n: 3 },
      problem: null,
    });
    expect(headers.get('oncegate-txn')).toBe(made.body.txn);
    expect(headers.get('oncegate-state')).toBe('succeeded');
    for (const hidden of ['agent', 'rule', 'policyVersion', 'timeline']) expect(body).not.toHaveProperty(hidden);
  });

  it('shows the problem of a failed call', async () => {
    await upstream.plan({ match: { id }, do: [{ reply: 422, body: { why: 'no' } }] });
    const made = await gateway.call('world.keyed', { id }, { key: id });
    const { body } = await gateway.get(`/v1/calls/${made.body.txn}`);
    expect(body).toMatchObject({
      state: 'failed',
      result: null,
      problem: { code: 'tool_failed', upstream: { status: 422, body: { why: 'no' } } },
    });
  });

  it.each(['00000000-0000-8000-8000-000000000000', 'nonsense', '%00', "' or true --", '../../admin/calls'])(
    'answers 404 for a txn that names no call: %s',
    async (txn) => {
      const missing = await gateway.get(`/v1/calls/${encodeURIComponent(decodeURIComponent(txn))}`);
      expect(missing.status).toBe(404);
      expect(missing.body.code).toBe('not_found');
    },
  );

  it('gives another agent the same 404 as for a call that does not exist', async () => {
    const { txn } = (await hold()).body;
    const absent = txn.replace(/^......../, '00000000');
    for (const path of [`/v1/calls/${txn}`, `/v1/calls/${txn}?wait=1`]) {
      const theirs = await gateway.get(path, OTHER_AGENT_KEY);
      const missing = await gateway.get(path.replace(txn, absent), OTHER_AGENT_KEY);
      expect(theirs.status).toBe(404);
      expect(JSON.stringify(theirs.body).replaceAll(txn, absent)).toBe(JSON.stringify(missing.body));
    }
    expect((await cancel(txn, OTHER_AGENT_KEY)).status).toBe(404);
    expect((await gateway.get(`/v1/calls/${txn}`)).body.state).toBe('held');
  });

  it('waits as long as ?wait says, or until the call is final', async () => {
    await upstream.plan({ match: { id }, do: [{ wait: id }, 'apply'] });
    const { txn } = (await gateway.call('world.keyed', { id }, { key: id, headers: NO_WAIT })).body;
    expect((await gateway.get(`/v1/calls/${txn}`)).body.state).toBe('sending');
    const startedAt = performance.now();
    expect((await gateway.get(`/v1/calls/${txn}?wait=1`)).body.state).toBe('sending');
    expect(performance.now() - startedAt).toBeGreaterThan(950);
    const waiting = gateway.get(`/v1/calls/${txn}?wait=50`);
    await upstream.release(id);
    expect((await waiting).body.state).toBe('succeeded');
  });

  it('waits for a held call until it is cancelled', async () => {
    const { txn } = (await hold()).body;
    const waiting = gateway.get(`/v1/calls/${txn}?wait=50`);
    expect((await cancel(txn)).status).toBe(200);
    expect((await waiting).body.state).toBe('cancelled');
  });
});

describe('GET /v1/calls', () => {
  it('lists the calls of the agent, newest first, filtered by tool, state and time', async () => {
    await upstream.plan({ match: { id: `${id}-2` }, do: [{ reply: 422 }] });
    for (const i of [1, 2, 3]) await gateway.call('world.put', { id: `${id}-${i}` }, { key: `${id}-${i}` });
    await gateway.call('world.keyed', { id: `${id}-4` }, { key: `${id}-4`, agentKey: OTHER_AGENT_KEY });
    const keys = async (query: string, key = AGENT_KEY) =>
      (await gateway.get(`/v1/calls?${query}`, key)).body.items.map((item: { key: string }) => item.key);
    expect(await keys('tool=world.put')).toEqual([`${id}-3`, `${id}-2`, `${id}-1`]);
    expect(await keys('tool=world.put&state=failed')).toEqual([`${id}-2`]);
    expect(await keys('tool=nothing')).toEqual([]);
    expect(await keys('limit=500', OTHER_AGENT_KEY)).toEqual([`${id}-4`]);
    const { createdAt } = (await gateway.get('/v1/calls?tool=world.put')).body.items[0];
    expect(await keys(`tool=world.put&since=${createdAt}`)).toEqual([`${id}-3`]);
    expect(await keys(`tool=world.put&until=${createdAt}`)).not.toContain(`${id}-3`);
    expect(await keys('tool=world.put&until=2100-01-01T00:00Z')).toContain(`${id}-3`);
  });

  it('pages without gaps or duplicates while new calls arrive', async () => {
    const make = (name: string) => gateway.call('world.delete', { id: name }, { key: name });
    const expected = Array.from({ length: 25 }, (_, i) => `${id}-p${i}`);
    await Promise.all(expected.map(make));
    const seen: string[] = [];
    let cursor: string | null = '';
    for (let page = 0; cursor !== null; page++) {
      const { body } = await gateway.get(
        `/v1/calls?tool=world.delete&limit=4${cursor === '' ? '' : `&cursor=${cursor}`}`,
      );
      expect(body.items.length).toBeLessThanOrEqual(4);
      seen.push(...body.items.map((item: { key: string }) => item.key));
      cursor = body.cursor;
      await make(`${id}-new${page}`);
      expect(page).toBeLessThan(20);
    }
    expect([...seen].sort()).toEqual([...expected].sort());
  });

  it.each([
    'state=done',
    'state=held&state=ready',
    'cursor=x',
    'cursor=1.nonsense',
    'cursor=',
    'limit=0',
    'limit=-1',
    'limit=all',
    'since=yesterday',
    'until=yesterday',
    'until=9999-01-01T00:00Z',
    'saga=x',
    'run=x',
    'tool=a&tool=b',
    'tool=%00',
  ])('refuses ?%s', async (query) => {
    const refused = await gateway.get(`/v1/calls?${query}`);
    expect(refused.status).toBe(400);
    expect(refused.body.code).toBe('malformed');
  });

  it('ignores an agent in the query', async () => {
    await gateway.call('world.keyed', { id }, { key: id, agentKey: OTHER_AGENT_KEY });
    const mine = (await gateway.get('/v1/calls?agent=other&limit=200')).body.items;
    expect(mine.some((item: { key: string }) => item.key === id)).toBe(false);
  });
});

describe('a held call', () => {
  it('answers 202 with a Location, on the first request and on every repeat', async () => {
    const first = await hold();
    expect(first.status).toBe(202);
    expect(first.body).toMatchObject({ state: 'held', replayed: false, result: null, attempts: 0 });
    expect(first.headers.get('location')).toBe(`/v1/calls/${first.body.txn}`);
    expect(first.headers.get('retry-after')).toMatch(/^\d+$/);
    expect(first.headers.get('oncegate-state')).toBe('held');
    const again = await hold();
    expect(again.status).toBe(202);
    expect(again.body).toMatchObject({ txn: first.body.txn, state: 'held', replayed: true });
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect((await gateway.call('world.held', { id, n: 1 }, { key: id })).body.code).toBe('key_reused');
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('can be cancelled, and stays cancelled', async () => {
    const { txn } = (await hold()).body;
    const cancelled = await cancel(txn);
    expect(cancelled.status).toBe(200);
    expect(cancelled.body).toMatchObject({ txn, state: 'cancelled' });
    expect((await cancel(txn)).body).toEqual(cancelled.body);
    const again = await hold();
    expect(again.status).toBe(422);
    expect(again.body).toMatchObject({ code: 'cancelled', retry: 'new_key', txn });
    expect(again.headers.get('oncegate-state')).toBe('cancelled');
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect(await upstream.requests(id)).toEqual([]);
    const [row] = await database.query<{ n: string }>('select count(*) as n from open_calls where txn = $1', [txn]);
    expect(row?.n).toBe('0');
  });

  it('that is cancelled by many requests at once has one audit entry', async () => {
    const { txn } = (await hold()).body;
    const answers = await Promise.all(Array.from({ length: 8 }, () => cancel(txn)));
    for (const answer of answers) expect(answer.status).toBe(200);
    const entries = await database.query('select 1 from audit_entries where entry like $1 and entry like $2', [
      `%${txn}%`,
      '%call_cancelled%',
    ]);
    expect(entries).toHaveLength(1);
  });

  it('expires if no person decides in time', async () => {
    const { txn } = (await hold()).body;
    await database.query('update open_calls set due_at = now() where txn = $1', [txn]);
    await gateway.waitForCall(txn, (call) => call.state === 'expired', 10_000);
    const again = await hold();
    expect(again.status).toBe(422);
    expect(again.body).toMatchObject({ code: 'expired', retry: 'new_key' });
    expect((await cancel(txn)).status).toBe(409);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('stays held across a restart of the gateway', async () => {
    const { txn } = (await hold()).body;
    await gateway.kill();
    await gateway.start();
    expect((await gateway.get(`/v1/calls/${txn}`)).body.state).toBe('held');
    expect((await hold()).status).toBe(202);
  });
});

describe('cancelling a call', () => {
  it('is refused after the call succeeded', async () => {
    const done = await gateway.call('world.keyed', { id }, { key: id });
    const refused = await cancel(done.body.txn);
    expect(refused.status).toBe(409);
    expect(refused.body).toMatchObject({ code: 'conflict', retry: 'never', txn: done.body.txn });
    expect((await gateway.call('world.keyed', { id }, { key: id })).body).toEqual({ ...done.body, replayed: true });
  });

  it('is refused while the call is being sent', async () => {
    await upstream.plan({ match: { id }, do: [{ wait: id }, 'apply'] });
    const { txn } = (await gateway.call('world.keyed', { id }, { key: id, headers: NO_WAIT })).body;
    expect((await cancel(txn)).status).toBe(409);
    await upstream.release(id);
    expect((await gateway.get(`/v1/calls/${txn}?wait=20`)).body.state).toBe('succeeded');
  });

  it.each(['', 'nonsense', '%00'])('answers 404 for a txn that names no call: %j', async (txn) => {
    expect((await cancel(txn)).status).toBe(404);
  });
});
