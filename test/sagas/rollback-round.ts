import { setTimeout as sleep } from 'node:timers/promises';
import type { TestUpstream } from '../faults/upstream.ts';
import type { Gateway, Reply } from '../support/gateway.ts';
import { TestSaga } from './saga.ts';
import { checkSaga, type ExecutedStep } from './saga-checker.ts';

/** Points of a rollback at which the gateway dies. The later ones of a call's own points belong to later undos. */
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
/** In a life after that: the same again, and in the recovery of what the dead one had in flight. */
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

/** A saga of seven steps in two branches, of which the sixth failed. */
export interface SevenStepSaga {
  readonly saga: TestSaga;
  readonly steps: readonly ExecutedStep[];
  /** Effects up to this one are older than the saga. */
  readonly since: number;
  readonly file: string;
}

const CHARGE = { forward: 'POST /keyed/charge', undo: 'POST /keyed/refund' };
const ORDER = { forward: 'POST /probed/orders', undo: 'POST /keyed/refund' };
const WRITE = { forward: 'PUT /idempotent/objects', undo: 'PUT /restored', repeatable: true };

/**
 * Step 1 carries two branches: 2, 4, 6 and 3, 5, 7. The sixth is refused, the undo of the fourth is refused three times
 * before it works; the undo of the fifth can only be probed, that of the third puts back what was there.
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
  const take = async (
    n: number,
    tool: string,
    on: readonly number[],
    kind: Omit<ExecutedStep, 'id' | 'txn' | 'on'>,
  ) => {
    const args = tool === 'world.write' ? { id: id(n), text: 'new' } : { id: id(n) };
    const below = on.map((m) => steps.find((step) => step.id === id(m))?.txn ?? '');
    const answer = await saga.callStep(tool, args, { key: id(n), on: below });
    steps.push({ id: id(n), txn: answer.body.txn, on: on.map(id), ...kind });
    return answer.status;
  };
  const statuses = [
    await take(1, 'world.charge', [], CHARGE),
    await take(2, 'world.order', [1], ORDER),
    await take(3, 'world.write', [1], WRITE),
    await take(4, 'world.charge', [2], CHARGE),
    await take(5, 'wide.reserve', [3], { ...CHARGE, undo: 'POST /probed/orders', undoId: `undo-${id(5)}` }),
    ...(await Promise.all([take(6, 'world.charge', [4], CHARGE), take(7, 'world.order', [5], ORDER)])),
  ];
  if (statuses.join() !== '200,200,200,200,200,502,200') throw new Error(`the steps answered ${statuses.join()}`);
  return { saga, steps, since, file };
}

/**
 * A rollback in a life of the gateway that ends at a point, and in further ones that do; then in one that goes on. Nobody
 * asks for it again: it must come to rest as rolled back by itself. Tells what did not hold, and how many lives ended so.
 */
export async function crashRollback(
  { saga, steps, since, file }: SevenStepSaga,
  upstream: TestUpstream,
  deaths: readonly string[],
): Promise<{ readonly violations: readonly string[]; readonly died: number }> {
  const { gateway } = saga;
  let died = 0;
  for (const [life, point] of deaths.entries()) {
    if (gateway.isAlive) await gateway.kill();
    gateway.launch({ ONCEGATE_DIE_AT: point });
    await gateway.waitUntilReady().catch(() => undefined);
    // Only the first time; and again by an agent that is impatient, where that is what the gateway dies of.
    if (gateway.isAlive && (life === 0 || point === 'rolling_back')) await saga.rollback({}, '').catch(() => undefined);
    if (await waitForCrash(saga, point)) died += 1;
  }
  if (gateway.isAlive) await gateway.kill();
  await gateway.start();
  const found: string[] = [];
  const rested = await saga.waitUntilSettled();
  if (rested.state !== 'rolled_back') found.push(`it came to rest as ${rested.state}: ${rested.reason}`);
  const again = await saga.rollback();
  if (again.status !== 202 || again.body.state !== rested.state)
    found.push(`asked for once more it answered ${again.status} ${JSON.stringify(again.body)}`);
  const text = (await gateway.call('world.look', { id: file })).body.result?.object?.text;
  if (text !== 'old') found.push(`the file says ${text}`);
  const effects = (await upstream.effects()).filter((effect) => effect.n > since);
  found.push(...checkSaga(again.body, steps, effects));
  return { violations: found, died };
}

async function waitForCrash(saga: TestSaga, point: string): Promise<boolean> {
  const { gateway } = saga;
  const until = performance.now() + 30_000;
  while (gateway.isAlive) {
    const seen: Reply['body'] = await saga.read().catch(() => undefined);
    if (seen?.state === 'rolled_back' || seen?.state === 'parked') {
      // It says so a moment before it dies of having said it.
      const patience = point === 'finished' || point.startsWith('settled') ? 1_000 : 0;
      await Promise.race([gateway.waitForExit(), sleep(patience)]);
      return !gateway.isAlive;
    }
    if (performance.now() > until)
      throw new Error(`neither death nor rest: ${JSON.stringify(seen)}\n${gateway.output}`);
    await sleep(20);
  }
  return true;
}
