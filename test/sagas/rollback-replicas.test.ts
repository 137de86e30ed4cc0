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
const FORWARD = new Set(['POST /keyed/charge', 'POST /probed/orders', 'PUT /idempotent/objects']);

interface Taken {
  readonly saga: TestSaga;
  readonly steps: readonly ExecutedStep[];
}

async function takeSteps(gateway: Gateway, name: string, count = 3): Promise<Taken> {
  const saga = await TestSaga.open(gateway);
  const steps: ExecutedStep[] = [];
  for (let n = 1; n <= count; n += 1) {
    const id = `${name}-${n}`;
    steps.push({ id, txn: await saga.runStep('world.charge', { id }), on: null, ...CHARGE });
  }
  return { saga, steps };
}

/** The saga as this replica tells it, once its rollback is over. */
async function restedOn(gateway: Gateway, { id }: TestSaga): Promise<Reply['body']> {
  const read = async () => (await gateway.get(`/v1/sagas/${id}`)).body;
  await expect.poll(async () => (await read()).state, { timeout: 40_000, interval: 50 }).not.toBe('rolling_back');
  return read();
}

async function expectUndone(on: Gateway, { saga, steps }: Taken): Promise<void> {
  const rested = await restedOn(on, saga);
  expect(rested.state).toBe('rolled_back');
  expect(checkSaga(rested, steps, await upstream.effects())).toEqual([]);
}

const rollBackOn = (gateway: Gateway, { id }: TestSaga) =>
  gateway.post(`/v1/sagas/${id}/rollback`, { reason: 'both say so' }, AGENT_KEY);

describe('two replicas', () => {
  it.each<[string, UpstreamFaultStep[]]>([
    ['before', [{ event: 'undo' }, 'hang']],
    ['after', ['apply', { event: 'undo' }, 'hang']],
  ])('finish each other’s rollbacks: one dies with an undo on the wire, %s it happened', async (when, plan) => {
    const taken = await takeSteps(one, `killed-${when}`);
    await upstream.plan({ match: { id: `killed-${when}-2`, path: '/keyed/refund' }, do: plan });
    expect((await taken.saga.rollback({}, '')).status).toBe(202);
    await upstream.awaitEvent('undo');
    await one.kill();
    await expectUndone(two, taken);
  });

  it('finish each other’s rollbacks: one dies right after it acknowledged many', async () => {
    const many = await Promise.all(Array.from({ length: 12 }, (_, k) => takeSteps(one, `acked-${k}`)));
    const answers = await Promise.all(many.map(({ saga }) => saga.rollback({}, '')));
    one.signal('SIGKILL');
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    for (const taken of many) await expectUndone(two, taken);
  });

  it('one that is paused beyond its lease and wakes up undoes nothing again', async () => {
    const busy = await takeSteps(one, 'paused');
    const others = await Promise.all(Array.from({ length: 6 }, (_, k) => takeSteps(one, `asleep-${k}`)));
    await upstream.plan({ match: { id: 'paused-2', path: '/keyed/refund' }, do: [{ event: 'undo' }, { wait: 'go' }] });
    expect((await busy.saga.rollback({}, '')).status).toBe(202);
    await upstream.awaitEvent('undo');
    await Promise.all(others.map(({ saga }) => saga.rollback({}, '')));
    one.signal('SIGSTOP');
    for (const taken of [busy, ...others]) await expectUndone(two, taken);
    const before = (await upstream.effects()).length;
    await upstream.release('go');
    one.signal('SIGCONT');
    await one.waitUntilReady();
    // It has a new lease and looks at the ledger again: one more rollback goes through it.
    const after = await takeSteps(one, 'awake');
    expect((await after.saga.rollback()).body.state).toBe('rolled_back');
    for (const taken of [busy, ...others, after]) await expectUndone(one, taken);
    expect(await upstream.effects()).toHaveLength(before + 2 * after.steps.length);
  });

  it('told to roll back the same sagas at the same time undo everything once', async () => {
    const many = await Promise.all(
      Array.from({ length: 10 }, (_, k) => takeSteps(k % 2 === 0 ? one : two, `both-${k}`)),
    );
    const answers = await Promise.all(many.flatMap(({ saga }) => [rollBackOn(one, saga), rollBackOn(two, saga)]));
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
    for (const taken of many) await expectUndone(one, taken);
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

  it.each([1, 2, 3])('are not sent once it is acknowledged, by neither replica (round %i)', async (round) => {
    // So that some are on the wire and some queue at any moment.
    await upstream.plan({ match: { path: '/keyed/charge' }, do: [{ delay: 60 }], times: 'always' });
    const saga = await TestSaga.open(one);
    const steps: ExecutedStep[] = [];
    let racing = true;
    const worker = async (gateway: Gateway, w: number) => {
      for (let k = 0; racing; k += 1) {
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
    const forwards = async () =>
      (await upstream.requests()).filter(({ route }) => FORWARD.has(route)).map(({ n }) => n);
    const before = await forwards();
    racing = false;
    await Promise.all(workers);
    const rested = await restedOn(one, saga);
    expect(rested.state).toBe('rolled_back');
    expect(checkSaga(rested, steps, await upstream.effects())).toEqual([]);
    expect(await forwards()).toEqual(before);
    const recalls = () => database.query(`select scope from switches where scope like 'call:%'`);
    await expect.poll(recalls).toEqual([]);
  });
});
