import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { sha256Hex } from '../../gateway/domain/audit/audit.ts';
import { TestSaga } from '../sagas/saga.ts';
import { decideApproval } from '../support/approvals.ts';
import { OTHER_AGENT_KEY } from '../support/gateway.ts';
import { useReplicas } from '../support/use-gateway.ts';
import { buildLockPolicies } from './lock-policies.ts';
import { RunHolder } from './run-holder.ts';

let card: string;

const { upstream, database, one, two } = useReplicas({ policies: buildLockPolicies });
beforeEach(async () => {
  await one.ensureStarted();
  await upstream.reset();
  // Locks that a failed test left must not fail the next test.
  await expect.poll(() => database.query('select shown from locks'), { timeout: 10_000 }).toEqual([]);
  card = `c-${randomUUID()}`;
});

const NO_WAIT = { headers: { prefer: 'wait=0' } };
const readLocks = async () => (await one.admin('GET', '/admin/locks?limit=200')).body.items;
const readLocksOf = async (txn: string) => (await one.admin('GET', `/admin/locks?holder=${txn}`)).body.items;

/** Starts a call that stays at the upstream, and holds its locks, until the test calls `finish`. */
async function startHangingCall(
  tool: string,
  args: object,
  options = {},
): Promise<{ txn: string; finish: () => Promise<void> }> {
  const id = randomUUID();
  await upstream.plan({ match: { id }, do: [{ event: `at-${id}` }, { wait: id }, 'apply', { reply: 200 }] });
  const call = one.call(tool, { id, ...args }, options);
  await upstream.awaitEvent(`at-${id}`);
  const [{ txn }] = (await one.admin('GET', `/admin/calls?tool=${tool}&limit=1`)).body.items;
  return {
    txn,
    finish: async () => {
      await upstream.release(id);
      expect((await call).status).toBe(200);
    },
  };
}

async function approve(txn: string): Promise<void> {
  expect((await decideApproval(one, txn)).status).toBe(200);
}

describe('an exclusive lock', () => {
  it('blocks the calls of every agent on every replica until its call is final', async () => {
    const holder = await startHangingCall('world.charge', { card });
    for (const [gateway, agentKey] of [
      [one, undefined],
      [two, undefined],
      [two, OTHER_AGENT_KEY],
    ] as const) {
      const id = randomUUID();
      const agent = agentKey === undefined ? {} : { agentKey };
      const refused = await gateway.call('world.charge', { id, card }, { key: id, ...agent, ...NO_WAIT });
      expect(refused.status).toBe(409);
      expect(refused.body).toMatchObject({ code: 'locked', retry: 'after_delay', resource: `card/${card}` });
      expect(refused.headers.get('retry-after')).toBe('1');
      expect(await upstream.requests(id)).toEqual([]);
    }
    expect((await two.call('world.charge', { id: 'x', card: `${card}-2` })).status).toBe(200);
    await holder.finish();
    expect(await readLocksOf(holder.txn)).toEqual([]);
    expect((await two.call('world.charge', { id: randomUUID(), card }, NO_WAIT)).status).not.toBe(409);
  });

  it('refuses a call without binding its key', async () => {
    const holder = await startHangingCall('world.charge', { card });
    const id = randomUUID();
    expect((await one.call('world.charge', { id, card }, { key: id, ...NO_WAIT })).body.code).toBe('locked');
    await holder.finish();
    expect((await one.call('world.free', { id: 'other' }, { key: id })).status).toBe(200);
  });

  it('logs each refusal once, without the name of the resource', async () => {
    const holder = await startHangingCall('world.charge', { card });
    const refusals = async () =>
      database.query<{ entry: string }>(
        `select entry from audit_entries where entry like '%"what":"locked"%' and entry like $1`,
        [`%${sha256Hex(`card/${card}`)}%`],
      );
    for (const [k, agentKey] of [undefined, OTHER_AGENT_KEY].entries()) {
      const id = randomUUID();
      const agent = agentKey === undefined ? {} : { agentKey };
      await two.call('world.charge', { id, card }, { key: id, ...agent, ...NO_WAIT });
      expect(await refusals()).toHaveLength(k + 1);
    }
    const entries = (await refusals()).map(({ entry }) => JSON.parse(entry));
    expect(entries).toMatchObject([
      { agent: 'tester', tool: 'world.charge', policy: expect.any(String), rule: expect.any(String) },
      { agent: 'other', tool: 'world.charge' },
    ]);
    expect(JSON.stringify(entries)).not.toContain(card);
    await holder.finish();
  });

  it('is awaited as long as the caller waits', async () => {
    const holder = await startHangingCall('world.charge', { card });
    const id = randomUUID();
    const waiting = two.call('world.charge', { id, card }, { key: id });
    const refused = await one.call('world.charge', { id: `${id}-2`, card }, { headers: { prefer: 'wait=1' } });
    expect(refused.body.code).toBe('locked');
    await holder.finish();
    expect((await waiting).body).toMatchObject({ state: 'succeeded', replayed: false });
  });

  it('does not block the repeat of a finished call', async () => {
    const id = randomUUID();
    const first = await one.call('world.charge', { id, card }, { key: id });
    const holder = await startHangingCall('world.charge', { card });
    for (const gateway of [one, two]) {
      const again = await gateway.call('world.charge', { id, card }, { key: id, ...NO_WAIT });
      expect(again.body).toMatchObject({ txn: first.body.txn, replayed: true, state: 'succeeded' });
    }
    await holder.finish();
  });

  it('is never held twice: calls on two replicas do not overlap', async () => {
    await upstream.plan({ match: { path: '/keyed/*' }, do: [{ delay: 5 }, 'apply', { reply: 200 }], times: 'always' });
    const calls = Array.from({ length: 40 }, (_, k) =>
      (k % 2 === 0 ? one : two).call('world.charge', { id: `${card}-${k}`, card }, { key: `${card}-${k}` }),
    );
    const answers = await Promise.all(calls);
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
    expect((await upstream.connections()).maxConcurrent).toBe(1);
    const requests = await upstream.requests();
    const tokens = requests.toSorted((a, b) => a.n - b.n).map(({ headers }) => Number(headers['oncegate-lock-token']));
    expect(tokens).toHaveLength(40);
    expect(tokens).toEqual(tokens.toSorted((a, b) => a - b));
    expect(new Set(tokens).size).toBe(40);
  });
});

describe('the lock token', () => {
  it('is the same on every attempt, and is shown in the call', async () => {
    const id = randomUUID();
    await upstream.plan({ match: { id, nth: 1 }, do: ['apply', 'drop'] });
    const answer = await one.call('world.charge', { id, card }, { key: id });
    expect(answer.status).toBe(200);
    const requests = await upstream.requests(id);
    expect(requests).toHaveLength(2);
    const [first, second] = requests.map(({ headers }) => headers['oncegate-lock-token']);
    expect(first).toMatch(/^\d+$/);
    expect(second).toBe(first);
    expect((await one.get(`/v1/calls/${answer.body.txn}`)).body.lockToken).toBe(Number(first));
  });

  it('cannot be set by the caller, and is not sent for a tool without locks', async () => {
    const headers = { 'oncegate-lock-token': '999999' };
    const id = randomUUID();
    await one.call('world.free', { id }, { headers });
    expect((await upstream.requests(id))[0]?.headers).not.toHaveProperty('oncegate-lock-token');
    await one.call('world.charge', { id: `${id}-2`, card }, { headers });
    expect((await upstream.requests(`${id}-2`))[0]?.headers['oncegate-lock-token']).not.toBe('999999');
  });
});

describe('conflicts between locks', () => {
  it.each([
    ['world.charge', 'world.charge', true],
    ['world.charge', 'world.look', true],
    ['world.look', 'world.charge', true],
    ['world.look', 'world.look', false],
    ['world.sweep', 'world.charge', true],
    ['world.charge', 'world.sweep', true],
    ['world.sweep', 'world.look', true],
    ['world.survey', 'world.look', false],
    ['world.look', 'world.survey', false],
    ['world.survey', 'world.charge', true],
    ['world.charge', 'world.survey', true],
    ['world.survey', 'world.survey', false],
    ['world.survey', 'world.sweep', true],
    ['world.sweep', 'world.free', false],
  ])('%s, then %s: conflict %s', async (first, second, conflicts) => {
    const holder = await startHangingCall(first, { card });
    const id = randomUUID();
    const answer = await two.call(second, { id, card }, { key: id, headers: { prefer: `wait=${conflicts ? 0 : 20}` } });
    expect(answer.body.code).toBe(conflicts ? 'locked' : undefined);
    if (!conflicts) expect(answer.status).toBe(200);
    await holder.finish();
  });

  it.each([
    ['a/b', 'a/b', true],
    ['a/b', 'a/b/c', false],
    ['a/*', 'a/b/c', true],
    ['a/b/c', 'a/*', true],
    ['a/b/*', 'a/c', false],
    ['a/b/*', 'a/b', false],
    ['a/b/*', 'a/*', true],
    ['a/*', 'a/b/*', true],
    ['a/*', 'a', false],
    ['a/*', 'ab/c', false],
    ['a', 'a', true],
    ['a%2Fb', 'a/b', false],
  ])('%s, then %s: conflict %s', async (first, second, conflicts) => {
    const resource = (name: string) => `${card}.${name}`.replace('.', '');
    const holder = await startHangingCall('world.exact', { cards: [resource(first)] });
    const id = randomUUID();
    const options = { key: id, headers: { prefer: `wait=${conflicts ? 0 : 20}` } };
    const answer = await two.call('world.exact', { id, cards: [resource(second)] }, options);
    expect([answer.status, answer.body.code]).toEqual(conflicts ? [409, 'locked'] : [200, undefined]);
    await holder.finish();
  });

  it('a value is always one segment: a card named * does not lock all cards', async () => {
    const holder = await startHangingCall('world.charge', { card: '*' });
    expect((await two.call('world.charge', { id: 'a', card })).status).toBe(200);
    expect((await two.call('world.charge', { id: 'b', card: `*/${card}` })).status).toBe(200);
    expect((await two.call('world.charge', { id: 'c', card: '*' }, NO_WAIT)).body.code).toBe('locked');
    await holder.finish();
  });

  it.each([
    ['world.charge', {}, 'card'],
    ['world.charge', { card: '' }, 'empty segment'],
    ['world.exact', { cards: ['*'] }, 'lock everything'],
    ['world.exact', { cards: ['a/*/b'] }, 'not its last segment'],
    ['world.exact', { cards: ['a\0b'] }, 'NUL'],
    ['world.exact', { cards: ['x'.repeat(1_025)] }, 'longer than'],
  ])('%s whose arguments give no valid lock name (%#) is refused', async (tool, args, detail) => {
    const id = randomUUID();
    const refused = await one.call(tool, { id, ...args }, { key: id });
    expect(refused.status).toBe(400);
    expect(refused.body.code).toBe('invalid_arguments');
    expect(refused.body.detail).toContain(detail);
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe('many locks of one call', () => {
  it('are taken together or not at all', async () => {
    const cards = Array.from({ length: 20 }, (_, k) => `${card}-${k}`);
    const holder = await startHangingCall('world.charge', { card: cards[13] });
    const refused = await two.call('world.many', { id: randomUUID(), cards }, NO_WAIT);
    expect(refused.body).toMatchObject({ code: 'locked', resource: `card/${cards[13]}` });
    const ours = async () =>
      (await readLocks()).filter(({ resource }: { resource: string }) => resource.includes(card));
    expect(await ours()).toHaveLength(1);
    await holder.finish();
    const all = await startHangingCall('world.many', { cards });
    expect(await readLocksOf(all.txn)).toHaveLength(20);
    expect((await two.call('world.charge', { id: 'z', card: cards[4] }, NO_WAIT)).body.code).toBe('locked');
    await all.finish();
    expect(await ours()).toEqual([]);
  });

  it('never deadlock, in whatever order calls name them', async () => {
    const cards = Array.from({ length: 30 }, (_, k) => `${card}-${k}`);
    const deadlocks = async () =>
      (
        await database.query<{ n: number }>(
          'select deadlocks::int as n from pg_stat_database where datname = current_database()',
        )
      )[0]?.n;
    const before = await deadlocks();
    const calls = Array.from({ length: 30 }, (_, k) => {
      const order = k % 2 === 0 ? cards : cards.toReversed();
      return (k % 3 === 0 ? one : two).call('world.many', { id: `${card}-${k}`, cards: order.slice(k % 7) });
    });
    for (const answer of await Promise.all(calls)) expect(answer.status).toBe(200);
    expect(await deadlocks()).toBe(before);
  });

  it('may number 10,000 at most', async () => {
    const cards = Array.from({ length: 10_000 }, (_, k) => `${card}-${k}`);
    const id = randomUUID();
    await upstream.plan({ match: { id }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const call = one.call('world.many', { id, cards });
    await upstream.awaitEvent('there');
    const [count] = await database.query<{ n: number }>('select count(*)::int as n from locks');
    expect(count?.n).toBe(10_000);
    expect((await two.call('world.charge', { id: 'x', card: cards[9_999] }, NO_WAIT)).body.code).toBe('locked');
    await upstream.release('go');
    expect((await call).status).toBe(200);
    expect(await database.query('select 1 from locks limit 1')).toEqual([]);
    const refused = await one.call('world.many', { id: 'more', cards: [...cards, 'one more'] });
    expect(refused.status).toBe(400);
    expect(refused.body.detail).toContain('at most 10000 locks');
  });
});

describe('a call in doubt', () => {
  it('keeps its lock until a person resolves it', async () => {
    const id = randomUUID();
    await upstream.plan({ match: { id }, do: ['apply', 'drop'] });
    const doubt = await one.call('world.mail', { id, card }, { key: id });
    expect(doubt.status).toBe(504);
    expect(await readLocksOf(doubt.body.txn)).toMatchObject([
      { resource: `card/${card}`, mode: 'exclusive', for: 'call', agent: 'tester', tool: 'world.mail' },
    ]);
    expect((await two.call('world.charge', { id: 'x', card }, NO_WAIT)).body.code).toBe('locked');
    const verdict = { verdict: 'applied', reason: 'it is in the outbox' };
    expect((await one.admin('POST', `/admin/calls/${doubt.body.txn}/resolve`, verdict)).status).toBe(200);
    expect((await two.call('world.charge', { id: 'x', card }, NO_WAIT)).status).not.toBe(409);
  });

  it('keeps its lock when its gateway is killed, until another replica settles it', async () => {
    const id = randomUUID();
    await upstream.plan({ match: { id, nth: 1 }, do: ['apply', { event: 'there' }, { wait: 'never' }] });
    await upstream.plan({ match: { id, nth: 2 }, do: [{ event: 'again' }, { wait: 'go' }] });
    const call = one.call('world.charge', { id, card }, { key: id }).catch(() => undefined);
    await upstream.awaitEvent('there');
    await one.kill();
    await call;
    // The other replica took the call over and sends it again.
    await upstream.awaitEvent('again');
    expect((await two.call('world.charge', { id: 'x', card }, NO_WAIT)).body.code).toBe('locked');
    const [first, again] = (await upstream.requests(id)).map(({ headers }) => headers['oncegate-lock-token']);
    expect(again).toBe(first);
    const waiting = two.call('world.charge', { id: `${id}-2`, card }, { key: `${id}-2` });
    await upstream.release('go');
    expect((await waiting).status).toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
    const [later] = (await upstream.requests(`${id}-2`)).map(({ headers }) => headers['oncegate-lock-token']);
    expect(Number(later)).toBeGreaterThan(Number(first));
  });
});

describe('a call that waits for a person', () => {
  it('holds no locks; after approval it waits for its locks and then runs', async () => {
    const id = randomUUID();
    const waiting = await one.call('world.approved', { id, card }, { key: id, ...NO_WAIT });
    expect(waiting.status).toBe(202);
    expect(await readLocksOf(waiting.body.txn)).toEqual([]);
    const holder = await startHangingCall('world.charge', { card });
    await approve(waiting.body.txn);
    // A replica found the lock taken and released the call, which stays `ready`.
    await expect
      .poll(async () => (await one.admin('GET', `/admin/calls/${waiting.body.txn}`)).body.state)
      .toBe('ready');
    expect(await upstream.requests(id)).toEqual([]);
    await holder.finish();
    expect((await one.waitForCall(waiting.body.txn, ({ state }) => state === 'succeeded')).lockToken).toEqual(
      expect.any(Number),
    );
    expect(await upstream.effects(id)).toHaveLength(1);
  });
});

describe('a lock for a saga', () => {
  it('is held until the saga ends, and does not block the steps of that saga', async () => {
    const saga = await TestSaga.open(one);
    await saga.runStep('world.reserve', { id: `${card}-1`, card } as { id: string });
    expect(await readLocksOf(saga.id)).toMatchObject([{ for: 'saga', resource: `card/${card}` }]);
    await saga.runStep('world.charge', { id: `${card}-2`, card } as { id: string });
    expect((await two.call('world.charge', { id: 'x', card }, NO_WAIT)).body.code).toBe('locked');
    expect((await saga.postAction('commit')).status).toBe(200);
    expect(await readLocksOf(saga.id)).toEqual([]);
    expect((await two.call('world.charge', { id: 'x', card }, NO_WAIT)).status).not.toBe(409);
  });

  it('does not block compensations of its saga, and is released when the rollback is done', async () => {
    const saga = await TestSaga.open(one);
    await saga.runStep('world.reserve', { id: `${card}-1`, card } as { id: string });
    const rolled = await saga.rollback();
    expect(rolled.body.state).toBe('rolled_back');
    expect(await readLocksOf(saga.id)).toEqual([]);
    expect(await upstream.effects(`undo-${card}-1`)).toHaveLength(1);
  });

  it('makes an undo wait with a reason if another call holds it, and the undo continues by itself', async () => {
    const saga = await TestSaga.open(one);
    await saga.runStep('world.once', { id: `${card}-1`, card } as { id: string });
    const holder = await startHangingCall('world.charge', { card });
    expect((await saga.rollback({}, '')).status).toBe(202);
    await expect
      .poll(async () => (await saga.read()).steps[0].undo.reason)
      .toContain(`the undo waits for card/${card}`);
    expect(await upstream.requests(`undo-${card}-1`)).toEqual([]);
    await holder.finish();
    expect((await saga.waitUntilSettled()).state).toBe('rolled_back');
    expect(await upstream.effects(`undo-${card}-1`)).toHaveLength(1);
  });
});

describe('a lock for a run', () => {
  it('passes to the next holder of the run, and is released when the run is finished', async () => {
    const name = `pin-${card}`;
    const first = await RunHolder.take(one, name);
    expect((await first.call('world.pin', { id: `${card}-1`, card })).status).toBe(200);
    const next = await RunHolder.take(two, name);
    expect(await readLocksOf(next.took.run)).toMatchObject([{ for: 'run', resource: `card/${card}` }]);
    expect((await two.call('world.charge', { id: 'x', card }, NO_WAIT)).body.code).toBe('locked');
    expect((await next.call('world.charge', { id: `${card}-2`, card })).status).toBe(200);
    expect((await next.postAction('finish')).status).toBe(200);
    expect(await readLocksOf(next.took.run)).toEqual([]);
    expect((await two.call('world.charge', { id: 'y', card }, NO_WAIT)).status).not.toBe(409);
  });
});

it('a call that is approved after its run ended holds its lock only while it runs', async () => {
  const holder = await RunHolder.take(one, `late-${card}`);
  const waiting = await holder.call('world.pinned', { id: card, card }, NO_WAIT);
  expect(waiting.status).toBe(202);
  expect((await holder.postAction('finish')).status).toBe(200);
  await approve(waiting.body.txn);
  await one.waitForCall(waiting.body.txn, ({ state }) => state === 'succeeded');
  expect(await readLocks()).toEqual([]);
});

it('a lock name with a redacted value is not stored in clear, and still conflicts with the same name', async () => {
  const holder = await startHangingCall('world.secret', { card });
  const [row] = await database.query<{ all: string }>('select locks::text as all from locks where holder = $1', [
    holder.txn,
  ]);
  expect(row?.all).not.toContain(card);
  expect(row?.all).toContain('card/%5Bredacted%5D');
  const refused = await two.call('world.charge', { id: 'x', card }, NO_WAIT);
  expect(refused.body.code).toBe('locked');
  await holder.finish();
});

it('a dry run shows the locks of a call', async () => {
  const dry = await one.call('world.reserve', { id: 'x', card }, { headers: { 'oncegate-dry-run': '?1' } });
  expect(dry.body.locks).toEqual([{ resource: `card/${card}`, mode: 'exclusive', for: 'saga' }]);
  expect(dry.body.wouldAnswer).toEqual({ status: 200, sends: true });
  expect(await readLocks()).toEqual([]);
  const holder = await startHangingCall('world.charge', { card });
  const blocked = await one.call('world.reserve', { id: 'x', card }, { headers: { 'oncegate-dry-run': '?1' } });
  expect(blocked.body.wouldAnswer).toMatchObject({ status: 409, code: 'locked', sends: false });
  await holder.finish();
});
