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
  await flip(one, 'unfreeze');
  await upstream.reset();
});

const flip = (on: Gateway, verb: 'freeze' | 'unfreeze', scope = '/admin') =>
  on.admin('POST', `${scope}/${verb}`, { reason: verb });
/** What left before the freeze was acknowledged may still lie in the upstream's own queue for a moment. */
const settled = async () => {
  await sleep(60);
  return (await upstream.requests()).length;
};

describe('after a freeze is acknowledged', () => {
  it('nothing arrives from two replicas under fire, and nothing of what was refused is bound', async () => {
    for (const scope of ['/admin', '/admin/agents/tester']) {
      let firing = true;
      let i = 0;
      const statuses = new Set<number>();
      const worker = async (gateway: Gateway) => {
        while (firing) {
          i += 1;
          const tool = ['world.keyed', 'world.none', 'world.put', 'world.read'][i % 4] ?? '';
          statuses.add((await gateway.call(tool, { id: `${scope}-${i}` }, { key: `${scope}-${i}` })).status);
        }
      };
      const workers = Array.from({ length: 12 }, (_, k) => worker(k % 2 === 0 ? one : two));
      await upstream.awaitEvent('received', 30);
      expect((await flip(two, 'freeze', scope)).status).toBe(200);
      const before = await settled();
      // Twelve agents go on calling meanwhile, so that a send would be seen.
      await sleep(700);
      expect(await upstream.requests()).toHaveLength(before);
      firing = false;
      await Promise.all(workers);
      expect([...statuses].sort()).toEqual([200, 503]);
      const [open] = await database.query<{ n: number }>('select count(*)::int as n from open_calls');
      expect(open?.n).toBe(0);
      expect((await flip(one, 'unfreeze', scope)).status).toBe(200);
      await upstream.reset();
    }
  });

  it('neither a retry in backoff, nor a recovered call, nor a probe is sent; all go on when it is lifted', async () => {
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
    expect((await flip(one, 'freeze')).status).toBe(200);
    const before = await settled();
    // Several times the longest backoff, in which each of the three would be sent: no event says that nothing was.
    await sleep(1_800);
    expect(await upstream.requests()).toHaveLength(before);
    expect(['sending', 'in_doubt']).toContain((await one.get(`/v1/calls/${retried.body.txn}`)).body.state);
    await flip(one, 'unfreeze');
    for (const [tool, id] of [
      ['world.keyed', 'retry'],
      ['world.keyed', 'dead'],
      ['world.probed', 'probe'],
    ] as const) {
      expect([id, (await one.call(tool, { id }, { key: id })).status]).toEqual([id, 200]);
      expect(await upstream.effects(id)).toHaveLength(1);
    }
  });

  it('a replica that slept through it sends nothing when it wakes, also not under its new lease', async () => {
    const asked: Promise<unknown>[] = [];
    const ask = (k: number) =>
      asked.push(one.call('world.keyed', { id: `asleep-${k}` }, { key: `asleep-${k}` }).catch(() => undefined));
    for (let k = 0; k < 10; k += 1) ask(k);
    await Promise.all(asked);
    one.signal('SIGSTOP');
    // These lie in its sockets and are read the moment it wakes.
    for (let k = 10; k < 60; k += 1) ask(k);
    const started = performance.now();
    expect((await flip(two, 'freeze')).status).toBe(200);
    expect(performance.now() - started).toBeLessThan(9_000);
    const before = await settled();
    one.signal('SIGCONT');
    for (let k = 60; k < 120; k += 1) {
      ask(k);
      await sleep(5);
    }
    await Promise.all(asked);
    await sleep(300);
    expect(await upstream.requests()).toHaveLength(before);
  });

  it('it outlives the death of all, and no number of flips in a row loses the last one', async () => {
    for (let k = 0; k < 8; k += 1) {
      await Promise.all([flip(one, 'freeze'), flip(two, 'freeze', '/admin/agents/other')]);
      expect((await two.call('world.keyed', { id: 'x' }, { key: 'x' })).body.code).toBe('frozen');
      await Promise.all([flip(two, 'unfreeze'), flip(one, 'unfreeze', '/admin/agents/other')]);
    }
    await flip(one, 'freeze');
    await Promise.all([one.kill(), two.kill()]);
    await Promise.all([one.start(), two.start()]);
    for (const gateway of [one, two])
      expect((await gateway.call('world.keyed', { id: 'x' }, { key: 'x' })).body.code).toBe('frozen');
    expect(await upstream.requests()).toEqual([]);
    await flip(two, 'unfreeze');
    expect((await one.call('world.keyed', { id: 'x' }, { key: 'x' })).status).toBe(200);
  });
});
