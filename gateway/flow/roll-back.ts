import { auditEntry } from '../domain/audit.ts';
import { GatewayError, LedgerError } from '../domain/errors.ts';
import type { Fence } from '../domain/run.ts';
import { type Manner, type Move, type Outlook, type Saga, type Step, unwind } from '../domain/saga.ts';
import { isFinal } from '../domain/states.ts';
import type { LockedBy } from '../ledger/locks.ts';
import { closeForRollback, moveSaga } from '../ledger/sagas.ts';
import { dropWork, postponeWork, takeWork, type UndoWork } from '../ledger/undo-work.ts';
import { TOOL_DEFAULTS } from '../policy/compile-tool.ts';
import type { Claims } from './claims.ts';
import { compensationOf } from './compensation.ts';
import type { Dispatch } from './dispatch.ts';
import { freshJob } from './job.ts';
import { isLocked } from './locking.ts';
import { Lookout } from './lookout.ts';
import { orLogged, Refusal } from './refusal.ts';
import type { Station } from './station.ts';

const LOOK_EVERY_MS = 250;
/** How often it is looked for switches of steps that are over: those in memory, and there are hardly ever any. */
const TIDY_EVERY_MS = 500;
/** Work is this process's for so long; if it dies, somebody else's after that. */
const HOLD_MS = 2_000;
/** A parked saga is looked at this often: a doubt that held it up may be resolved. */
const PARKED_LOOK_MS = 15_000;
/** How many rollbacks one process carries on at once. */
const MOST_AT_ONCE = 64;
/** What could not be moved now is tried again this much later. */
const STUMBLE_MS = 1_000;

/**
 * The worker that undoes. A rollback has no memory but the ledger: it reads how the steps stand, `unwind` says what may be
 * done now, that is done, and it reads again. Every move is a compare-and-set and every compensation has a txn of its own,
 * so a crash anywhere, or two processes at the same saga, do nothing twice.
 */
export class Rollbacks {
  readonly #station: Station;
  readonly #dispatch: Dispatch;
  readonly #claims: Claims;
  readonly #busy = new Map<string, Promise<void>>();
  /** Something happened to these while they were looked at: they are looked at once more. */
  readonly #news = new Set<string>();
  readonly #lookout: Lookout;
  #tidyAt = performance.now() + TIDY_EVERY_MS;

  constructor(station: Station, dispatch: Dispatch, claims: Claims) {
    this.#station = station;
    this.#dispatch = dispatch;
    this.#claims = claims;
    this.#lookout = new Lookout('a rollback', LOOK_EVERY_MS, () => this.#look(), station.log);
  }

  start(): void {
    this.#lookout.start();
  }

  async stop(): Promise<void> {
    await this.#lookout.stop();
    await Promise.all(this.#busy.values());
  }

  /** Something about this saga, or call, happened: it is looked at now. */
  hurry(work: UndoWork): void {
    if (this.#busy.has(work.id)) this.#news.add(work.id);
    else if (!this.#lookout.stopped) this.#begin(work);
  }

  async #look(): Promise<void> {
    if (performance.now() > this.#tidyAt) {
      this.#tidyAt = performance.now() + TIDY_EVERY_MS;
      await this.#forgetRecalls();
    }
    while (!this.#lookout.stopped && this.#busy.size < MOST_AT_ONCE) {
      const { switches, lease, db } = this.#station;
      if (!switches.inForce(lease.id)) return;
      const work = await takeWork(db, MOST_AT_ONCE - this.#busy.size, HOLD_MS);
      if (work.length === 0) return;
      for (const item of work) if (!this.#busy.has(item.id)) this.#begin(item);
    }
  }

  #begin(work: UndoWork): void {
    const done = this.#carryOn(work)
      .catch((error: unknown) => this.#lookout.complain(error))
      .finally(() => {
        this.#busy.delete(work.id);
        if (this.#news.has(work.id)) this.hurry(work);
        else this.#lookout.wake();
      });
    this.#busy.set(work.id, done);
  }

  /** As far as it gets without waiting. Then it is left to the clock, or to the end of a compensation. */
  async #carryOn(work: UndoWork): Promise<void> {
    const { undos, db } = this.#station;
    for (;;) {
      this.#news.delete(work.id);
      const { saga, steps } = await undos.outline(work.id, work.of);
      if (work.of === 'saga' && saga === undefined) return dropWork(db, work.id);
      if (saga !== undefined && !(await this.#isRollingBack(saga))) return;
      const outlook = unwind(steps, saga?.keep ?? 0, (step) => this.#mannerOf(step));
      if (saga?.state === 'parked' && !(await this.#unpark(saga, outlook))) return;
      if (outlook.moves.length > 0) {
        const moved = await Promise.all(outlook.moves.map((move) => this.#move(move, work)));
        if (moved.includes(true)) continue;
        // Somebody else was faster, or the ledger is in trouble.
        return postponeWork(db, work.id, STUMBLE_MS);
      }
      if (this.#news.has(work.id)) continue;
      if (outlook.waitMs !== null) return postponeWork(db, work.id, Math.max(outlook.waitMs, 25));
      return this.#finish(work, saga, outlook);
    }
  }

  /** Whether there is anything to undo; an open saga whose time is over begins to be, or is parked. */
  async #isRollingBack(saga: Saga): Promise<boolean> {
    const station = this.#station;
    if (saga.state === 'rolling_back') return true;
    if (saga.state === 'parked' && saga.keep !== null) return true;
    if (saga.state !== 'open') {
      await dropWork(station.db, saga.id);
      return false;
    }
    if (!saga.lapsed) return false;
    const reason = 'its ttl ran out';
    if (saga.onExpire === 'rollback') {
      await beginRollback(station, { id: saga.id, to: undefined, reason, by: 'ttl', again: false });
      this.#news.add(saga.id);
    } else {
      const entry = auditEntry('saga_parked', { saga: saga.id, agent: saga.agent, reason });
      await moveSaga(station.db, saga, { state: 'parked', reason, by: 'ttl', entry, lookAgainMs: null });
    }
    return false;
  }

  /** Something that held a parked saga up was resolved: it goes on by itself. */
  async #unpark(saga: Saga, { moves, waitMs }: Outlook): Promise<boolean> {
    const { db } = this.#station;
    if (moves.length === 0 && waitMs === null) {
      await postponeWork(db, saga.id, PARKED_LOOK_MS);
      return false;
    }
    const reason = 'what held it up was resolved';
    const entry = auditEntry('saga_rolling_back', { saga: saga.id, agent: saga.agent, reason });
    const change = { state: 'rolling_back', reason, by: 'gateway', entry, lookAgainMs: HOLD_MS } as const;
    return moveSaga(db, saga, change);
  }

  /** True: something moved. False: somebody else was faster, or it could not be done now. */
  async #move(move: Move, work: UndoWork, logged?: string): Promise<boolean> {
    const { step } = move;
    if (move.do === 'start') return this.#compensate(step, work);
    const entry = auditEntry(`undo_${move.to}`, { txn: step.txn, tool: step.tool, reason: logged ?? move.reason });
    const marked = await this.#station.undos.mark({
      txn: step.txn,
      from: step.undoState,
      tries: step.undoTries,
      to: move.to,
      reason: move.reason,
      inMs: move.inMs ?? 0,
      entry,
    });
    this.#station.reach('marked');
    return marked;
  }

  /**
   * Starts the call that undoes a step: an ordinary call, claimed and carried like any other. That the step's undo is running,
   * and under which txn, is written with the claim. A crash after it leaves a call that recovery carries on.
   */
  async #compensate(step: Step, work: UndoWork): Promise<boolean> {
    const station = this.#station;
    const owner = station.lease.id;
    const prepared = await compensationOf(station, step);
    if (prepared === undefined) return false;
    if (typeof prepared === 'string') return this.#give(step, prepared);
    const { intent, tool, payload, guards } = prepared;
    if (!station.switches.inForce(owner)) return false;
    station.reach('undoing');
    try {
      const claimed = await this.#claims.claim(intent, guards, (lockToken) => {
        station.reach('claimed');
        void this.#dispatch.carry(freshJob(intent, tool, owner, payload, { lockToken })).then(() => this.hurry(work));
      });
      return isLocked(claimed) ? this.#waitFor(step, claimed, work) : claimed === 'won';
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      return false;
    }
  }

  /** Somebody holds what the undo must lock: said at the step, and tried again and again. What its own saga holds is not in its way. */
  #waitFor(step: Step, { wanted }: LockedBy, work: UndoWork): Promise<boolean> {
    const reason = `it waits for ${wanted}, which another call has locked`;
    if (step.undoReason === reason) return Promise.resolve(false);
    // What is locked is made of arguments, which the log never holds.
    return this.#move({ do: 'mark', step, to: 'due', reason, inMs: STUMBLE_MS }, work, 'it waits for a lock');
  }

  /** It cannot be undone as things stand: said at the step, for a person to see. */
  #give(step: Step, reason: string): Promise<boolean> {
    return this.#move({ do: 'mark', step, to: 'failed', reason }, { id: step.txn, of: 'call' });
  }

  #mannerOf(step: Step): Manner {
    const { tools } = this.#station.policies();
    return {
      retry: tools.get(step.undo?.tool ?? '')?.retry ?? TOOL_DEFAULTS.retry,
      quietMs: tools.get(step.tool)?.timeoutMs ?? 0,
    };
  }

  async #finish(work: UndoWork, saga: Saga | undefined, { undone, stuck }: Outlook): Promise<void> {
    const station = this.#station;
    if (saga === undefined)
      return stuck.some(isInDoubt) ? postponeWork(station.db, work.id, PARKED_LOOK_MS) : dropWork(station.db, work.id);
    if (saga.state === 'parked') return postponeWork(station.db, saga.id, PARKED_LOOK_MS);
    station.reach('finishing');
    const to = !undone ? 'parked' : (saga.keep ?? -1) >= 0 ? 'open' : 'rolled_back';
    const reason = undone ? saga.reason : whyParked(stuck);
    const entry = auditEntry(to === 'open' ? 'saga_back_at_savepoint' : `saga_${to}`, {
      saga: saga.id,
      agent: saga.agent,
      reason,
    });
    const change = {
      state: to,
      reason,
      by: saga.by ?? 'gateway',
      entry,
      lookAgainMs: undone ? null : PARKED_LOOK_MS,
    } as const;
    if (!(await moveSaga(station.db, saga, change))) return this.hurry(work);
    station.reach('finished');
  }

  /** Steps that were about to be sent when a rollback began and are over, or were given up: nothing needs to be kept back. */
  async #forgetRecalls(): Promise<void> {
    const { switches, calls } = this.#station;
    for (const { scope } of switches.list()) {
      if (!scope.startsWith('call:')) continue;
      const txn = scope.slice('call:'.length);
      const call = await calls.read(txn);
      if (call !== undefined && !isFinal(call.state)) continue;
      await switches.release(scope, auditEntry('recall_forgotten', { txn }));
    }
  }
}

/** What is shown as failed, but may turn out to have worked. */
function isInDoubt({ step: { compensation } }: Outlook['stuck'][number]): boolean {
  return compensation !== null && !isFinal(compensation.state);
}

function whyParked(stuck: Outlook['stuck']): string {
  const [first] = stuck;
  if (first === undefined) return 'it cannot go on';
  const more = stuck.length > 1 ? ` (and ${stuck.length - 1} more)` : '';
  return `${first.step.tool} ${first.step.txn} is not undone: ${first.why}${more}`;
}

export interface Rollback {
  readonly id: string;
  readonly to: string | undefined;
  readonly reason: string;
  /** `agent`, `ttl`, or a person's name. */
  readonly by: string;
  readonly again: boolean;
  /** The run in which its agent asks for it: in any but the current epoch it is refused. */
  readonly fence?: Fence | undefined;
  /** Of the plan that was confirmed: if anything else would be undone, nothing is. */
  readonly digest?: string | undefined;
}

/** Somebody asks for a rollback. That it is refused is in the log too, with who asked. */
export async function rollBack(
  station: Station,
  rollback: Rollback,
  asker: { readonly agent: string } | { readonly person: string },
): Promise<void> {
  const about = { saga: rollback.id, ...rollback.fence, ...asker };
  await orLogged(station, about, () => beginRollback(station, rollback).catch(asDecision));
}

/** The only conflicts here are that something else would be undone than was asked for: no moment's trouble, but a decision. */
function asDecision(error: unknown): never {
  if (!(error instanceof GatewayError) || error.code !== 'conflict') throw error;
  throw new Refusal(error, { reason: error.message });
}

/**
 * Begins a rollback. When this returns no forward step of the saga is sent any more, by any replica: steps are refused from
 * the commit on, and those that were claimed but not yet on the wire are kept back by a switch that every process has seen.
 */
async function beginRollback(station: Station, rollback: Rollback): Promise<void> {
  const { id, to, reason, by } = rollback;
  const entry = auditEntry('saga_rolling_back', { saga: id, to: to ?? null, reason, by });
  const inFlight = await insistOnce(() => closeForRollback(station.db, { ...rollback, entry }));
  station.reach('rolling_back');
  for (const txn of inFlight) {
    const recalled = auditEntry('call_recalled', { txn, saga: id, by, reason });
    await station.switches.throwSwitch(`call:${txn}`, by, reason, recalled);
  }
}

/** Votes and settles lock the same rows: of two that wait for each other one is refused, and is simply asked again. */
async function insistOnce<T>(work: () => Promise<T>): Promise<T> {
  for (let left = 3; ; left--) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof LedgerError) || !error.refused || left === 0) throw error;
    }
  }
}
