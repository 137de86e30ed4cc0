import type { TestUpstream, UpstreamEffect } from '../faults/upstream.ts';
import type { Gateway } from '../support/gateway.ts';
import { pollUntil } from '../support/poll.ts';
import { TestSaga } from './saga.ts';
import { checkSaga, type ExecutedStep } from './saga-checker.ts';

export interface RollbackLoadResult {
  readonly violations: readonly string[];
  readonly undos: number;
  /** From the first request for a rollback until the last saga came to rest. */
  readonly seconds: number;
}

interface SagaWithSteps {
  readonly saga: TestSaga;
  readonly steps: readonly ExecutedStep[];
}

/** How many sagas take their steps at once; their rollbacks are asked for all at once. */
const SAGA_CONCURRENCY = 32;

/** Many sagas, each of so many charges in a row, all rolled back at the same time by all the gateways in turn. */
export async function runRollbackLoad(
  gateways: readonly Gateway[],
  upstream: TestUpstream,
  load: { readonly sagas: number; readonly steps: number; readonly name: string },
): Promise<RollbackLoadResult> {
  const loaded: SagaWithSteps[] = [];
  let next = 0;
  const take = async () => {
    for (let k = next++; k < load.sagas; k = next++) {
      const gateway = gateways[k % gateways.length] as Gateway;
      loaded[k] = await executeSteps(await TestSaga.open(gateway), `${load.name}-${k}`, load.steps);
    }
  };
  await Promise.all(Array.from({ length: SAGA_CONCURRENCY }, take));

  const started = performance.now();
  const answers = await Promise.all(loaded.map(({ saga }) => saga.rollback({}, '')));
  const refused = answers.filter(({ status }) => status !== 202).map(({ status, body }) => `${status} ${body?.detail}`);
  await waitUntilRolledBack(gateways[0] as Gateway);
  const seconds = (performance.now() - started) / 1000;

  const byId = new Map<string, UpstreamEffect[]>();
  for (const effect of await upstream.effects())
    byId.set(effect.id ?? '', [...(byId.get(effect.id ?? '') ?? []), effect]);
  const found: string[] = refused.map((answer) => `a rollback was answered ${answer}`);
  let undos = 0;
  for (const { saga, steps } of loaded) {
    const seen = await saga.read();
    if (seen.state !== 'rolled_back') found.push(`saga ${saga.id} is ${seen.state}: ${seen.reason}`);
    const effects = steps.flatMap(({ id }) => byId.get(id) ?? []);
    undos += effects.filter(({ route }) => route === 'POST /keyed/refund').length;
    found.push(...checkSaga(seen, steps, effects));
  }
  return { violations: found, undos, seconds };
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
    { withinMs: 300_000, explain: () => `Some sagas did not come to rest.\n${gateway.output}` },
  );
}
