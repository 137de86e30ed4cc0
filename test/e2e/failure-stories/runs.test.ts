import { beforeEach, describe, expect, it } from 'vitest';
import { RunHolder } from '../../controls/run-holder.ts';
import { buildFaultPolicies } from '../../support/fault-policies.ts';
import { AGENT_KEY } from '../../support/gateway.ts';
import { useReplicas } from '../../support/use-gateway.ts';
import { AgentProcess } from './agent-process.ts';

const { upstream, one, two } = useReplicas({
  policies: (url) =>
    (buildFaultPolicies(url, { timeout: '30s' })['faults.yaml'] ?? '').replace('timeout: 30s,', '$& concurrency: 1,'),
});
beforeEach(() => upstream.reset());

const deletes = async (id: string) => (await upstream.requests(id)).filter(({ method }) => method === 'DELETE');

describe('a crashed agent', () => {
  it('that is killed four times while it moves 100 objects has successors that finish, and each object moves once', async () => {
    const count = 100;
    const start = (k: number) =>
      new AgentProcess('./agents/move-objects.mjs', [(k % 2 === 0 ? one : two).url, AGENT_KEY, 'move', String(count)]);
    for (const [k, at] of [9, 31, 47, 78].entries()) {
      const mover = start(k);
      // The agent dies with a call in flight, because it sends the next call right after this line.
      expect(await mover.waitForLine((line) => line === `moved ${at}`)).toBe(`moved ${at}`);
      await mover.kill();
    }
    const last = start(4);
    expect(await last.waitForLine((line) => line === 'finished')).toBe('finished');
    expect(last.lines[0]).toMatch(/^took 5 with (7[89]|8\d) done$/);
    const ids = (await upstream.effects()).map(({ id }) => id);
    expect(ids).toHaveLength(count);
    expect(new Set(ids).size).toBe(count);
  });
});

describe('a zombie agent', () => {
  it('that is paused with a delete in flight is taken over, and deletes nothing after it resumes', async () => {
    await upstream.plan({
      match: { id: 'frozen-2' },
      do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }],
    });
    const zombie = new AgentProcess('./agents/delete-until-fenced.mjs', [one.url, AGENT_KEY, 'frozen']);
    await upstream.awaitEvent('there');
    zombie.signal('SIGSTOP');
    const next = await RunHolder.take(two, 'frozen');
    expect(next.took).toMatchObject({ epoch: 2, drained: false, open: [{ state: 'sending', epoch: 1 }] });
    await upstream.release('go');
    expect((await next.read('?wait=20')).body).toMatchObject({ drained: true, open: [] });
    const before = (await upstream.requests()).length;
    zombie.signal('SIGCONT');
    expect(await zombie.waitForLine((line) => line.includes('fenced'))).toBe('409 fenced 3');
    expect(await zombie.waitForExit()).toBe('0');
    expect(await upstream.requests()).toHaveLength(before);
  });

  it('whose gateway is paused too: the sent call is settled on resume, and the queued call is never sent', async () => {
    for (const id of ['wire', 'queued']) await one.call('world.put', { id });
    const old = await RunHolder.take(one, 'deep-frozen');
    await upstream.plan({ match: { id: 'wire' }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const wire = old.call('world.delete', { id: 'wire' }, { key: 'wire' });
    await upstream.awaitEvent('there');
    // The upstream takes one request at a time, so this call is claimed and waits in the gateway.
    const queued = old.call('world.delete', { id: 'queued' }, { key: 'queued' });
    const claimed = async () => (await new RunHolder(two, old.took, AGENT_KEY).history()).body.items.length;
    await expect.poll(claimed).toBe(2);
    one.signal('SIGSTOP');

    const next = await RunHolder.take(two, 'deep-frozen');
    expect(next.took).toMatchObject({ epoch: 2, drained: false });
    const states = async () => {
      const items = (await next.history()).body.items as { args: { id: string }; state: string }[];
      return Object.fromEntries(items.map(({ args, state }) => [args.id, state]));
    };
    // The lease lapses, and the other replica takes over both calls without repeating them.
    await expect.poll(states, { timeout: 30_000 }).toEqual({ wire: 'in_doubt', queued: 'in_doubt' });
    expect((await next.read()).body.drained).toBe(false);
    await upstream.release('go');
    one.signal('SIGCONT');
    expect((await wire).status).toBe(200);
    await queued;
    await expect.poll(states, { timeout: 30_000 }).toEqual({ wire: 'succeeded', queued: 'in_doubt' });
    expect(await deletes('queued')).toEqual([]);
    expect((await next.read()).body).toMatchObject({ drained: false, open: [{ tool: 'world.delete' }] });

    const [{ txn }] = (await next.read()).body.open;
    const verdict = { verdict: 'not_applied', reason: 'it is still there', senderIsDead: true };
    expect((await two.admin('POST', `/admin/calls/${txn}/resolve`, verdict)).status).toBe(200);
    expect((await next.read()).body).toMatchObject({ drained: true, open: [] });
    expect(await deletes('queued')).toEqual([]);
    expect(await deletes('wire')).toHaveLength(1);
  });
});
