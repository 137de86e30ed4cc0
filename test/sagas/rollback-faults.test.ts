import pg from 'pg';
import { describe, expect, it } from 'vitest';
import type { UpstreamFaultStep } from '../faults/upstream.ts';
import { OTHER_AGENT_KEY, type Reply, sha256Hex, writePolicies } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { TestSaga } from './saga.ts';
import { checkSaga, type ExecutedStep } from './saga-checker.ts';
import { buildSagaPolicies } from './saga-policies.ts';

const RULES = `
      - { allow: world.charge, when: 'args.id.startsWith("limited-")', rate: 2/h }
      - { allow: world.refund, when: 'args.id.startsWith("limited-")', rate: 1/h }`;
const buildPolicies = (url: string) => buildSagaPolicies(url, { rules: RULES });

const { upstream, database, gateway } = useGateway({ policies: buildPolicies });

const REFUND = 'POST /keyed/refund';
const CHARGE = { forward: 'POST /keyed/charge', undo: REFUND };
const buildStep = (
  id: string,
  answer: Reply,
  on: readonly string[] | null,
  kind: Partial<ExecutedStep> = {},
): ExecutedStep => ({
  id,
  txn: answer.body.txn,
  on,
  ...CHARGE,
  ...kind,
});

/** Runs a charge that succeeds; `on` are the steps that it depends on. */
async function charge(saga: TestSaga, id: string, on?: readonly ExecutedStep[]): Promise<ExecutedStep> {
  const dependencies = on?.map(({ txn }) => txn ?? '');
  const txn = await saga.runStep('world.charge', { id }, dependencies);
  return { id, txn, on: on?.map((step) => step.id) ?? null, ...CHARGE };
}

const expectNoViolations = async (saga: Reply['body'], steps: readonly ExecutedStep[]) =>
  expect(checkSaga(saga, steps, await upstream.effects())).toEqual([]);
const countRefunds = async (id: string) => (await upstream.requests(id)).filter(({ route }) => route === REFUND).length;
const readUndoStates = (saga: Reply['body']) => saga.steps.map(({ undo }: Reply['body']) => undo.state);
const countRecalls = async () =>
  (await database.query<{ n: number }>(`select count(*)::int as n from control_flags where scope like 'call:%'`))[0]?.n;
/** Waits until the step with this id is claimed, and returns its txn. */
const waitForClaim = async (id: string): Promise<string> => {
  const read = async () =>
    (
      await database.query<{ txn: string }>(
        `select txn from calls where args::jsonb ->> 'id' = $1 and undo_of is null`,
        [id],
      )
    )[0]?.txn;
  await expect.poll(read, { timeout: 20_000 }).toBeDefined();
  return (await read()) ?? '';
};

describe('an undo that fails every attempt', () => {
  it('parks the saga with its reason while the other branch is undone, and succeeds after a person resumes the saga', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'stuck-1', []);
    const left = await charge(saga, 'stuck-2', [root]);
    const right = await charge(saga, 'stuck-3', [root]);
    const steps = [root, left, right];
    // The contract allows five attempts.
    await upstream.plan({ match: { id: 'stuck-2', path: '/keyed/refund' }, do: [{ reply: 422 }], times: 5 });

    const { body: parked } = await saga.rollback();
    expect(parked.state).toBe('parked');
    expect(parked.reason).toContain(left.txn);
    expect(readUndoStates(parked)).toEqual(['due', 'failed', 'done']);
    expect(parked.steps[1].undo.reason).toMatch(/tried 5 times; world.refund/);
    expect(parked.steps[0].undo.reason).toContain(left.txn);
    await expectNoViolations(parked, steps);

    const { body: resumed } = await saga.admin('resume', { reason: 'it works again' }, '?wait=20');
    expect(resumed.state).toBe('rolled_back');
    await expectNoViolations(resumed, steps);
    expect(await countRefunds('stuck-2')).toBe(6);
  });
});

describe('a step whose answer is lost during the rollback', () => {
  const kinds = {
    key: { tool: 'world.charge', path: '/keyed/charge', kind: CHARGE },
    probe: { tool: 'world.order', path: '/probed/orders', kind: { forward: 'POST /probed/orders' } },
    idempotent: {
      tool: 'world.write',
      path: undefined,
      kind: { forward: 'PUT /idempotent/objects', undo: 'PUT /restored', repeatable: true },
    },
    none: { tool: 'wide.post', path: '/none/mail', kind: { forward: 'POST /none/mail' } },
  } as const;
  const losses: Record<string, UpstreamFaultStep[]> = {
    'after it happened': ['apply', 'drop'],
    'before it happened': ['drop'],
  };

  /** Runs a charge, sends a step that depends on it, starts the rollback, and only then loses the answer of the step. */
  async function loseAnswer(name: keyof typeof kinds, id: string, loss: UpstreamFaultStep[]) {
    const { tool, path, kind } = kinds[name];
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, `${id}-root`, []);
    const method = name === 'idempotent' ? 'PUT' : 'POST';
    const match = { id, method, ...(path === undefined ? {} : { path }) };
    await upstream.plan({ match, do: [{ event: id }, { wait: id }, ...loss] });
    const args = name === 'idempotent' ? { id, text: 'new' } : { id };
    const answer = saga.callStep(tool, args, { on: [root.txn ?? ''] });
    await upstream.awaitEvent(id);
    expect((await saga.rollback({}, '')).status).toBe(202);
    await upstream.release(id);
    await answer;
    const step: ExecutedStep = { ...CHARGE, ...kind, id, txn: await waitForClaim(id), on: [root.id] };
    return { saga, steps: [root, step], step };
  }

  for (const [when, loss] of Object.entries(losses)) {
    it.each(['key', 'probe', 'idempotent'] as const)(
      `is undone once if it happened, and not otherwise: ${when}, %s`,
      async (kind) => {
        const { saga, steps } = await loseAnswer(kind, `lost-${kind}-${loss.length}`, loss);
        const settled = await saga.waitUntilSettled();
        expect(settled.state).toBe('rolled_back');
        await expectNoViolations(settled, steps);
      },
    );
  }

  it('is not sent again if a probe finds no effect', async () => {
    const { saga, steps } = await loseAnswer('probe', 'lost-for-good', ['drop']);
    const settled = await saga.waitUntilSettled();
    expect(readUndoStates(settled)).toEqual(['done', 'skipped']);
    await expectNoViolations(settled, steps);
    expect((await upstream.requests('lost-for-good')).filter(({ method }) => method === 'POST')).toHaveLength(1);
  });

  it.each([
    ['after it happened', losses['after it happened'], 'applied'],
    ['before it happened', losses['before it happened'], 'not_applied'],
  ] as const)(
    'waits for a person if nothing else can find out, and so do its dependencies: %s',
    async (_, loss, verdict) => {
      const id = `lost-none-${verdict}`;
      const { saga, steps, step } = await loseAnswer('none', id, loss ?? []);
      const parked = await saga.waitUntilSettled();
      expect(parked.state).toBe('parked');
      expect(parked.reason).toContain(step.txn);
      expect(parked.steps[1].undo.reason).toContain('a person must resolve it first');
      expect(await countRefunds(`${id}-root`)).toBe(0);
      expect(await countRefunds(id)).toBe(0);
      await expectNoViolations(parked, steps);

      const [effect] = await upstream.effects(id);
      const result = verdict === 'applied' ? { result: { id: effect?.response.id } } : {};
      const resolved = await gateway.admin('POST', `/admin/calls/${step.txn}/resolve`, {
        verdict,
        reason: 'seen',
        ...result,
      });
      expect(resolved.status).toBe(200);
      await expect.poll(async () => (await saga.read()).state, { timeout: 20_000 }).toBe('rolled_back');
      const settled = await saga.read();
      expect(readUndoStates(settled)).toEqual(['done', verdict === 'applied' ? 'done' : 'skipped']);
      await expectNoViolations(settled, steps);
    },
  );
});

describe('an undo that stays in doubt until a person decides', () => {
  const buildUndoHeader = (id: string) => ({ 'oncegate-undo': JSON.stringify({ tool: 'wide.post', args: { id } }) });
  const resolve = (txn: string, verdict: string) =>
    gateway.admin('POST', `/admin/calls/${txn}/resolve`, { verdict, reason: 'looked' });
  const losses = { applied: ['apply', 'drop'], not_applied: ['drop'], retry: ['drop'] } as const;

  describe.each(['applied', 'not_applied', 'retry'] as const)('and the verdict is %s', (verdict) => {
    const sends = verdict === 'applied' ? 1 : 2;

    it('lets the rollback continue by itself', async () => {
      const id = `unsure-${verdict}`;
      const saga = await TestSaga.open(gateway);
      await saga.callStep('world.charge', { id: `${id}-step` }, { headers: buildUndoHeader(id) });
      await upstream.plan({ match: { id }, do: [...losses[verdict]] });
      const { body: parked } = await saga.rollback();
      const [{ undo }] = parked.steps;
      expect([parked.state, undo.state]).toEqual(['parked', 'failed']);
      expect(undo.reason).toMatch(/^in doubt, a person must resolve it/);

      expect((await resolve(undo.txn, verdict)).status).toBe(200);
      await expect.poll(async () => (await saga.read()).state, { timeout: 10_000 }).toBe('rolled_back');
      expect(await upstream.requests(id)).toHaveLength(sends);
      expect(await upstream.effects(id)).toHaveLength(1);
      // A repeated verdict changes nothing.
      expect((await resolve(undo.txn, verdict)).status).toBe(200);
      expect(await upstream.requests(id)).toHaveLength(sends);
    });

    it('does not change a saga that a person closed', async () => {
      const id = `unsure-closed-${verdict}`;
      const saga = await TestSaga.open(gateway);
      await saga.callStep('world.charge', { id: `${id}-step` }, { headers: buildUndoHeader(id) });
      await upstream.plan({ match: { id }, do: [...losses[verdict]] });
      const [{ undo }] = (await saga.rollback()).body.steps;
      expect((await saga.admin('close', { reason: 'done by phone' })).body.state).toBe('closed');
      await resolve(undo.txn, verdict);
      // A rollback that started later has finished, so the closed saga had time to change.
      const after = await TestSaga.open(gateway);
      await charge(after, `${id}-after`, []);
      expect((await after.rollback()).body.state).toBe('rolled_back');
      // The verdict `retry` sends the undo that was in doubt again, not another undo.
      await expect.poll(() => upstream.requests(id)).toHaveLength(verdict === 'retry' ? 2 : 1);
      expect((await saga.read()).state).toBe('closed');
    });

    it('lets the undo of a single call continue by itself', async () => {
      const id = `unsure-alone-${verdict}`;
      const { txn } = (await gateway.call('world.charge', { id: `${id}-call` }, { headers: buildUndoHeader(id) })).body;
      await upstream.plan({ match: { id }, do: [...losses[verdict]] });
      await gateway.admin('POST', `/admin/calls/${txn}/undo`, { reason: 'a mistake' });
      const { undo } = await gateway.waitForCall(txn, (call) => call.undo.state === 'failed');
      expect((await resolve(undo.txn, verdict)).status).toBe(200);
      await gateway.waitForCall(txn, (call) => call.undo.state === 'done', 10_000);
      expect(await upstream.requests(id)).toHaveLength(sends);
      expect(await upstream.effects(id)).toHaveLength(1);
    });
  });
});

describe('a step that has not settled', () => {
  it('is undone before its dependencies if its answer arrives during the rollback', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'late-1', []);
    await upstream.plan({ match: { id: 'late-2' }, do: [{ event: 'late' }, { wait: 'late' }, 'apply'] });
    const late = saga.callStep('world.charge', { id: 'late-2' });
    await upstream.awaitEvent('late');
    const { status, body } = await saga.rollback({}, '');
    expect([status, body.state]).toEqual([202, 'rolling_back']);
    expect(await countRefunds('late-1')).toBe(0);
    await upstream.release('late');
    const answer = await late;
    expect(answer.status).toBe(200);
    const settled = await saga.waitUntilSettled();
    expect(settled.state).toBe('rolled_back');
    await expectNoViolations(settled, [root, buildStep('late-2', answer, null)]);
    await expect.poll(countRecalls).toBe(0);
  });

  it('is cancelled if it waits for a person', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'held-1', []);
    const held = await saga.callStep('world.approved', { id: 'held-2' }, { headers: { prefer: 'wait=0' } });
    expect(held.body.state).toBe('held');
    const { body } = await saga.rollback();
    expect(body.state).toBe('rolled_back');
    expect(body.steps[1]).toMatchObject({ txn: held.body.txn, state: 'cancelled', undo: { state: 'skipped' } });
    await expectNoViolations(body, [root]);
    const shown = await gateway.admin('GET', `/admin/approvals/${held.body.txn}`);
    const late = await gateway.admin('POST', `/admin/approvals/${held.body.txn}/approve`, {
      reason: 'too late',
      digest: shown.body.digest ?? 'sha256:0',
    });
    expect(late.status).toBeGreaterThanOrEqual(400);
    const pending = await gateway.admin('GET', '/admin/approvals?state=pending');
    expect(pending.body.items).toEqual([]);
    expect(await upstream.requests('held-2')).toEqual([]);
  });

  it('is not sent if it was claimed but still queued when the rollback was acknowledged', async () => {
    const saga = await TestSaga.open(gateway);
    await upstream.plan({
      match: { id: 'queue-1', path: '/keyed/charge' },
      do: [{ event: 'queue' }, { wait: 'queue' }],
    });
    const first = saga.callStep('narrow.charge', { id: 'queue-1' }, { on: [] });
    await upstream.awaitEvent('queue');
    const queued = saga.callStep('narrow.charge', { id: 'queue-2' }, { on: [] });
    const txn = await waitForClaim('queue-2');
    expect((await saga.rollback({}, '')).status).toBe(202);
    await upstream.release('queue');
    const answers = await Promise.all([first, queued]);
    expect(answers[0].status).toBe(200);
    expect(answers[1].status).toBeGreaterThanOrEqual(400);
    const settled = await saga.waitUntilSettled();
    expect(settled.state).toBe('rolled_back');
    await expectNoViolations(settled, [
      buildStep('queue-1', answers[0], []),
      { ...CHARGE, id: 'queue-2', txn, on: [] },
    ]);
    expect(await upstream.requests('queue-2')).toEqual([]);
    await expect.poll(countRecalls).toBe(0);
  });
});

describe('a rollback finishes', () => {
  it('although the agent is frozen', async () => {
    const saga = await TestSaga.open(gateway);
    const steps = [await charge(saga, 'frozen-1'), await charge(saga, 'frozen-2')];
    await gateway.admin('POST', '/admin/agents/tester/freeze', { reason: 'it misbehaves' });
    try {
      expect((await saga.callStep('world.charge', { id: 'frozen-3' })).body.code).toBe('frozen');
      const { body } = await saga.admin('rollback', { reason: 'undo it all' }, '?wait=20');
      expect(body.state).toBe('rolled_back');
      await expectNoViolations(body, steps);
    } finally {
      await gateway.admin('POST', '/admin/agents/tester/unfreeze', { reason: 'it is repaired' });
    }
  });

  it('although the agent is no longer in the policies', async () => {
    const saga = await TestSaga.open(gateway, {}, OTHER_AGENT_KEY);
    const steps = [await charge(saga, 'gone-1'), await charge(saga, 'gone-2')];
    const reload = async (text: string) => {
      await writePolicies(gateway, { 'sagas.yaml': text });
      expect((await gateway.admin('POST', '/admin/policies/reload', { reason: 'test' })).status).toBe(200);
    };
    const text = buildPolicies(upstream.url)['sagas.yaml'];
    const textWithoutOther = text.replace(
      new RegExp(
        `  other:\\n    keys: \\["sha256:${sha256Hex(OTHER_AGENT_KEY)}"\\]\\n    rules:\\n      - allow: world.charge\\n`,
      ),
      '',
    );
    expect(textWithoutOther).not.toBe(text);
    await reload(textWithoutOther);
    try {
      expect((await saga.callStep('world.charge', { id: 'gone-3' })).status).toBe(401);
      const { body } = await saga.admin('rollback', { reason: 'it is gone' }, '?wait=20');
      expect(body.state).toBe('rolled_back');
      await expectNoViolations(body, steps);
    } finally {
      await reload(text);
    }
  });

  it('although the rate limit of the agent is used up', async () => {
    const saga = await TestSaga.open(gateway);
    const steps = [await charge(saga, 'limited-1'), await charge(saga, 'limited-2')];
    expect((await saga.callStep('world.charge', { id: 'limited-3' })).status).toBe(429);
    const { body } = await saga.rollback();
    expect(body.state).toBe('rolled_back');
    await expectNoViolations(body, steps);
  });

  it('after the freeze of all agents ends, and not before', async () => {
    const saga = await TestSaga.open(gateway);
    const steps = [await charge(saga, 'freeze-1'), await charge(saga, 'freeze-2')];
    expect((await gateway.admin('POST', '/admin/freeze', { reason: 'stop' })).status).toBe(200);
    try {
      expect((await saga.rollback({}, '')).status).toBe(202);
      // The first undo was about to be sent and was released.
      const readReleasedUndos = () =>
        database.query(
          `select 1 from calls u join open_calls o on o.txn = u.txn where u.undo_of = $1 and o.owner is null and not o.attempt_open`,
          [steps[1]?.txn],
        );
      await expect.poll(async () => (await readReleasedUndos()).length, { timeout: 20_000 }).toBe(1);
      expect((await saga.read()).state).toBe('rolling_back');
      expect(await countRefunds('freeze-1')).toBe(0);
      expect(await countRefunds('freeze-2')).toBe(0);
    } finally {
      await gateway.admin('POST', '/admin/unfreeze', { reason: 'go on' });
    }
    const settled = await saga.waitUntilSettled();
    expect(settled.state).toBe('rolled_back');
    await expectNoViolations(settled, steps);
  });
});

/** Locks the row of a saga. Other transactions queue for it and get it in the order of arrival. */
async function lockRow({ id }: TestSaga) {
  const lock = new pg.Client({ connectionString: database.url });
  await lock.connect();
  await lock.query('begin');
  await lock.query('select 1 from sagas where id = $1 for update', [id]);
  const countWaiting = `select count(*)::int as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
  return {
    waitForQueue: (n: number) =>
      expect.poll(async () => (await database.query<{ n: number }>(countWaiting))[0]?.n, { timeout: 20_000 }).toBe(n),
    release: async () => {
      await lock.query('commit');
      await lock.end();
    },
  };
}

describe('a step that arrives when the rollback of its saga starts', () => {
  it('is refused and not sent, although the saga was open when the gateway read it', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'behind-1');
    const row = await lockRow(saga);
    const rollback = saga.rollback();
    await row.waitForQueue(1);
    const step = saga.callStep('world.charge', { id: 'behind-2' });
    await row.waitForQueue(2);
    await row.release();
    expect((await step).body.code).toBe('saga_closed');
    const { status, body } = await rollback;
    expect([status, body.state]).toEqual([202, 'rolled_back']);
    await expectNoViolations(body, [root]);
    expect(await upstream.requests('behind-2')).toEqual([]);
  });
});

describe('a rollback that is requested while another one ends', () => {
  it('is carried out if the other one, to a savepoint, was about to finish', async () => {
    const saga = await TestSaga.open(gateway);
    const kept = await charge(saga, 'further-1');
    expect((await saga.postAction('savepoints', { name: 'here' })).status).toBe(201);
    const undone = await charge(saga, 'further-2');
    await upstream.plan({
      match: { id: 'further-2', path: '/keyed/refund' },
      do: [{ event: 'further' }, { wait: 'further' }],
    });
    expect((await saga.rollback({ to: 'here' }, '')).status).toBe(202);
    await upstream.awaitEvent('further');

    // Both rollbacks wait for the row of the saga; the full rollback is first.
    const row = await lockRow(saga);
    const fullRollback = saga.rollback({}, '');
    await row.waitForQueue(1);
    await upstream.release('further');
    await row.waitForQueue(2);
    await row.release();

    expect((await fullRollback).status).toBe(202);
    const settled = await saga.waitUntilSettled();
    expect(settled.state).toBe('rolled_back');
    await expectNoViolations(settled, [kept, undone]);
  });
});
