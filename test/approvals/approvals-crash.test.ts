import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, describe, expect, it } from 'vitest';
import { findApproval } from '../support/approvals.ts';
import { ADMIN_KEY, AGENT_KEY, type Gateway, keysYaml, OTHER_AGENT_KEY, writePolicies } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { startUpstreamForTest, useReplicas } from '../support/use-gateway.ts';

const ALICE = 'alice-key';
const BOB = 'bob-key';
const CARL = 'carl-key';
const CANARY = 'canary-4111111111111111';

interface Tuning {
  readonly comment?: string;
  readonly pay?: string;
  readonly payPath?: string;
  readonly bob?: string;
  readonly undo?: string;
}

function policies(tuning: Tuning = {}): Record<string, string> {
  const input =
    'input: { type: object, properties: { id: { type: string }, amount: { type: integer }, card: { type: string } }, required: [id] }';
  const pay = tuning.pay ?? 'approve: { by: [finance], quorum: 2, within: 1h }';
  return {
    'approvals.yaml': `# ${tuning.comment ?? ''}
upstreams:
  world: { adapter: http, url: "\${env.WORLD_URL}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
tools:
  world.pay:
    upstream: world
    ${input}
    request: { method: POST, path: ${tuning.payPath ?? '/keyed/charge'}, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: ${tuning.undo ?? 'irreversible'} }
    retry: { attempts: 20, base: 200ms, max: 200ms, within: 1h }
  world.mail:
    upstream: world
    ${input}
    request: { method: POST, path: /none/mail, body: "\${args}" }
    retry: { attempts: 20, base: 200ms, max: 200ms, within: 1h }
  world.quick:
    upstream: world
    ${input}
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args}" }
  world.secret:
    upstream: world
    ${input}
    request: { method: POST, path: /probed/orders, body: "\${args}" }
    redact: [args.card]
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: world.pay
        ${pay}
      - allow: world.quick
        approve: { within: 700ms }
      - allow: world.mail
      - allow: world.secret
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules:
      - allow: world.mail
people:
  root: { ${keysYaml(ADMIN_KEY)}, roles: [admin] }
  alice: { ${keysYaml(ALICE)}, roles: [approver], groups: [finance] }
  bob: { ${keysYaml(BOB)}, ${tuning.bob ?? 'roles: [approver], groups: [finance]'} }
  carl: { ${keysYaml(CARL)}, roles: [approver], groups: [security] }
  dora: { ${keysYaml('dora-key')}, roles: [approver], groups: [finance, security] }
`,
  };
}

let id = '';

const { upstream, database, one, two, replicas } = useReplicas({
  policies: policies(),
  env: (url) => ({ WORLD_URL: url }),
  config: 'limits: { pendingApprovals: 30 }',
});
beforeEach(async () => {
  id = uniqueId('case');
  for (const replica of replicas) await replica.ensureStarted();
  await use({});
});

const hold = (tool: string, args: object, key: string) => one.call(tool, args, { key, headers: { prefer: 'wait=0' } });
const shownAs = (txn: string, state = 'pending', on = one) => findApproval(on, txn, state);
const vote = (on: Gateway, key: string, txn: string, digest: string, verdict = 'approve') =>
  on.post(`/admin/approvals/${txn}/${verdict}`, { reason: `${verdict} it`, digest }, key);
/** What is on disk is in force on every replica that lives. */
async function use(tuning: Tuning): Promise<void> {
  await writePolicies(one, policies(tuning));
  for (const gateway of [one, two])
    if (gateway.isAlive) expect((await gateway.admin('POST', '/admin/policies/reload')).status).toBe(200);
}
const freeze = (verb: 'freeze' | 'unfreeze') => one.admin('POST', `/admin/${verb}`, { reason: verb });
const failedAs = (txn: string) =>
  one.waitForCall(txn, ({ state }) => state === 'failed').then(() => one.admin('GET', `/admin/calls/${txn}`));

describe('kill -9', () => {
  it('right after the vote: somebody runs it, once', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await shownAs(txn);
    await two.kill();
    await one.kill();
    // Only this replica is there, and dies when it takes the approved call, before anything is sent.
    await one.start({ ONCEGATE_DIE_AT: 'taken' });
    await vote(one, ALICE, txn, digest).catch(() => undefined);
    await one.waitForExit();
    expect(await upstream.requests(id)).toEqual([]);
    await two.start();
    await two.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect(await upstream.requests(id)).toHaveLength(1);
    await one.start();
    expect((await one.call('world.mail', { id }, { key: id })).body).toMatchObject({ replayed: true });
  });

  it.each(['sending', 'answered'])('while it runs, at %s: sent once, and the truth is told', async (point) => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await shownAs(txn);
    await two.kill();
    await one.kill();
    await one.start({ ONCEGATE_DIE_AT: point });
    await vote(one, ALICE, txn, digest).catch(() => undefined);
    await one.waitForExit();
    await Promise.all([one.start(), two.start()]);
    const told = await two.call('world.mail', { id }, { key: id });
    const effects = (await upstream.effects(id)).length;
    expect([point, told.status, effects]).toEqual(
      point === 'settled' ? [point, 200, 1] : [point, 504, point === 'sending' ? 0 : 1],
    );
    expect((await upstream.requests(id)).length).toBeLessThanOrEqual(1);
    expect((await vote(one, BOB, txn, digest)).body.state).toBe('approved');
    expect((await upstream.requests(id)).length).toBe(effects);
  });

  it('over and over before it is sent: it fails, stays bound, and no approval is left over', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await shownAs(txn);
    await freeze('freeze');
    expect((await vote(one, ALICE, txn, digest)).status).toBe(200);
    await two.kill();
    await one.kill();
    // As if six owners had died under it.
    await database.query('update calls set owner_deaths = 9 where txn = $1', [txn]);
    await Promise.all([one.start(), two.start()]);
    await freeze('unfreeze');
    const told = (await one.call('world.mail', { id }, { key: id })).body;
    expect(told).toMatchObject({ status: 503, txn, retry: 'new_key' });
    expect((await one.get(`/v1/calls/${txn}`)).body.state).toBe('failed');
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe('policies that change', () => {
  it('between hold and approval: the old digest is refused, the new one is of what would run', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const before = await shownAs(txn);
    await use({ comment: 'something else' });
    expect((await vote(one, ALICE, txn, before.digest)).status).toBe(409);
    const after = await shownAs(txn);
    expect(after.digest).not.toBe(before.digest);
    expect(after.policyVersion).not.toBe(before.policyVersion);
    expect((await vote(one, ALICE, txn, after.digest)).status).toBe(200);
    await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it.each<[string, Tuning, RegExp]>([
    ['the request', { payPath: '/keyed/elsewhere' }, /contract/],
    ['the undo', { undo: 'none' }, /contract/],
    ['who must approve', { pay: 'approve: { by: [security], quorum: 2, within: 1h }' }, /other approvers/],
    ['how many must approve', { pay: 'approve: { by: [finance], quorum: 3, within: 1h }' }, /other approvers/],
    ['the rule', { pay: 'when: args.id == "nothing"' }, /no rule/],
  ])('in %s between hold and approval: it cannot be approved any more', async (_, tuning, why) => {
    const { txn } = (await hold('world.pay', { id }, id)).body;
    await use(tuning);
    const { digest } = await shownAs(txn);
    for (const key of [ALICE, BOB]) {
      const refused = await vote(two, key, txn, digest);
      expect(refused.status).toBe(409);
      expect(refused.body.detail).toMatch(why);
    }
    // No is always possible.
    expect((await vote(two, ALICE, txn, digest, 'reject')).status).toBe(200);
    expect((await one.call('world.pay', { id }, { key: id })).status).toBe(422);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('between approval and run: nothing runs, and it says why', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await shownAs(txn);
    await freeze('freeze');
    expect((await vote(one, ALICE, txn, digest)).status).toBe(200);
    await use({ comment: 'changed meanwhile' });
    await freeze('unfreeze');
    const { body } = await failedAs(txn);
    expect(body).toMatchObject({ state: 'failed', problem: { code: 'denied' } });
    expect(JSON.stringify(body)).toContain('the policies changed after the call was approved');
    expect(await upstream.requests(id)).toEqual([]);
  });

  it.each(['world.mail', 'world.pay'])('between two attempts of which none left, %s: nothing runs', async (tool) => {
    const { txn } = (await hold(tool, { id }, id)).body;
    const { digest } = await shownAs(txn);
    await upstream.kill();
    await vote(one, ALICE, txn, digest);
    await vote(two, BOB, txn, digest);
    await one.waitForCall(txn, ({ state, attempts }) => state === 'sending' && attempts >= 2);
    await use({ comment: 'changed between attempts' });
    await upstream.restart();
    expect((await failedAs(txn)).body).toMatchObject({ problem: { code: 'denied' } });
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('in the environment, so that the upstream is somewhere else: nothing runs', async () => {
    const elsewhere = await startUpstreamForTest();
    try {
      const { txn } = (await hold('world.mail', { id }, id)).body;
      const { digest } = await shownAs(txn);
      await two.kill();
      await one.kill();
      await one.start({ WORLD_URL: elsewhere.url });
      await vote(one, ALICE, txn, digest);
      expect((await failedAs(txn)).body).toMatchObject({ problem: { code: 'denied' } });
      expect(await elsewhere.requests(id)).toEqual([]);
      expect(await upstream.requests(id)).toEqual([]);
    } finally {
      await one.kill();
      await elsewhere.stop();
    }
  });
});

describe('people', () => {
  it('who vote at the same instant make a quorum of two, once', async () => {
    const held = await Promise.all(
      Array.from({ length: 6 }, (_, i) => hold('world.pay', { id: `${id}-${i}` }, `${id}-${i}`)),
    );
    const digests = await Promise.all(held.map(({ body }) => shownAs(body.txn)));
    const states = await Promise.all(
      held.map(async ({ body }, i) => {
        const votes = await Promise.all([
          vote(one, ALICE, body.txn, digests[i].digest),
          vote(two, BOB, body.txn, digests[i].digest),
        ]);
        expect(votes.map(({ status }) => status)).toEqual([200, 200]);
        await one.waitForCall(body.txn, ({ state }) => state === 'succeeded');
        return (await upstream.requests(`${id}-${i}`)).length;
      }),
    );
    expect(states).toEqual(Array(6).fill(1));
  });

  it('whose role or group is taken away do not count any more', async () => {
    for (const bob of ['roles: [viewer], groups: [finance]', 'roles: [approver], groups: [security]']) {
      const key = `${id}-${bob.length}`;
      const { txn } = (await hold('world.pay', { id: key }, key)).body;
      const before = await shownAs(txn);
      expect((await vote(one, BOB, txn, before.digest)).body.state).toBe('pending');
      await use({ bob });
      const { digest } = await shownAs(txn);
      expect((await vote(one, BOB, txn, digest)).status).toBe(403);
      expect((await vote(one, ALICE, txn, digest)).body.state).toBe('pending');
      expect(await upstream.requests(key)).toEqual([]);
      await use({});
      // Back again: the vote for exactly this stands again, and only now there are two.
      expect((await vote(one, ALICE, txn, before.digest)).body.state).toBe('approved');
      await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    }
  });

  it('see what is redacted neither in an approval nor anywhere else, and the tool gets it all the same', async () => {
    const { txn } = (await hold('world.secret', { id, card: CANARY }, id)).body;
    const shown = await shownAs(txn);
    expect(JSON.stringify(shown)).not.toContain(CANARY);
    expect((await vote(two, ALICE, txn, shown.digest)).status).toBe(200);
    await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect((await upstream.effects(id))[0]?.body).toMatchObject({ card: CANARY });
    const rows = await database.query(
      'select a::text, v::text, c::text from calls c left join approvals a using (txn) left join votes v using (txn) where txn = $1',
      [txn],
    );
    expect(JSON.stringify(rows)).not.toContain(CANARY);
    expect((await hold('world.secret', { id, card: 'another card' }, id)).status).toBe(422);
  });
});

describe('races', () => {
  const deadlocks = async () => {
    const [row] = await database.query<{ n: number }>(
      'select deadlocks::int as n from pg_stat_database where datname = current_database()',
    );
    return row?.n;
  };

  const race = async (
    tool: string,
    against: (txn: string, i: number) => Promise<unknown>,
    rounds: number,
    waitMs = 0,
  ) => {
    const ends = new Map<string, number>();
    const asked = performance.now();
    const held = await Promise.all(
      Array.from({ length: rounds }, (_, i) => hold(tool, { id: `${id}-${i}` }, `${id}-${i}`)),
    );
    const shown = await Promise.all(held.map(({ body }) => shownAs(body.txn)));
    await Promise.all(
      held.map(async ({ body: { txn } }, i) => {
        if (waitMs > 0) await sleep(Math.max(0, waitMs - (performance.now() - asked) + (i - rounds / 2) * 12));
        const [voted] = await Promise.all([
          vote(i % 2 === 0 ? one : two, ALICE, txn, shown[i].digest),
          against(txn, i),
        ]);
        expect([200, 409]).toContain(voted.status);
        const { state } = await one.waitForCall(txn, (call) => !['held', 'ready', 'sending'].includes(call.state));
        expect(state === 'succeeded').toBe(voted.status === 200);
        expect(await upstream.requests(`${id}-${i}`)).toHaveLength(voted.status === 200 ? 1 : 0);
        const [row] = await database.query<{ state: string }>('select state from approvals where txn = $1', [txn]);
        expect(row?.state).toBe(state === 'succeeded' ? 'approved' : state);
        ends.set(state, (ends.get(state) ?? 0) + 1);
      }),
    );
    // PostgreSQL counts deadlocks within a second or so, and a count that stays at zero announces nothing.
    await sleep(1_200);
    expect(await deadlocks()).toBe(0);
    return ends;
  };

  it('of a vote and a withdrawal have one winner, without waiting for each other', async () => {
    const ends = await race(
      'world.mail',
      (txn, i) => (i % 2 === 0 ? two : one).request('POST', `/v1/calls/${txn}/cancel`, { key: AGENT_KEY }),
      24,
    );
    expect([...ends.keys()].sort()).not.toContain('in_doubt');
  });

  it('of a vote and the end of its time have one winner', async () => {
    const ends = await race('world.quick', () => Promise.resolve(), 24, 760);
    expect([...ends.keys()].every((state) => ['succeeded', 'expired'].includes(state))).toBe(true);
  });
});

it('caps what may wait for people, exactly, and binds nothing beyond it', async () => {
  await database.query(`update approvals set state = 'cancelled', decided_at = now() where state = 'pending'`);
  const answers = await Promise.all(
    Array.from({ length: 60 }, (_, i) =>
      (i % 2 === 0 ? one : two).call(
        'world.mail',
        { id: `${id}-${i}` },
        {
          key: `${id}-${i}`,
          agentKey: OTHER_AGENT_KEY,
          headers: { prefer: 'wait=0' },
        },
      ),
    ),
  );
  const held = answers.filter(({ status }) => status === 202);
  expect(held).toHaveLength(30);
  const refused = answers.filter(({ status }) => status === 429);
  expect(refused).toHaveLength(30);
  expect(refused[0]?.body).toMatchObject({ code: 'rate_limited', retry: 'after_delay' });
  // Another agent has its own cap, and a place that becomes free is used.
  expect((await hold('world.mail', { id }, id)).status).toBe(202);
  await one.request('POST', `/v1/calls/${held[0]?.body.txn}/cancel`, { key: OTHER_AGENT_KEY });
  const late = answers.findIndex(({ status }) => status === 429);
  const again = await two.call(
    'world.mail',
    { id: `${id}-${late}` },
    {
      key: `${id}-${late}`,
      agentKey: OTHER_AGENT_KEY,
      headers: { prefer: 'wait=0' },
    },
  );
  expect(again.status).toBe(202);
});
