import { setTimeout as sleep } from 'node:timers/promises';
import type { TestUpstream } from '../faults/upstream.ts';
import type { Gateway, Reply } from '../support/gateway.ts';
import { TestSaga } from './saga.ts';
import { checkSaga, type ExecutedStep } from './saga-checker.ts';

/** Kill points of a rollback. `sending:2` is the second time that the gateway reaches the point, so it belongs to a later undo. */
export const FIRST_KILL_POINTS = [
  'rolling_back',
  'marked',
  'marked:3',
  'marked:9',
  'undoing',
  'undoing:5',
  'claimed',
  'claimed:3',
  'sending',
  'sending:2',
  'sending:7',
  'answered',
  'answered:4',
  'settled',
  'settled:2',
  'settled:8',
  'finishing',
  'finished',
] as const;
/** Kill points after the restart: those of the rollback, and those of the recovery of calls in flight. */
export const LATER_KILL_POINTS = [
  'rolling_back',
  'taken',
  'marked',
  'undoing',
  'claimed',
  'sending',
  'sending:2',
  'answered',
  'probed',
  'settled',
  'finishing',
  'finished',
] as const;

/** A saga of seven steps in two branches. Its sixth step failed. */
export interface SevenStepSaga {
  readonly saga: TestSaga;
  readonly steps: readonly ExecutedStep[];
  /** The number of the last effect before the saga. */
  readonly since: number;
  readonly file: string;
}

const CHARGE = { forward: 'POST /keyed/charge', undo: 'POST /keyed/refund' };
const ORDER = { forward: 'POST /probed/orders', undo: 'POST /keyed/refund' };
const WRITE = { forward: 'PUT /idempotent/objects', undo: 'PUT /restored', repeatable: true };

/**
 * Two branches depend on step 1: steps 2, 4, 6 and steps 3, 5, 7. Step 6 fails. The undo of step 4 fails three times before it
 * succeeds, the undo of step 5 has `once: probe`, and the undo of step 3 restores the earlier state.
 */
export async function createSevenStepSaga(
  gateway: Gateway,
  upstream: TestUpstream,
  name: string,
): Promise<SevenStepSaga> {
  const id = (n: number) => `${name}-${n}`;
  const file = id(3);
  await gateway.call('world.write', { id: file, text: 'old' }, { key: `${file}-old` });
  await upstream.plan({ match: { id: id(6) }, do: [{ reply: 422, body: { error: 'no' } }] });
  const refund = { id: id(4), path: '/keyed/refund' };
  await upstream.plan({ match: refund, do: [{ reply: 422, body: { error: 'not now' } }], times: 3 });
  const since = (await upstream.effects()).at(-1)?.n ?? 0;

  const saga = await TestSaga.open(gateway, { name });
  const steps: ExecutedStep[] = [];
  const executeStep = async (
    n: number,
    tool: string,
    on: readonly number[],
    kind: Omit<ExecutedStep, 'id' | 'txn' | 'on'>,
  ) => {
    const args = tool === 'world.write' ? { id: id(n), text: 'new' } : { id: id(n) };
    const dependencies = on.map((m) => steps.find((step) => step.id === id(m))?.txn ?? '');
    const answer = await saga.callStep(tool, args, { key: id(n), on: dependencies });
    steps.push({ id: id(n), txn: answer.body.txn, on: on.map(id), ...kind });
    return answer.status;
  };
  const statuses = [
    await executeStep(1, 'world.charge', [], CHARGE),
    await executeStep(2, 'world.order', [1], ORDER),
    await executeStep(3, 'world.write', [1], WRITE),
    await executeStep(4, 'world.charge', [2], CHARGE),
    await executeStep(5, 'wide.reserve', [3], { ...CHARGE, undo: 'POST /probed/orders', undoId: `undo-${id(5)}` }),
    ...(await Promise.all([executeStep(6, 'world.charge', [4], CHARGE), executeStep(7, 'world.order', [5], ORDER)])),
  ];
  if (statuses.join() !== '200,200,200,200,200,502,200') throw new Error(`The steps answered ${statuses.join()}.`);
  return { saga, steps, since, file };
}

/**
 * Requests a rollback and lets the gateway die at each of the kill points, one per start. Then a gateway without a kill point must
 * finish the rollback without another request. Returns the violations and the number of deaths.
 */
export async function crashRollback(
  { saga, steps, since, file }: SevenStepSaga,
  upstream: TestUpstream,
  deaths: readonly string[],
): Promise<{ readonly violations: readonly string[]; readonly died: number }> {
  const { gateway } = saga;
  let died = 0;
  for (const [start, point] of deaths.entries()) {
    if (gateway.isAlive) await gateway.kill();
    gateway.launch({ ONCEGATE_DIE_AT: point });
    await gateway.waitUntilReady().catch(() => undefined);
    // Only the first start requests the rollback. The kill point `rolling_back` needs another request to be reached.
    if (gateway.isAlive && (start === 0 || point === 'rolling_back'))
      await saga.rollback({}, '').catch(() => undefined);
    if (await waitForCrash(saga, point)) died += 1;
  }
  if (gateway.isAlive) await gateway.kill();
  await gateway.start();
  const violations: string[] = [];
  const settled = await saga.waitUntilSettled();
  if (settled.state !== 'rolled_back') violations.push(`it ended as ${settled.state}: ${settled.reason}`);
  const repeated = await saga.rollback();
  if (repeated.status !== 202 || repeated.body.state !== settled.state)
    violations.push(`a repeated rollback answered ${repeated.status} ${JSON.stringify(repeated.body)}`);
  const text = (await gateway.call('world.look', { id: file })).body.result?.object?.text;
  if (text !== 'old') violations.push(`the file contains ${text}`);
  const effects = (await upstream.effects()).filter((effect) => effect.n > since);
  violations.push(...checkSaga(repeated.body, steps, effects));
  return { violations, died };
}

async function waitForCrash(saga: TestSaga, point: string): Promise<boolean> {
  const { gateway } = saga;
  const deadline = performance.now() + 30_000;
  while (gateway.isAlive) {
    const observed: Reply['body'] = await saga.read().catch(() => undefined);
    if (observed?.state === 'rolled_back' || observed?.state === 'parked') {
      // The gateway reports the final state a moment before it dies at these points.
      const graceMs = point === 'finished' || point.startsWith('settled') ? 1_000 : 0;
      await Promise.race([gateway.waitForExit(), sleep(graceMs)]);
      return !gateway.isAlive;
    }
    if (performance.now() > deadline)
      throw new Error(
        `The gateway neither died nor finished the rollback: ${JSON.stringify(observed)}\n${gateway.output}`,
      );
    await sleep(20);
  }
  return true;
}
