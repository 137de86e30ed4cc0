import type { TestUpstream, UpstreamEffect } from '../faults/upstream.ts';
import type { Gateway } from '../support/gateway.ts';
import { pollUntil } from '../support/poll.ts';
import { TestSaga } from './saga.ts';
import { checkSaga, type ExecutedStep } from './saga-checker.ts';

export interface RollbackLoadResult {
  readonly violations: readonly string[];
  readonly undos: number;
  /** From the first rollback request until the last saga is rolled back. */
  readonly seconds: number;
}

interface SagaWithSteps {
  readonly saga: TestSaga;
  readonly steps: readonly ExecutedStep[];
}

/** How many sagas execute their steps at once. All rollbacks are requested at once. */
const SAGA_CONCURRENCY = 32;

/** Opens sagas on the gateways in turn, executes their charges in sequence, and rolls all sagas back at the same time. */
export async function runRollbackLoad(
  gateways: readonly Gateway[],
  upstream: TestUpstream,
  load: { readonly sagas: number; readonly steps: number; readonly name: string },
): Promise<RollbackLoadResult> {
  const executed: SagaWithSteps[] = [];
  let next = 0;
  const executeSagas = async () => {
    for (let k = next++; k < load.sagas; k = next++) {
      const gateway = gateways[k % gateways.length] as Gateway;
      executed[k] = await executeSteps(await TestSaga.open(gateway), `${load.name}-${k}`, load.steps);
    }
  };
  await Promise.all(Array.from({ length: SAGA_CONCURRENCY }, executeSagas));

  const started = performance.now();
  const answers = await Promise.all(executed.map(({ saga }) => saga.rollback({}, '')));
  const refused = answers.filter(({ status }) => status !== 202).map(({ status, body }) => `${status} ${body?.detail}`);
  await waitUntilRolledBack(gateways[0] as Gateway);
  const seconds = (performance.now() - started) / 1000;

  const byId = new Map<string, UpstreamEffect[]>();
  for (const effect of await upstream.effects())
    byId.set(effect.id ?? '', [...(byId.get(effect.id ?? '') ?? []), effect]);
  const violations: string[] = refused.map((answer) => `a rollback was answered ${answer}`);
  let undos = 0;
  for (const { saga, steps } of executed) {
    const observed = await saga.read();
    if (observed.state !== 'rolled_back') violations.push(`saga ${saga.id} is ${observed.state}: ${observed.reason}`);
    const effects = steps.flatMap(({ id }) => byId.get(id) ?? []);
    undos += effects.filter(({ route }) => route === 'POST /keyed/refund').length;
    violations.push(...checkSaga(observed, steps, effects));
  }
  return { violations, undos, seconds };
}

async function executeSteps(saga: TestSaga, name: string, count: number): Promise<SagaWithSteps> {
  const steps: ExecutedStep[] = [];
  for (let n = 1; n <= count; n += 1) {
    const id = `${name}-${n}`;
    const txn = await saga.runStep('world.charge', { id });
    steps.push({ id, txn, forward: 'POST /keyed/charge', undo: 'POST /keyed/refund', on: null });
  }
  return { saga, steps };
}

async function waitUntilRolledBack(gateway: Gateway): Promise<void> {
  await pollUntil(
    () => gateway.admin('GET', '/admin/sagas?state=rolling_back&limit=1'),
    ({ status, body }) => status === 200 && body.items.length === 0,
    { withinMs: 300_000, explain: () => `Some sagas are still rolling back.\n${gateway.output}` },
  );
}
