import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { useReplicas } from '../support/use-gateway.ts';
import { RunHolder } from './run-holder.ts';

const { upstream, one, two } = useReplicas({
  // The rate of one tool gives every fifth claim its own transaction, which holds the lock of the run across several statements.
  policies: (url) =>
    buildFaultPolicies(url, { timeout: '20s', rules: ['{ allow: world.keyed_field, rate: 100000/s }'] }),
});
beforeEach(() => upstream.reset());

const TOOLS = ['world.keyed', 'world.put', 'world.probed', 'world.none', 'world.keyed_field'];

describe('holders of an old epoch that keep calling two replicas', () => {
  it.each([1, 2, 3])('have no effect after the takeover answered drained (round %i)', async (round) => {
    await upstream.plan({ match: { path: '/keyed/*' }, do: [{ delay: 30 }, 'apply', { reply: 200 }], times: 'always' });
    const old = await RunHolder.take(one, `race-${round}`);
    const twin = new RunHolder(two, old.took, old.agentKey);
    let isTakenOver = false;
    const keepCalling = async (holder: RunHolder, w: number) => {
      for (let k = 0, late = 0; late < 5; k += 1) {
        const isLate = isTakenOver;
        const id = `ghost-${round}-${w}-${k}`;
        const answer = await holder.call(TOOLS[(w + k) % TOOLS.length] ?? '', { id }, { key: id });
        if (!isLate) continue;
        late += 1;
        expect([answer.status, answer.body.code]).toEqual([409, 'fenced']);
      }
    };
    const oldHolders = Array.from({ length: 12 }, (_, w) => keepCalling(w % 2 === 0 ? old : twin, w));
    await upstream.awaitEvent('received', 80);
    const next = await RunHolder.take(two, `race-${round}`, '?wait=40');
    isTakenOver = true;
    expect(next.took).toMatchObject({ epoch: 2, drained: true, open: [] });
    const before = (await upstream.effects()).length;
    expect(before).toBeGreaterThan(20);
    await Promise.all(oldHolders);
    expect(await upstream.effects()).toHaveLength(before);
    expect((await next.call('world.keyed', { id: `next-${round}` })).status).toBe(200);
  });

  it('do not block takeovers: each takeover gets its own epoch, and exactly one epoch is current', async () => {
    const old = await RunHolder.take(one, 'contested');
    let isTakenOver = false;
    const oldHolders = Array.from({ length: 8 }, async (_, w) => {
      for (let k = 0; !isTakenOver; k += 1)
        await old.call('world.keyed', { id: `c-${w}-${k}` }, { key: `c-${w}-${k}` });
    });
    const taken = await Promise.all(
      Array.from({ length: 12 }, (_, k) => RunHolder.take(k % 2 === 0 ? one : two, 'contested')),
    );
    isTakenOver = true;
    await Promise.all(oldHolders);
    expect(new Set(taken.map(({ took }) => took.epoch)).size).toBe(12);
    const tries = await Promise.all(taken.map((holder, k) => holder.call('world.keyed', { id: `t-${k}` })));
    expect(tries.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(tries.filter(({ body }) => body.code === 'fenced')).toHaveLength(11);
  });
});
