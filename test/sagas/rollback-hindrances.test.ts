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
const policies = (url: string) => buildSagaPolicies(url, { rules: RULES });

const { upstream, database, gateway } = useGateway({ policies });

const REFUND = 'POST /keyed/refund';
const CHARGE = { forward: 'POST /keyed/charge', undo: REFUND };
const taken = (
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

/** A charge that succeeded, on which the next step rests. */
async function charge(saga: TestSaga, id: string, on?: readonly ExecutedStep[]): Promise<ExecutedStep> {
  const below = on?.map(({ txn }) => txn ?? '');
  const txn = await saga.runStep('world.charge', { id }, below);
  return { id, txn, on: on?.map((step) => step.id) ?? null, ...CHARGE };
}

const check = async (saga: Reply['body'], steps: readonly ExecutedStep[]) =>
  expect(checkSaga(saga, steps, await upstream.effects())).toEqual([]);
const refunds = async (id: string) => (await upstream.requests(id)).filter(({ route }) => route === REFUND).length;
const undoStates = (saga: Reply['body']) => saga.steps.map(({ undo }: Reply['body']) => undo.state);
const recalls = async () =>
  (await database.query<{ n: number }>(`select count(*)::int as n from switches where scope like 'call:%'`))[0]?.n;
/** The txn of the step that the upstream knows by this id, once it is claimed. */
const claimed = async (id: string): Promise<string> => {
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

describe('an undo that never works', () => {
  it('parks with its reason while the other branch is undone, and is finished when it works and somebody resumes', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'stuck-1', []);
    const left = await charge(saga, 'stuck-2', [root]);
    const right = await charge(saga, 'stuck-3', [root]);
    const steps = [root, left, right];
    // As often as its contract says that it is tried.
    await upstream.plan({ match: { id: 'stuck-2', path: '/keyed/refund' }, do: [{ reply: 422 }], times: 5 });

    const { body: parked } = await saga.rollback();
    expect(parked.state).toBe('parked');
    expect(parked.reason).toContain(left.txn);
    expect(undoStates(parked)).toEqual(['due', 'failed', 'done']);
    expect(parked.steps[1].undo.reason).toMatch(/tried 5 times; world.refund/);
    expect(parked.steps[0].undo.reason).toContain(left.txn);
    await check(parked, steps);

    const { body: resumed } = await saga.admin('resume', { reason: 'it works again' }, '?wait=20');
    expect(resumed.state).toBe('rolled_back');
    await check(resumed, steps);
    expect(await refunds('stuck-2')).toBe(6);
  });
});

describe('a forward step that was lost', () => {
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

  /** A charge, and a step on the wire that rests on it; the rollback is acknowledged, and only then the step is lost. */
  async function lose(name: keyof typeof kinds, id: string, loss: UpstreamFaultStep[]) {
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
    const step: ExecutedStep = { ...CHARGE, ...kind, id, txn: await claimed(id), on: [root.id] };
    return { saga, steps: [root, step], step };
  }

  for (const [when, loss] of Object.entries(losses)) {
    it.each(['key', 'probe', 'idempotent'] as const)(
      `${when} is undone once if it happened, and not otherwise: %s`,
      async (kind) => {
        const { saga, steps } = await lose(kind, `lost-${kind}-${loss.length}`, loss);
        const rested = await saga.waitUntilSettled();
        expect(rested.state).toBe('rolled_back');
        await check(rested, steps);
      },
    );
  }

  it('is never sent again by a rollback that found out that it did not happen', async () => {
    const { saga, steps } = await lose('probe', 'lost-for-good', ['drop']);
    const rested = await saga.waitUntilSettled();
    expect(undoStates(rested)).toEqual(['done', 'skipped']);
    await check(rested, steps);
    expect((await upstream.requests('lost-for-good')).filter(({ method }) => method === 'POST')).toHaveLength(1);
  });

  it.each([
    ['after it happened', losses['after it happened'], 'applied'],
    ['before it happened', losses['before it happened'], 'not_applied'],
  ] as const)('%s waits for a person where nothing else can tell, with what it rests on', async (_, loss, verdict) => {
    const id = `lost-none-${verdict}`;
    const { saga, steps, step } = await lose('none', id, loss ?? []);
    const parked = await saga.waitUntilSettled();
    expect(parked.state).toBe('parked');
    expect(parked.reason).toContain(step.txn);
    expect(parked.steps[1].undo.reason).toContain('a person must resolve it first');
    expect(await refunds(`${id}-root`)).toBe(0);
    expect(await refunds(id)).toBe(0);
    await check(parked, steps);

    const [effect] = await upstream.effects(id);
    const result = verdict === 'applied' ? { result: { id: effect?.response.id } } : {};
    const told = await gateway.admin('POST', `/admin/calls/${step.txn}/resolve`, {
      verdict,
      reason: 'seen',
      ...result,
    });
    expect(told.status).toBe(200);
    await expect.poll(async () => (await saga.read()).state, { timeout: 20_000 }).toBe('rolled_back');
    const rested = await saga.read();
    expect(undoStates(rested)).toEqual(['done', verdict === 'applied' ? 'done' : 'skipped']);
    await check(rested, steps);
  });
});

describe('an undo that was lost, and that nothing but a person can find out about', () => {
  const mail = (id: string) => ({ 'oncegate-undo': JSON.stringify({ tool: 'wide.post', args: { id } }) });
  const resolve = (txn: string, verdict: string) =>
    gateway.admin('POST', `/admin/calls/${txn}/resolve`, { verdict, reason: 'looked' });
  const losses = { applied: ['apply', 'drop'], not_applied: ['drop'], retry: ['drop'] } as const;

  describe.each(['applied', 'not_applied', 'retry'] as const)('and is found out about: %s', (verdict) => {
    const sent = verdict === 'applied' ? 1 : 2;

    it('lets the rollback go on by itself', async () => {
      const id = `unsure-${verdict}`;
      const saga = await TestSaga.open(gateway);
      await saga.callStep('world.charge', { id: `${id}-step` }, { headers: mail(id) });
      await upstream.plan({ match: { id }, do: [...losses[verdict]] });
      const { body: parked } = await saga.rollback();
      const [{ undo }] = parked.steps;
      expect([parked.state, undo.state]).toEqual(['parked', 'failed']);
      expect(undo.reason).toMatch(/^in doubt, a person must resolve it/);

      expect((await resolve(undo.txn, verdict)).status).toBe(200);
      await expect.poll(async () => (await saga.read()).state, { timeout: 10_000 }).toBe('rolled_back');
      expect(await upstream.requests(id)).toHaveLength(sent);
      expect(await upstream.effects(id)).toHaveLength(1);
      // The same again is fine.
      expect((await resolve(undo.txn, verdict)).status).toBe(200);
      expect(await upstream.requests(id)).toHaveLength(sent);
    });

    it('changes nothing about a saga that somebody closed', async () => {
      const id = `unsure-closed-${verdict}`;
      const saga = await TestSaga.open(gateway);
      await saga.callStep('world.charge', { id: `${id}-step` }, { headers: mail(id) });
      await upstream.plan({ match: { id }, do: [...losses[verdict]] });
      const [{ undo }] = (await saga.rollback()).body.steps;
      expect((await saga.admin('close', { reason: 'done by phone' })).body.state).toBe('closed');
      await resolve(undo.txn, verdict);
      // Whatever comes later: a rollback that was begun after it is over.
      const after = await TestSaga.open(gateway);
      await charge(after, `${id}-after`, []);
      expect((await after.rollback()).body.state).toBe('rolled_back');
      // What is sent again because a person said so is the undo that was in doubt, not another one.
      await expect.poll(() => upstream.requests(id)).toHaveLength(verdict === 'retry' ? 2 : 1);
      expect((await saga.read()).state).toBe('closed');
    });

    it('lets the undo of a single call go on by itself', async () => {
      const id = `unsure-alone-${verdict}`;
      const { txn } = (await gateway.call('world.charge', { id: `${id}-call` }, { headers: mail(id) })).body;
      await upstream.plan({ match: { id }, do: [...losses[verdict]] });
      await gateway.admin('POST', `/admin/calls/${txn}/undo`, { reason: 'a mistake' });
      const { undo } = await gateway.waitForCall(txn, (call) => call.undo.state === 'failed');
      expect((await resolve(undo.txn, verdict)).status).toBe(200);
      await gateway.waitForCall(txn, (call) => call.undo.state === 'done', 10_000);
      expect(await upstream.requests(id)).toHaveLength(sent);
      expect(await upstream.effects(id)).toHaveLength(1);
    });
  });
});

describe('a forward step that is not over', () => {
  it('becomes due when its answer comes during the rollback, and is undone before what it rests on', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'late-1', []);
    await upstream.plan({ match: { id: 'late-2' }, do: [{ event: 'late' }, { wait: 'late' }, 'apply'] });
    const late = saga.callStep('world.charge', { id: 'late-2' });
    await upstream.awaitEvent('late');
    const { status, body } = await saga.rollback({}, '');
    expect([status, body.state]).toEqual([202, 'rolling_back']);
    expect(await refunds('late-1')).toBe(0);
    await upstream.release('late');
    const answer = await late;
    expect(answer.status).toBe(200);
    const rested = await saga.waitUntilSettled();
    expect(rested.state).toBe('rolled_back');
    await check(rested, [root, taken('late-2', answer, null)]);
    await expect.poll(recalls).toBe(0);
  });

  it('is cancelled when it waits for a person', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'held-1', []);
    const held = await saga.callStep('world.approved', { id: 'held-2' }, { headers: { prefer: 'wait=0' } });
    expect(held.body.state).toBe('held');
    const { body } = await saga.rollback();
    expect(body.state).toBe('rolled_back');
    expect(body.steps[1]).toMatchObject({ txn: held.body.txn, state: 'cancelled', undo: { state: 'skipped' } });
    await check(body, [root]);
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

  it('is not sent when it was claimed and still queued as the rollback was acknowledged', async () => {
    const saga = await TestSaga.open(gateway);
    await upstream.plan({
      match: { id: 'queue-1', path: '/keyed/charge' },
      do: [{ event: 'queue' }, { wait: 'queue' }],
    });
    const first = saga.callStep('narrow.charge', { id: 'queue-1' }, { on: [] });
    await upstream.awaitEvent('queue');
    const queued = saga.callStep('narrow.charge', { id: 'queue-2' }, { on: [] });
    const txn = await claimed('queue-2');
    expect((await saga.rollback({}, '')).status).toBe(202);
    await upstream.release('queue');
    const answers = await Promise.all([first, queued]);
    expect(answers[0].status).toBe(200);
    expect(answers[1].status).toBeGreaterThanOrEqual(400);
    const rested = await saga.waitUntilSettled();
    expect(rested.state).toBe('rolled_back');
    await check(rested, [taken('queue-1', answers[0], []), { ...CHARGE, id: 'queue-2', txn, on: [] }]);
    expect(await upstream.requests('queue-2')).toEqual([]);
    await expect.poll(recalls).toBe(0);
  });
});

describe('a rollback runs whatever became of its agent', () => {
  it('when the agent is frozen', async () => {
    const saga = await TestSaga.open(gateway);
    const steps = [await charge(saga, 'frozen-1'), await charge(saga, 'frozen-2')];
    await gateway.admin('POST', '/admin/agents/tester/freeze', { reason: 'it went mad' });
    try {
      expect((await saga.callStep('world.charge', { id: 'frozen-3' })).body.code).toBe('frozen');
      const { body } = await saga.admin('rollback', { reason: 'undo it all' }, '?wait=20');
      expect(body.state).toBe('rolled_back');
      await check(body, steps);
    } finally {
      await gateway.admin('POST', '/admin/agents/tester/unfreeze', { reason: 'it is well' });
    }
  });

  it('when the agent is no longer in the policies', async () => {
    const saga = await TestSaga.open(gateway, {}, OTHER_AGENT_KEY);
    const steps = [await charge(saga, 'gone-1'), await charge(saga, 'gone-2')];
    const reload = async (text: string) => {
      await writePolicies(gateway, { 'sagas.yaml': text });
      expect((await gateway.admin('POST', '/admin/policies/reload', { reason: 'test' })).status).toBe(200);
    };
    const text = policies(upstream.url)['sagas.yaml'];
    const without = text.replace(
      new RegExp(
        `  other:\\n    keys: \\["sha256:${sha256Hex(OTHER_AGENT_KEY)}"\\]\\n    rules:\\n      - allow: world.charge\\n`,
      ),
      '',
    );
    expect(without).not.toBe(text);
    await reload(without);
    try {
      expect((await saga.callStep('world.charge', { id: 'gone-3' })).status).toBe(401);
      const { body } = await saga.admin('rollback', { reason: 'it is gone' }, '?wait=20');
      expect(body.state).toBe('rolled_back');
      await check(body, steps);
    } finally {
      await reload(text);
    }
  });

  it('when its rate limit is used up', async () => {
    const saga = await TestSaga.open(gateway);
    const steps = [await charge(saga, 'limited-1'), await charge(saga, 'limited-2')];
    expect((await saga.callStep('world.charge', { id: 'limited-3' })).status).toBe(429);
    const { body } = await saga.rollback();
    expect(body.state).toBe('rolled_back');
    await check(body, steps);
  });

  it('but waits while everything is frozen, and goes on by itself when that ends', async () => {
    const saga = await TestSaga.open(gateway);
    const steps = [await charge(saga, 'winter-1'), await charge(saga, 'winter-2')];
    expect((await gateway.admin('POST', '/admin/freeze', { reason: 'stop' })).status).toBe(200);
    try {
      expect((await saga.rollback({}, '')).status).toBe(202);
      // Its first undo was about to be sent, and was handed back.
      const waiting = () =>
        database.query(
          `select 1 from calls u join open_calls o on o.txn = u.txn where u.undo_of = $1 and o.owner is null and not u.attempt_open`,
          [steps[1]?.txn],
        );
      await expect.poll(async () => (await waiting()).length, { timeout: 20_000 }).toBe(1);
      expect((await saga.read()).state).toBe('rolling_back');
      expect(await refunds('winter-1')).toBe(0);
      expect(await refunds('winter-2')).toBe(0);
    } finally {
      await gateway.admin('POST', '/admin/unfreeze', { reason: 'go on' });
    }
    const rested = await saga.waitUntilSettled();
    expect(rested.state).toBe('rolled_back');
    await check(rested, steps);
  });
});

/** Keeps everybody else from a saga's row: they queue for it, and get it in the order in which they came. */
async function holdRow({ id }: TestSaga) {
  const lock = new pg.Client({ connectionString: database.url });
  await lock.connect();
  await lock.query('begin');
  await lock.query('select 1 from sagas where id = $1 for update', [id]);
  const waiting = `select count(*)::int as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
  return {
    queued: (n: number) =>
      expect.poll(async () => (await database.query<{ n: number }>(waiting))[0]?.n, { timeout: 20_000 }).toBe(n),
    letGo: async () => {
      await lock.query('commit');
      await lock.end();
    },
  };
}

describe('a step that comes while its saga begins to be rolled back', () => {
  it('is refused and not sent, although the saga was open when it was looked at', async () => {
    const saga = await TestSaga.open(gateway);
    const root = await charge(saga, 'behind-1');
    const row = await holdRow(saga);
    const rollback = saga.rollback();
    await row.queued(1);
    const behind = saga.callStep('world.charge', { id: 'behind-2' });
    await row.queued(2);
    await row.letGo();
    expect((await behind).body.code).toBe('saga_closed');
    const { status, body } = await rollback;
    expect([status, body.state]).toEqual([202, 'rolled_back']);
    await check(body, [root]);
    expect(await upstream.requests('behind-2')).toEqual([]);
  });
});

describe('a rollback that is asked for while another ends', () => {
  it('is not forgotten when the one to a savepoint was just about to say that it is done', async () => {
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

    // Both want the saga's row, the wider rollback first.
    const row = await holdRow(saga);
    const wider = saga.rollback({}, '');
    await row.queued(1);
    await upstream.release('further');
    await row.queued(2);
    await row.letGo();

    expect((await wider).status).toBe(202);
    const rested = await saga.waitUntilSettled();
    expect(rested.state).toBe('rolled_back');
    await check(rested, [kept, undone]);
  });
});
