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
  // What a failed test left behind must not fail the next.
  await expect.poll(() => database.query('select shown from locks'), { timeout: 10_000 }).toEqual([]);
  card = `c-${randomUUID()}`;
});

const NOW = { headers: { prefer: 'wait=0' } };
const held = async () => (await one.admin('GET', '/admin/locks?limit=200')).body.items;
const heldBy = async (txn: string) => (await one.admin('GET', `/admin/locks?holder=${txn}`)).body.items;

/** A call that is on the wire, and holds its locks, until it is let go. */
async function hanging(tool: string, args: object, options = {}): Promise<{ txn: string; letGo: () => Promise<void> }> {
  const id = randomUUID();
  await upstream.plan({ match: { id }, do: [{ event: `at-${id}` }, { wait: id }, 'apply', { reply: 200 }] });
  const asked = one.call(tool, { id, ...args }, options);
  await upstream.awaitEvent(`at-${id}`);
  const [{ txn }] = (await one.admin('GET', `/admin/calls?tool=${tool}&limit=1`)).body.items;
  return {
    txn,
    letGo: async () => {
      await upstream.release(id);
      expect((await asked).status).toBe(200);
    },
  };
}

async function approve(txn: string): Promise<void> {
  expect((await decideApproval(one, txn)).status).toBe(200);
}

describe('an exclusive lock', () => {
  it('keeps every other call away, of any agent and replica, until its own is over', async () => {
    const holder = await hanging('world.charge', { card });
    for (const [gateway, agentKey] of [
      [one, undefined],
      [two, undefined],
      [two, OTHER_AGENT_KEY],
    ] as const) {
      const id = randomUUID();
      const who = agentKey === undefined ? {} : { agentKey };
      const refused = await gateway.call('world.charge', { id, card }, { key: id, ...who, ...NOW });
      expect(refused.status).toBe(409);
      expect(refused.body).toMatchObject({ code: 'locked', retry: 'after_delay', resource: `card/${card}` });
      expect(refused.headers.get('retry-after')).toBe('1');
      expect(await upstream.requests(id)).toEqual([]);
    }
    expect((await two.call('world.charge', { id: 'x', card: `${card}-2` })).status).toBe(200);
    await holder.letGo();
    expect(await heldBy(holder.txn)).toEqual([]);
    expect((await two.call('world.charge', { id: randomUUID(), card }, NOW)).status).not.toBe(409);
  });

  it('that is refused binds no key', async () => {
    const holder = await hanging('world.charge', { card });
    const id = randomUUID();
    expect((await one.call('world.charge', { id, card }, { key: id, ...NOW })).body.code).toBe('locked');
    await holder.letGo();
    expect((await one.call('world.free', { id: 'other' }, { key: id })).status).toBe(200);
  });

  it('that is refused leaves one entry in the log, which does not tell what is locked', async () => {
    const holder = await hanging('world.charge', { card });
    const refusals = async () =>
      database.query<{ entry: string }>(
        `select entry from audit_entries where entry like '%"what":"locked"%' and entry like $1`,
        [`%${sha256Hex(`card/${card}`)}%`],
      );
    for (const [k, agentKey] of [undefined, OTHER_AGENT_KEY].entries()) {
      const id = randomUUID();
      const who = agentKey === undefined ? {} : { agentKey };
      await two.call('world.charge', { id, card }, { key: id, ...who, ...NOW });
      expect(await refusals()).toHaveLength(k + 1);
    }
    const entries = (await refusals()).map(({ entry }) => JSON.parse(entry));
    expect(entries).toMatchObject([
      { agent: 'tester', tool: 'world.charge', policy: expect.any(String), rule: expect.any(String) },
      { agent: 'other', tool: 'world.charge' },
    ]);
    expect(JSON.stringify(entries)).not.toContain(card);
    await holder.letGo();
  });

  it('is waited for as long as the caller has patience', async () => {
    const holder = await hanging('world.charge', { card });
    const id = randomUUID();
    const waiting = two.call('world.charge', { id, card }, { key: id });
    const refused = await one.call('world.charge', { id: `${id}-2`, card }, { headers: { prefer: 'wait=1' } });
    expect(refused.body.code).toBe('locked');
    await holder.letGo();
    expect((await waiting).body).toMatchObject({ state: 'succeeded', replayed: false });
  });

  it('is not in the way of a repeat of what was done', async () => {
    const id = randomUUID();
    const first = await one.call('world.charge', { id, card }, { key: id });
    const holder = await hanging('world.charge', { card });
    for (const gateway of [one, two]) {
      const again = await gateway.call('world.charge', { id, card }, { key: id, ...NOW });
      expect(again.body).toMatchObject({ txn: first.body.txn, replayed: true, state: 'succeeded' });
    }
    await holder.letGo();
  });

  it('is never held by two at once: calls on two replicas overlap nowhere', async () => {
    await upstream.plan({ match: { path: '/keyed/*' }, do: [{ delay: 5 }, 'apply', { reply: 200 }], times: 'always' });
    const asked = Array.from({ length: 40 }, (_, k) =>
      (k % 2 === 0 ? one : two).call('world.charge', { id: `${card}-${k}`, card }, { key: `${card}-${k}` }),
    );
    const answers = await Promise.all(asked);
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
    expect((await upstream.connections()).maxConcurrent).toBe(1);
    const requests = await upstream.requests();
    const tokens = requests.toSorted((a, b) => a.n - b.n).map(({ headers }) => Number(headers['oncegate-lock-token']));
    expect(tokens).toHaveLength(40);
    expect(tokens).toEqual(tokens.toSorted((a, b) => a - b));
    expect(new Set(tokens).size).toBe(40);
  });
});

describe('the token', () => {
  it('goes with every attempt, the same one, and is shown in the call', async () => {
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

  it('cannot be brought by the caller, and a tool without locks has none', async () => {
    const headers = { 'oncegate-lock-token': '999999' };
    const id = randomUUID();
    await one.call('world.free', { id }, { headers });
    expect((await upstream.requests(id))[0]?.headers).not.toHaveProperty('oncegate-lock-token');
    await one.call('world.charge', { id: `${id}-2`, card }, { headers });
    expect((await upstream.requests(`${id}-2`))[0]?.headers['oncegate-lock-token']).not.toBe('999999');
  });
});

describe('what conflicts with what', () => {
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
  ])('%s, and then %s: %s', async (first, second, conflicts) => {
    const holder = await hanging(first, { card });
    const id = randomUUID();
    const answer = await two.call(second, { id, card }, { key: id, headers: { prefer: `wait=${conflicts ? 0 : 20}` } });
    expect(answer.body.code).toBe(conflicts ? 'locked' : undefined);
    if (!conflicts) expect(answer.status).toBe(200);
    await holder.letGo();
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
  ])('%s, and then %s: %s', async (first, second, conflicts) => {
    const at = (name: string) => `${card}.${name}`.replace('.', '');
    const holder = await hanging('world.exact', { cards: [at(first)] });
    const id = randomUUID();
    const options = { key: id, headers: { prefer: `wait=${conflicts ? 0 : 20}` } };
    const answer = await two.call('world.exact', { id, cards: [at(second)] }, options);
    expect([answer.status, answer.body.code]).toEqual(conflicts ? [409, 'locked'] : [200, undefined]);
    await holder.letGo();
  });

  it('a value is one segment, whatever is in it: nobody locks all by calling a card *', async () => {
    const holder = await hanging('world.charge', { card: '*' });
    expect((await two.call('world.charge', { id: 'a', card })).status).toBe(200);
    expect((await two.call('world.charge', { id: 'b', card: `*/${card}` })).status).toBe(200);
    expect((await two.call('world.charge', { id: 'c', card: '*' }, NOW)).body.code).toBe('locked');
    await holder.letGo();
  });

  it.each([
    ['world.charge', {}, 'card'],
    ['world.charge', { card: '' }, 'empty segment'],
    ['world.exact', { cards: ['*'] }, 'lock everything'],
    ['world.exact', { cards: ['a/*/b'] }, 'not its last segment'],
    ['world.exact', { cards: ['a\0b'] }, 'NUL'],
    ['world.exact', { cards: ['x'.repeat(1_025)] }, 'longer than'],
  ])('%s with what cannot be named (%#) is not sent', async (tool, args, told) => {
    const id = randomUUID();
    const refused = await one.call(tool, { id, ...args }, { key: id });
    expect(refused.status).toBe(400);
    expect(refused.body.code).toBe('invalid_arguments');
    expect(refused.body.detail).toContain(told);
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe('many at once', () => {
  it('are taken all or none', async () => {
    const cards = Array.from({ length: 20 }, (_, k) => `${card}-${k}`);
    const holder = await hanging('world.charge', { card: cards[13] });
    const refused = await two.call('world.many', { id: randomUUID(), cards }, NOW);
    expect(refused.body).toMatchObject({ code: 'locked', resource: `card/${cards[13]}` });
    const ours = async () => (await held()).filter(({ resource }: { resource: string }) => resource.includes(card));
    expect(await ours()).toHaveLength(1);
    await holder.letGo();
    const all = await hanging('world.many', { cards });
    expect(await heldBy(all.txn)).toHaveLength(20);
    expect((await two.call('world.charge', { id: 'z', card: cards[4] }, NOW)).body.code).toBe('locked');
    await all.letGo();
    expect(await ours()).toEqual([]);
  });

  it('in whatever order they are asked for, never wait for each other in a circle', async () => {
    const cards = Array.from({ length: 30 }, (_, k) => `${card}-${k}`);
    const deadlocks = async () =>
      (
        await database.query<{ n: number }>(
          'select deadlocks::int as n from pg_stat_database where datname = current_database()',
        )
      )[0]?.n;
    const before = await deadlocks();
    const asked = Array.from({ length: 30 }, (_, k) => {
      const order = k % 2 === 0 ? cards : cards.toReversed();
      return (k % 3 === 0 ? one : two).call('world.many', { id: `${card}-${k}`, cards: order.slice(k % 7) });
    });
    for (const answer of await Promise.all(asked)) expect(answer.status).toBe(200);
    expect(await deadlocks()).toBe(before);
  });

  it('may be ten thousand, and not one more', async () => {
    const cards = Array.from({ length: 10_000 }, (_, k) => `${card}-${k}`);
    const id = randomUUID();
    await upstream.plan({ match: { id }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const asked = one.call('world.many', { id, cards });
    await upstream.awaitEvent('there');
    const [count] = await database.query<{ n: number }>('select count(*)::int as n from locks');
    expect(count?.n).toBe(10_000);
    expect((await two.call('world.charge', { id: 'x', card: cards[9_999] }, NOW)).body.code).toBe('locked');
    await upstream.release('go');
    expect((await asked).status).toBe(200);
    expect(await database.query('select 1 from locks limit 1')).toEqual([]);
    const refused = await one.call('world.many', { id: 'more', cards: [...cards, 'one more'] });
    expect(refused.status).toBe(400);
    expect(refused.body.detail).toContain('more than 10000');
  });
});

describe('a call in doubt', () => {
  it('keeps its lock until a person answers', async () => {
    const id = randomUUID();
    await upstream.plan({ match: { id }, do: ['apply', 'drop'] });
    const doubt = await one.call('world.mail', { id, card }, { key: id });
    expect(doubt.status).toBe(504);
    expect(await heldBy(doubt.body.txn)).toMatchObject([
      { resource: `card/${card}`, mode: 'exclusive', for: 'call', agent: 'tester', tool: 'world.mail' },
    ]);
    expect((await two.call('world.charge', { id: 'x', card }, NOW)).body.code).toBe('locked');
    const verdict = { verdict: 'applied', reason: 'it is in the outbox' };
    expect((await one.admin('POST', `/admin/calls/${doubt.body.txn}/resolve`, verdict)).status).toBe(200);
    expect((await two.call('world.charge', { id: 'x', card }, NOW)).status).not.toBe(409);
  });

  it('keeps it when its gateway is killed, and lets go of it when it was found out', async () => {
    const id = randomUUID();
    await upstream.plan({ match: { id, nth: 1 }, do: ['apply', { event: 'there' }, { wait: 'never' }] });
    await upstream.plan({ match: { id, nth: 2 }, do: [{ event: 'again' }, { wait: 'go' }] });
    const asked = one.call('world.charge', { id, card }, { key: id }).catch(() => undefined);
    await upstream.awaitEvent('there');
    await one.kill();
    await asked;
    // The other replica has it now, and asks for the same once more.
    await upstream.awaitEvent('again');
    expect((await two.call('world.charge', { id: 'x', card }, NOW)).body.code).toBe('locked');
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
  it('locks nothing meanwhile; let go, it waits for its locks and then runs', async () => {
    const id = randomUUID();
    const waiting = await one.call('world.approved', { id, card }, { key: id, ...NOW });
    expect(waiting.status).toBe(202);
    expect(await heldBy(waiting.body.txn)).toEqual([]);
    const holder = await hanging('world.charge', { card });
    await approve(waiting.body.txn);
    // It was looked at, and found the lock taken: it is due again and nobody's.
    await expect
      .poll(async () => (await one.admin('GET', `/admin/calls/${waiting.body.txn}`)).body.state)
      .toBe('ready');
    expect(await upstream.requests(id)).toEqual([]);
    await holder.letGo();
    expect((await one.waitForCall(waiting.body.txn, ({ state }) => state === 'succeeded')).lockToken).toEqual(
      expect.any(Number),
    );
    expect(await upstream.effects(id)).toHaveLength(1);
  });
});

describe('a lock for a saga', () => {
  it('is held until the saga is over, and is not in the way of its own steps', async () => {
    const saga = await TestSaga.open(one);
    await saga.runStep('world.reserve', { id: `${card}-1`, card } as { id: string });
    expect(await heldBy(saga.id)).toMatchObject([{ for: 'saga', resource: `card/${card}` }]);
    await saga.runStep('world.charge', { id: `${card}-2`, card } as { id: string });
    expect((await two.call('world.charge', { id: 'x', card }, NOW)).body.code).toBe('locked');
    expect((await saga.postAction('commit')).status).toBe(200);
    expect(await heldBy(saga.id)).toEqual([]);
    expect((await two.call('world.charge', { id: 'x', card }, NOW)).status).not.toBe(409);
  });

  it('is not in the way of the undoing, and is let go when all is undone', async () => {
    const saga = await TestSaga.open(one);
    await saga.runStep('world.reserve', { id: `${card}-1`, card } as { id: string });
    const rolled = await saga.rollback();
    expect(rolled.body.state).toBe('rolled_back');
    expect(await heldBy(saga.id)).toEqual([]);
    expect(await upstream.effects(`undo-${card}-1`)).toHaveLength(1);
  });

  it('an undo that finds its lock taken says so, waits, and goes on by itself', async () => {
    const saga = await TestSaga.open(one);
    await saga.runStep('world.once', { id: `${card}-1`, card } as { id: string });
    const holder = await hanging('world.charge', { card });
    expect((await saga.rollback({}, '')).status).toBe(202);
    await expect
      .poll(async () => (await saga.read()).steps[0].undo.reason)
      .toContain(`the undo waits for card/${card}`);
    expect(await upstream.requests(`undo-${card}-1`)).toEqual([]);
    await holder.letGo();
    expect((await saga.waitUntilSettled()).state).toBe('rolled_back');
    expect(await upstream.effects(`undo-${card}-1`)).toHaveLength(1);
  });
});

describe('a lock for a run', () => {
  it('passes to whoever takes the run over, and is let go when it is finished', async () => {
    const name = `pin-${card}`;
    const first = await RunHolder.take(one, name);
    expect((await first.call('world.pin', { id: `${card}-1`, card })).status).toBe(200);
    const next = await RunHolder.take(two, name);
    expect(await heldBy(next.took.run)).toMatchObject([{ for: 'run', resource: `card/${card}` }]);
    expect((await two.call('world.charge', { id: 'x', card }, NOW)).body.code).toBe('locked');
    expect((await next.call('world.charge', { id: `${card}-2`, card })).status).toBe(200);
    expect((await next.postAction('finish')).status).toBe(200);
    expect(await heldBy(next.took.run)).toEqual([]);
    expect((await two.call('world.charge', { id: 'y', card }, NOW)).status).not.toBe(409);
  });
});

it('what was held for a person and outlives its run locks for itself only', async () => {
  const holder = await RunHolder.take(one, `late-${card}`);
  const waiting = await holder.call('world.pinned', { id: card, card }, NOW);
  expect(waiting.status).toBe(202);
  expect((await holder.postAction('finish')).status).toBe(200);
  await approve(waiting.body.txn);
  await one.waitForCall(waiting.body.txn, ({ state }) => state === 'succeeded');
  expect(await held()).toEqual([]);
});

it('a name that tells what a tool redacts is stored nowhere, and conflicts with the same name all the same', async () => {
  const holder = await hanging('world.secret', { card });
  const [row] = await database.query<{ all: string }>('select locks::text as all from locks where holder = $1', [
    holder.txn,
  ]);
  expect(row?.all).not.toContain(card);
  expect(row?.all).toContain('card/%5Bredacted%5D');
  const refused = await two.call('world.charge', { id: 'x', card }, NOW);
  expect(refused.body.code).toBe('locked');
  await holder.letGo();
});

it('a dry run tells what would be locked', async () => {
  const dry = await one.call('world.reserve', { id: 'x', card }, { headers: { 'oncegate-dry-run': '?1' } });
  expect(dry.body.locks).toEqual([{ resource: `card/${card}`, mode: 'exclusive', for: 'saga' }]);
  expect(dry.body.wouldAnswer).toEqual({ status: 200, sends: true });
  expect(await held()).toEqual([]);
  const holder = await hanging('world.charge', { card });
  const wouldBe = await one.call('world.reserve', { id: 'x', card }, { headers: { 'oncegate-dry-run': '?1' } });
  expect(wouldBe.body.wouldAnswer).toMatchObject({ status: 409, code: 'locked', sends: false });
  await holder.letGo();
});
