import { computePlanDigest } from '../domain/sagas/plan-digest.ts';
import { buildRollbackPlan, type PlannedStep, planNextMoves, type Saga, type SagaStep } from '../domain/sagas/saga.ts';
import type { SagaWithSteps } from '../flow/sagas/sagas.ts';
import { undoView } from './encode.ts';
import type { PlannedStepView, PlanView, SagaMembers, SagaStepView, SagaView } from './schemas/saga-schemas.ts';
import { taintView } from './taint-view.ts';

/**
 * In a longer saga, the list for "all earlier steps" has only those that no other step depends on. The order of undos
 * that follows from it is the same.
 */
const MAX_LISTED_STEPS = 200;

/** A saga with its steps. `full` adds the agent and the arguments of each undo, for people. */
export function sagaView({ saga, steps }: SagaWithSteps, full: boolean): SagaView {
  const dependencies = listDependencies(steps);
  const hindrances = isRollbackUnfinished(saga) ? findHindrances(steps, saga.keep ?? 0) : new Map<string, string>();
  return {
    ...sagaLine(saga, full),
    steps: steps.map((step) => stepView(step, dependencies.get(step.txn) ?? [], hindrances.get(step.txn), full)),
    savepoints: saga.savepoints.map(({ name, after }) => ({ name, after })),
  };
}

export function sagaLine(saga: Saga, full: boolean): SagaMembers {
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

function isRollbackUnfinished({ state }: Saga): boolean {
  return state === 'rolling_back' || state === 'parked';
}

/** Why a step is not undone: it is stuck, or it waits for a stuck step. Covers steps whose undo has no reason of its own. */
function findHindrances(steps: readonly SagaStep[], keep: number): ReadonlyMap<string, string> {
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
): SagaStepView {
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

/** The dependencies of each step as explicit lists. */
function listDependencies(steps: readonly SagaStep[]): ReadonlyMap<string, readonly string[]> {
  const dependencies = new Map<string, readonly string[]>();
  const earlier: string[] = [];
  /** Earlier steps that no other step depends on. */
  let loose = new Set<string>();
  for (const { txn, dependsOn } of steps) {
    // Copies the lists only for steps that depend on all earlier ones; copying for each of thousands of steps would be quadratic.
    const listed = dependsOn ?? (steps.length <= MAX_LISTED_STEPS ? [...earlier] : [...loose]);
    dependencies.set(txn, listed);
    if (dependsOn === null) loose = new Set();
    for (const below of listed) loose.delete(below);
    loose.add(txn);
    earlier.push(txn);
  }
  return dependencies;
}

/** The plan of a rollback, in the order of execution. */
export function planView({ saga, steps }: SagaWithSteps, keep: number, to: string | undefined): PlanView {
  const planned = buildRollbackPlan(steps, keep);
  return {
    dryRun: true,
    saga: saga.id,
    state: saga.state,
    to: to ?? null,
    digest: computePlanDigest(saga, steps, keep),
    wouldEnd: hasEnded(saga)
      ? saga.state
      : planned.some(({ does, blockedBy }) => does === 'cannot' || blockedBy !== null)
        ? 'parked'
        : keep >= 0
          ? 'open'
          : 'rolled_back',
    plan: hasEnded(saga) ? [] : planned.map(plannedView),
    kept: steps.filter((step) => step.ordinal <= keep).map(({ txn, tool }) => ({ txn, tool })),
  };
}

function hasEnded({ endedAt }: Saga): boolean {
  return endedAt !== null;
}

function plannedView({ step, does, wave, why, blockedBy }: PlannedStep): PlannedStepView {
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
