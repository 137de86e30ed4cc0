import { describe, expect, it } from 'vitest';
import { AGENT_KEY } from '../../support/gateway.ts';
import { buildSharedKeyPolicies, TWIN_KEY } from '../../support/shared-policies.ts';
import { useReplicas } from '../../support/use-gateway.ts';
import { AgentProcess } from './agents.ts';

const { upstream, one, two } = useReplicas({ policies: buildSharedKeyPolicies });

describe('the twins', () => {
  it('want the same on two replicas, both of which are killed in between: each ticket is closed once, and both have the same results', async () => {
    const many = 12;
    await upstream.plan({ match: { id: 'ticket-4' }, do: ['apply', { event: 'done' }, 'hang'] });
    const twins = [
      new AgentProcess('./twin.mjs', [one.url, AGENT_KEY, String(many)]),
      new AgentProcess('./twin.mjs', [two.url, TWIN_KEY, String(many)]),
    ];
    // It is closed, and nobody has heard of it: neither whoever asked first nor whoever joined.
    await upstream.awaitEvent('done');
    await Promise.all([one.kill(), two.kill()]);
    await Promise.all([one.start(), two.start()]);
    for (const twin of twins) expect(await twin.waitForLine((line) => line === 'finished')).toBe('finished');
    const [first, second] = twins.map(({ lines }) => lines.filter((line) => line.startsWith('closed ')));
    expect(first).toHaveLength(many);
    expect(second).toEqual(first);
    const closed = (await upstream.effects()).map(({ id }) => id);
    expect(closed.sort()).toEqual(Array.from({ length: many }, (_, k) => `ticket-${k + 1}`).sort());
  });
});
