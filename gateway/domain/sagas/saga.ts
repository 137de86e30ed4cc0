import { computeBackoffMs } from '../attempts/next-step.ts';
import type { Call } from '../calls/call.ts';
import { isFinalState } from '../calls/call-state.ts';
import type { Taint } from '../controls/taint.ts';
import type { Json } from '../json.ts';
import type { RetryPolicy, UndoKind } from '../policy.ts';

/**
 * The life of a saga.
 *
 *   open ──▶ committed
 *    │ ▲
 *    ▼ │ (to a savepoint)
 *   rolling_back ──▶ rolled_back
 *    │ ▲
 *    ▼ │
 *   parked ──▶ closed
 *
 * `parked` is a rollback that cannot go on without a person, or a saga whose time ran out. The same table is enforced by a
 * trigger in migrations/0004_sagas.sql; a test holds the two together.
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
 * The life of an undo, which is a part of the call that it undoes.
 *
 *   none ──▶ due ──▶ running ──▶ done
 *    │        │ ▲      │ │
 *    │        ▼ └──────┘ ▼
 *    │       failed ◀────┘   (tried again when a person says so or a doubt about it ends, `done` if it turns out to have worked)
 *    └──▶ skipped | irreversible
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

/** How a call is undone, as it is written with its intent. Absent: nobody said. */
export interface StoredUndo {
  readonly kind: UndoKind;
  readonly tool?: string;
  /** What its arguments are made of when the outcome is known. */
  readonly template?: Json;
  /** The caller named it (`Oncegate-Undo`): the template is literal. */
  readonly own?: true;
  /** The same where the undo's tool redacts; the template is then only as it may be shown. Base64. */
  readonly sealed?: string;
}

export interface Saga {
  readonly id: string;
  readonly agent: string;
  readonly name: string | null;
  readonly state: SagaState;
  readonly reason: string | null;
  /** Who asked for the last change: `agent`, a person's name, or `ttl`. */
  readonly by: string | null;
  /** Steps up to this ordinal stay, none for -1; null while no rollback was asked for. */
  readonly keep: number | null;
  readonly createdAt: Date;
  readonly expiresAt: Date | null;
  readonly onExpire: 'rollback' | 'park';
  readonly endedAt: Date | null;
  /** Its time is over, by PostgreSQL's clock. */
  readonly lapsed: boolean;
  /** What strangers wrote was read in it. */
  readonly tainted: Taint | null;
  readonly savepoints: readonly { readonly name: string; readonly after: number }[];
}

/** The call that undoes a step. */
export interface CompensationStatus {
  readonly state: Call['state'];
  readonly problem: string | null;
  readonly detail: string | null;
  readonly attempt: number;
  /** Open, and the gateway itself goes on with it. */
  readonly pursued: boolean;
  readonly msInDoubt: number;
}

/** A call as far as its undoing goes. */
export interface SagaStep {
  readonly txn: string;
  readonly tool: string;
  readonly kind: Call['kind'];
  readonly state: Call['state'];
  readonly outcome: string | null;
  readonly ordinal: number;
  /** Null: on all earlier steps. */
  readonly dependsOn: readonly string[] | null;
  readonly pursued: boolean;
  /** Since an attempt of it was lost; null if none ever was. */
  readonly msSinceUnknown: number | null;
  readonly undo: StoredUndo | null;
  readonly undoArgs: string | null;
  readonly undoState: UndoState;
  readonly undoReason: string | null;
  readonly undoTxn: string | null;
  readonly undoTries: number;
  readonly undoFrom: number;
  readonly msSinceDue: number;
  readonly msToNextTry: number;
  readonly waived: boolean;
  readonly compensation: CompensationStatus | null;
}

export type UndoMove =
  | {
      readonly do: 'mark';
      readonly step: SagaStep;
      readonly to: UndoState;
      readonly reason: string | null;
      readonly inMs?: number;
    }
  | { readonly do: 'start'; readonly step: SagaStep };

export interface NextMoves {
  readonly moves: readonly UndoMove[];
  /** When to look again if nothing is heard; null: nothing is under way. */
  readonly waitMs: number | null;
  /** Steps that cannot be undone as things stand, and why. */
  readonly stuck: readonly { readonly step: SagaStep; readonly why: string }[];
  /** What waits for a stuck step, by txn: that step's txn. */
  readonly blocked: ReadonlyMap<string, string>;
  /** Every step in reach is undone, or there was nothing to undo. */
  readonly undone: boolean;
}

/** What the contracts in force say about a step and its undo. */
export interface UndoTiming {
  readonly retry: RetryPolicy;
  /** A lost attempt of a `idempotent` step may still arrive for so long; its undo waits until it cannot undo the undo. */
  readonly quietMs: number;
}

const RECHECK_MS = 500;
/**
 * When a compensation in doubt is shown as failed, while the gateway goes on finding out: its attempts are used up and its
 * undo has been due for a while, or it is in doubt for long. Too early would park what a moment later turns out well.
 */
const DOUBT_GRACE_MS = { usedUp: 15_000, inDoubt: 60_000 };

type StepStatus =
  /** Undone, or nothing to undo. */
  | { readonly as: 'clear' }
  | { readonly as: 'wait'; readonly ms: number }
  | { readonly as: 'stuck'; readonly why: string }
  | { readonly as: 'ready' };

/**
 * What to do next to undo every step after `keep`. Pure, and asked again after each move: a rollback has no other memory
 * than the ledger, so any process can go on with it at any moment.
 *
 * A step's undo starts only when every step that depends on it is clear. A step that cannot be undone holds up what it
 * rests on, and nothing else.
 */
export function planNextMoves(
  steps: readonly SagaStep[],
  keep: number,
  mannerOf: (step: SagaStep) => UndoTiming,
): NextMoves {
  const moves: UndoMove[] = [];
  const waits: number[] = [];
  const stuck: { step: SagaStep; why: string }[] = [];
  const blocked = new Map<string, string>();
  const waitsFor = new Map<string, string>();
  let waitsForDefault: string | undefined;
  let undone = true;

  for (const step of sortLatestFirst(steps, keep)) {
    const above = waitsForDefault ?? waitsFor.get(step.txn);
    const { standing, mark } = evaluateStep(step, mannerOf(step));
    if (mark !== undefined) moves.push(mark);
    if (standing.as === 'stuck') stuck.push({ step, why: standing.why });
    if (standing.as === 'wait') waits.push(standing.ms);
    if (standing.as === 'ready' && above === undefined) moves.push({ do: 'start', step });
    if (standing.as === 'ready' && above !== undefined) blocked.set(step.txn, above);

    if (standing.as !== 'clear') undone = false;
    const isPassed = standing.as === 'clear' || (standing.as === 'stuck' && step.waived);
    const holdsUp = above ?? (isPassed ? undefined : step.txn);
    if (holdsUp === undefined) continue;
    if (step.dependsOn === null) waitsForDefault ??= holdsUp;
    else for (const txn of step.dependsOn) if (!waitsFor.has(txn)) waitsFor.set(txn, holdsUp);
  }
  const waitMs = waits.length > 0 ? Math.min(...waits) : moves.length > 0 ? 0 : null;
  return { moves, waitMs, stuck, blocked, undone };
}

function sortLatestFirst(steps: readonly SagaStep[], keep: number): SagaStep[] {
  return steps.filter((step) => step.ordinal > keep).sort((a, b) => b.ordinal - a.ordinal);
}

function evaluateStep(step: SagaStep, manner: UndoTiming): { standing: StepStatus; mark?: UndoMove } {
  const mark: CreateMark = (to, reason, inMs) => ({
    do: 'mark',
    step,
    to,
    reason,
    ...(inMs === undefined ? {} : { inMs }),
  });
  if (!isFinalState(step.state)) return { standing: evaluateOpenStep(step) };
  switch (step.undoState) {
    case 'done':
    case 'skipped':
      return { standing: { as: 'clear' } };
    case 'irreversible':
      return { standing: { as: 'stuck', why: explainIrreversible(step) } };
    case 'none': {
      const why = explainNothingToUndo(step);
      if (why !== undefined) return { standing: { as: 'clear' }, mark: mark('skipped', why) };
      const isUndoable = step.undo?.kind === 'compensable' || step.undo?.kind === 'reversible';
      if (isUndoable) return { standing: { as: 'wait', ms: 0 }, mark: mark('due', step.undoReason) };
      const reason = explainIrreversible(step);
      return { standing: { as: 'stuck', why: reason }, mark: mark('irreversible', reason) };
    }
    case 'due': {
      if (step.undoArgs === null) {
        const why = step.undoReason ?? 'the arguments of its undo are not known';
        return { standing: { as: 'stuck', why }, mark: mark('failed', why) };
      }
      const quiet =
        step.kind === 'idempotent' && step.msSinceUnknown !== null ? manner.quietMs - step.msSinceUnknown : 0;
      const ms = Math.max(quiet, step.msToNextTry);
      return { standing: ms > 0 ? { as: 'wait', ms } : { as: 'ready' } };
    }
    case 'running':
      return evaluateRunningUndo(step, manner.retry, mark);
    case 'failed':
      return evaluateFailedUndo(step, mark);
  }
}

/** A step that is not over: late successes become due, so it is waited for as long as anything but a person can tell. */
function evaluateOpenStep({ state, pursued }: SagaStep): StepStatus {
  if (state !== 'in_doubt' || pursued) return { as: 'wait', ms: RECHECK_MS };
  return { as: 'stuck', why: 'it may or may not have happened: a person must resolve it first' };
}

type CreateMark = (to: UndoState, reason: string | null, inMs?: number) => UndoMove;

/** How the reason of an undo begins that is shown as failed while nobody knows what came of it. */
const IN_DOUBT_PREFIX = 'in doubt, ';
const NEEDS_PERSON_PREFIX = `${IN_DOUBT_PREFIX}a person must resolve it`;

/**
 * Shown as failed. If only for a doubt, and that is over, it goes on: once more where a person ended it, else with what came of it,
 * as if it had never been shown so.
 */
function evaluateFailedUndo(step: SagaStep, mark: CreateMark): { standing: StepStatus; mark?: UndoMove } {
  const { compensation, undoReason } = step;
  const why = undoReason ?? 'its undo failed';
  const stuck: { standing: StepStatus } = { standing: { as: 'stuck', why } };
  if (compensation === null) return stuck;
  if (compensation.state === 'succeeded') return { standing: { as: 'clear' }, mark: mark('done', null) };
  if (!why.startsWith(IN_DOUBT_PREFIX)) return stuck;
  const again = (to: UndoState) => ({ standing: { as: 'wait', ms: 0 } as const, mark: mark(to, null) });
  const wasForPerson = why.startsWith(NEEDS_PERSON_PREFIX);
  if (isFinalState(compensation.state)) return again(wasForPerson ? 'due' : 'running');
  if (compensation.pursued === wasForPerson) return again('running');
  return stuck;
}

function evaluateRunningUndo(
  step: SagaStep,
  retry: RetryPolicy,
  mark: CreateMark,
): { standing: StepStatus; mark?: UndoMove } {
  const { compensation } = step;
  if (compensation === null) return { standing: { as: 'wait', ms: 0 }, mark: mark('due', null) };
  const { state, problem, pursued } = compensation;
  if (state === 'succeeded') return { standing: { as: 'clear' }, mark: mark('done', null) };
  const why = `${step.undo?.tool ?? 'its undo'}: ${compensation.detail ?? problem ?? state}`;
  if (!isFinalState(state)) {
    const isSpent = compensation.attempt >= retry.attempts && step.msSinceDue > DOUBT_GRACE_MS.usedUp;
    const tired = isSpent || compensation.msInDoubt > DOUBT_GRACE_MS.inDoubt;
    if (state !== 'in_doubt' || (pursued && !tired)) return { standing: { as: 'wait', ms: RECHECK_MS } };
    const reason = `${pursued ? `${IN_DOUBT_PREFIX}the gateway is finding out` : NEEDS_PERSON_PREFIX}: ${why}`;
    return { standing: { as: 'stuck', why: reason }, mark: mark('failed', reason) };
  }
  const tries = step.undoTries - step.undoFrom;
  // What could not even be sent says nothing against the undo: only time ends that.
  const isUsedUp = (tries >= retry.attempts && problem !== 'unavailable') || step.msSinceDue > retry.withinMs;
  if (isUsedUp) {
    const reason = `tried ${tries === 1 ? 'once' : `${tries} times`}; ${why}`;
    return { standing: { as: 'stuck', why: reason }, mark: mark('failed', reason) };
  }
  const inMs = computeBackoffMs(retry, tries);
  return { standing: { as: 'wait', ms: inMs }, mark: mark('due', why, inMs) };
}

/** Why there is nothing to undo; undefined when there is something. */
function explainNothingToUndo({ state, kind, outcome, undo }: SagaStep): string | undefined {
  if (state !== 'succeeded') return `it ${state === 'failed' ? 'failed' : `was ${state}`}: nothing happened`;
  if (kind === 'read') return 'it only read';
  if (outcome === 'already_satisfied') return 'it was so already: nothing was sent';
  if (outcome === 'input_required') return 'it only asked for more: nothing was done';
  if (undo?.kind === 'none') return 'its contract says that there is nothing to undo';
  return undefined;
}

function explainIrreversible({ undo }: SagaStep): string {
  return undo === null ? 'its contract names no undo' : 'its contract says that it cannot be undone';
}

/** One line of a plan: what a rollback would do about a step. */
export interface PlannedStep {
  readonly step: SagaStep;
  readonly does: 'undo' | 'nothing' | 'wait' | 'cancel' | 'cannot';
  /** Undone in this wave: all of one wave at once, the first one first. Null: not undone. */
  readonly wave: number | null;
  readonly why: string | null;
  /** It would wait for this step, which cannot be undone. */
  readonly blockedBy: string | null;
}

/** What a rollback of everything after `keep` would do now, the first thing first. */
export function buildRollbackPlan(steps: readonly SagaStep[], keep: number): PlannedStep[] {
  const planned = new Map<string, PlannedStep>();
  const holdsUp = (step: SagaStep) => planned.get(step.txn)?.does === 'cannot' && !step.waived;
  const inReach = sortLatestFirst(steps, keep);
  // The latest wave, and the first hindrance, among the steps that depend on all earlier ones.
  let byDefault: { wave: number; blockedBy: string | null } = { wave: 0, blockedBy: null };
  const named = new Map<string, { wave: number; blockedBy: string | null }>();
  for (const step of inReach) {
    const { does, why } = classifyStep(step);
    const above = mergeConstraints(byDefault, named.get(step.txn));
    const isUndone = does === 'undo' || does === 'wait';
    const wave = isUndone && above.blockedBy === null ? above.wave + 1 : null;
    planned.set(step.txn, { step, does, why, wave, blockedBy: isUndone ? above.blockedBy : null });
    const mine = { wave: wave ?? above.wave, blockedBy: above.blockedBy ?? (holdsUp(step) ? step.txn : null) };
    if (step.dependsOn === null) byDefault = mergeConstraints(byDefault, mine);
    else for (const txn of step.dependsOn) named.set(txn, mergeConstraints(mine, named.get(txn)));
  }
  return inReach.map((step) => planned.get(step.txn) as PlannedStep);
}

function mergeConstraints(
  a: { wave: number; blockedBy: string | null },
  b: { wave: number; blockedBy: string | null } | undefined,
): { wave: number; blockedBy: string | null } {
  if (b === undefined) return a;
  return { wave: Math.max(a.wave, b.wave), blockedBy: a.blockedBy ?? b.blockedBy };
}

function classifyStep(step: SagaStep): Pick<PlannedStep, 'does' | 'why'> {
  if (step.state === 'held' || step.state === 'ready') return { does: 'cancel', why: 'it was not sent yet' };
  if (!isFinalState(step.state)) {
    const standing = evaluateOpenStep(step);
    return standing.as === 'stuck'
      ? { does: 'cannot', why: standing.why }
      : { does: 'wait', why: 'its outcome is awaited' };
  }
  if (step.undoState === 'done') return { does: 'nothing', why: 'it is undone already' };
  const why = explainNothingToUndo(step);
  if (why !== undefined) return { does: 'nothing', why };
  if (step.undo?.kind !== 'compensable' && step.undo?.kind !== 'reversible')
    return { does: 'cannot', why: explainIrreversible(step) };
  if (step.undoArgs === null)
    return { does: 'cannot', why: step.undoReason ?? 'the arguments of its undo are not known' };
  return { does: 'undo', why: null };
}
