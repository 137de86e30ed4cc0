import { computeBackoffMs } from '../attempts/next-action.ts';
import type { CallRecord } from '../calls/call-record.ts';
import { isFinalState } from '../calls/call-state.ts';
import type { Taint } from '../controls/taint.ts';
import type { Json } from '../json.ts';
import type { RetryPolicy, UndoKind } from '../policy.ts';

/**
 * The states of a saga.
 *
 *   open ──▶ committed
 *    │ ▲
 *    ▼ │ (to a savepoint)
 *   rolling_back ──▶ rolled_back
 *    │ ▲
 *    ▼ │
 *   parked ──▶ closed
 *
 * A `parked` saga has a rollback that needs a person, or its ttl ran out. A trigger in migrations/0004_sagas.sql enforces the
 * transitions of `SAGA_TRANSITIONS` too; a test compares the two.
 */
export const SAGA_STATES = ['open', 'committed', 'rolling_back', 'rolled_back', 'parked', 'closed'] as const;
export type SagaState = (typeof SAGA_STATES)[number];

export const SAGA_TRANSITIONS: Readonly<Record<SagaState, readonly SagaState[]>> = {
  open: ['committed', 'rolling_back', 'parked'],
  rolling_back: ['rolled_back', 'parked', 'open'],
  parked: ['rolling_back', 'closed'],
  committed: [],
  rolled_back: [],
  closed: [],
};

/**
 * The states of an undo, which is part of the call that it undoes.
 *
 *   none ──▶ due ──▶ running ──▶ done
 *    │        │ ▲      │ │
 *    │        ▼ └──────┘ ▼
 *    │       failed ◀────┘
 *    └──▶ skipped | irreversible
 *
 * A `failed` undo is tried again when a person requests it or when its doubt ends. It becomes `done` if it turns out to have
 * worked.
 */
export const UNDO_STATES = ['none', 'due', 'running', 'done', 'failed', 'skipped', 'irreversible'] as const;
export type UndoState = (typeof UNDO_STATES)[number];

export const UNDO_TRANSITIONS: Readonly<Record<UndoState, readonly UndoState[]>> = {
  none: ['due', 'skipped', 'irreversible'],
  due: ['running', 'failed'],
  running: ['done', 'due', 'failed'],
  failed: ['due', 'running', 'done'],
  done: [],
  skipped: [],
  irreversible: [],
};

/** The undo of a call, written with its intent. */
export interface StoredUndo {
  readonly kind: UndoKind;
  readonly tool?: string;
  /** The template from which the arguments are rendered when the outcome is known. */
  readonly template?: Json;
  /** The caller gave this undo (`Oncegate-Undo`). Its template holds the arguments themselves, without expressions. */
  readonly own?: true;
  /** The encrypted arguments in base64, if a tool redacts. The template then holds only what may be shown. */
  readonly sealed?: string;
}

export interface Saga {
  readonly id: string;
  readonly agent: string;
  readonly name: string | null;
  readonly state: SagaState;
  readonly reason: string | null;
  /** Who made the last change: `agent`, the name of a person, or `ttl`. */
  readonly by: string | null;
  /** A rollback keeps the steps up to this ordinal; -1 keeps none. Null before any rollback. */
  readonly keep: number | null;
  readonly createdAt: Date;
  readonly expiresAt: Date | null;
  readonly onExpire: 'rollback' | 'park';
  readonly endedAt: Date | null;
  /** The ttl has passed, by the clock of PostgreSQL. */
  readonly lapsed: boolean;
  /** Set if untrusted content was read in the saga. */
  readonly tainted: Taint | null;
  readonly savepoints: readonly { readonly name: string; readonly after: number }[];
}

/** The state of the compensation of a step. */
export interface CompensationStatus {
  readonly state: CallRecord['state'];
  readonly problem: string | null;
  readonly detail: string | null;
  readonly attempt: number;
  /** The compensation is open, and the gateway still works on it. */
  readonly pursued: boolean;
  readonly msInDoubt: number;
}

/** The part of a call that a rollback needs. */
export interface SagaStep {
  readonly txn: string;
  readonly tool: string;
  readonly kind: CallRecord['kind'];
  readonly state: CallRecord['state'];
  readonly outcome: string | null;
  readonly ordinal: number;
  /** Null if the step depends on all earlier steps. */
  readonly dependsOn: readonly string[] | null;
  /** The call is open, and the gateway still works on it. */
  readonly pursued: boolean;
  /** Time since the last unknown attempt; null if there was none. */
  readonly msSinceUnknown: number | null;
  readonly undo: StoredUndo | null;
  readonly undoArgs: string | null;
  readonly undoState: UndoState;
  readonly undoReason: string | null;
  /** Set if the undo is `failed` only because its outcome is unknown: a `person` must resolve it, or the `gateway` is finding out. */
  readonly undoDoubt: 'person' | 'gateway' | null;
  readonly undoTxn: string | null;
  readonly undoTries: number;
  /** The tries before the current round. A person's request starts a new round. */
  readonly undoFrom: number;
  readonly msSinceDue: number;
  readonly msToNextTry: number;
  /** A person decided that the rollback goes on even if this step cannot be undone. */
  readonly waived: boolean;
  readonly compensation: CompensationStatus | null;
}

export type UndoMove =
  | {
      readonly do: 'mark';
      readonly step: SagaStep;
      readonly to: UndoState;
      readonly reason: string | null;
      readonly doubt?: SagaStep['undoDoubt'];
      readonly inMs?: number;
    }
  | { readonly do: 'start'; readonly step: SagaStep };

export interface NextMoves {
  readonly moves: readonly UndoMove[];
  /** When to plan again if no step changes before; null if nothing is in progress. */
  readonly waitMs: number | null;
  /** Steps that cannot be undone now, and the reasons. */
  readonly stuck: readonly { readonly step: SagaStep; readonly why: string }[];
  /** Maps the txn of a waiting step to the txn of the stuck step that blocks it. */
  readonly blocked: ReadonlyMap<string, string>;
  /** Every step after `keep` is undone, or has nothing to undo. */
  readonly undone: boolean;
}

/** The timing of an undo, from the contracts in force. */
export interface UndoTiming {
  readonly retry: RetryPolicy;
  /** How long a lost attempt of an `idempotent` step may still arrive. The undo waits, so that the attempt cannot revert it. */
  readonly quietMs: number;
}

const RECHECK_MS = 500;
/**
 * How long a compensation may be in doubt before its undo is marked `failed`, although the gateway still resolves the doubt.
 * `inDoubt` counts from the start of the doubt. `usedUp` applies once the attempts are used up, and counts from the time when
 * the undo became due. A shorter time would park a saga whose compensation succeeds a moment later.
 */
const DOUBT_GRACE_MS = { usedUp: 15_000, inDoubt: 60_000 };

type StepStatus =
  /** The step is undone, or has nothing to undo. */
  | { readonly as: 'clear' }
  | { readonly as: 'wait'; readonly ms: number }
  | { readonly as: 'stuck'; readonly why: string }
  | { readonly as: 'ready' };

/**
 * Plans the next moves to undo every step after `keep`. The function is pure and runs again after each move. A rollback keeps
 * no state but the ledger, so any replica can continue it at any moment.
 *
 * The undo of a step starts only when every step that depends on it is clear. A step that cannot be undone blocks only the
 * steps that it depends on.
 */
export function planNextMoves(
  steps: readonly SagaStep[],
  keep: number,
  getTiming: (step: SagaStep) => UndoTiming,
): NextMoves {
  const moves: UndoMove[] = [];
  const waits: number[] = [];
  const stuck: { step: SagaStep; why: string }[] = [];
  const blocked = new Map<string, string>();
  // `blockers` maps a txn to the step that blocks its undo. `commonBlocker` blocks all earlier steps.
  const blockers = new Map<string, string>();
  let commonBlocker: string | undefined;
  let undone = true;

  for (const step of sortLatestFirst(steps, keep)) {
    const blocker = commonBlocker ?? blockers.get(step.txn);
    const { status, mark } = evaluateStep(step, getTiming(step));
    if (mark !== undefined) moves.push(mark);
    if (status.as === 'stuck') stuck.push({ step, why: status.why });
    if (status.as === 'wait') waits.push(status.ms);
    if (status.as === 'ready' && blocker === undefined) moves.push({ do: 'start', step });
    if (status.as === 'ready' && blocker !== undefined) blocked.set(step.txn, blocker);

    if (status.as !== 'clear') undone = false;
    const isPassed = status.as === 'clear' || (status.as === 'stuck' && step.waived);
    const nextBlocker = blocker ?? (isPassed ? undefined : step.txn);
    if (nextBlocker === undefined) continue;
    if (step.dependsOn === null) commonBlocker ??= nextBlocker;
    else for (const txn of step.dependsOn) if (!blockers.has(txn)) blockers.set(txn, nextBlocker);
  }
  const waitMs = waits.length > 0 ? Math.min(...waits) : moves.length > 0 ? 0 : null;
  return { moves, waitMs, stuck, blocked, undone };
}

function sortLatestFirst(steps: readonly SagaStep[], keep: number): SagaStep[] {
  return steps.filter((step) => step.ordinal > keep).sort((a, b) => b.ordinal - a.ordinal);
}

interface StepEvaluation {
  readonly status: StepStatus;
  readonly mark?: UndoMove;
}

function evaluateStep(step: SagaStep, timing: UndoTiming): StepEvaluation {
  const mark: CreateMark = (to, reason, more = {}) => ({ do: 'mark', step, to, reason, ...more });
  if (!isFinalState(step.state)) return { status: evaluateOpenStep(step) };
  switch (step.undoState) {
    case 'done':
    case 'skipped':
      return { status: { as: 'clear' } };
    case 'irreversible':
      return { status: { as: 'stuck', why: explainIrreversible(step) } };
    case 'none': {
      const why = explainNothingToUndo(step);
      if (why !== undefined) return { status: { as: 'clear' }, mark: mark('skipped', why) };
      const isUndoable = step.undo?.kind === 'compensable' || step.undo?.kind === 'reversible';
      if (isUndoable) return { status: { as: 'wait', ms: 0 }, mark: mark('due', step.undoReason) };
      const reason = explainIrreversible(step);
      return { status: { as: 'stuck', why: reason }, mark: mark('irreversible', reason) };
    }
    case 'due': {
      if (step.undoArgs === null) {
        const why = step.undoReason ?? 'the undo arguments are not known';
        return { status: { as: 'stuck', why }, mark: mark('failed', why) };
      }
      const quietMs =
        step.kind === 'idempotent' && step.msSinceUnknown !== null ? timing.quietMs - step.msSinceUnknown : 0;
      const ms = Math.max(quietMs, step.msToNextTry);
      return { status: ms > 0 ? { as: 'wait', ms } : { as: 'ready' } };
    }
    case 'running':
      return evaluateRunningUndo(step, timing.retry, mark);
    case 'failed':
      return evaluateFailedUndo(step, mark);
  }
}

/**
 * Evaluates a step that is not final. The step may still succeed and then need an undo. So the rollback waits for it, unless
 * only a person can resolve it.
 */
function evaluateOpenStep({ state, pursued }: SagaStep): StepStatus {
  if (state !== 'in_doubt' || pursued) return { as: 'wait', ms: RECHECK_MS };
  return { as: 'stuck', why: 'the call may or may not have happened: a person must resolve it first' };
}

type CreateMark = (
  to: UndoState,
  reason: string | null,
  more?: { readonly doubt?: SagaStep['undoDoubt']; readonly inMs?: number },
) => UndoMove;

const DOUBT_TEXTS = {
  person: 'in doubt, a person must resolve it',
  gateway: 'in doubt, the gateway is finding out',
} as const;

/**
 * Evaluates a failed undo. An undo that was marked `failed` because of a doubt continues when the doubt ends. If a person ended
 * the doubt, the undo is tried again (`due`). Otherwise the outcome of the compensation decides (`running`).
 */
function evaluateFailedUndo(step: SagaStep, mark: CreateMark): StepEvaluation {
  const { compensation, undoReason, undoDoubt } = step;
  const why = undoReason ?? 'the undo failed';
  const stuck: StepEvaluation = { status: { as: 'stuck', why } };
  if (compensation === null) return stuck;
  if (compensation.state === 'succeeded') return { status: { as: 'clear' }, mark: mark('done', null) };
  if (undoDoubt === null) return stuck;
  const continueAs = (to: UndoState): StepEvaluation => ({ status: { as: 'wait', ms: 0 }, mark: mark(to, null) });
  const wasPersonNeeded = undoDoubt === 'person';
  if (isFinalState(compensation.state)) return continueAs(wasPersonNeeded ? 'due' : 'running');
  // The doubt is still open, but its reason is outdated: a person was needed and the gateway works on it now, or the reverse.
  if (compensation.pursued === wasPersonNeeded) return continueAs('running');
  return stuck;
}

function evaluateRunningUndo(step: SagaStep, retry: RetryPolicy, mark: CreateMark): StepEvaluation {
  const { compensation } = step;
  if (compensation === null) return { status: { as: 'wait', ms: 0 }, mark: mark('due', null) };
  const { state, problem, pursued } = compensation;
  if (state === 'succeeded') return { status: { as: 'clear' }, mark: mark('done', null) };
  const why = `${step.undo?.tool ?? 'the undo'}: ${compensation.detail ?? problem ?? state}`;
  if (!isFinalState(state)) {
    const isUsedUp = compensation.attempt >= retry.attempts && step.msSinceDue > DOUBT_GRACE_MS.usedUp;
    const isGraceOver = isUsedUp || compensation.msInDoubt > DOUBT_GRACE_MS.inDoubt;
    if (state !== 'in_doubt' || (pursued && !isGraceOver)) return { status: { as: 'wait', ms: RECHECK_MS } };
    const doubt = pursued ? 'gateway' : 'person';
    const reason = `${DOUBT_TEXTS[doubt]}: ${why}`;
    return { status: { as: 'stuck', why: reason }, mark: mark('failed', reason, { doubt }) };
  }
  const tries = step.undoTries - step.undoFrom;
  // A compensation that could not be sent does not use up the attempts; only `within` ends its retries.
  const isUsedUp = (tries >= retry.attempts && problem !== 'unavailable') || step.msSinceDue > retry.withinMs;
  if (isUsedUp) {
    const reason = `tried ${tries === 1 ? 'once' : `${tries} times`}; ${why}`;
    return { status: { as: 'stuck', why: reason }, mark: mark('failed', reason) };
  }
  const inMs = computeBackoffMs(retry, tries);
  return { status: { as: 'wait', ms: inMs }, mark: mark('due', why, { inMs }) };
}

/** Why there is nothing to undo; undefined when there is something. */
function explainNothingToUndo({ state, kind, outcome, undo }: SagaStep): string | undefined {
  if (state !== 'succeeded') return `the call ${state === 'failed' ? 'failed' : `was ${state}`}: nothing happened`;
  if (kind === 'read') return 'the call only read';
  if (outcome === 'already_satisfied') return 'the target was already as requested: nothing was sent';
  if (outcome === 'input_required') return 'the tool only asked for input: nothing happened';
  if (undo?.kind === 'none') return 'the contract says that there is nothing to undo';
  return undefined;
}

function explainIrreversible({ undo }: SagaStep): string {
  return undo === null ? 'the contract names no undo' : 'the contract says that the call cannot be undone';
}

/** What a rollback would do about one step. */
export interface PlannedStep {
  readonly step: SagaStep;
  readonly does: 'undo' | 'nothing' | 'wait' | 'cancel' | 'cannot';
  /** The wave in which the step is undone. Waves run in order; the steps of one wave run at once. Null: not undone. */
  readonly wave: number | null;
  readonly why: string | null;
  /** The txn of the step that cannot be undone and so blocks this one. */
  readonly blockedBy: string | null;
}

/** What the undo of a step must wait for: the waves before it, and the step that blocks it, if any. */
interface OrderConstraint {
  readonly wave: number;
  readonly blockedBy: string | null;
}

/** Plans a rollback of everything after `keep`, in the order of execution. */
export function buildRollbackPlan(steps: readonly SagaStep[], keep: number): PlannedStep[] {
  const planned = new Map<string, PlannedStep>();
  const isBlocker = (step: SagaStep) => planned.get(step.txn)?.does === 'cannot' && !step.waived;
  const selected = sortLatestFirst(steps, keep);
  // `common` constrains all earlier steps; it comes from the steps that depend on all of them. `byTxn` constrains single steps.
  let common: OrderConstraint = { wave: 0, blockedBy: null };
  const byTxn = new Map<string, OrderConstraint>();
  for (const step of selected) {
    const { does, why } = classifyStep(step);
    const above = mergeConstraints(common, byTxn.get(step.txn));
    const isUndone = does === 'undo' || does === 'wait';
    const wave = isUndone && above.blockedBy === null ? above.wave + 1 : null;
    planned.set(step.txn, { step, does, why, wave, blockedBy: isUndone ? above.blockedBy : null });
    const own = { wave: wave ?? above.wave, blockedBy: above.blockedBy ?? (isBlocker(step) ? step.txn : null) };
    if (step.dependsOn === null) common = mergeConstraints(common, own);
    else for (const txn of step.dependsOn) byTxn.set(txn, mergeConstraints(own, byTxn.get(txn)));
  }
  return selected.map((step) => planned.get(step.txn) as PlannedStep);
}

function mergeConstraints(a: OrderConstraint, b: OrderConstraint | undefined): OrderConstraint {
  if (b === undefined) return a;
  return { wave: Math.max(a.wave, b.wave), blockedBy: a.blockedBy ?? b.blockedBy };
}

function classifyStep(step: SagaStep): Pick<PlannedStep, 'does' | 'why'> {
  if (step.state === 'held' || step.state === 'ready') return { does: 'cancel', why: 'the call has not been sent' };
  if (!isFinalState(step.state)) {
    const status = evaluateOpenStep(step);
    return status.as === 'stuck'
      ? { does: 'cannot', why: status.why }
      : { does: 'wait', why: 'the rollback waits for the outcome of the call' };
  }
  if (step.undoState === 'done') return { does: 'nothing', why: 'the call is already undone' };
  const why = explainNothingToUndo(step);
  if (why !== undefined) return { does: 'nothing', why };
  if (step.undo?.kind !== 'compensable' && step.undo?.kind !== 'reversible')
    return { does: 'cannot', why: explainIrreversible(step) };
  if (step.undoArgs === null) return { does: 'cannot', why: step.undoReason ?? 'the undo arguments are not known' };
  return { does: 'undo', why: null };
}
