import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { findApproval } from '../support/approvals.ts';
import { ADMIN_KEY, AGENT_KEY, type Gateway, keysYaml, OTHER_AGENT_KEY, VIEWER_KEY } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useReplicas } from '../support/use-gateway.ts';

const ALICE = 'alice-key';
const BOB = 'bob-key';

function policies(url: string): Record<string, string> {
  const input =
    'input: { type: object, properties: { id: { type: string }, amount: { type: integer } }, required: [id] }';
  return {
    'authority.yaml': `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
  sick: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { threshold: 50%, minimum: 4, window: 10s, cooldown: 1s } }
tools:
  world.pay:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: irreversible }
  world.mail:
    upstream: world
    ${input}
    request: { method: POST, path: /none/mail, body: "\${args}" }
  sick.read: { upstream: sick, effect: read, ${input}, request: { method: GET, path: "/read/items/\${args.id}" }, retry: { attempts: 1, base: 1ms, max: 1ms, within: 1s } }
  sick.mail: { upstream: sick, ${input}, request: { method: POST, path: /none/mail, body: "\${args}" }, retry: { attempts: 1, base: 1ms, max: 1ms, within: 1s } }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: world.pay
        when: args.id.startsWith("rate-")
        rate: 5/h
      - allow: world.pay
        when: args.id.startsWith("budget-")
        budget: { sum: args.amount, max: 100, per: 1h }
      - allow: world.pay
        approve: { when: "has(args.amount) && args.amount > 100", by: [finance], quorum: 2, within: 1h }
      - allow: world.mail
      - allow: sick.*
        approve: never
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules:
      - allow: world.mail
        approve: never
people:
  root: { ${keysYaml(ADMIN_KEY)}, roles: [admin] }
  watcher: { ${keysYaml(VIEWER_KEY)}, roles: [viewer] }
  alice: { ${keysYaml(ALICE)}, roles: [approver], groups: [finance] }
  bob: { ${keysYaml(BOB)}, roles: [approver], groups: [finance] }
`,
  };
}

let id = '';

const { upstream, one, two } = useReplicas({ policies });
beforeEach(() => {
  id = uniqueId('case');
});

const postAs = (gateway: Gateway, key: string, path: string, body: unknown) => gateway.post(path, body, key);
const pending = (txn: string) => findApproval(one, txn);
const hold = async (tool: string, args: object, key: string) =>
  one.call(tool, args, { key, headers: { prefer: 'wait=0' } });

describe('an approval', () => {
  it('sends exactly what was shown, once and without the agent, and the agent gets the result', async () => {
    const first = await hold('world.mail', { id }, id);
    expect(first.status).toBe(202);
    const { txn } = first.body;
    const shown = await pending(txn);
    expect(shown).toMatchObject({
      agent: 'tester',
      tool: 'world.mail',
      args: { id },
      undo: { kind: 'none' },
      votes: [],
      quorum: 1,
    });
    expect(shown.target).toMatchObject({ method: 'POST' });
    expect(await upstream.requests(id)).toEqual([]);
    const waiting = two.call('world.mail', { id }, { key: id });
    const approved = await postAs(two, ALICE, `/admin/approvals/${txn}/approve`, {
      reason: 'fine',
      digest: shown.digest,
    });
    expect(approved.status).toBe(200);
    expect(approved.body.state).toBe('approved');
    expect((await waiting).status).toBe(200);
    expect(await upstream.effects(id)).toHaveLength(1);
    expect(
      (await postAs(one, BOB, `/admin/approvals/${txn}/approve`, { reason: 'me too', digest: shown.digest })).status,
    ).toBe(200);
    expect(
      (await postAs(one, BOB, `/admin/approvals/${txn}/reject`, { reason: 'no', digest: shown.digest })).status,
    ).toBe(409);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('can be read by its txn, before and after the decision', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const read = (key: string, path: string) => one.request('GET', path, { key });
    const alone = await read(VIEWER_KEY, `/admin/approvals/${txn}`);
    expect([alone.status, alone.body]).toEqual([200, await pending(txn)]);
    await postAs(two, ALICE, `/admin/approvals/${txn}/reject`, { reason: 'no', digest: alone.body.digest });
    expect((await read(VIEWER_KEY, `/admin/approvals/${txn}`)).body).toMatchObject({ txn, state: 'rejected' });
    expect((await read(AGENT_KEY, `/admin/approvals/${txn}`)).status).toBe(403);
    for (const other of [randomUUID(), 'x'])
      expect((await read(VIEWER_KEY, `/admin/approvals/${other}`)).body.code).toBe('not_found');
  });

  it('needs its quorum from its group, and each person counts once', async () => {
    const first = await hold('world.pay', { id, amount: 500 }, id);
    expect(first.status).toBe(202);
    const { txn } = first.body;
    const { digest, quorum } = await pending(txn);
    expect(quorum).toBe(2);
    expect((await postAs(one, ADMIN_KEY, `/admin/approvals/${txn}/approve`, { reason: 'r', digest })).status).toBe(403);
    expect((await postAs(one, VIEWER_KEY, `/admin/approvals/${txn}/approve`, { reason: 'r', digest })).status).toBe(
      403,
    );
    expect((await postAs(one, ALICE, `/admin/approvals/${txn}/approve`, { reason: 'r', digest })).body.state).toBe(
      'pending',
    );
    expect(
      (await postAs(two, ALICE, `/admin/approvals/${txn}/approve`, { reason: 'r again', digest })).body.state,
    ).toBe('pending');
    expect(await upstream.requests(id)).toEqual([]);
    expect((await postAs(two, BOB, `/admin/approvals/${txn}/approve`, { reason: 'r', digest })).body.state).toBe(
      'approved',
    );
    const call = await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect(call.attempts).toBe(1);
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('with a wrong digest or without one is refused', async () => {
    const first = await hold('world.mail', { id }, id);
    const { txn } = first.body;
    const { digest } = await pending(txn);
    const wrong = digest.replace(/^./, digest[0] === '0' ? '1' : '0');
    expect((await postAs(one, ALICE, `/admin/approvals/${txn}/approve`, { reason: 'r', digest: wrong })).status).toBe(
      409,
    );
    expect((await postAs(one, ALICE, `/admin/approvals/${txn}/approve`, { reason: 'r' })).status).toBe(400);
    expect((await postAs(one, ALICE, `/admin/approvals/${txn}/reject`, { reason: 'no', digest })).status).toBe(200);
    const rejected = await one.call('world.mail', { id }, { key: id });
    expect(rejected.status).toBe(422);
    expect(rejected.body).toMatchObject({ code: 'rejected', retry: 'new_key' });
    expect(await upstream.requests(id)).toEqual([]);
  });

  it('by two people at once on two replicas sends the call once', async () => {
    const first = await hold('world.mail', { id }, id);
    const { txn } = first.body;
    const { digest } = await pending(txn);
    const votes = await Promise.all([
      postAs(one, ALICE, `/admin/approvals/${txn}/approve`, { reason: 'a', digest }),
      postAs(two, BOB, `/admin/approvals/${txn}/approve`, { reason: 'b', digest }),
    ]);
    expect(votes.map((vote) => vote.status)).toEqual([200, 200]);
    await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect(await upstream.requests(id)).toHaveLength(1);
  });
});

describe('a limit', () => {
  it('is exact under load on two replicas, does not count replays, and sets Retry-After', async () => {
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, i) =>
        (i % 2 === 0 ? one : two).call('world.pay', { id: `rate-${i}` }, { key: `rate-${i}` }),
      ),
    );
    const good = answers.filter((answer) => answer.status === 200);
    expect(good).toHaveLength(5);
    const refused = answers.find((answer) => answer.status === 429);
    expect(refused?.body).toMatchObject({ code: 'rate_limited', retry: 'after_delay' });
    expect(Number(refused?.headers.get('retry-after'))).toBeGreaterThan(3000);
    const replayable = good[0]?.body;
    const key = answers.findIndex((answer) => answer.body.txn === replayable.txn);
    const again = await two.call('world.pay', { id: `rate-${key}` }, { key: `rate-${key}` });
    expect(again.status).toBe(200);
    expect(again.body.replayed).toBe(true);
  });

  it('on a budget sums amounts, counts negative ones as zero, and gives back calls that were not sent', async () => {
    const spend = (name: string, amount: number) =>
      one.call('world.pay', { id: `budget-${name}`, amount }, { key: `budget-${name}` });
    expect((await spend('a', 60)).status).toBe(200);
    expect((await spend('b', 60)).body).toMatchObject({ code: 'over_budget', status: 429 });
    expect((await spend('c', -50)).status).toBe(200);
    expect((await spend('d', 41)).status).toBe(429);
    const tooLarge = await spend('e', 101);
    expect(tooLarge.body).toMatchObject({ code: 'over_budget', retry: 'never' });
    await upstream.kill();
    expect((await spend('f', 40)).status).toBe(503);
    await upstream.restart();
    expect((await spend('g', 40)).status).toBe(200);
    expect((await spend('h', 1)).status).toBe(429);
  });
});

describe('a freeze', () => {
  it('is in force on every replica before it is answered, allows replays, and survives a crash', async () => {
    const before = await one.call('world.pay', { id }, { key: id });
    expect(before.status).toBe(200);
    expect((await postAs(one, ADMIN_KEY, '/admin/agents/tester/freeze', { reason: 'odd' })).status).toBe(200);
    for (const gateway of [one, two]) {
      const refused = await gateway.call('world.pay', { id: `${id}-x` }, { key: `${id}-x` });
      expect(refused.body).toMatchObject({ status: 503, code: 'frozen', retry: 'after_delay' });
      expect((await gateway.call('world.pay', { id }, { key: id })).body.replayed).toBe(true);
    }
    expect((await two.call('world.mail', { id }, { key: `${id}-other`, agentKey: OTHER_AGENT_KEY })).status).toBe(200);
    await two.kill();
    await two.start();
    expect((await two.call('world.pay', { id: `${id}-x` }, { key: `${id}-x` })).status).toBe(503);
    expect((await postAs(two, ADMIN_KEY, '/admin/agents/tester/unfreeze', { reason: 'fine' })).body.frozen).toBeNull();
    expect((await one.call('world.pay', { id: `${id}-x` }, { key: `${id}-x` })).status).toBe(200);
  });

  it('can cover all agents or one tool', async () => {
    await postAs(one, ADMIN_KEY, '/admin/freeze', { reason: 'all' });
    expect((await two.call('world.mail', { id }, { key: id, agentKey: OTHER_AGENT_KEY })).status).toBe(503);
    await postAs(one, ADMIN_KEY, '/admin/unfreeze', { reason: 'ok' });
    await postAs(one, ADMIN_KEY, '/admin/freeze', { reason: 'mail', tool: 'world.mail' });
    expect((await two.call('world.mail', { id }, { key: id, agentKey: OTHER_AGENT_KEY })).status).toBe(503);
    expect((await two.call('world.pay', { id }, { key: id })).status).toBe(200);
    await postAs(one, ADMIN_KEY, '/admin/unfreeze', { reason: 'ok', tool: 'world.mail' });
  });

  it('delays an approved call until the unfreeze', async () => {
    const { txn } = (await hold('world.mail', { id }, id)).body;
    const { digest } = await pending(txn);
    await postAs(one, ADMIN_KEY, '/admin/freeze', { reason: 'wait' });
    expect((await postAs(one, ALICE, `/admin/approvals/${txn}/approve`, { reason: 'ok', digest })).status).toBe(200);
    expect((await one.get(`/v1/calls/${txn}?wait=1`)).body.state).toBe('ready');
    expect(await upstream.requests(id)).toEqual([]);
    await postAs(one, ADMIN_KEY, '/admin/unfreeze', { reason: 'go' });
    await one.waitForCall(txn, ({ state }) => state === 'succeeded');
    expect(await upstream.effects(id)).toHaveLength(1);
  });
});

describe('a breaker', () => {
  it('opens on failures of the upstream, tries only calls that may be repeated, and closes', async () => {
    await upstream.plan({ match: { path: '/read/items/*' }, do: [{ reply: 500 }], times: 6 });
    for (let i = 0; i < 6; i += 1) await one.call('sick.read', { id: `${id}-${i}` });
    const refused = await one.call('sick.mail', { id }, { key: id });
    expect(refused.body).toMatchObject({ status: 503, code: 'breaker_open', retry: 'after_delay' });
    expect(await upstream.requests(id)).toEqual([]);
    const view = (await one.admin('GET', '/admin/breakers')).body.items.find(
      (item: { upstream: string }) => item.upstream === 'sick',
    );
    expect(view).toMatchObject({ state: 'open', by: 'auto' });
    await expect
      .poll(
        () =>
          one
            .admin('GET', '/admin/breakers')
            .then(({ body }) => body.items.find((item: { upstream: string }) => item.upstream === 'sick').state),
        { timeout: 5_000 },
      )
      .toBe('half_open');
    // A half-open breaker does not try a write that cannot be repeated.
    expect((await one.call('sick.mail', { id }, { key: id })).status).toBe(503);
    await upstream.reset();
    expect((await one.call('sick.read', { id })).status).toBe(200);
    expect((await one.call('sick.mail', { id }, { key: id })).status).toBe(200);
  });

  it('that a person opened is open on every replica until a person closes it', async () => {
    const opened = await postAs(one, ADMIN_KEY, '/admin/breakers/world/open', { reason: 'maintenance' });
    expect(opened.body).toMatchObject({ upstream: 'world', state: 'open', by: 'root' });
    expect((await two.call('world.pay', { id }, { key: id })).body.code).toBe('breaker_open');
    expect((await postAs(two, ADMIN_KEY, '/admin/breakers/world/close', { reason: 'done' })).body).toMatchObject({
      state: 'closed',
      by: 'auto',
    });
    expect((await one.call('world.pay', { id }, { key: id })).status).toBe(200);
  });
});

it('POST /admin/explain shows a person the decision for a call', async () => {
  const explained = await one.admin('POST', '/admin/explain', {
    agent: 'tester',
    tool: 'world.pay',
    args: { id: 'x', amount: 500 },
  });
  expect(explained.status).toBe(200);
  expect(explained.body).toMatchObject({ dryRun: true, hold: true, wouldAnswer: { status: 202 } });
  expect(explained.body.decision.tried).toHaveLength(5);
});
