import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { isFinalState } from '../../domain/calls/call-state.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import {
  type NextMoves,
  planNextMoves,
  type Saga,
  type SagaStep,
  type UndoMove,
  type UndoTiming,
} from '../../domain/sagas/saga.ts';
import type { LockConflict } from '../../ledger/controls/locks.ts';
import { closeSagaForRollback, transitionSaga } from '../../ledger/sagas/saga-rollback.ts';
import { claimUndoTasks, postponeUndoTask, removeUndoTask, type UndoTask } from '../../ledger/sagas/undo-tasks.ts';
import { TOOL_DEFAULTS } from '../../policy/compile/compile-tool.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import type { Claims } from '../calls/claims.ts';
import { logIfRefused, Refusal } from '../calls/refusals.ts';
import type { Context } from '../context.ts';
import { Poller } from '../poller.ts';
import { prepareCompensation } from './compensation.ts';

const POLL_INTERVAL_MS = 250;
/** How often recalls of finished steps are pruned. Short, because the list of recalls is in memory and almost always empty. */
const PRUNE_INTERVAL_MS = 500;
/** How long a replica owns an undo task. If the replica dies, another replica takes the task after this time. */
const TASK_LEASE_MS = 2_000;
/** How often a parked saga is checked. The doubt that blocks it may have been resolved. */
const PARKED_POLL_MS = 15_000;
/** How many rollbacks one replica runs at once. */
const MAX_CONCURRENT_ROLLBACKS = 64;
/** How long the worker waits before it retries a move that failed. */
const RETRY_DELAY_MS = 1_000;
/** The shortest wait for a step that becomes due. */
const MIN_WAIT_MS = 25;

/**
 * Undoes sagas and single calls. The worker keeps no state but the ledger: it reads the steps, asks `planNextMoves` which
 * moves are possible now, applies them, and reads again.
 *
 * Every move is a compare-and-set, and every compensation has its own txn. So neither a crash nor two replicas that work on
 * one saga undo anything twice.
 */
export class RollbackWorker {
  readonly #ctx: Context;
  readonly #dispatch: Dispatch;
  readonly #claims: Claims;
  readonly #running = new Map<string, Promise<void>>();
  /** Ids of tasks that were woken while they ran. Each runs once more. */
  readonly #wokenWhileRunning = new Set<string>();
  readonly #poller: Poller;
  #nextPruneAt = performance.now() + PRUNE_INTERVAL_MS;

  constructor(ctx: Context, dispatch: Dispatch, claims: Claims) {
    this.#ctx = ctx;
    this.#dispatch = dispatch;
    this.#claims = claims;
    this.#poller = new Poller('the rollback worker', POLL_INTERVAL_MS, () => this.#poll(), ctx.log);
  }

  start(): void {
    this.#poller.start();
  }

  async stop(): Promise<void> {
    await this.#poller.stop();
    await Promise.all(this.#running.values());
  }

  /** Runs a task now, because its saga or call changed. */
  wake(task: UndoTask): void {
    if (this.#running.has(task.id)) this.#wokenWhileRunning.add(task.id);
    else if (!this.#poller.isStopped) this.#startTask(task);
  }

  async #poll(): Promise<void> {
    if (performance.now() > this.#nextPruneAt) {
      this.#nextPruneAt = performance.now() + PRUNE_INTERVAL_MS;
      await this.#pruneRecalls();
    }
    while (!this.#poller.isStopped && this.#running.size < MAX_CONCURRENT_ROLLBACKS) {
      const { controlFlags, lease, db } = this.#ctx;
      if (!controlFlags.canSend(lease.id)) return;
      const tasks = await claimUndoTasks(db, MAX_CONCURRENT_ROLLBACKS - this.#running.size, TASK_LEASE_MS);
      if (tasks.length === 0) return;
      for (const task of tasks) if (!this.#running.has(task.id)) this.#startTask(task);
    }
  }

  #startTask(task: UndoTask): void {
    const done = this.#runTask(task)
      .catch((error: unknown) => this.#poller.logRetry(error))
      .finally(() => {
        this.#running.delete(task.id);
        if (this.#wokenWhileRunning.has(task.id)) this.wake(task);
        else this.#poller.wake();
      });
    this.#running.set(task.id, done);
  }

  /** Advances a task until it must wait. The due time of the task, or the end of a compensation, then wakes it. */
  async #runTask(task: UndoTask): Promise<void> {
    const { undos, db } = this.#ctx;
    for (;;) {
      this.#wokenWhileRunning.delete(task.id);
      const { saga, steps } = await undos.readOutline(task.id, task.of);
      if (task.of === 'saga' && saga === undefined) return removeUndoTask(db, task.id);
      if (saga !== undefined && !(await this.#ensureRollingBack(saga))) return;
      const next = planNextMoves(steps, saga?.keep ?? 0, (step) => this.#undoTimingFor(step));
      if (saga?.state === 'parked' && !(await this.#unpark(saga, next))) return;
      if (next.moves.length > 0) {
        const moved = await Promise.all(next.moves.map((move) => this.#applyMove(move, task)));
        if (moved.includes(true)) continue;
        // Another replica was faster, or the ledger is unavailable.
        return postponeUndoTask(db, task.id, RETRY_DELAY_MS);
      }
      if (this.#wokenWhileRunning.has(task.id)) continue;
      if (next.waitMs !== null) return postponeUndoTask(db, task.id, Math.max(next.waitMs, MIN_WAIT_MS));
      return this.#finish(task, saga, next);
    }
  }

  /** Returns whether the saga is being undone. An open saga past its ttl starts its rollback here, or is parked. */
  async #ensureRollingBack(saga: Saga): Promise<boolean> {
    const ctx = this.#ctx;
    if (saga.state === 'rolling_back') return true;
    if (saga.state === 'parked' && saga.keep !== null) return true;
    if (saga.state !== 'open') {
      await removeUndoTask(ctx.db, saga.id);
      return false;
    }
    if (!saga.lapsed) return false;
    const reason = 'the ttl of the saga ran out';
    if (saga.onExpire === 'rollback') {
      await beginRollback(ctx, { id: saga.id, to: undefined, reason, by: 'ttl', again: false });
      this.#wokenWhileRunning.add(saga.id);
    } else {
      const entry = buildAuditEntry('saga_parked', { saga: saga.id, agent: saga.agent, reason });
      await transitionSaga(ctx.db, saga, { state: 'parked', reason, by: 'ttl', entry, recheckInMs: null });
    }
    return false;
  }

  /** Continues a parked saga whose blocking step was resolved. */
  async #unpark(saga: Saga, { moves, waitMs }: NextMoves): Promise<boolean> {
    const { db } = this.#ctx;
    if (moves.length === 0 && waitMs === null) {
      await postponeUndoTask(db, saga.id, PARKED_POLL_MS);
      return false;
    }
    const reason = 'the step that blocked the rollback was resolved';
    const entry = buildAuditEntry('saga_rolling_back', { saga: saga.id, agent: saga.agent, reason });
    const change = { state: 'rolling_back', reason, by: 'gateway', entry, recheckInMs: TASK_LEASE_MS } as const;
    return transitionSaga(db, saga, change);
  }

  /** Returns whether the move was applied. It is not when another replica was faster, or when it is not possible now. */
  async #applyMove(move: UndoMove, task: UndoTask, loggedReason?: string): Promise<boolean> {
    const { step } = move;
    if (move.do === 'start') return this.#startCompensation(step, task);
    const { txn, tool } = step;
    const entry = buildAuditEntry(`undo_${move.to}`, { txn, tool, reason: loggedReason ?? move.reason });
    const marked = await this.#ctx.undos.mark({
      txn,
      from: step.undoState,
      tries: step.undoTries,
      to: move.to,
      reason: move.reason,
      doubt: move.doubt ?? null,
      inMs: move.inMs ?? 0,
      entry,
    });
    this.#ctx.reachKillPoint('marked');
    return marked;
  }

  /**
   * Starts the compensation of a step. A compensation is claimed and dispatched like any other call. The claim also writes
   * that the undo of the step is running, and under which txn. A crash after the claim leaves a call that recovery continues.
   */
  async #startCompensation(step: SagaStep, task: UndoTask): Promise<boolean> {
    const ctx = this.#ctx;
    const owner = ctx.lease.id;
    const prepared = await prepareCompensation(ctx, step);
    if (prepared === undefined) return false;
    if (typeof prepared === 'string') return this.#markFailed(step, prepared);
    const { newCall, tool, payload, guards } = prepared;
    if (!ctx.controlFlags.canSend(owner)) return false;
    ctx.reachKillPoint('undoing');
    try {
      const source = { tool, payload, progressListener: undefined, span: undefined };
      const claimed = await this.#claims.claim(newCall, guards, source);
      switch (claimed.kind) {
        case 'registered':
          void this.#dispatch.start(claimed.inFlight).then(() => this.wake(task));
          return true;
        case 'lock_conflict':
          return this.#recordLockWait(step, claimed, task);
        // A compensation is never held and has no limits and no history guard, so only `taken` reaches this.
        case 'taken':
        case 'held':
        case 'limit_exceeded':
        case 'stale_decision':
          return false;
      }
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      return false;
    }
  }

  /**
   * Records at the step that its undo waits for a lock of another call, and retries. Locks of the same saga never block it.
   */
  #recordLockWait(step: SagaStep, { wanted }: LockConflict, task: UndoTask): Promise<boolean> {
    const reason = `the undo waits for ${wanted}, which another call has locked`;
    if (step.undoReason === reason) return Promise.resolve(false);
    const move = { do: 'mark', step, to: 'due', reason, inMs: RETRY_DELAY_MS } as const;
    // Lock names are built from arguments, and the audit log never holds arguments.
    return this.#applyMove(move, task, 'the undo waits for a lock');
  }

  /** Records at the step why it cannot be undone now, for a person to see. */
  #markFailed(step: SagaStep, reason: string): Promise<boolean> {
    return this.#applyMove({ do: 'mark', step, to: 'failed', reason }, { id: step.txn, of: 'call' });
  }

  #undoTimingFor(step: SagaStep): UndoTiming {
    const { tools } = this.#ctx.policies();
    return {
      retry: tools.get(step.undo?.tool ?? '')?.retry ?? TOOL_DEFAULTS.retry,
      quietMs: tools.get(step.tool)?.timeoutMs ?? 0,
    };
  }

  async #finish(task: UndoTask, saga: Saga | undefined, { undone, stuck }: NextMoves): Promise<void> {
    const ctx = this.#ctx;
    if (saga === undefined)
      return stuck.some(isInDoubt)
        ? postponeUndoTask(ctx.db, task.id, PARKED_POLL_MS)
        : removeUndoTask(ctx.db, task.id);
    if (saga.state === 'parked') return postponeUndoTask(ctx.db, saga.id, PARKED_POLL_MS);
    ctx.reachKillPoint('finishing');
    const to = !undone ? 'parked' : (saga.keep ?? -1) >= 0 ? 'open' : 'rolled_back';
    const reason = undone ? saga.reason : describeParkReason(stuck);
    const entry = buildAuditEntry(to === 'open' ? 'saga_back_at_savepoint' : `saga_${to}`, {
      saga: saga.id,
      agent: saga.agent,
      reason,
    });
    const change = {
      state: to,
      reason,
      by: saga.by ?? 'gateway',
      entry,
      recheckInMs: undone ? null : PARKED_POLL_MS,
    } as const;
    if (!(await transitionSaga(ctx.db, saga, change))) return this.wake(task);
    ctx.reachKillPoint('finished');
  }

  /** Clears the recalls of steps that are final or gone. A recall stops a step that was claimed but not sent when the rollback began. */
  async #pruneRecalls(): Promise<void> {
    const { controlFlags, calls } = this.#ctx;
    for (const { scope } of controlFlags.list()) {
      if (!scope.startsWith('call:')) continue;
      const txn = scope.slice('call:'.length);
      const call = await calls.read(txn);
      if (call !== undefined && !isFinalState(call.state)) continue;
      await controlFlags.clear(scope, buildAuditEntry('recall_forgotten', { txn }));
    }
  }
}

/** Whether a failed undo may still turn out to have worked. */
function isInDoubt({ step: { compensation } }: NextMoves['stuck'][number]): boolean {
  return compensation !== null && !isFinalState(compensation.state);
}

function describeParkReason(stuck: NextMoves['stuck']): string {
  const [first] = stuck;
  if (first === undefined) return 'the rollback cannot continue';
  const more = stuck.length > 1 ? ` (and ${stuck.length - 1} more)` : '';
  return `${first.step.tool} ${first.step.txn} is not undone: ${first.why}${more}`;
}

export interface RollbackCommand {
  readonly id: string;
  readonly to: string | undefined;
  readonly reason: string;
  /** `agent`, `ttl`, or a person's name. */
  readonly by: string;
  readonly again: boolean;
  /** The run in which the agent requests the rollback. An epoch that is not current is refused. */
  readonly runEpoch?: RunEpoch | undefined;
  /** Digest of the confirmed plan. If the plan has changed since, nothing is undone. */
  readonly digest?: string | undefined;
}

/** Starts a rollback on request. The audit log records a refusal too, with the requester. */
export async function requestRollback(
  ctx: Context,
  rollback: RollbackCommand,
  requester: { readonly agent: string } | { readonly person: string },
): Promise<void> {
  const about = { saga: rollback.id, ...rollback.runEpoch, ...requester };
  await logIfRefused(ctx, about, () => beginRollback(ctx, rollback).catch(rethrowAsRefusal));
}

/** A conflict here means that the plan differs from the confirmed one. That is a refusal, not a transient error. */
function rethrowAsRefusal(error: unknown): never {
  if (!(error instanceof GatewayError) || error.code !== 'conflict') throw error;
  throw new Refusal(error, { reason: error.message });
}

/**
 * Begins a rollback. After this returns, no replica sends a forward step of the saga. The committed state refuses new steps,
 * and a recall that every replica has acknowledged stops the steps that were claimed but not yet sent.
 */
async function beginRollback(ctx: Context, rollback: RollbackCommand): Promise<void> {
  const { id, to, reason, by, again, runEpoch, digest } = rollback;
  const entry = buildAuditEntry('saga_rolling_back', { saga: id, to: to ?? null, reason, by });
  const request = { id, to, reason, by, canResumeParked: again, runEpoch, digest, entry };
  const inFlight = await retryOnDeadlock(() => closeSagaForRollback(ctx.db, request));
  ctx.reachKillPoint('rolling_back');
  for (const txn of inFlight) {
    const recalled = buildAuditEntry('call_recalled', { txn, saga: id, by, reason });
    await ctx.controlFlags.set(`call:${txn}`, by, reason, recalled);
  }
}

/** Retries after a deadlock: votes and settlements lock the same rows, and PostgreSQL aborts one of two that deadlock. */
async function retryOnDeadlock<T>(work: () => Promise<T>): Promise<T> {
  for (let left = 3; ; left--) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof LedgerError) || !error.isRejected || left === 0) throw error;
    }
  }
}
