import { describe, expect, it } from 'vitest';
import { AGENT_KEY } from '../../support/gateway.ts';
import { buildSharedKeyPolicies, TWIN_KEY } from '../../support/shared-policies.ts';
import { useReplicas } from '../../support/use-gateway.ts';
import { AgentProcess } from './agent-process.ts';

const { upstream, one, two } = useReplicas({ policies: buildSharedKeyPolicies });

describe('twin agents', () => {
  it('that close the same tickets through two replicas, which are killed meanwhile, close each ticket once and get the same results', async () => {
    const count = 12;
    await upstream.plan({ match: { id: 'ticket-4' }, do: ['apply', { event: 'done' }, 'hang'] });
    const twins = [
      new AgentProcess('./agents/close-tickets.mjs', [one.url, AGENT_KEY, String(count)]),
      new AgentProcess('./agents/close-tickets.mjs', [two.url, TWIN_KEY, String(count)]),
    ];
    // The ticket is closed, but neither agent has the answer yet.
    await upstream.awaitEvent('done');
    await Promise.all([one.kill(), two.kill()]);
    await Promise.all([one.start(), two.start()]);
    for (const twin of twins) expect(await twin.waitForLine((line) => line === 'finished')).toBe('finished');
    const [first, second] = twins.map(({ lines }) => lines.filter((line) => line.startsWith('closed ')));
    expect(first).toHaveLength(count);
    expect(second).toEqual(first);
    const closed = (await upstream.effects()).map(({ id }) => id);
    expect(closed.sort()).toEqual(Array.from({ length: count }, (_, k) => `ticket-${k + 1}`).sort());
  });
});
