import { beforeEach, describe, expect, it } from 'vitest';
import { endHeldCall } from '../../gateway/ledger/approvals/approvals.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { findApproval } from '../support/approvals.ts';
import { ADMIN_KEY, AGENT_KEY, keysYaml, VIEWER_KEY, writePolicies } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useReplicas } from '../support/use-gateway.ts';

const ALICE = 'alice-key';
const BOB = 'bob-key';
const CARL = 'carl-key';
const OSCAR = 'oscar-key';

let id = '';

function policies(rule = 'delay: 1h', comment = ''): Record<string, string> {
  const input = 'input: { type: object, properties: { id: { type: string } }, required: [id] }';
  return {
    'delay.yaml': `# ${comment}
upstreams:
  world: { adapter: http, url: "\${env.WORLD_URL}", allowPrivate: true }
tools:
  world.pay:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.brief:
    upstream: world
    ${input}
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args}" }
    once: { by: idempotent }
  world.both:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/refund, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.mail:
    upstream: world
    ${input}
    request: { method: POST, path: /none/mail, body: "\${args}" }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - { allow: world.pay, ${rule} }
      - { allow: world.brief, delay: 700ms }
      - { allow: world.both, approve: { by: [finance] }, delay: 1h }
      - { allow: world.mail, approve: never, delay: 1h }
people:
  root: { ${keysYaml(ADMIN_KEY)}, roles: [admin] }
  watcher: { ${keysYaml(VIEWER_KEY)}, roles: [viewer] }
  alice: { ${keysYaml(ALICE)}, roles: [approver], groups: [finance] }
  bob: { ${keysYaml(BOB)}, roles: [approver], groups: [finance] }
  carl: { ${keysYaml(CARL)}, roles: [approver], groups: [security] }
  oscar: { ${keysYaml(OSCAR)}, roles: [operator] }
`,
  };
}

const { upstream, database, one, two } = useReplicas({
  policies: policies(),
  env: (url) => ({ WORLD_URL: url }),
  config: 'limits: { pendingApprovals: 2 }',
});
beforeEach(() => {
  id = uniqueId('case');
});

const NO_WAIT = { prefer: 'wait=0' };
const call = (tool: string, on = one, headers: Record<string, string> = {}, key = id) =>
  on.call(tool, { id: key }, { key, headers });
const holdCall = async (tool: string, key = id) => (await call(tool, one, NO_WAIT, key)).body.txn as string;
const postAs = (key: string, path: string, body: unknown, on = one) => on.post(path, body, key);
const readApproval = (txn: string, state = 'pending') => findApproval(one, txn, state);
const decide = async (key: string, txn: string, verdict = 'approve', on = one) =>
  postAs(
    key,
    `/admin/approvals/${txn}/${verdict}`,
    { reason: `${verdict} it`, digest: (await readApproval(txn)).digest },
    on,
  );
const cancel = (txn: string, on = one) => on.request('POST', `/v1/calls/${txn}/cancel`, { key: AGENT_KEY });
const readState = async (txn: string, on = one) => (await on.get(`/v1/calls/${txn}`)).body.state;
const awaitSuccess = (txn: string, on = one) => on.waitForCall(txn, ({ state }) => state === 'succeeded');
/** Ends the delay of these calls in the ledger. */
const endDelay = (txns: readonly string[]) =>
  database.query(
    `with due as (update approvals set leaves_at = now(), expires_at = now() where txn = any($1::uuid[]))
      update open_calls set due_at = now() where txn = any($1::uuid[])`,
    [txns],
  );
async function applyPolicies(rule?: string): Promise<void> {
  await writePolicies(one, policies(rule, id));
  for (const gateway of [one, two])
    if (gateway.isAlive) expect((await gateway.admin('POST', '/admin/policies/reload')).status).toBe(200);
}

describe('a delayed call', () => {
  it('is held, says until when, is sent by itself, and is in the log', async () => {
    const reply = await call('world.brief', one, NO_WAIT);
    expect(reply).toMatchObject({ status: 202, body: { state: 'held', hold: { kind: 'delay' } } });
    expect(reply.headers.get('retry-after')).toBe('1');
    expect(await upstream.requests(id)).toEqual([]);
    const { txn } = reply.body;
    expect((await readApproval(txn)).leavesAt).toBe(reply.body.hold.until);
    // A caller that waits long enough gets the result.
    expect(await call('world.brief', two, { prefer: 'wait=30' })).toMatchObject({ status: 200, body: { txn } });
    expect(await upstream.requests(id)).toHaveLength(1);
    const { timeline } = (await one.admin('GET', `/admin/calls/${txn}`)).body;
    expect(timeline.map(({ what }: { what: string }) => what)).toEqual(['claimed', 'unopposed', 'succeeded']);
    expect(await readApproval(txn, 'unopposed')).toMatchObject({ txn, hold: 'delay', votes: [] });
    const notices = await database.query<{ kind: string; body: string }>(
      'select kind, body from notices where txn = $1 order by created_at',
      [txn],
    );
    expect(notices.map(({ kind }) => kind)).toEqual(['held', 'unopposed']);
    expect(Date.parse(JSON.parse(notices[0]?.body ?? '').leavesAt)).toBe(Date.parse(reply.body.hold.until));
  });

  it('answers 202 at once if the delay is longer than the caller waits; repeats get the same answer', async () => {
    const first = await call('world.pay');
    expect(first).toMatchObject({ status: 202, body: { replayed: false, hold: { kind: 'delay' } } });
    const seconds = Number(first.headers.get('retry-after'));
    expect(seconds > 3_500 && seconds <= 3_600).toBe(true);
    expect(await call('world.pay', two, NO_WAIT)).toMatchObject({
      status: 202,
      body: { replayed: true, hold: first.body.hold },
    });
    expect((await one.get(`/v1/calls/${first.body.txn}`)).body).toMatchObject({ state: 'held', hold: first.body.hold });
    expect(
      (await one.call('world.pay', { id }, { key: id, headers: { 'oncegate-dry-run': '?1' } })).body,
    ).toMatchObject({ hold: true, delaySeconds: 3600 });
    const mcp = await one.request('POST', '/mcp', {
      key: AGENT_KEY,
      headers: {
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        'mcp-protocol-version': '2025-06-18',
        'idempotency-key': id,
        ...NO_WAIT,
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name: 'world__pay', arguments: { id } },
      }),
    });
    const message = typeof mcp.body === 'string' ? JSON.parse(mcp.body.replace(/^[^{]*/, '')) : mcp.body;
    expect(message.result).toMatchObject({
      isError: true,
      structuredContent: { state: 'held', hold: first.body.hold },
    });
    expect(message.result.content[0].text).toContain(`will be sent at ${first.body.hold.until}`);
  });

  it('can be cancelled by its agent, stays cancelled, and is not sent', async () => {
    const txn = await holdCall('world.pay');
    expect((await cancel(txn)).body.state).toBe('cancelled');
    expect((await cancel(txn, two)).status).toBe(200);
    await endDelay([txn]);
    expect(await call('world.pay', two)).toMatchObject({ status: 422, body: { code: 'cancelled' } });
    expect(await readApproval(txn, 'cancelled')).toBeDefined();
    expect(await upstream.requests(id)).toEqual([]);
  });

  it.each([
    ['an approver', ALICE],
    ['an operator', OSCAR],
  ])('can be rejected by %s, and stays rejected', async (_, key) => {
    const txn = await holdCall('world.mail');
    expect((await decide(VIEWER_KEY, txn, 'reject')).status).toBe(403);
    expect(await decide(key, txn, 'reject')).toMatchObject({ status: 200, body: { state: 'rejected' } });
    expect((await call('world.mail')).body).toMatchObject({ code: 'rejected', retry: 'new_key' });
    expect(
      (await postAs(ALICE, `/admin/approvals/${txn}/approve`, { reason: 'yes', digest: '0'.repeat(64) })).status,
    ).toBe(409);
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('can be sent early by an approver who names the digest, not by an operator', async () => {
    const txn = await holdCall('world.mail');
    expect(
      (await postAs(ALICE, `/admin/approvals/${txn}/approve`, { reason: 'yes', digest: '0'.repeat(64) })).status,
    ).toBe(409);
    expect((await decide(OSCAR, txn)).status).toBe(403);
    expect((await decide(ALICE, txn)).body).toMatchObject({ state: 'approved', votes: [{ person: 'alice' }] });
    await awaitSuccess(txn, two);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('does not count as a pending approval', async () => {
    for (const key of ['a', 'b', 'c']) expect((await call('world.pay', one, NO_WAIT, `${id}-${key}`)).status).toBe(202);
    const waiting = [await holdCall('world.both', `${id}-d`), await holdCall('world.both', `${id}-e`)];
    expect((await call('world.both', one, NO_WAIT, `${id}-f`)).body.code).toBe('rate_limited');
    expect((await call('world.pay', one, NO_WAIT, `${id}-g`)).status).toBe(202);
    for (const txn of waiting) expect((await cancel(txn)).status).toBe(200);
  });

  it('is cancelled when its saga is rolled back', async () => {
    const json = { 'content-type': 'application/json' };
    const { saga } = (await one.request('POST', '/v1/sagas', { key: AGENT_KEY, headers: json, body: '{}' })).body;
    const { txn } = (await call('world.pay', one, { 'oncegate-saga': saga, ...NO_WAIT })).body;
    await one.request('POST', `/v1/sagas/${saga}/rollback?wait=20`, {
      key: AGENT_KEY,
      headers: json,
      body: '{"reason":"no"}',
    });
    expect(await readState(txn)).toBe('cancelled');
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe('a call that needs approval and then a delay', () => {
  it('starts its delay on approval; a second approver can end the delay, the first one cannot', async () => {
    const first = await call('world.both', one, NO_WAIT);
    const { txn } = first.body;
    expect(first.body.hold.kind).toBe('approval');
    expect(await readApproval(txn)).toMatchObject({ hold: 'approval', leavesAt: null, delaySeconds: 3600 });
    expect((await decide(ALICE, txn)).body).toMatchObject({ state: 'pending', hold: 'delay' });
    const { hold } = (await one.get(`/v1/calls/${txn}`)).body;
    expect(hold.kind).toBe('delay');
    expect((await decide(ALICE, txn, 'approve', two)).body).toMatchObject({ state: 'pending', leavesAt: hold.until });
    for (const outsider of [OSCAR, CARL]) expect((await decide(outsider, txn)).status).toBe(403);
    expect((await decide(BOB, txn)).body.state).toBe('approved');
    await awaitSuccess(txn);
    expect(await upstream.requests(id)).toHaveLength(1);
  });

  it('is sent after the delay, unless an operator outside the group rejects it', async () => {
    const txn = await holdCall('world.both');
    await decide(ALICE, txn);
    await endDelay([txn]);
    await awaitSuccess(txn, two);
    expect(
      await postAs(ALICE, `/admin/approvals/${txn}/approve`, { reason: 'again', digest: '0'.repeat(64) }),
    ).toMatchObject({ status: 200, body: { state: 'unopposed' } });
    const other = await holdCall('world.both', `${id}-b`);
    // Before the approval, only the group may decide.
    expect((await decide(OSCAR, other, 'reject')).status).toBe(403);
    await decide(ALICE, other);
    expect((await decide(OSCAR, other, 'reject')).body.state).toBe('rejected');
    expect(await upstream.requests(`${id}-b`)).toEqual([]);
  });

  it('needs a new approval and a new delay after a policy change', async () => {
    const txn = await holdCall('world.both');
    await decide(ALICE, txn);
    const before = (await readApproval(txn)).leavesAt;
    await applyPolicies();
    expect(await decide(ALICE, txn)).toMatchObject({ status: 200, body: { state: 'pending', hold: 'delay' } });
    expect(Date.parse((await readApproval(txn)).leavesAt)).toBeGreaterThan(Date.parse(before));
    await endDelay([txn]);
    await awaitSuccess(txn);
  });
});

describe('between the end of the delay and the send', () => {
  it.each<[string, string | undefined, RegExp]>([
    ['a comment', undefined, /the delay is over, but the policies changed after the call was held/i],
    ['a rule that no longer allows it', 'when: false', /the delay is over, but/i],
  ])('a policy change (%s) denies the call, and nothing is sent', async (_, rule, why) => {
    const txn = await holdCall('world.pay');
    await applyPolicies(rule);
    await endDelay([txn]);
    const failed = await one.waitForCall(txn, ({ state }) => state === 'failed');
    expect(failed.problem).toMatchObject({ code: 'denied', detail: expect.stringMatching(why) });
    expect(await upstream.requests(id)).toEqual([]);
    await applyPolicies();
  });

  it('a freeze keeps calls held and rejectable; the others are sent after the unfreeze', async () => {
    const [rejected, sent] = [await holdCall('world.pay'), await holdCall('world.mail', `${id}-b`)] as const;
    expect((await one.admin('POST', '/admin/agents/tester/freeze', { reason: 'look' })).status).toBe(200);
    await endDelay([rejected, sent]);
    // A replica took the call and postponed it.
    await expect
      .poll(
        async () => (await database.query('select 1 from open_calls where txn = $1 and due_at > now()', [sent])).length,
      )
      .toBe(1);
    expect([await readState(rejected), await readState(sent)]).toEqual(['held', 'held']);
    expect((await decide(OSCAR, rejected, 'reject', two)).body.state).toBe('rejected');
    await one.admin('POST', '/admin/agents/tester/unfreeze', { reason: 'seen' });
    await awaitSuccess(sent);
    expect(await upstream.requests(id)).toEqual([]);
    expect(await upstream.requests(`${id}-b`)).toHaveLength(1);
  });

  it('the clock of PostgreSQL decides, and a call that is taken too early can still be cancelled', async () => {
    const txn = await holdCall('world.pay');
    // A replica takes the call too early, as if a clock had been set back.
    await database.query('update open_calls set due_at = now() where txn = $1', [txn]);
    await expect
      .poll(
        async () =>
          (await database.query('select 1 from open_calls where txn = $1 and owner is not null', [txn])).length,
      )
      .toBe(1);
    expect(await readState(txn)).toBe('held');
    expect((await cancel(txn)).body.state).toBe('cancelled');
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('a delayed call never expires, neither by a late expiry nor by an older build', async () => {
    const txn = await holdCall('world.both');
    await decide(ALICE, txn);
    const db = new Database(database.url, { max: 2, applicationName: 'test' });
    expect(await endHeldCall(db, txn, 'expired', 'nobody answered in time', '{}')).toBe(false);
    await db.close();
    expect(await readState(txn)).toBe('held');
    const olderBuildUpdate = `update approvals set state = 'expired', decided_at = now() where txn = $1`;
    await expect(database.query(olderBuildUpdate, [txn])).rejects.toThrow('what_leaves_does_not_expire');
    expect((await cancel(txn)).status).toBe(200);
  });

  it('a cancel at the last moment on two replicas: each call is either cancelled or sent once', async () => {
    const keys = Array.from({ length: 24 }, (_, i) => `${id}-${i}`);
    const txns = await Promise.all(keys.map((key) => holdCall('world.mail', key)));
    const delayEnd = endDelay(txns);
    const cancelled = await Promise.all(txns.map((txn, i) => cancel(txn, i % 2 === 0 ? one : two)));
    await delayEnd;
    for (const [i, txn] of txns.entries()) {
      const isCancelled = cancelled[i]?.status === 200;
      await two.waitForCall(txn, ({ state }) => state === (isCancelled ? 'cancelled' : 'succeeded'));
      expect((await upstream.requests(keys[i] ?? '')).length).toBe(isCancelled ? 0 : 1);
    }
  });

  it('if the replica that takes the call dies, another replica sends it once', async () => {
    const txn = await holdCall('world.mail');
    await two.kill();
    await one.kill();
    await one.start({ ONCEGATE_DIE_AT: 'taken' });
    await endDelay([txn]);
    await one.waitForExit();
    expect(await upstream.requests(id)).toEqual([]);
    await two.start();
    await awaitSuccess(txn, two);
    expect(await upstream.requests(id)).toHaveLength(1);
  });
});
