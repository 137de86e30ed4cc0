import { setTimeout as sleep } from 'node:timers/promises';
import type { Outcome, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { describeLastAttempt, describeOutcome } from '../../domain/attempts/describe-outcome.ts';
import {
  ALREADY_SATISFIED,
  buildAnswerSettlement,
  buildDeniedSettlement,
  buildFailedSettlement,
  type Settlement,
} from '../../domain/attempts/settlement.ts';
import { buildAuditEntry, hashLeaf, sha256Hex } from '../../domain/audit/audit.ts';
import type { CallEvent, CallSummary } from '../../domain/calls/call-record.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import { type ErrorCode, LedgerError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { recordContradiction, releaseClaim } from '../../ledger/calls/call-ownership.ts';
import type { CallUpdate } from '../../ledger/calls/calls.ts';
import type { Context } from '../context.ts';
import { buildBaseUpdate, buildCallEvent, buildClosingUpdate, toCallSummary } from './build-call-update.ts';
import type { Job } from './job.ts';

/**
 * Writes what became of a call that this process owns. A call is settled (it is final), parked (in doubt), released (its key
 * can be used again) or handed back (any process continues it); `recordProgress` writes its state between attempts. A failed
 * write is retried for as long as the process lives.
 */

/** How dispatch ended its work on a call. */
export type DispatchResult =
  /** The call is final, or parked in doubt. */
  | { readonly kind: 'reported'; readonly call: CallSummary }
  /** Nothing was sent, and the key can be used again. */
  | { readonly kind: 'released'; readonly code: ErrorCode; readonly detail: string }
  /** Another process owns the call now, or only the ledger knows its state. */
  | { readonly kind: 'elsewhere' };

/** The upstream answered, and the answer is conclusive. */
export function settleAnswer(
  ctx: Context,
  job: Job,
  state: 'succeeded' | 'failed',
  outcome: Outcome,
): Promise<DispatchResult> {
  // A tool that only asked for input did nothing, so there is nothing to undo.
  if (outcome.kind === 'ok' && outcome.wantsInput === true) job.undoArguments = null;
  return settleCall(ctx, job, buildAnswerSettlement(state, outcome, job.unresolved), findAnswer(outcome));
}

/** The requested state exists already: nothing is sent, and there is nothing to undo. */
export function settleSatisfied(ctx: Context, job: Job, answer: UpstreamAnswer): Promise<DispatchResult> {
  job.undoArguments = null;
  return settleCall(ctx, job, ALREADY_SATISFIED, answer);
}

/** Nothing was sent, and nothing may be sent. */
export function settleDenied(ctx: Context, job: Job, why: string): Promise<DispatchResult> {
  return settleCall(ctx, job, buildDeniedSettlement(why), undefined);
}

/** The call had no effect, and no attempt is left. */
export function settleFailed(ctx: Context, job: Job, last: Outcome | undefined): Promise<DispatchResult> {
  job.unresolved = 0;
  return settleCall(ctx, job, buildFailedSettlement(job, last), findAnswer(last));
}

function findAnswer(outcome: Outcome | undefined): UpstreamAnswer | undefined {
  return outcome !== undefined && 'answer' in outcome ? outcome.answer : undefined;
}

/**
 * Ends a call. Callers get the result only after the commit. A crash before the commit leaves an unknown attempt, although
 * the answer arrived: recovery looks for evidence again.
 */
export async function settleCall(
  ctx: Context,
  job: Job,
  settlement: Settlement,
  answer: UpstreamAnswer | undefined,
): Promise<DispatchResult> {
  const { state, outcome, evidence, problem = null } = settlement;
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
  const version = ctx.replayCache.readVersion();
  const stored = answer === undefined ? null : JSON.stringify(answer);
  const isSettled = await applyUpdate(
    ctx,
    job,
    buildClosingUpdate(job, settlement, { detail, answer: stored, leaf, entry }),
  );
  ctx.reachKillPoint('settled');
  if (!isSettled) return reportContradiction(ctx, job, state);
  const call = toCallSummary(job, state, { answer: answer ?? null, outcome, problem, detail, leaf }, false);
  ctx.replayCache.add(call, job.fingerprint, 0, version);
  return { kind: 'reported', call };
}

/** The call is final already, or another process owns it. A different final state is a contradiction that people must see. */
async function reportContradiction(ctx: Context, job: Job, state: CallState): Promise<DispatchResult> {
  const call = await retryUntilWritten(ctx, job, () => ctx.calls.read(job.txn));
  if (call !== undefined && call.settledAt !== null && call.state !== state) {
    const text = `recorded as ${call.state}, but attempt ${job.attempt} ${state}`;
    const entry = buildAuditEntry('contradiction', { ...toAuditSubject(job), detail: text });
    await retryUntilWritten(ctx, job, () => recordContradiction(ctx.db, job.txn, text, entry));
    ctx.log.error({ txn: job.txn, tool: job.tool.name, agent: job.agent }, `Contradiction: ${text}.`);
  }
  return { kind: 'elsewhere' };
}

/**
 * Writes `in_doubt`, with the observed state if there is one, and gives up the ownership. The call is due again after
 * `wakeMs`; null: only a person can end the doubt. A crash before the commit leaves a call of a dead owner, which
 * recovery parks again.
 */
export async function parkCall(
  ctx: Context,
  job: Job,
  wakeMs: number | null,
  why: string,
  last: Outcome | undefined,
  observed: JsonObject = {},
): Promise<DispatchResult> {
  ctx.reachKillPoint('parking');
  if (last !== undefined) job.attemptDetail = describeOutcome(last);
  const lastAnswer = last === undefined ? {} : { told: describeOutcome(last) };
  const detail = sanitize(last === undefined ? why : `${describeOutcome(last)}; ${why}`);
  const entry = buildAuditEntry('call_in_doubt', { ...toAuditSubject(job), unresolved: job.unresolved });
  const isParked = await applyUpdate(ctx, job, {
    ...buildBaseUpdate(job),
    state: 'in_doubt',
    custody: 'park',
    dueInMs: wakeMs,
    detail,
    event: buildCallEvent('in_doubt', { attempt: job.attempt, ...lastAnswer, why, ...observed }),
    entry,
  });
  ctx.reachKillPoint('parked');
  if (!isParked) return { kind: 'elsewhere' };
  const reported = { answer: null, outcome: null, problem: null, detail, leaf: null };
  return { kind: 'reported', call: toCallSummary(job, 'in_doubt', reported, wakeMs !== null) };
}

/** Deletes the claim of a call that was never sent, so that its key can be used again. */
export async function releaseCall(
  ctx: Context,
  job: Job,
  last: Outcome | undefined,
  code: ErrorCode = 'unavailable',
): Promise<DispatchResult> {
  const isHeldBack = last?.kind === 'not_sent' && last.heldBack === true;
  const problem = isHeldBack ? 'breaker_open' : code;
  // Leave out the detail: it may contain text of the upstream, and the audit log is permanent.
  const entry = buildAuditEntry('call_released', { ...toAuditSubject(job), problem });
  const isReleased = !job.isRecorded || (await retryUntilWritten(ctx, job, () => releaseClaim(ctx.db, job, entry)));
  return isReleased
    ? { kind: 'released', code: problem, detail: describeLastAttempt(job, last) }
    : { kind: 'elsewhere' };
}

/** Gives up the ownership, because this process is shutting down or may not send. Any process makes the next attempt. */
export async function handBackCall(ctx: Context, job: Job, dueInMs = 0): Promise<DispatchResult> {
  const entry = buildAuditEntry('call_handed_back', toAuditSubject(job));
  await applyUpdate(ctx, job, { ...buildBaseUpdate(job), custody: 'park', dueInMs, entry });
  return { kind: 'elsewhere' };
}

/** Writes the state of a call between attempts. Returns false if the call is final or another process owns it. */
export async function recordProgress(ctx: Context, job: Job, event: CallEvent | null): Promise<boolean> {
  const entry = buildAuditEntry(job.attemptOpen ? 'attempt_opened' : 'attempt_closed', {
    ...toAuditSubject(job),
    unresolved: job.unresolved,
  });
  // The observed state is stored with the opened attempt, before its first byte leaves.
  const undo = job.attemptOpen ? job.undoArguments : null;
  return applyUpdate(ctx, job, { ...buildBaseUpdate(job), event, undo, entry });
}

/** Applies an update once, however often the write is retried: the update number tells a retry from the next update. */
async function applyUpdate(ctx: Context, job: Job, update: CallUpdate): Promise<boolean> {
  const isApplied = !job.isRecorded || (await retryUntilWritten(ctx, job, () => ctx.calls.update(update)));
  job.updateNumber = update.updateNumber;
  return isApplied;
}

/** Retries a ledger operation for as long as this process lives, unless the error is permanent. */
export async function retryUntilWritten<T>(ctx: Context, job: Job, operation: () => Promise<T>): Promise<T> {
  for (let delay = 50; ; delay = Math.min(delay * 2, 1_000)) {
    try {
      return await operation();
    } catch (error) {
      if (!(error instanceof LedgerError) || error.isPermanent) throw error;
      job.ledgerFailure.cancel();
      ctx.log.warn({ txn: job.txn, err: error.message }, 'A ledger operation failed. It is tried again.');
      await sleep(delay);
    }
  }
}

function toAuditSubject(job: Job): JsonObject {
  return { txn: job.txn, agent: job.agent, tool: job.tool.name, attempt: job.attempt };
}
