import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { pollUntil } from '../support/poll.ts';
import { useReplicas } from '../support/use-gateway.ts';
import { checkInvariants } from './checker.ts';

const { upstream, database, one, two } = useReplicas({
  scope: 'test',
  policies: (url) => buildFaultPolicies(url, { timeout: '20s' }),
});

describe('two replicas', () => {
  it.each(['key', 'none'] as const)(
    'send once for 200 simultaneous calls with one key, and answer all equally: %s',
    async (kind) => {
      const tool = kind === 'key' ? 'world.keyed' : 'world.none';
      const id = `burst-${kind}`;
      await upstream.plan({ match: { id }, do: [{ delay: 200 }] });
      const answers = await Promise.all(
        Array.from({ length: 200 }, (_, i) => (i % 2 === 0 ? one : two).call(tool, { id }, { key: id })),
      );
      const observed = answers.map((answer) => ({
        status: answer.status,
        body: answer.body,
        replayed: answer.headers.get('idempotent-replayed') === 'true',
      }));
      const call = {
        txn: answers[0]?.body.txn,
        id,
        kind,
        states: [],
        answers: observed,
        verdictsNotApplied: 0,
        expect: { oneUnmarked: true, oneSend: true },
      };
      expect(
        checkInvariants({ calls: [call], requests: await upstream.requests(), effects: await upstream.effects() }),
      ).toEqual([]);
      expect(new Set(observed.map(({ status }) => status))).toEqual(new Set([200]));
    },
  );

  it('leave each other’s calls alone however long they take: time never makes a call retryable', async () => {
    await upstream.plan({ match: { id: 'slow' }, do: [{ event: 'arrived' }, { wait: 'go' }] });
    const asked = one.call('world.none', { id: 'slow' }, { key: 'slow' });
    await upstream.awaitEvent('arrived');
    const [lease] = await database.query<{ until: string }>(
      'select max(lease_until)::text as until from processes join open_calls on owner = id',
    );
    await pollUntil(async () => {
      const [now] = await database.query<{ isOver: boolean }>('select now() > $1 as "isOver"', [lease?.until]);
      return now?.isOver === true;
    });
    const [row] = await database.query('select state, step, owner_deaths from calls');
    expect(row).toEqual({ state: 'sending', step: 0, owner_deaths: 0 });
    await upstream.release('go');
    expect((await asked).status).toBe(200);
    expect(await upstream.requests('slow')).toHaveLength(1);
  });

  it('finish each other’s calls: the survivor carries on what a killed one had in flight', async () => {
    for (const kind of ['keyed', 'put', 'probed', 'none']) {
      await upstream.plan({ match: { id: `dead-${kind}` }, do: [{ event: 'arrived' }, 'apply', { wait: 'never' }] });
    }
    const lost = ['keyed', 'put', 'probed', 'none'].map((kind) =>
      one.call(`world.${kind}`, { id: `dead-${kind}` }, { key: `dead-${kind}` }).catch(() => undefined),
    );
    await upstream.awaitEvent('arrived', 4);
    await one.kill();
    await Promise.all(lost);
    for (const kind of ['keyed', 'put', 'probed']) {
      const told = await two.call(`world.${kind}`, { id: `dead-${kind}` }, { key: `dead-${kind}` });
      expect([kind, told.status]).toEqual([kind, 200]);
    }
    expect((await two.call('world.none', { id: 'dead-none' }, { key: 'dead-none' })).status).toBe(504);
    expect(await upstream.effects('dead-none')).toHaveLength(1);
    expect(await upstream.effects('dead-keyed')).toHaveLength(1);
    expect(await upstream.effects('dead-probed')).toHaveLength(1);
  });

  it('a paused one that wakes up after its lease lapsed sends nothing, and its late answer still counts', async () => {
    // In flight when paused: the answer comes while it sleeps.
    await upstream.plan({ match: { id: 'paused' }, do: [{ event: 'arrived' }, { wait: 'go' }, 'apply'] });
    const sleeping = one.call('world.none', { id: 'paused' }, { key: 'paused' });
    await upstream.awaitEvent('arrived');
    one.signal('SIGSTOP');
    await expect
      .poll(() => two.admin('GET', '/admin/calls?state=in_doubt').then((page) => page.body.items.length), {
        timeout: 20_000,
        interval: 100,
      })
      .toBe(1);

    await upstream.release('go');
    await upstream.awaitEvent('applied:paused');
    one.signal('SIGCONT');
    expect((await sleeping).status).toBe(200);
    const told = await two.call('world.none', { id: 'paused' }, { key: 'paused' });
    expect(told.status).toBe(200);
    const { body } = await two.admin('GET', `/admin/calls/${told.body.txn}`);
    expect(body.contradiction).toBeNull();
    expect(await upstream.requests('paused')).toHaveLength(1);
    expect(await upstream.effects('paused')).toHaveLength(1);

    // It takes a new lease and goes on.
    await one.waitUntilReady();
    expect((await one.call('world.none', { id: 'after' }, { key: 'after' })).status).toBe(200);
  });

  it('a paused one that had claimed but not yet sent gives up', async () => {
    // A first byte needs a connection: the upstream's port is closed, so the gateway is between attempts when it is paused.
    await upstream.kill();
    const asked = one.call('world.none', { id: 'unsent' }, { key: 'unsent', headers: { prefer: 'wait=1' } });
    await expect
      .poll(() => database.query<{ n: string }>(`select count(*) n from calls`).then(([row]) => row?.n))
      .toBe('1');
    one.signal('SIGSTOP');
    await sleep(50);
    await upstream.restart();
    const told = await two.call('world.none', { id: 'unsent' }, { key: 'unsent' });
    one.signal('SIGCONT');
    await asked.catch(() => undefined);
    expect([200, 503, 504]).toContain(told.status);
    await one.waitUntilReady();
    const final = await two.call('world.none', { id: 'unsent' }, { key: 'unsent' });
    expect([200, 504]).toContain(final.status);
    const effects = (await upstream.effects('unsent')).length;
    expect(effects).toBeLessThanOrEqual(1);
    if (final.status === 200) expect(effects).toBe(1);
  });
});
