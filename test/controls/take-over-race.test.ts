import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { useReplicas } from '../support/use-gateway.ts';
import { RunHolder } from './run-holder.ts';

const { upstream, one, two } = useReplicas({
  // A rate puts every fifth claim into a transaction of its own, which holds the run's lock across several statements.
  policies: (url) =>
    buildFaultPolicies(url, { timeout: '20s', rules: ['{ allow: world.keyed_field, rate: 100000/s }'] }),
});
beforeEach(() => upstream.reset());

const TOOLS = ['world.keyed', 'world.put', 'world.probed', 'world.none', 'world.keyed_field'];

describe('holders of an old epoch that go on calling at two replicas', () => {
  it.each([1, 2, 3])('have no effect after the take-over said drained (round %i)', async (round) => {
    await upstream.plan({ match: { path: '/keyed/*' }, do: [{ delay: 30 }, 'apply', { reply: 200 }], times: 'always' });
    const old = await RunHolder.take(one, `race-${round}`);
    const twin = new RunHolder(two, old.took, old.agentKey);
    let over = false;
    const ghost = async (holder: RunHolder, w: number) => {
      for (let k = 0, late = 0; late < 5; k += 1) {
        const isLate = over;
        const id = `ghost-${round}-${w}-${k}`;
        const answer = await holder.call(TOOLS[(w + k) % TOOLS.length] ?? '', { id }, { key: id });
        if (!isLate) continue;
        late += 1;
        expect([answer.status, answer.body.code]).toEqual([409, 'fenced']);
      }
    };
    const ghosts = Array.from({ length: 12 }, (_, w) => ghost(w % 2 === 0 ? old : twin, w));
    await upstream.awaitEvent('received', 80);
    const next = await RunHolder.take(two, `race-${round}`, '?wait=40');
    over = true;
    expect(next.took).toMatchObject({ epoch: 2, drained: true, open: [] });
    const before = (await upstream.effects()).length;
    expect(before).toBeGreaterThan(20);
    await Promise.all(ghosts);
    expect(await upstream.effects()).toHaveLength(before);
    expect((await next.call('world.keyed', { id: `next-${round}` })).status).toBe(200);
  });

  it('are not in the way of those who take it, and nobody is: each take is a new epoch, exactly one is current', async () => {
    const old = await RunHolder.take(one, 'contested');
    let over = false;
    const ghosts = Array.from({ length: 8 }, async (_, w) => {
      for (let k = 0; !over; k += 1) await old.call('world.keyed', { id: `c-${w}-${k}` }, { key: `c-${w}-${k}` });
    });
    const taken = await Promise.all(
      Array.from({ length: 12 }, (_, k) => RunHolder.take(k % 2 === 0 ? one : two, 'contested')),
    );
    over = true;
    await Promise.all(ghosts);
    expect(new Set(taken.map(({ took }) => took.epoch)).size).toBe(12);
    const tries = await Promise.all(taken.map((holder, k) => holder.call('world.keyed', { id: `t-${k}` })));
    expect(tries.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(tries.filter(({ body }) => body.code === 'fenced')).toHaveLength(11);
  });
});
