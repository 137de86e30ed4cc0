import type { JsonObject } from '../domain/json.ts';
import { computePlanDigest } from '../domain/sagas/plan-digest.ts';
import { buildRollbackPlan, type PlannedStep, planNextMoves, type Saga, type SagaStep } from '../domain/sagas/saga.ts';
import type { SagaWithSteps } from '../flow/sagas/sagas.ts';
import { undoView } from './encode.ts';
import { taintView } from './taint-view.ts';

/** Beyond this many steps "all earlier ones" is told by those that no other of them rests on: it means the same. */
const MOST_SPELLED_OUT = 200;

/** A saga as its agent sees it; a person sees whose it is, and what each undo would be called with. */
export function sagaView({ saga, steps }: SagaWithSteps, full: boolean): JsonObject {
  const rests = dependencies(steps);
  const hindered = isHeldUp(saga) ? hindrances(steps, saga.keep ?? 0) : new Map<string, string>();
  return {
    ...sagaLine(saga, full),
    steps: steps.map((step) => stepView(step, rests.get(step.txn) ?? [], hindered.get(step.txn), full)),
    savepoints: saga.savepoints.map(({ name, after }) => ({ name, after })),
  };
}

export function sagaLine(saga: Saga, full: boolean): JsonObject {
  return {
    saga: saga.id,
    name: saga.name,
    state: saga.state,
    reason: saga.reason,
    createdAt: saga.createdAt.toISOString(),
    expiresAt: saga.expiresAt?.toISOString() ?? null,
    onExpire: saga.onExpire,
    endedAt: saga.endedAt?.toISOString() ?? null,
    tainted: taintView(saga.tainted),
    ...(full ? { agent: saga.agent, by: saga.by } : {}),
  };
}

function isHeldUp({ state }: Saga): boolean {
  return state === 'rolling_back' || state === 'parked';
}

/** Why a step is not undone, where its undo does not say so itself: it is stuck, or waits for one that is. */
function hindrances(steps: readonly SagaStep[], keep: number): ReadonlyMap<string, string> {
  const retry = { attempts: 1, baseMs: 0, maxMs: 0, withinMs: 0 };
  const { stuck, blocked } = planNextMoves(steps, keep, () => ({ retry, quietMs: 0 }));
  return new Map([
    ...stuck.flatMap(({ step, why }) => (step.undoState === 'none' ? [[step.txn, why] as const] : [])),
    ...Array.from(blocked, ([txn, by]) => [txn, `it waits until ${by} is undone`] as const),
  ]);
}

function stepView(
  step: SagaStep,
  dependsOn: readonly string[],
  hindrance: string | undefined,
  full: boolean,
): JsonObject {
  const reason = step.undoReason ?? hindrance ?? null;
  return {
    txn: step.txn,
    tool: step.tool,
    state: step.state,
    dependsOn: [...dependsOn],
    undo: undoView({ ...step, undoReason: reason }, full),
    ...(full && step.waived ? { waived: true } : {}),
  };
}

/** What each step rests on, spelled out. */
function dependencies(steps: readonly SagaStep[]): ReadonlyMap<string, readonly string[]> {
  const found = new Map<string, readonly string[]>();
  const earlier: string[] = [];
  let loose = new Set<string>();
  for (const { txn, dependsOn } of steps) {
    // Copied only for who rests on all of them, after which few are loose: not for each of thousands that rest on nothing.
    const rests = dependsOn ?? (steps.length <= MOST_SPELLED_OUT ? [...earlier] : [...loose]);
    found.set(txn, rests);
    if (dependsOn === null) loose = new Set();
    for (const below of rests) loose.delete(below);
    loose.add(txn);
    earlier.push(txn);
  }
  return found;
}

/** What a rollback would do, the first thing first. */
export function planView({ saga, steps }: SagaWithSteps, keep: number, to: string | undefined): JsonObject {
  const planned = buildRollbackPlan(steps, keep);
  return {
    dryRun: true,
    saga: saga.id,
    state: saga.state,
    to: to ?? null,
    digest: computePlanDigest(saga, steps, keep),
    wouldEnd: isOver(saga)
      ? saga.state
      : planned.some(({ does, blockedBy }) => does === 'cannot' || blockedBy !== null)
        ? 'parked'
        : keep >= 0
          ? 'open'
          : 'rolled_back',
    plan: isOver(saga) ? [] : planned.map(plannedView),
    kept: steps.filter((step) => step.ordinal <= keep).map(({ txn, tool }) => ({ txn, tool })),
  };
}

function isOver({ endedAt }: Saga): boolean {
  return endedAt !== null;
}

function plannedView({ step, does, wave, why, blockedBy }: PlannedStep): JsonObject {
  return {
    txn: step.txn,
    tool: step.tool,
    state: step.state,
    does,
    wave,
    why,
    blockedBy,
    dependsOn: step.dependsOn === null ? null : [...step.dependsOn],
    undo: undoView(step, true),
  };
}
