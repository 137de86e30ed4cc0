import { beforeEach, describe, expect, it } from 'vitest';
import type { UpstreamFaultStep } from '../faults/upstream.ts';
import { AGENT_KEY, type Gateway, type Reply } from '../support/gateway.ts';
import { useReplicas } from '../support/use-gateway.ts';
import { TestSaga } from './saga.ts';
import { checkSaga, type ExecutedStep } from './saga-checker.ts';
import { buildSagaPolicies } from './saga-policies.ts';

const { upstream, database, one, two, replicas } = useReplicas({
  policies: (url) => buildSagaPolicies(url, { timeout: '20s' }),
});
beforeEach(async () => {
  for (const replica of replicas) await replica.ensureStarted();
  await upstream.reset();
});

const CHARGE = { forward: 'POST /keyed/charge', undo: 'POST /keyed/refund' };
const FORWARD_ROUTES = new Set(['POST /keyed/charge', 'POST /probed/orders', 'PUT /idempotent/objects']);

interface SagaWithSteps {
  readonly saga: TestSaga;
  readonly steps: readonly ExecutedStep[];
}

async function executeSteps(gateway: Gateway, name: string, count = 3): Promise<SagaWithSteps> {
  const saga = await TestSaga.open(gateway);
  const steps: ExecutedStep[] = [];
  for (let n = 1; n <= count; n += 1) {
    const id = `${name}-${n}`;
    steps.push({ id, txn: await saga.runStep('world.charge', { id }), on: null, ...CHARGE });
  }
  return { saga, steps };
}

/** Waits until the rollback is over, and returns the saga as this replica reports it. */
async function waitUntilSettledOn(gateway: Gateway, { id }: TestSaga): Promise<Reply['body']> {
  const read = async () => (await gateway.get(`/v1/sagas/${id}`)).body;
  await expect.poll(async () => (await read()).state, { timeout: 40_000, interval: 50 }).not.toBe('rolling_back');
  return read();
}

async function expectUndone(gateway: Gateway, { saga, steps }: SagaWithSteps): Promise<void> {
  const settled = await waitUntilSettledOn(gateway, saga);
  expect(settled.state).toBe('rolled_back');
  expect(checkSaga(settled, steps, await upstream.effects())).toEqual([]);
}

const rollBackOn = (gateway: Gateway, { id }: TestSaga) =>
  gateway.post(`/v1/sagas/${id}/rollback`, { reason: 'both replicas get it' }, AGENT_KEY);

describe('two replicas', () => {
  it.each<[string, UpstreamFaultStep[]]>([
    ['before', [{ event: 'undo' }, 'hang']],
    ['after', ['apply', { event: 'undo' }, 'hang']],
  ])('finish a rollback whose replica dies with an undo in flight, %s the effect', async (when, plan) => {
    const executed = await executeSteps(one, `killed-${when}`);
    await upstream.plan({ match: { id: `killed-${when}-2`, path: '/keyed/refund' }, do: plan });
    expect((await executed.saga.rollback({}, '')).status).toBe(202);
    await upstream.awaitEvent('undo');
    await one.kill();
    await expectUndone(two, executed);
  });

  it('finish many rollbacks whose replica dies right after it acknowledged them', async () => {
    const many = await Promise.all(Array.from({ length: 12 }, (_, k) => executeSteps(one, `acked-${k}`)));
    const answers = await Promise.all(many.map(({ saga }) => saga.rollback({}, '')));
    one.signal('SIGKILL');
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    for (const executed of many) await expectUndone(two, executed);
  });

  it('undo nothing twice if a replica is paused beyond its lease and resumes', async () => {
    const inFlight = await executeSteps(one, 'paused');
    const others = await Promise.all(Array.from({ length: 6 }, (_, k) => executeSteps(one, `asleep-${k}`)));
    await upstream.plan({ match: { id: 'paused-2', path: '/keyed/refund' }, do: [{ event: 'undo' }, { wait: 'go' }] });
    expect((await inFlight.saga.rollback({}, '')).status).toBe(202);
    await upstream.awaitEvent('undo');
    await Promise.all(others.map(({ saga }) => saga.rollback({}, '')));
    one.signal('SIGSTOP');
    for (const executed of [inFlight, ...others]) await expectUndone(two, executed);
    const before = (await upstream.effects()).length;
    await upstream.release('go');
    one.signal('SIGCONT');
    await one.waitUntilReady();
    // The replica has a new lease and reads the ledger again; one more rollback proves that.
    const after = await executeSteps(one, 'awake');
    expect((await after.saga.rollback()).body.state).toBe('rolled_back');
    for (const executed of [inFlight, ...others, after]) await expectUndone(one, executed);
    expect(await upstream.effects()).toHaveLength(before + 2 * after.steps.length);
  });

  it('undo every step once if both roll back the same sagas at the same time', async () => {
    const many = await Promise.all(
      Array.from({ length: 10 }, (_, k) => executeSteps(k % 2 === 0 ? one : two, `both-${k}`)),
    );
    const answers = await Promise.all(many.flatMap(({ saga }) => [rollBackOn(one, saga), rollBackOn(two, saga)]));
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    for (const executed of many) await expectUndone(one, executed);
  });
});

describe('steps that race with the rollback of their saga', () => {
  const tools = [
    { tool: 'world.charge', kind: CHARGE },
    { tool: 'narrow.charge', kind: CHARGE },
    { tool: 'world.order', kind: { forward: 'POST /probed/orders', undo: 'POST /keyed/refund' } },
    {
      tool: 'world.write',
      kind: { forward: 'PUT /idempotent/objects', undo: 'PUT /restored', repeatable: true },
    },
  ] as const;

  it.each([1, 2, 3])('are not sent by any replica after the rollback is acknowledged (round %i)', async (round) => {
    // The delay keeps some steps in flight and some queued at every moment.
    await upstream.plan({ match: { path: '/keyed/charge' }, do: [{ delay: 60 }], times: 'always' });
    const saga = await TestSaga.open(one);
    const steps: ExecutedStep[] = [];
    let isRacing = true;
    const worker = async (gateway: Gateway, w: number) => {
      for (let k = 0; isRacing; k += 1) {
        const { tool, kind } = tools[(w + k) % tools.length] as (typeof tools)[number];
        const id = `race${round}-${w}-${k}`;
        const args = tool === 'world.write' ? { id, text: 'new' } : { id };
        const answer = await gateway.call(tool, args, {
          headers: { 'oncegate-saga': saga.id, 'oncegate-depends-on': 'none' },
        });
        const txn = answer.body.txn ?? answer.headers.get('oncegate-txn') ?? undefined;
        steps.push({ id, txn, on: [], ...kind });
      }
    };
    const workers = Array.from({ length: 12 }, (_, w) => worker(w % 2 === 0 ? one : two, w));
    await upstream.awaitEvent('received', 60);
    expect((await rollBackOn(two, saga)).status).toBe(202);
    const readForwardRequests = async () =>
      (await upstream.requests()).filter(({ route }) => FORWARD_ROUTES.has(route)).map(({ n }) => n);
    const before = await readForwardRequests();
    isRacing = false;
    await Promise.all(workers);
    const settled = await waitUntilSettledOn(one, saga);
    expect(settled.state).toBe('rolled_back');
    expect(checkSaga(settled, steps, await upstream.effects())).toEqual([]);
    expect(await readForwardRequests()).toEqual(before);
    const readRecalls = () => database.query(`select scope from control_flags where scope like 'call:%'`);
    await expect.poll(readRecalls).toEqual([]);
  });
});
