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
    'send once for 200 simultaneous %s calls with one key, and give all the same answer',
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

  it('never take over a call of a living replica, however long the call takes', async () => {
    await upstream.plan({ match: { id: 'slow' }, do: [{ event: 'arrived' }, { wait: 'go' }] });
    const pending = one.call('world.none', { id: 'slow' }, { key: 'slow' });
    await upstream.awaitEvent('arrived');
    const [lease] = await database.query<{ until: string }>(
      'select max(lease_until)::text as until from processes join open_calls on owner = id',
    );
    await pollUntil(async () => {
      const [now] = await database.query<{ isOver: boolean }>('select now() > $1 as "isOver"', [lease?.until]);
      return now?.isOver === true;
    });
    const [row] = await database.query('select state, update_number, owner_deaths from open_calls');
    expect(row).toEqual({ state: 'sending', update_number: 0, owner_deaths: 0 });
    await upstream.release('go');
    expect((await pending).status).toBe(200);
    expect(await upstream.requests('slow')).toHaveLength(1);
  });

  it('continue the calls that a killed replica had in flight', async () => {
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
      const answer = await two.call(`world.${kind}`, { id: `dead-${kind}` }, { key: `dead-${kind}` });
      expect([kind, answer.status]).toEqual([kind, 200]);
    }
    expect((await two.call('world.none', { id: 'dead-none' }, { key: 'dead-none' })).status).toBe(504);
    expect(await upstream.effects('dead-none')).toHaveLength(1);
    expect(await upstream.effects('dead-keyed')).toHaveLength(1);
    expect(await upstream.effects('dead-probed')).toHaveLength(1);
  });

  it('accept the late answer of a paused replica whose lease lapsed, which sends nothing more', async () => {
    // The call is in flight when the replica is paused; the answer arrives during the pause.
    await upstream.plan({ match: { id: 'paused' }, do: [{ event: 'arrived' }, { wait: 'go' }, 'apply'] });
    const paused = one.call('world.none', { id: 'paused' }, { key: 'paused' });
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
    expect((await paused).status).toBe(200);
    const answer = await two.call('world.none', { id: 'paused' }, { key: 'paused' });
    expect(answer.status).toBe(200);
    const { body } = await two.admin('GET', `/admin/calls/${answer.body.txn}`);
    expect(body.contradiction).toBeNull();
    expect(await upstream.requests('paused')).toHaveLength(1);
    expect(await upstream.effects('paused')).toHaveLength(1);

    // The replica takes a new lease and serves calls again.
    await one.waitUntilReady();
    expect((await one.call('world.none', { id: 'after' }, { key: 'after' })).status).toBe(200);
  });

  it('do not send twice if a replica is paused between its claim and its send', async () => {
    // The port of the upstream is closed, so the gateway cannot send and is between attempts when it is paused.
    await upstream.kill();
    const pending = one.call('world.none', { id: 'unsent' }, { key: 'unsent', headers: { prefer: 'wait=1' } });
    await expect
      .poll(() => database.query<{ n: string }>(`select count(*) n from calls`).then(([row]) => row?.n))
      .toBe('1');
    one.signal('SIGSTOP');
    await sleep(50);
    await upstream.restart();
    const answer = await two.call('world.none', { id: 'unsent' }, { key: 'unsent' });
    one.signal('SIGCONT');
    await pending.catch(() => undefined);
    expect([200, 503, 504]).toContain(answer.status);
    await one.waitUntilReady();
    const final = await two.call('world.none', { id: 'unsent' }, { key: 'unsent' });
    expect([200, 504]).toContain(final.status);
    const effects = (await upstream.effects('unsent')).length;
    expect(effects).toBeLessThanOrEqual(1);
    if (final.status === 200) expect(effects).toBe(1);
  });
});
