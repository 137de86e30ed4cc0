import { once } from 'node:events';
import { connect } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { ADMIN_KEY, AGENT_KEY, type Gateway, VIEWER_KEY, writePolicies } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { startGatewayForTest, useReplicas } from '../support/use-gateway.ts';
import { SseClient } from './sse.ts';

let id = '';
const openClients: SseClient[] = [];

const { upstream, database, one, two } = useReplicas();
afterEach(async () => {
  for (const listener of openClients.splice(0)) await listener.close();
});
beforeEach(() => {
  id = uniqueId('event');
});

async function openStream(gateway: Gateway, key = VIEWER_KEY, after?: number): Promise<SseClient> {
  const listener = await SseClient.open(gateway, key, after);
  openClients.push(listener);
  return listener;
}

const readLogIndexes = async (from: number, to: number) =>
  (
    await database.query<{ index: string }>('select index from audit_log where index > $1 and index <= $2 order by 1', [
      from,
      to,
    ])
  ).map(({ index }) => Number(index));

describe('GET /admin/events', () => {
  it('does not exist for HEAD, which has no body', async () => {
    const answer = await fetch(`${one.url}/admin/events`, {
      method: 'HEAD',
      headers: { authorization: `Bearer ${VIEWER_KEY}` },
      signal: AbortSignal.timeout(5_000),
    });
    expect(answer.status).toBe(404);
  });

  it('does not count against limits.inflight', async () => {
    const { gateway: narrow } = await startGatewayForTest({ upstream, config: 'limits: { inflight: 4 }\n' });
    const streams = await Promise.all(Array.from({ length: 5 }, () => openStream(narrow)));
    expect(streams.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
    expect((await narrow.call('world.keyed', { id }, { key: id })).status).toBe(200);
  });

  it('frees the slots of queued streams whose connection is gone', async () => {
    const held = await one.call('world.held', { id }, { key: id, headers: { prefer: 'wait=0' } });
    const ask = (path: string, key: string) =>
      `GET ${path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\n\r\n`;
    const socket = connect({ host: '127.0.0.1', port: one.port });
    socket.write(ask(`/v1/calls/${held.body.txn}?wait=50`, AGENT_KEY) + ask('/admin/events', VIEWER_KEY).repeat(32));
    const status = async () => {
      const { status } = await openStream(one);
      for (const listener of openClients.splice(0)) await listener.close();
      return status;
    };
    await expect.poll(status, { timeout: 10_000 }).toBe(429);
    socket.resetAndDestroy();
    await expect.poll(status, { timeout: 10_000 }).toBe(200);
  });

  it('needs the key of a person and a valid Last-Event-ID', async () => {
    const ask = (key?: string, headers = {}) =>
      one.request('GET', '/admin/events', { ...(key === undefined ? {} : { key }), headers });
    expect((await ask()).status).toBe(401);
    expect((await ask('no-such-key')).status).toBe(401);
    expect((await ask(AGENT_KEY)).body).toMatchObject({ status: 403, code: 'forbidden' });
    for (const bad of ['x', '-1', '1.5', '9'.repeat(16)])
      expect((await ask(VIEWER_KEY, { 'last-event-id': bad })).body.detail).toMatch(/Last-Event-ID must be/);
  });

  it('sends events of other replicas, without arguments and results', async () => {
    const listener = await openStream(one);
    const done = await two.call('world.keyed', { id }, { key: id });
    const event = await listener.waitForEvent(({ data }) => data.txn === done.body.txn && data.state === 'succeeded');
    expect(event).toMatchObject({
      name: 'call',
      data: { agent: 'tester', tool: 'world.keyed', what: 'call_succeeded' },
    });
    expect(Object.keys(event.data).toSorted()).toEqual(['agent', 'at', 'state', 'tool', 'txn', 'what']);
    expect(listener.text).not.toContain(id);
    expect(listener.text).not.toContain(done.body.result.id);
    await listener.waitForEvent(({ name, data }) => name === 'checkpoint' && data.size > (event.id ?? 0));
  });

  it('names approvals, freezes, breakers, refusals and sagas, without reasons', async () => {
    const listener = await openStream(one);
    const held = await two.call('world.held', { id }, { key: id, headers: { prefer: 'wait=0' } });
    const { txn } = held.body;
    const reason = `because of ${id}`;
    const [shown] = (await two.admin('GET', '/admin/approvals?state=pending')).body.items;
    await two.admin('POST', `/admin/approvals/${txn}/reject`, { reason, digest: shown.digest });
    await two.admin('POST', '/admin/agents/other/freeze', { reason });
    await two.admin('POST', '/admin/agents/other/unfreeze', { reason });
    await two.admin('POST', '/admin/breakers/world/open', { reason });
    await two.admin('POST', '/admin/breakers/world/close', { reason });
    await two.call('nothing.here', { id });
    const saga = await two.request('POST', '/v1/sagas', {
      key: AGENT_KEY,
      headers: { 'content-type': 'application/json' },
      body: '{}',
    });
    await listener.waitForEvent(({ data }) => data.saga === saga.body.saga && data.what === 'saga_opened');
    const summaries = listener.events.map(
      ({ name, data }) => `${name} ${data.what} ${data.person ?? data.agent ?? ''}`,
    );
    for (const expected of [
      'approval call_held tester',
      'approval vote root',
      'switch frozen root',
      'switch unfrozen root',
      'breaker breaker_open root',
      'breaker breaker_close root',
      'refusal denied tester',
      'saga saga_opened tester',
    ])
      expect(summaries).toContain(expected);
    expect(listener.text).not.toContain(reason);
  });

  it('resumes on any replica: each entry once, in order, without a gap', async () => {
    const first = await openStream(one);
    const before = await one.call('world.keyed', { id: `${id}-a` }, { key: `${id}-a` });
    const last = await first.waitForEvent(({ data }) => data.txn === before.body.txn && data.state === 'succeeded');
    await first.close();
    await Promise.all(
      Array.from({ length: 30 }, (_, i) =>
        (i % 2 === 0 ? one : two).call('world.keyed', { id: `${id}-${i}` }, { key: `${id}-${i}` }),
      ),
    );
    const second = await openStream(two, VIEWER_KEY, last.id);
    const after = await one.call('world.keyed', { id: `${id}-z` }, { key: `${id}-z` });
    const end = await second.waitForEvent(({ data }) => data.txn === after.body.txn && data.state === 'succeeded');
    const ids = second.ids.filter((index) => index <= (end.id ?? 0));
    expect(ids).toEqual(await readLogIndexes(last.id ?? 0, end.id ?? 0));
    expect(ids.length).toBeGreaterThan(60);
  });

  it('sends each entry once while it catches up under load', async () => {
    const logSize = (await readLogIndexes(-1, 1e15)).length;
    let isOver = false;
    const busy = (async () => {
      for (let i = 0; !isOver; i += 1) await two.call('world.read', { id: `${id}-${i}` });
    })();
    const listeners = await Promise.all(
      Array.from({ length: 8 }, (_, i) => openStream(one, VIEWER_KEY, Math.max(0, logSize - 1 - i))),
    );
    const ends = await Promise.all(
      listeners.map((each) => each.waitForEvent((event) => (event.id ?? 0) > logSize + 60)),
    );
    isOver = true;
    await busy;
    for (const [i, each] of listeners.entries()) {
      const end = ends[i]?.id ?? 0;
      expect(each.ids.filter((index) => index <= end)).toEqual(await readLogIndexes(Math.max(0, logSize - 1 - i), end));
      await each.close();
    }
  });

  it('sends a gap for an unknown id, and to a client too far behind', async () => {
    const listener = await openStream(one, VIEWER_KEY, 999_999_999);
    const { id: at, data } = await listener.waitForEvent(({ name }) => name === 'gap');
    expect(data.from).toBe(1_000_000_000);
    expect(at).toBe(data.to - 1);
    await one.call('world.keyed', { id }, { key: id });
    await listener.waitForEvent((event) => event.id === data.to);
  });

  it('limits the open streams of one person', async () => {
    const listeners = await Promise.all(Array.from({ length: 32 }, () => openStream(two, VIEWER_KEY)));
    expect(listeners.map(({ status }) => status)).toEqual(Array.from({ length: 32 }, () => 200));
    const refused = await two.get('/admin/events', VIEWER_KEY);
    expect(refused.body).toMatchObject({ status: 429, code: 'rate_limited' });
    expect(refused.headers.get('retry-after')).toBe('5');
    const other = await openStream(two, ADMIN_KEY);
    expect(other.status).toBe(200);
    for (const listener of [...listeners, other]) await listener.close();
    let again = await openStream(two, VIEWER_KEY);
    while (again.status !== 200) again = await openStream(two, VIEWER_KEY);
  });

  it('ends for a person who was removed from the policies, and stays open for others', async () => {
    const [watcher, admin] = [await openStream(one), await openStream(one, ADMIN_KEY)];
    const policies = buildFaultPolicies(upstream.url);
    const withoutWatcher = (policies['faults.yaml'] ?? '').replace(/^ {2}watcher:.*$/m, '');
    await writePolicies(one, { 'faults.yaml': withoutWatcher });
    expect((await one.admin('POST', '/admin/policies/reload')).status).toBe(200);
    await watcher.waitForEnd();
    expect(watcher.events.at(-1)).toMatchObject({ name: 'bye', data: { status: 401, code: 'unauthenticated' } });
    await one.call('world.keyed', { id }, { key: id });
    await admin.waitForEvent(({ name, data }) => name === 'call' && data.state === 'succeeded');
    await writePolicies(one, policies);
    await one.admin('POST', '/admin/policies/reload');
    expect((await openStream(one)).status).toBe(200);
  });

  it('cuts off a client that does not read, and serves the others', async () => {
    const socket = connect(one.port, '127.0.0.1');
    await once(socket, 'connect');
    socket.pause();
    socket.write(`GET /admin/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${VIEWER_KEY}\r\n\r\n`);
    const listener = await openStream(one);
    const long = 'x'.repeat(250);
    const entry = JSON.stringify({
      agent: long,
      person: long,
      tool: long,
      scope: long,
      upstream: long,
      what: 'frozen',
      at: '2026-01-01T00:00:00.000Z',
    });
    socket.on('error', () => {});
    const closed = once(socket, 'close');
    // More than all buffers on the way can hold, but never so much at once that the client gets a gap.
    for (const count of [6_000, 12_000]) {
      await database.query('insert into audit_queue (entry) select $1 from generate_series(1, 6000)', [entry]);
      await listener.waitForCount(count);
    }
    const size = (await one.admin('GET', '/admin/stats')).body.log.size;
    await listener.waitForEvent((event) => event.name === 'checkpoint' && event.data.size >= size);
    await one.call('world.keyed', { id }, { key: id });
    const last = await listener.waitForEvent(({ name, data }) => name === 'call' && data.state === 'succeeded');
    expect(listener.ids).toEqual(await readLogIndexes((listener.ids[0] ?? 0) - 1, listener.ids.at(-1) ?? 0));
    socket.resume();
    await closed;
    expect(last.id).toBeGreaterThan(size);
    // By now a client that starts at index 0 is too far behind.
    const late = await openStream(two, VIEWER_KEY, 0);
    await late.waitForEvent(({ name, data }) => name === 'gap' && data.from === 1);
  });

  it('ends with a bye when the gateway stops, without delaying it', async () => {
    const listener = await openStream(two);
    // Browsers open spare connections in advance.
    const unused = connect(two.port, '127.0.0.1');
    await once(unused, 'connect');
    expect(await two.stop()).toEqual({ code: 0, signal: null });
    await listener.waitForEnd();
    expect(listener.events.at(-1)).toMatchObject({ name: 'bye', data: { status: 503, retry: 'after_delay' } });
    // The timeout is shorter than the longest drain of a gateway.
  }, 15_000);
});
