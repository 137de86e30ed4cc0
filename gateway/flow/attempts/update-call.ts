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
import type { CallEvent } from '../../domain/calls/call-record.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import { type ErrorCode, LedgerError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { recordContradiction, releaseClaim } from '../../ledger/calls/call-ownership.ts';
import type { Context } from '../context.ts';
import { buildCallEvent, buildOpenCallPatch, buildSettlementPatch, type OpenCallChange } from './build-patches.ts';
import { type DispatchResult, type InFlightCall, patchCall } from './in-flight-call.ts';

/**
 * Writes what became of a call that this process owns. A call is settled (it is final), parked (in doubt), released (its key
 * can be used again) or handed back (any process continues it); `recordProgress` writes its state between attempts. A failed
 * write is retried for as long as the process lives.
 */

/** The upstream answered, and the answer is conclusive. */
export function settleAnswer(
  ctx: Context,
  call: InFlightCall,
  state: 'succeeded' | 'failed',
  outcome: Outcome,
): Promise<DispatchResult> {
  // A tool that only asked for input did nothing, so there is nothing to undo.
  if (outcome.kind === 'ok' && outcome.wantsInput === true) call.undoArguments = null;
  return settleCall(ctx, call, buildAnswerSettlement(state, outcome, call.record.unresolved), findAnswer(outcome));
}

/** The requested state exists already: nothing is sent, and there is nothing to undo. */
export function settleSatisfied(ctx: Context, call: InFlightCall, answer: UpstreamAnswer): Promise<DispatchResult> {
  call.undoArguments = null;
  return settleCall(ctx, call, ALREADY_SATISFIED, answer);
}

/** Nothing was sent, and nothing may be sent. */
export function settleDenied(ctx: Context, call: InFlightCall, why: string): Promise<DispatchResult> {
  return settleCall(ctx, call, buildDeniedSettlement(why), undefined);
}

/** The call had no effect, and no attempt is left. */
export function settleFailed(
  ctx: Context,
  call: InFlightCall,
  lastOutcome: Outcome | undefined,
): Promise<DispatchResult> {
  patchCall(call, { unresolved: 0 });
  return settleCall(ctx, call, buildFailedSettlement(call.record, lastOutcome), findAnswer(lastOutcome));
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
  call: InFlightCall,
  settlement: Settlement,
  answer: UpstreamAnswer | undefined,
): Promise<DispatchResult> {
  const { record } = call;
  const { state, outcome, evidence, problem = null } = settlement;
  const detail = settlement.detail === undefined ? null : sanitize(settlement.detail);
  const entry = buildAuditEntry(state === 'succeeded' ? 'call_succeeded' : 'call_failed', {
    txn: record.txn,
    agent: record.agent,
    tool: record.tool,
    attempt: record.attempt,
    outcome,
    evidence,
    answer: answer?.body == null ? undefined : sha256Hex(answer.body),
  });
  const leaf = call.isRecorded ? hashLeaf(entry) : null;
  const version = ctx.replayCache.readVersion();
  const patch = buildSettlementPatch(record, call.times.unknownSince, settlement, {
    detail,
    answer: answer ?? null,
    leaf,
    undo: call.undoArguments,
    entry,
  });
  const isSettled = !call.isRecorded || (await retryUntilWritten(ctx, call, () => ctx.calls.settle(patch)));
  patchCall(call, { updateNumber: patch.updateNumber });
  ctx.reachKillPoint('settled');
  if (!isSettled) return reportContradiction(ctx, call, state);
  patchCall(call, {
    state,
    detail,
    outcome,
    problem,
    answer: patch.answer,
    evidence,
    leaf,
    settledAt: new Date(),
    attemptOpen: false,
    unresolved: 0,
    owner: null,
  });
  ctx.replayCache.add(record, record.fingerprint, 0, version);
  return { kind: 'reported', call: record };
}

/** The call is final already, or another process owns it. A different final state is a contradiction that people must see. */
async function reportContradiction(ctx: Context, call: InFlightCall, state: CallState): Promise<DispatchResult> {
  const { txn, tool, agent, attempt } = call.record;
  const stored = await retryUntilWritten(ctx, call, () => ctx.calls.read(txn));
  if (stored !== undefined && stored.settledAt !== null && stored.state !== state) {
    const text = `recorded as ${stored.state}, but attempt ${attempt} ${state}`;
    const entry = buildAuditEntry('contradiction', { ...toAuditSubject(call), detail: text });
    await retryUntilWritten(ctx, call, () => recordContradiction(ctx.db, txn, text, entry));
    ctx.log.error({ txn, tool, agent }, `Contradiction: ${text}.`);
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
  call: InFlightCall,
  wakeMs: number | null,
  why: string,
  lastOutcome: Outcome | undefined,
  observed: JsonObject = {},
): Promise<DispatchResult> {
  ctx.reachKillPoint('parking');
  if (lastOutcome !== undefined) patchCall(call, { attemptDetail: describeOutcome(lastOutcome) });
  const lastAnswer = lastOutcome === undefined ? {} : { told: describeOutcome(lastOutcome) };
  const detail = sanitize(lastOutcome === undefined ? why : `${describeOutcome(lastOutcome)}; ${why}`);
  const { record } = call;
  const entry = buildAuditEntry('call_in_doubt', { ...toAuditSubject(call), unresolved: record.unresolved });
  const event = buildCallEvent('in_doubt', { attempt: record.attempt, ...lastAnswer, why, ...observed });
  const parked = { dueInMs: wakeMs };
  const isParked = await updateCall(ctx, call, { state: 'in_doubt', parked, detail, event, entry });
  ctx.reachKillPoint('parked');
  if (!isParked) return { kind: 'elsewhere' };
  const dueAt = wakeMs === null ? null : new Date(Date.now() + wakeMs);
  patchCall(call, { state: 'in_doubt', detail, owner: null, dueAt });
  return { kind: 'reported', call: record };
}

/** Deletes the claim of a call that was never sent, so that its key can be used again. */
export async function releaseCall(
  ctx: Context,
  call: InFlightCall,
  lastOutcome: Outcome | undefined,
  code: ErrorCode = 'unavailable',
): Promise<DispatchResult> {
  const isHeldBack = lastOutcome?.kind === 'not_sent' && lastOutcome.heldBack === true;
  const problem = isHeldBack ? 'breaker_open' : code;
  // Leave out the detail: it may contain text of the upstream, and the audit log is permanent.
  const entry = buildAuditEntry('call_released', { ...toAuditSubject(call), problem });
  const isReleased =
    !call.isRecorded || (await retryUntilWritten(ctx, call, () => releaseClaim(ctx.db, call.record, entry)));
  return isReleased
    ? { kind: 'released', code: problem, detail: describeLastAttempt(call.record, lastOutcome) }
    : { kind: 'elsewhere' };
}

/** Gives up the ownership, because this process is shutting down or may not send. Any process makes the next attempt. */
export async function handBackCall(ctx: Context, call: InFlightCall, dueInMs = 0): Promise<DispatchResult> {
  const entry = buildAuditEntry('call_handed_back', toAuditSubject(call));
  await updateCall(ctx, call, { parked: { dueInMs }, entry });
  return { kind: 'elsewhere' };
}

/** Writes the state of a call between attempts. Returns false if the call is final or another process owns it. */
export async function recordProgress(ctx: Context, call: InFlightCall, event: CallEvent | null): Promise<boolean> {
  const entry = buildAuditEntry(call.record.attemptOpen ? 'attempt_opened' : 'attempt_closed', {
    ...toAuditSubject(call),
    unresolved: call.record.unresolved,
  });
  // The observed state is stored with the opened attempt, before its first byte leaves.
  const undo = call.record.attemptOpen ? call.undoArguments : null;
  return updateCall(ctx, call, { event, undo, entry });
}

/** Applies a patch once, however often the write is retried: the update number tells a retry from the next patch. */
async function updateCall(ctx: Context, call: InFlightCall, change: OpenCallChange): Promise<boolean> {
  const patch = buildOpenCallPatch(call.record, call.times.unknownSince, change);
  const isApplied = !call.isRecorded || (await retryUntilWritten(ctx, call, () => ctx.calls.update(patch)));
  patchCall(call, { updateNumber: patch.updateNumber });
  return isApplied;
}

/** Retries a ledger operation for as long as this process lives, unless the error is permanent. */
export async function retryUntilWritten<T>(ctx: Context, call: InFlightCall, operation: () => Promise<T>): Promise<T> {
  for (let delay = 50; ; delay = Math.min(delay * 2, 1_000)) {
    try {
      return await operation();
    } catch (error) {
      if (!(error instanceof LedgerError) || error.isPermanent) throw error;
      call.ledgerFailure.cancel();
      ctx.log.warn({ txn: call.record.txn, err: error.message }, 'A ledger operation failed. It is tried again.');
      await sleep(delay);
    }
  }
}

function toAuditSubject({ record: { txn, agent, tool, attempt } }: InFlightCall): JsonObject {
  return { txn, agent, tool, attempt };
}
