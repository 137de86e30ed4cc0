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
import { closeSagaForRollback, transitionSaga } from '../../ledger/sagas/sagas.ts';
import { claimUndoTasks, postponeUndoTask, removeUndoTask, type UndoTask } from '../../ledger/sagas/undo-tasks.ts';
import { TOOL_DEFAULTS } from '../../policy/compile/compile-tool.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import { createJob } from '../attempts/job.ts';
import type { Claims } from '../calls/claims.ts';
import { logIfRefused, Refusal } from '../calls/refusal.ts';
import type { Context } from '../context.ts';
import { isLockConflict } from '../controls/locks.ts';
import { Poller } from '../poller.ts';
import { prepareCompensation } from './compensation.ts';

const POLL_INTERVAL_MS = 250;
/** How often it is looked for switches of steps that are over: those in memory, and there are hardly ever any. */
const PRUNE_INTERVAL_MS = 500;
/** Work is this process's for so long; if it dies, somebody else's after that. */
const TASK_LEASE_MS = 2_000;
/** A parked saga is looked at this often: a doubt that held it up may be resolved. */
const PARKED_POLL_MS = 15_000;
/** How many rollbacks one process carries on at once. */
const MAX_CONCURRENT_ROLLBACKS = 64;
/** What could not be moved now is tried again this much later. */
const RETRY_DELAY_MS = 1_000;

/**
 * The worker that undoes. A rollback has no memory but the ledger: it reads how the steps stand, `unwind` says what may be
 * done now, that is done, and it reads again. Every move is a compare-and-set and every compensation has a txn of its own,
 * so a crash anywhere, or two processes at the same saga, do nothing twice.
 */
export class RollbackWorker {
  readonly #ctx: Context;
  readonly #dispatch: Dispatch;
  readonly #claims: Claims;
  readonly #running = new Map<string, Promise<void>>();
  /** Something happened to these while they were looked at: they are looked at once more. */
  readonly #wokenWhileRunning = new Set<string>();
  readonly #poller: Poller;
  #nextPruneAt = performance.now() + PRUNE_INTERVAL_MS;

  constructor(ctx: Context, dispatch: Dispatch, claims: Claims) {
    this.#ctx = ctx;
    this.#dispatch = dispatch;
    this.#claims = claims;
    this.#poller = new Poller('a rollback', POLL_INTERVAL_MS, () => this.#poll(), ctx.log);
  }

  start(): void {
    this.#poller.start();
  }

  async stop(): Promise<void> {
    await this.#poller.stop();
    await Promise.all(this.#running.values());
  }

  /** Something about this saga, or call, happened: it is looked at now. */
  wake(work: UndoTask): void {
    if (this.#running.has(work.id)) this.#wokenWhileRunning.add(work.id);
    else if (!this.#poller.stopped) this.#startTask(work);
  }

  async #poll(): Promise<void> {
    if (performance.now() > this.#nextPruneAt) {
      this.#nextPruneAt = performance.now() + PRUNE_INTERVAL_MS;
      await this.#pruneRecalls();
    }
    while (!this.#poller.stopped && this.#running.size < MAX_CONCURRENT_ROLLBACKS) {
      const { switches, lease, db } = this.#ctx;
      if (!switches.canSend(lease.id)) return;
      const work = await claimUndoTasks(db, MAX_CONCURRENT_ROLLBACKS - this.#running.size, TASK_LEASE_MS);
      if (work.length === 0) return;
      for (const item of work) if (!this.#running.has(item.id)) this.#startTask(item);
    }
  }

  #startTask(work: UndoTask): void {
    const done = this.#runTask(work)
      .catch((error: unknown) => this.#poller.complain(error))
      .finally(() => {
        this.#running.delete(work.id);
        if (this.#wokenWhileRunning.has(work.id)) this.wake(work);
        else this.#poller.wake();
      });
    this.#running.set(work.id, done);
  }

  /** As far as it gets without waiting. Then it is left to the clock, or to the end of a compensation. */
  async #runTask(work: UndoTask): Promise<void> {
    const { undos, db } = this.#ctx;
    for (;;) {
      this.#wokenWhileRunning.delete(work.id);
      const { saga, steps } = await undos.readOutline(work.id, work.of);
      if (work.of === 'saga' && saga === undefined) return removeUndoTask(db, work.id);
      if (saga !== undefined && !(await this.#ensureRollingBack(saga))) return;
      const outlook = planNextMoves(steps, saga?.keep ?? 0, (step) => this.#undoTimingFor(step));
      if (saga?.state === 'parked' && !(await this.#unpark(saga, outlook))) return;
      if (outlook.moves.length > 0) {
        const moved = await Promise.all(outlook.moves.map((move) => this.#applyMove(move, work)));
        if (moved.includes(true)) continue;
        // Somebody else was faster, or the ledger is in trouble.
        return postponeUndoTask(db, work.id, RETRY_DELAY_MS);
      }
      if (this.#wokenWhileRunning.has(work.id)) continue;
      if (outlook.waitMs !== null) return postponeUndoTask(db, work.id, Math.max(outlook.waitMs, 25));
      return this.#finish(work, saga, outlook);
    }
  }

  /** Whether there is anything to undo; an open saga whose time is over begins to be, or is parked. */
  async #ensureRollingBack(saga: Saga): Promise<boolean> {
    const ctx = this.#ctx;
    if (saga.state === 'rolling_back') return true;
    if (saga.state === 'parked' && saga.keep !== null) return true;
    if (saga.state !== 'open') {
      await removeUndoTask(ctx.db, saga.id);
      return false;
    }
    if (!saga.lapsed) return false;
    const reason = 'its ttl ran out';
    if (saga.onExpire === 'rollback') {
      await beginRollback(ctx, { id: saga.id, to: undefined, reason, by: 'ttl', again: false });
      this.#wokenWhileRunning.add(saga.id);
    } else {
      const entry = buildAuditEntry('saga_parked', { saga: saga.id, agent: saga.agent, reason });
      await transitionSaga(ctx.db, saga, { state: 'parked', reason, by: 'ttl', entry, lookAgainMs: null });
    }
    return false;
  }

  /** Something that held a parked saga up was resolved: it goes on by itself. */
  async #unpark(saga: Saga, { moves, waitMs }: NextMoves): Promise<boolean> {
    const { db } = this.#ctx;
    if (moves.length === 0 && waitMs === null) {
      await postponeUndoTask(db, saga.id, PARKED_POLL_MS);
      return false;
    }
    const reason = 'what held it up was resolved';
    const entry = buildAuditEntry('saga_rolling_back', { saga: saga.id, agent: saga.agent, reason });
    const change = { state: 'rolling_back', reason, by: 'gateway', entry, lookAgainMs: TASK_LEASE_MS } as const;
    return transitionSaga(db, saga, change);
  }

  /** True: something moved. False: somebody else was faster, or it could not be done now. */
  async #applyMove(move: UndoMove, work: UndoTask, logged?: string): Promise<boolean> {
    const { step } = move;
    if (move.do === 'start') return this.#startCompensation(step, work);
    const entry = buildAuditEntry(`undo_${move.to}`, { txn: step.txn, tool: step.tool, reason: logged ?? move.reason });
    const marked = await this.#ctx.undos.mark({
      txn: step.txn,
      from: step.undoState,
      tries: step.undoTries,
      to: move.to,
      reason: move.reason,
      inMs: move.inMs ?? 0,
      entry,
    });
    this.#ctx.reach('marked');
    return marked;
  }

  /**
   * Starts the call that undoes a step: an ordinary call, claimed and carried like any other. That the step's undo is running,
   * and under which txn, is written with the claim. A crash after it leaves a call that recovery carries on.
   */
  async #startCompensation(step: SagaStep, work: UndoTask): Promise<boolean> {
    const ctx = this.#ctx;
    const owner = ctx.lease.id;
    const prepared = await prepareCompensation(ctx, step);
    if (prepared === undefined) return false;
    if (typeof prepared === 'string') return this.#markFailed(step, prepared);
    const { intent, tool, payload, guards } = prepared;
    if (!ctx.switches.canSend(owner)) return false;
    ctx.reach('undoing');
    try {
      const claimed = await this.#claims.claim(intent, guards, (lockToken) => {
        ctx.reach('claimed');
        void this.#dispatch.start(createJob(intent, tool, owner, payload, { lockToken })).then(() => this.wake(work));
      });
      return isLockConflict(claimed) ? this.#recordLockWait(step, claimed, work) : claimed === 'won';
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      return false;
    }
  }

  /** Somebody holds what the undo must lock: said at the step, and tried again and again. What its own saga holds is not in its way. */
  #recordLockWait(step: SagaStep, { wanted }: LockConflict, work: UndoTask): Promise<boolean> {
    const reason = `it waits for ${wanted}, which another call has locked`;
    if (step.undoReason === reason) return Promise.resolve(false);
    // What is locked is made of arguments, which the log never holds.
    return this.#applyMove({ do: 'mark', step, to: 'due', reason, inMs: RETRY_DELAY_MS }, work, 'it waits for a lock');
  }

  /** It cannot be undone as things stand: said at the step, for a person to see. */
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

  async #finish(work: UndoTask, saga: Saga | undefined, { undone, stuck }: NextMoves): Promise<void> {
    const ctx = this.#ctx;
    if (saga === undefined)
      return stuck.some(isInDoubt)
        ? postponeUndoTask(ctx.db, work.id, PARKED_POLL_MS)
        : removeUndoTask(ctx.db, work.id);
    if (saga.state === 'parked') return postponeUndoTask(ctx.db, saga.id, PARKED_POLL_MS);
    ctx.reach('finishing');
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
      lookAgainMs: undone ? null : PARKED_POLL_MS,
    } as const;
    if (!(await transitionSaga(ctx.db, saga, change))) return this.wake(work);
    ctx.reach('finished');
  }

  /** Steps that were about to be sent when a rollback began and are over, or were given up: nothing needs to be kept back. */
  async #pruneRecalls(): Promise<void> {
    const { switches, calls } = this.#ctx;
    for (const { scope } of switches.list()) {
      if (!scope.startsWith('call:')) continue;
      const txn = scope.slice('call:'.length);
      const call = await calls.read(txn);
      if (call !== undefined && !isFinalState(call.state)) continue;
      await switches.clear(scope, buildAuditEntry('recall_forgotten', { txn }));
    }
  }
}

/** What is shown as failed, but may turn out to have worked. */
function isInDoubt({ step: { compensation } }: NextMoves['stuck'][number]): boolean {
  return compensation !== null && !isFinalState(compensation.state);
}

function describeParkReason(stuck: NextMoves['stuck']): string {
  const [first] = stuck;
  if (first === undefined) return 'it cannot go on';
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
  /** The run in which its agent asks for it: in any but the current epoch it is refused. */
  readonly fence?: RunEpoch | undefined;
  /** Of the plan that was confirmed: if anything else would be undone, nothing is. */
  readonly digest?: string | undefined;
}

/** Somebody asks for a rollback. That it is refused is in the log too, with who asked. */
export async function requestRollback(
  ctx: Context,
  rollback: RollbackCommand,
  asker: { readonly agent: string } | { readonly person: string },
): Promise<void> {
  const about = { saga: rollback.id, ...rollback.fence, ...asker };
  await logIfRefused(ctx, about, () => beginRollback(ctx, rollback).catch(rethrowAsRefusal));
}

/** The only conflicts here are that something else would be undone than was asked for: no moment's trouble, but a decision. */
function rethrowAsRefusal(error: unknown): never {
  if (!(error instanceof GatewayError) || error.code !== 'conflict') throw error;
  throw new Refusal(error, { reason: error.message });
}

/**
 * Begins a rollback. When this returns no forward step of the saga is sent any more, by any replica: steps are refused from
 * the commit on, and those that were claimed but not yet on the wire are kept back by a switch that every process has seen.
 */
async function beginRollback(ctx: Context, rollback: RollbackCommand): Promise<void> {
  const { id, to, reason, by } = rollback;
  const entry = buildAuditEntry('saga_rolling_back', { saga: id, to: to ?? null, reason, by });
  const inFlight = await retryOnDeadlock(() => closeSagaForRollback(ctx.db, { ...rollback, entry }));
  ctx.reach('rolling_back');
  for (const txn of inFlight) {
    const recalled = buildAuditEntry('call_recalled', { txn, saga: id, by, reason });
    await ctx.switches.set(`call:${txn}`, by, reason, recalled);
  }
}

/** Votes and settles lock the same rows: of two that wait for each other one is refused, and is simply asked again. */
async function retryOnDeadlock<T>(work: () => Promise<T>): Promise<T> {
  for (let left = 3; ; left--) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof LedgerError) || !error.refused || left === 0) throw error;
    }
  }
}
