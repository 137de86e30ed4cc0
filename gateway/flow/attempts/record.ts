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

/** How dispatch ended its work on a call. */
export type DispatchResult =
  /** The call is final, or parked in doubt. */
  | { readonly kind: 'reported'; readonly call: CallSummary }
  /** Nothing was sent, and the key can be used again. */
  | { readonly kind: 'released'; readonly code: ErrorCode; readonly detail: string }
  /** Another process owns the call now, or only the ledger knows its state. */
  | { readonly kind: 'elsewhere' };

/** Why a call ends, and the evidence for it. */
export interface Settlement {
  readonly outcome: string;
  readonly evidence: Evidence;
  readonly problem?: ErrorCode;
  readonly detail?: string;
  /** The only evidence is an observation. Unlike an answer, it cannot settle a call that another process owns by now. */
  readonly isObservationOnly?: boolean;
}

/** The fields that a job and a stored call share. A job has `unknownSince` on the monotonic clock; a stored call has a Date. */
type OwnedCallState = Pick<
  Job,
  | 'txn'
  | 'fence'
  | 'updateNumber'
  | 'state'
  | 'attempt'
  | 'attemptOpen'
  | 'unresolved'
  | 'attemptDetail'
  | 'disprovedBy'
> & {
  readonly unknownSince: number | Date | null;
};

/** Writes the state of the calls that this process owns. Retries failed writes for as long as the process lives. */
export class Recorder {
  readonly #ctx: Context;

  constructor(ctx: Context) {
    this.#ctx = ctx;
  }

  /**
   * Settles a call. Callers get the result only after the commit. A crash before the commit leaves an unknown attempt,
   * although the answer arrived: recovery looks for evidence again.
   */
  async settle(
    job: Job,
    state: 'succeeded' | 'failed',
    answer: UpstreamAnswer | undefined,
    settlement: Settlement,
  ): Promise<DispatchResult> {
    const { outcome, evidence, problem = null } = settlement;
    const detail = settlement.detail === undefined ? null : sanitize(settlement.detail);
    const entry = buildAuditEntry(state === 'succeeded' ? 'call_succeeded' : 'call_failed', {
      txn: job.txn,
      agent: job.agent,
      tool: job.tool.name,
      attempt: job.attempt,
      outcome,
      evidence,
      answer: answer?.body == null ? undefined : sha256Hex(answer.body),
    });
    const leaf = job.isRecorded ? hashLeaf(entry) : null;
    const version = this.#ctx.replayCache.readVersion();
    const update = buildClosingUpdate(job, state, answer, settlement, { detail, leaf, entry });
    const isSettled = await this.#update(job, update);
    this.#ctx.reachKillPoint('settled');
    if (!isSettled) return this.#recordContradiction(job, state);
    const call = toCallSummary(job, state, { answer: answer ?? null, outcome, problem, detail, leaf }, false);
    this.#ctx.replayCache.add(call, job.fingerprint, 0, version);
    return { kind: 'reported', call };
  }

  /** The call is final already, or another process owns it. A different final state is a contradiction that people must see. */
  async #recordContradiction(job: Job, state: CallState): Promise<DispatchResult> {
    const call = await this.retryUntilWritten(job, () => this.#ctx.calls.read(job.txn));
    if (call !== undefined && call.settledAt !== null && call.state !== state) {
      const text = `recorded as ${call.state}, but attempt ${job.attempt} ${state}`;
      const entry = buildAuditEntry('contradiction', { ...toAuditSubject(job), detail: text });
      await this.retryUntilWritten(job, () => recordContradiction(this.#ctx.db, job.txn, text, entry));
      this.#ctx.log.error({ txn: job.txn, tool: job.tool.name, agent: job.agent }, `Contradiction: ${text}.`);
    }
    return { kind: 'elsewhere' };
  }

  /** Writes the state of a call between attempts. Returns false if the call is final or another process owns it. */
  async recordProgress(job: Job, event: CallEvent | null): Promise<boolean> {
    const entry = buildAuditEntry(job.attemptOpen ? 'attempt_opened' : 'attempt_closed', {
      ...toAuditSubject(job),
      unresolved: job.unresolved,
    });
    // The observed state is stored with the opened attempt, before its first byte leaves.
    const undo = job.attemptOpen ? job.undoArguments : null;
    return this.#update(job, { ...buildBaseUpdate(job), event, undo, entry });
  }

  /**
   * Writes `in_doubt`, with the observed state if there is one, and gives up the ownership. A crash before the commit leaves
   * a call of a dead owner, which recovery parks again.
   */
  async park(
    job: Job,
    wakeMs: number | null,
    why: string,
    last: Outcome | undefined,
    observed: JsonObject = {},
  ): Promise<DispatchResult> {
    this.#ctx.reachKillPoint('parking');
    if (last !== undefined) job.attemptDetail = describeOutcome(last);
    const lastAnswer = last === undefined ? {} : { told: describeOutcome(last) };
    const detail = sanitize(last === undefined ? why : `${describeOutcome(last)}; ${why}`);
    const entry = buildAuditEntry('call_in_doubt', { ...toAuditSubject(job), unresolved: job.unresolved });
    const update: CallUpdate = {
      ...buildBaseUpdate(job),
      state: 'in_doubt',
      custody: 'park',
      dueInMs: wakeMs,
      detail,
      event: buildCallEvent('in_doubt', { attempt: job.attempt, ...lastAnswer, why, ...observed }),
      entry,
    };
    const isParked = await this.#update(job, update);
    this.#ctx.reachKillPoint('parked');
    if (!isParked) return { kind: 'elsewhere' };
    const reported = { answer: null, outcome: null, problem: null, detail, leaf: null };
    return { kind: 'reported', call: toCallSummary(job, 'in_doubt', reported, wakeMs !== null) };
  }

  /** Deletes the claim of a call that was never sent, so that its key can be used again. */
  async release(job: Job, last: Outcome | undefined, code: ErrorCode = 'unavailable'): Promise<DispatchResult> {
    const isHeldBack = last?.kind === 'not_sent' && last.heldBack === true;
    const problem = isHeldBack ? 'breaker_open' : code;
    // Leave out the detail: it may contain text of the upstream, and the audit log is permanent.
    const entry = buildAuditEntry('call_released', { ...toAuditSubject(job), problem });
    const isReleased =
      !job.isRecorded || (await this.retryUntilWritten(job, () => releaseClaim(this.#ctx.db, job, entry)));
    return isReleased
      ? { kind: 'released', code: problem, detail: describeLastAttempt(job, last) }
      : { kind: 'elsewhere' };
  }

  /** Hands the call back, because this process is shutting down or may not send. Any process makes the next attempt. */
  async releaseOwnership(job: Job, dueInMs = 0): Promise<DispatchResult> {
    const entry = buildAuditEntry('call_handed_back', toAuditSubject(job));
    await this.#update(job, { ...buildBaseUpdate(job), custody: 'park', dueInMs, entry });
    return { kind: 'elsewhere' };
  }

  /** Applies an update once, however often it is tried: its `step` number tells a retry from the next update. */
  async #update(job: Job, update: CallUpdate): Promise<boolean> {
    const isApplied = !job.isRecorded || (await this.retryUntilWritten(job, () => this.#ctx.calls.update(update)));
    job.updateNumber = update.updateNumber;
    return isApplied;
  }

  /** Retries a ledger operation for as long as this process lives, unless the error is permanent. */
  async retryUntilWritten<T>(job: Job, operation: () => Promise<T>): Promise<T> {
    for (let delay = 50; ; delay = Math.min(delay * 2, 1_000)) {
      try {
        return await operation();
      } catch (error) {
        if (!(error instanceof LedgerError) || error.isPermanent) throw error;
        job.ledgerFailure.cancel();
        this.#ctx.log.warn({ txn: job.txn, err: error.message }, 'A ledger operation failed. It is tried again.');
        await sleep(delay);
      }
    }
  }
}

/** The update that ends a call. One literal is faster than a spread of `buildBaseUpdate`, and every call needs this update. */
function buildClosingUpdate(
  job: Job,
  state: 'succeeded' | 'failed',
  answer: UpstreamAnswer | undefined,
  settlement: Settlement,
  { detail, leaf, entry }: Pick<CallUpdate, 'detail' | 'leaf' | 'entry'>,
): CallUpdate {
  return {
    txn: job.txn,
    fence: job.fence,
    updateNumber: job.updateNumber + 1,
    isEvidence: state === 'succeeded' && settlement.isObservationOnly !== true,
    state,
    attempt: job.attempt,
    attemptOpen: false,
    unresolved: 0,
    unknownSinceMs: computeMsSinceUnknown(job),
    custody: 'close',
    dueInMs: null,
    outcome: settlement.outcome,
    problem: settlement.problem ?? null,
    detail,
    answer: answer === undefined ? null : JSON.stringify(answer),
    evidence: settlement.evidence,
    resolvedBy: null,
    leaf,
    event: null,
    undo: state === 'succeeded' ? job.undoArguments : null,
    attemptDetail: job.attemptDetail,
    disprovedBy: job.disprovedBy,
    entry,
  };
}

/** An update that changes nothing yet. Callers override the fields that change. */
export function buildBaseUpdate(call: OwnedCallState): Omit<CallUpdate, 'entry'> {
  return {
    txn: call.txn,
    fence: call.fence,
    updateNumber: call.updateNumber + 1,
    isEvidence: false,
    state: call.state,
    attempt: call.attempt,
    attemptOpen: call.attemptOpen,
    unresolved: call.unresolved,
    unknownSinceMs: computeMsSinceUnknown(call),
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
    attemptDetail: call.attemptDetail,
    disprovedBy: call.disprovedBy,
  };
}

function computeMsSinceUnknown({ unknownSince }: OwnedCallState): number | null {
  return typeof unknownSince === 'number' ? performance.now() - unknownSince : null;
}

type ReportedFields = Pick<CallSummary, 'answer' | 'outcome' | 'problem' | 'detail' | 'leaf'>;

/** The summary of a call that this process ended. Has the members of `summarizeCall` in the same order, for one V8 shape. */
function toCallSummary(job: Job, state: CallState, reported: ReportedFields, pursued: boolean): CallSummary {
  return {
    txn: job.txn,
    agent: job.agent,
    tool: job.tool.name,
    identity: job.identity,
    attempt: job.attempt,
    saga: job.saga,
    state,
    answer: reported.answer,
    outcome: reported.outcome,
    problem: reported.problem,
    detail: reported.detail,
    leaf: reported.leaf,
    pursued,
    hold: null,
  };
}

function toAuditSubject(job: Job): JsonObject {
  return { txn: job.txn, agent: job.agent, tool: job.tool.name, attempt: job.attempt };
}

export function buildCallEvent(what: string, detail: JsonObject): CallEvent {
  const members = Object.entries(detail).map(([name, value]) => [
    name,
    typeof value === 'string' ? sanitize(value) : value,
  ]);
  return { ...Object.fromEntries(members), what, at: new Date().toISOString() };
}

/** The result of the newest attempt, of this process or recorded by an earlier owner; else why there was none. */
export function describeLastAttempt(job: Job, last: Outcome | undefined): string {
  if (last !== undefined) return describeOutcome(last);
  return (
    job.attemptDetail ?? (job.attempt === 0 ? 'it could not be sent in time' : 'it could not be sent again in time')
  );
}

/** The outcome of an attempt in words. */
export function describeOutcome(outcome: Outcome): string {
  if ('detail' in outcome && outcome.detail !== undefined) return sanitize(outcome.detail);
  return 'answer' in outcome ? `the upstream answered ${outcome.answer?.status}` : outcome.kind;
}
