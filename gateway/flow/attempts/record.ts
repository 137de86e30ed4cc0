import { setTimeout as sleep } from 'node:timers/promises';
import type { Outcome, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { buildAuditEntry, hashLeaf, sha256Hex } from '../../domain/audit/audit.ts';
import type { CallEvent, CallSummary, Evidence } from '../../domain/calls/call.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import { type ErrorCode, LedgerError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { recordContradiction, releaseClaim } from '../../ledger/calls/call-ownership.ts';
import type { CallUpdate } from '../../ledger/calls/calls.ts';
import type { Context } from '../context.ts';
import type { Job } from './job.ts';

/** How this process let go of a call. */
export type DispatchResult =
  /** Final, or in doubt and parked. */
  | { readonly as: 'told'; readonly face: CallSummary }
  /** Nothing was sent and the key is free again. */
  | { readonly as: 'released'; readonly code: ErrorCode; readonly detail: string }
  /** Another process has it now, or the ledger must be asked. */
  | { readonly as: 'elsewhere' };

/** What stands behind the end of a call. */
export interface Settlement {
  readonly outcome: string;
  readonly evidence: Evidence;
  readonly problem?: ErrorCode;
  readonly detail?: string;
  /** It proves nothing about the world but what was seen of it: whoever holds the call by now knows better. */
  readonly seenOnly?: boolean;
}

/** What a job and a call just read have in common; the latter's `unknownSince` is in the ledger already. */
type OwnedCallState = Pick<Job, 'txn' | 'fence' | 'step' | 'state' | 'attempt' | 'attemptOpen' | 'unresolved'> & {
  readonly unknownSince: number | Date | null;
};

/** Writes where the calls stand that this process carries. What it cannot write it tries again for as long as it lives. */
export class Recorder {
  readonly #ctx: Context;

  constructor(station: Context) {
    this.#ctx = station;
  }

  /**
   * T2. Told to nobody before it committed; tried again for as long as this process lives. A crash before it leaves an
   * unknown attempt although the answer was here: recovery finds out again.
   */
  async settle(
    job: Job,
    state: 'succeeded' | 'failed',
    answer: UpstreamAnswer | undefined,
    end: Settlement,
  ): Promise<DispatchResult> {
    const { outcome, evidence, problem = null } = end;
    const detail = end.detail === undefined ? null : sanitize(end.detail);
    const entry = buildAuditEntry(state === 'succeeded' ? 'call_succeeded' : 'call_failed', {
      txn: job.txn,
      agent: job.agent,
      tool: job.tool.name,
      attempt: job.attempt,
      outcome,
      evidence,
      answer: answer?.body == null ? undefined : sha256Hex(answer.body),
    });
    const leaf = job.recorded ? hashLeaf(entry) : null;
    const asOf = this.#ctx.finals.asOf();
    const settled = await this.#update(job, buildClosingUpdate(job, state, answer, end, { detail, leaf, entry }));
    this.#ctx.reach('settled');
    if (!settled) return this.#recordContradiction(job, state);
    const face = toCallSummary(job, state, { answer: answer ?? null, outcome, problem, detail, leaf }, false);
    this.#ctx.finals.keep(face, job.fingerprint, 0, asOf);
    return { as: 'told', face };
  }

  /** The call is final already. If it says otherwise, somebody was wrong and must see it. */
  async #recordContradiction(job: Job, learned: CallState): Promise<DispatchResult> {
    const call = await this.retryUntilWritten(job, () => this.#ctx.calls.read(job.txn));
    if (call !== undefined && call.settledAt !== null && call.state !== learned) {
      const text = `recorded as ${call.state}, but attempt ${job.attempt} ${learned}`;
      const entry = buildAuditEntry('contradiction', { ...toAuditSubject(job), detail: text });
      await this.retryUntilWritten(job, () => recordContradiction(this.#ctx.db, job.txn, text, entry));
      this.#ctx.log.error({ txn: job.txn, tool: job.tool.name, agent: job.agent }, `contradiction: ${text}`);
    }
    return { as: 'elsewhere' };
  }

  /** Writes where the call stands between attempts. False: it is final or in other hands. */
  async recordProgress(job: Job, happened: CallEvent | null): Promise<boolean> {
    const entry = buildAuditEntry(job.attemptOpen ? 'attempt_opened' : 'attempt_closed', {
      ...toAuditSubject(job),
      unresolved: job.unresolved,
    });
    // What was observed is kept with the first attempt, before its first byte leaves.
    const undo = job.attemptOpen ? job.undoArguments : null;
    return this.#update(job, { ...buildBaseUpdate(job), event: happened, undo, entry });
  }

  /**
   * Says `in_doubt`, with what was seen of the world if somebody looked, and lets go. A crash before it leaves a call of a dead
   * owner, which recovery parks again.
   */
  async park(
    job: Job,
    wakeMs: number | null,
    why: string,
    last: Outcome | undefined,
    seen: JsonObject = {},
  ): Promise<DispatchResult> {
    this.#ctx.reach('parking');
    const heard = last === undefined ? {} : { told: describeOutcome(last) };
    const detail = sanitize(last === undefined ? why : `${describeOutcome(last)}; ${why}`);
    const entry = buildAuditEntry('call_in_doubt', { ...toAuditSubject(job), unresolved: job.unresolved });
    const change: CallUpdate = {
      ...buildBaseUpdate(job),
      state: 'in_doubt',
      custody: 'park',
      dueInMs: wakeMs,
      detail,
      event: buildCallEvent('in_doubt', { attempt: job.attempt, ...heard, why, ...seen }),
      entry,
    };
    const parked = await this.#update(job, change);
    this.#ctx.reach('parked');
    if (!parked) return { as: 'elsewhere' };
    const told = { answer: null, outcome: null, problem: null, detail, leaf: null };
    return { as: 'told', face: toCallSummary(job, 'in_doubt', told, wakeMs !== null) };
  }

  async release(job: Job, last: Outcome | undefined, code: ErrorCode = 'unavailable'): Promise<DispatchResult> {
    const heldBack = last?.kind === 'not_sent' && last.heldBack === true;
    const problem = heldBack ? 'breaker_open' : code;
    // Not the detail: it may be in the words of a stranger, and what is in the log stays there.
    const entry = buildAuditEntry('call_released', { ...toAuditSubject(job), problem });
    const gone = !job.recorded || (await this.retryUntilWritten(job, () => releaseClaim(this.#ctx.db, job, entry)));
    return gone ? { as: 'released', code: problem, detail: describeLastAttempt(job, last) } : { as: 'elsewhere' };
  }

  /** The process is ending, or lost its right to send: the next attempt is somebody else's. */
  async releaseOwnership(job: Job, dueInMs = 0): Promise<DispatchResult> {
    const entry = buildAuditEntry('call_handed_back', toAuditSubject(job));
    await this.#update(job, { ...buildBaseUpdate(job), custody: 'park', dueInMs, entry });
    return { as: 'elsewhere' };
  }

  /** One change, made once however often it has to be tried: its number tells a repeat from the next. */
  async #update(job: Job, change: CallUpdate): Promise<boolean> {
    const moved = !job.recorded || (await this.retryUntilWritten(job, () => this.#ctx.calls.update(change)));
    job.step = change.step;
    return moved;
  }

  /** A ledger write that is not given up while this process lives, unless it can never be. */
  async retryUntilWritten<T>(job: Job, write: () => Promise<T>): Promise<T> {
    for (let delay = 50; ; delay = Math.min(delay * 2, 1_000)) {
      try {
        return await write();
      } catch (error) {
        if (!(error instanceof LedgerError) || error.isPermanent) throw error;
        job.ledger.hangUp();
        this.#ctx.log.warn({ txn: job.txn, err: error.message }, 'the ledger cannot be written; trying again');
        await sleep(delay);
      }
    }
  }
}

/** The change that ends a call. Written out, though it is much of `unchanged`: every call makes one. */
function buildClosingUpdate(
  job: Job,
  state: 'succeeded' | 'failed',
  answer: UpstreamAnswer | undefined,
  end: Settlement,
  { detail, leaf, entry }: Pick<CallUpdate, 'detail' | 'leaf' | 'entry'>,
): CallUpdate {
  return {
    txn: job.txn,
    fence: job.fence,
    step: job.step + 1,
    isEvidence: state === 'succeeded' && end.seenOnly !== true,
    state,
    attempt: job.attempt,
    attemptOpen: false,
    unresolved: 0,
    unknownSinceMs: msSinceUnknown(job),
    custody: 'close',
    dueInMs: null,
    outcome: end.outcome,
    problem: end.problem ?? null,
    detail,
    answer: answer === undefined ? null : JSON.stringify(answer),
    evidence: end.evidence,
    resolvedBy: null,
    leaf,
    event: null,
    undo: state === 'succeeded' ? job.undoArguments : null,
    entry,
  };
}

/** A change that changes nothing yet: everything as the holder of the fence knows it. */
export function buildBaseUpdate(call: OwnedCallState): Omit<CallUpdate, 'entry'> {
  return {
    txn: call.txn,
    fence: call.fence,
    step: call.step + 1,
    isEvidence: false,
    state: call.state,
    attempt: call.attempt,
    attemptOpen: call.attemptOpen,
    unresolved: call.unresolved,
    unknownSinceMs: msSinceUnknown(call),
    custody: 'keep',
    dueInMs: null,
    outcome: null,
    problem: null,
    detail: null,
    answer: null,
    evidence: null,
    resolvedBy: null,
    leaf: null,
    event: null,
    undo: null,
  };
}

function msSinceUnknown({ unknownSince }: OwnedCallState): number | null {
  return typeof unknownSince === 'number' ? performance.now() - unknownSince : null;
}

type ReportedFields = Pick<CallSummary, 'answer' | 'outcome' | 'problem' | 'detail' | 'leaf'>;

/** A call as it is told when this process lets go of it: member by member as `face` makes them of one that was read. */
function toCallSummary(job: Job, state: CallState, told: ReportedFields, pursued: boolean): CallSummary {
  return {
    txn: job.txn,
    agent: job.agent,
    tool: job.tool.name,
    identity: job.identity,
    attempt: job.attempt,
    saga: job.saga,
    state,
    answer: told.answer,
    outcome: told.outcome,
    problem: told.problem,
    detail: told.detail,
    leaf: told.leaf,
    pursued,
    hold: null,
  };
}

function toAuditSubject(job: Job): JsonObject {
  return { txn: job.txn, agent: job.agent, tool: job.tool.name, attempt: job.attempt };
}

export function buildCallEvent(what: string, detail: JsonObject): CallEvent {
  const said = Object.entries(detail).map(([name, value]) => [
    name,
    typeof value === 'string' ? sanitize(value) : value,
  ]);
  return { ...Object.fromEntries(said), what, at: new Date().toISOString() };
}

/** What the newest attempt told this process, or who had the call before it; or why there was none. */
export function describeLastAttempt(job: Job, last: Outcome | undefined): string {
  if (last !== undefined) return describeOutcome(last);
  return job.told ?? (job.attempt === 0 ? 'it could not be sent in time' : 'it could not be sent again in time');
}

/** What an attempt told, in words. */
export function describeOutcome(outcome: Outcome): string {
  if ('detail' in outcome) return sanitize(outcome.detail);
  return `the upstream answered ${outcome.answer.status}`;
}
