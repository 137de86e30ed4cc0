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
  await applyPolicies({});
});

const hold = (tool: string, args: object, key: string) => one.call(tool, args, { key, headers: { prefer: 'wait=0' } });
const readApproval = (txn: string, state = 'pending', on = one) => findApproval(on, txn, state);
const vote = (on: Gateway, key: string, txn: string, digest: string, verdict = 'approve') =>
  on.post(`/admin/approvals/${txn}/${verdict}`, { reason: `${verdict} it`, digest }, key);
/** Writes the policies and reloads them on every live replica. */
async function applyPolicies(tuning: Tuning): Promise<void> {
  await writePolicies(one, policies(tuning));
  for (const gateway of [one, two])
    if (gateway.isAlive) expect((await gateway.admin('POST', '/admin/policies/reload')).status).toBe(200);
}
const freeze = (verb: 'freeze' | 'unfreeze') => one.admin('POST', `/admin/${verb}`, { reason: verb });
const awaitFailure = (txn: string) =>
  one.waitForCall(txn, ({ state }) => state === 'failed').then(() => one.admin('GET', `/admin/calls/${txn}`));

describe('kill -9', () => {
  it('right after the vote: another replica sends the call once', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await readApproval(txn);
    await two.kill();
    await one.kill();
    // This is the only replica. It dies when it takes the approved call, before it sends anything.
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

  it.each(['sending', 'answered'])('at %s: the call is sent at most once, and is in doubt', async (point) => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await readApproval(txn);
    await two.kill();
    await one.kill();
    await one.start({ ONCEGATE_DIE_AT: point });
    await vote(one, ALICE, txn, digest).catch(() => undefined);
    await one.waitForExit();
    await Promise.all([one.start(), two.start()]);
    const repeat = await two.call('world.mail', { id }, { key: id });
    const effects = (await upstream.effects(id)).length;
    expect([point, repeat.status, effects]).toEqual(
      point === 'settled' ? [point, 200, 1] : [point, 504, point === 'sending' ? 0 : 1],
    );
    expect((await upstream.requests(id)).length).toBeLessThanOrEqual(1);
    expect((await vote(one, BOB, txn, digest)).body.state).toBe('approved');
    expect((await upstream.requests(id)).length).toBe(effects);
  });

  it('again and again before the send: the call fails, and its key stays bound', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await readApproval(txn);
    await freeze('freeze');
    expect((await vote(one, ALICE, txn, digest)).status).toBe(200);
    await two.kill();
    await one.kill();
    // As if nine owners of the call had died.
    await database.query('update open_calls set owner_deaths = 9 where txn = $1', [txn]);
    await Promise.all([one.start(), two.start()]);
    await freeze('unfreeze');
    const { body } = await one.call('world.mail', { id }, { key: id });
    expect(body).toMatchObject({ status: 503, txn, retry: 'new_key' });
    expect((await one.get(`/v1/calls/${txn}`)).body.state).toBe('failed');
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe('a policy change', () => {
  it('between hold and approval invalidates the old digest, and the new digest can be approved', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const before = await readApproval(txn);
    await applyPolicies({ comment: 'something else' });
    expect((await vote(one, ALICE, txn, before.digest)).status).toBe(409);
    const after = await readApproval(txn);
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
    ['the rule', { pay: 'when: args.id == "nothing"' }, /No rule/],
  ])('of %s between hold and approval makes the call impossible to approve', async (_, tuning, why) => {
    const { txn } = (await hold('world.pay', { id }, id)).body;
    await applyPolicies(tuning);
    const { digest } = await readApproval(txn);
    for (const key of [ALICE, BOB]) {
      const refused = await vote(two, key, txn, digest);
      expect(refused.status).toBe(409);
      expect(refused.body.detail).toMatch(why);
    }
    // A rejection is still possible.
    expect((await vote(two, ALICE, txn, digest, 'reject')).status).toBe(200);
    expect((await one.call('world.pay', { id }, { key: id })).status).toBe(422);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('between approval and send fails the call with a reason, and nothing is sent', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await readApproval(txn);
    await freeze('freeze');
    expect((await vote(one, ALICE, txn, digest)).status).toBe(200);
    await applyPolicies({ comment: 'changed meanwhile' });
    await freeze('unfreeze');
    const { body } = await awaitFailure(txn);
    expect(body).toMatchObject({ state: 'failed', problem: { code: 'denied' } });
    expect(JSON.stringify(body)).toContain('the policies changed after the call was approved');
    expect(await upstream.requests(id)).toEqual([]);
  });

  it.each(['world.mail', 'world.pay'])(
    'between two failed attempts to connect fails %s, and nothing is sent',
    async (tool) => {
      const { txn } = (await hold(tool, { id }, id)).body;
      const { digest } = await readApproval(txn);
      await upstream.kill();
      await vote(one, ALICE, txn, digest);
      await vote(two, BOB, txn, digest);
      await one.waitForCall(txn, ({ state, attempts }) => state === 'sending' && attempts >= 2);
      await applyPolicies({ comment: 'changed between attempts' });
      await upstream.restart();
      expect((await awaitFailure(txn)).body).toMatchObject({ problem: { code: 'denied' } });
      expect(await upstream.requests(id)).toEqual([]);
    },
  );

  it('of a variable in the upstream URL fails the call, and nothing is sent', async () => {
    const elsewhere = await startUpstreamForTest();
    try {
      const { txn } = (await hold('world.mail', { id }, id)).body;
      const { digest } = await readApproval(txn);
      await two.kill();
      await one.kill();
      await one.start({ WORLD_URL: elsewhere.url });
      await vote(one, ALICE, txn, digest);
      expect((await awaitFailure(txn)).body).toMatchObject({ problem: { code: 'denied' } });
      expect(await elsewhere.requests(id)).toEqual([]);
      expect(await upstream.requests(id)).toEqual([]);
    } finally {
      await one.kill();
      await elsewhere.stop();
    }
  });
});

describe('approvers', () => {
  it('who vote at the same instant reach a quorum of two, and the call is sent once', async () => {
    const held = await Promise.all(
      Array.from({ length: 6 }, (_, i) => hold('world.pay', { id: `${id}-${i}` }, `${id}-${i}`)),
    );
    const digests = await Promise.all(held.map(({ body }) => readApproval(body.txn)));
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

  it('who lose their role or group no longer count', async () => {
    for (const bob of ['roles: [viewer], groups: [finance]', 'roles: [approver], groups: [security]']) {
      const key = `${id}-${bob.length}`;
      const { txn } = (await hold('world.pay', { id: key }, key)).body;
      const before = await readApproval(txn);
      expect((await vote(one, BOB, txn, before.digest)).body.state).toBe('pending');
      await applyPolicies({ bob });
      const { digest } = await readApproval(txn);
      expect((await vote(one, BOB, txn, digest)).status).toBe(403);
      expect((await vote(one, ALICE, txn, digest)).body.state).toBe('pending');
      expect(await upstream.requests(key)).toEqual([]);
      await applyPolicies({});
      // With the old policies back, Bob's vote for this digest counts again and completes the quorum.
      expect((await vote(one, ALICE, txn, before.digest)).body.state).toBe('approved');
      await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    }
  });

  it('never see a redacted value, which the tool still receives', async () => {
    const { txn } = (await hold('world.secret', { id, card: CANARY }, id)).body;
    const shown = await readApproval(txn);
    expect(JSON.stringify(shown)).not.toContain(CANARY);
    expect((await vote(two, ALICE, txn, shown.digest)).status).toBe(200);
    await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect((await upstream.effects(id))[0]?.body).toMatchObject({ card: CANARY });
    const rows = await database.query(
      `select a::text, v::text, c::text, r::text, u::text, e::text from calls c left join settlements r using (txn) left join undos u using (txn)
        left join call_events e using (txn) left join approvals a using (txn) left join votes v using (txn) where txn = $1`,
      [txn],
    );
    expect(JSON.stringify(rows)).not.toContain(CANARY);
    expect((await hold('world.secret', { id, card: 'another card' }, id)).status).toBe(422);
  });
});

describe('a race', () => {
  const countDeadlocks = async () => {
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
    const finalStates = new Map<string, number>();
    const heldAt = performance.now();
    const held = await Promise.all(
      Array.from({ length: rounds }, (_, i) => hold(tool, { id: `${id}-${i}` }, `${id}-${i}`)),
    );
    // On a busy machine an approval may expire before it is read; a vote on it is then refused like any late vote.
    const shown = await Promise.all(
      held.map(async ({ body }) => (await readApproval(body.txn)) ?? (await readApproval(body.txn, 'expired'))),
    );
    await Promise.all(
      held.map(async ({ body: { txn } }, i) => {
        if (waitMs > 0) await sleep(Math.max(0, waitMs - (performance.now() - heldAt) + (i - rounds / 2) * 12));
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
        finalStates.set(state, (finalStates.get(state) ?? 0) + 1);
      }),
    );
    // PostgreSQL updates its deadlock count within about a second, and no event says that the count stays at zero.
    await sleep(1_200);
    expect(await countDeadlocks()).toBe(0);
    return finalStates;
  };

  it('between a vote and a cancel has one winner and no deadlock', async () => {
    const finalStates = await race(
      'world.mail',
      (txn, i) => (i % 2 === 0 ? two : one).request('POST', `/v1/calls/${txn}/cancel`, { key: AGENT_KEY }),
      24,
    );
    expect([...finalStates.keys()].sort()).not.toContain('in_doubt');
  });

  it('between a vote and the expiry has one winner', async () => {
    const finalStates = await race('world.quick', () => Promise.resolve(), 24, 760);
    expect([...finalStates.keys()].every((state) => ['succeeded', 'expired'].includes(state))).toBe(true);
  });
});

it('the limit of pending approvals is exact, and a refused call binds no key', async () => {
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
  // Another agent has its own limit, and a cancelled call makes room for another.
  expect((await hold('world.mail', { id }, id)).status).toBe(202);
  await one.request('POST', `/v1/calls/${held[0]?.body.txn}/cancel`, { key: OTHER_AGENT_KEY });
  const firstRefused = answers.findIndex(({ status }) => status === 429);
  const again = await two.call(
    'world.mail',
    { id: `${id}-${firstRefused}` },
    {
      key: `${id}-${firstRefused}`,
      agentKey: OTHER_AGENT_KEY,
      headers: { prefer: 'wait=0' },
    },
  );
  expect(again.status).toBe(202);
});
