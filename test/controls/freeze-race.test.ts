import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import type { Gateway } from '../support/gateway.ts';
import { useReplicas } from '../support/use-gateway.ts';

const { upstream, database, one, two, replicas } = useReplicas({
  policies: (url) => buildFaultPolicies(url, { retry: '{ attempts: 50, base: 100ms, max: 300ms, within: 1h }' }),
});

beforeEach(async () => {
  for (const replica of replicas) await replica.ensureStarted();
  await setFreeze(one, 'unfreeze');
  await upstream.reset();
});

const setFreeze = (on: Gateway, verb: 'freeze' | 'unfreeze', scope = '/admin') =>
  on.admin('POST', `${scope}/${verb}`, { reason: verb });
/** Requests that left before the acknowledgement may stay in the queue of the upstream for a moment. */
const countSettledRequests = async () => {
  await sleep(60);
  return (await upstream.requests()).length;
};

describe('after a freeze is acknowledged', () => {
  it('two replicas under load send nothing, and refused calls leave nothing in the ledger', async () => {
    for (const scope of ['/admin', '/admin/agents/tester']) {
      let isFiring = true;
      let i = 0;
      const statuses = new Set<number>();
      const keepCalling = async (gateway: Gateway) => {
        while (isFiring) {
          i += 1;
          const tool = ['world.keyed', 'world.none', 'world.put', 'world.read'][i % 4] ?? '';
          statuses.add((await gateway.call(tool, { id: `${scope}-${i}` }, { key: `${scope}-${i}` })).status);
        }
      };
      const workers = Array.from({ length: 12 }, (_, k) => keepCalling(k % 2 === 0 ? one : two));
      await upstream.awaitEvent('received', 30);
      expect((await setFreeze(two, 'freeze', scope)).status).toBe(200);
      const before = await countSettledRequests();
      // Twelve workers keep calling meanwhile, so any send would be seen.
      await sleep(700);
      expect(await upstream.requests()).toHaveLength(before);
      isFiring = false;
      await Promise.all(workers);
      expect([...statuses].sort()).toEqual([200, 503]);
      const [open] = await database.query<{ n: number }>('select count(*)::int as n from open_calls');
      expect(open?.n).toBe(0);
      expect((await setFreeze(one, 'unfreeze', scope)).status).toBe(200);
      await upstream.reset();
    }
  });

  it('retries, recovered calls and probes wait, and continue after the unfreeze', async () => {
    await upstream.plan({ match: { id: 'retry' }, do: ['apply', 'drop'], times: 3 });
    await upstream.plan({ match: { id: 'dead' }, do: ['apply', { event: 'dead' }, 'hang'] });
    await upstream.plan({ match: { id: 'probe' }, do: ['apply', { event: 'probe' }, 'hang'] });
    const wait = { prefer: 'wait=0' };
    const retried = await one.call('world.keyed', { id: 'retry' }, { key: 'retry', headers: wait });
    void two.call('world.keyed', { id: 'dead' }, { key: 'dead' }).catch(() => undefined);
    void two.call('world.probed', { id: 'probe' }, { key: 'probe' }).catch(() => undefined);
    await upstream.awaitEvent('dead');
    await upstream.awaitEvent('probe');
    await two.kill();
    expect((await setFreeze(one, 'freeze')).status).toBe(200);
    const before = await countSettledRequests();
    // Sleeps several times the longest backoff, because no event says that nothing was sent.
    await sleep(1_800);
    expect(await upstream.requests()).toHaveLength(before);
    expect(['sending', 'in_doubt']).toContain((await one.get(`/v1/calls/${retried.body.txn}`)).body.state);
    await setFreeze(one, 'unfreeze');
    for (const [tool, id] of [
      ['world.keyed', 'retry'],
      ['world.keyed', 'dead'],
      ['world.probed', 'probe'],
    ] as const) {
      expect([id, (await one.call(tool, { id }, { key: id })).status]).toEqual([id, 200]);
      expect(await upstream.effects(id)).toHaveLength(1);
    }
  });

  it('a replica that was suspended during the freeze sends nothing when it resumes, even with a new lease', async () => {
    const calls: Promise<unknown>[] = [];
    const startCall = (k: number) =>
      calls.push(one.call('world.keyed', { id: `asleep-${k}` }, { key: `asleep-${k}` }).catch(() => undefined));
    for (let k = 0; k < 10; k += 1) startCall(k);
    await Promise.all(calls);
    one.signal('SIGSTOP');
    // These requests wait in the sockets of the replica, which reads them as soon as it resumes.
    for (let k = 10; k < 60; k += 1) startCall(k);
    const started = performance.now();
    expect((await setFreeze(two, 'freeze')).status).toBe(200);
    expect(performance.now() - started).toBeLessThan(9_000);
    const before = await countSettledRequests();
    one.signal('SIGCONT');
    for (let k = 60; k < 120; k += 1) {
      startCall(k);
      await sleep(5);
    }
    await Promise.all(calls);
    await sleep(300);
    expect(await upstream.requests()).toHaveLength(before);
  });

  it('the freeze outlives all replicas, and the last of many changes in a row wins', async () => {
    for (let k = 0; k < 8; k += 1) {
      await Promise.all([setFreeze(one, 'freeze'), setFreeze(two, 'freeze', '/admin/agents/other')]);
      expect((await two.call('world.keyed', { id: 'x' }, { key: 'x' })).body.code).toBe('frozen');
      await Promise.all([setFreeze(two, 'unfreeze'), setFreeze(one, 'unfreeze', '/admin/agents/other')]);
    }
    await setFreeze(one, 'freeze');
    await Promise.all([one.kill(), two.kill()]);
    await Promise.all([one.start(), two.start()]);
    for (const gateway of [one, two])
      expect((await gateway.call('world.keyed', { id: 'x' }, { key: 'x' })).body.code).toBe('frozen');
    expect(await upstream.requests()).toEqual([]);
    await setFreeze(two, 'unfreeze');
    expect((await one.call('world.keyed', { id: 'x' }, { key: 'x' })).status).toBe(200);
  });
});
