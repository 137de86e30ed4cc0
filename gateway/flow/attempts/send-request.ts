import type { Outcome } from '../../domain/attempts/adapter.ts';
import { parseResult } from '../../domain/attempts/classify-answer.ts';
import { describeOutcome } from '../../domain/attempts/describe-outcome.ts';
import { canReleaseBlocked, concludeAttempt, decideNextAction } from '../../domain/attempts/next-action.ts';
import { redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import { withLockToken } from '../controls/locks.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import { type ActionResult, type AttemptLoop, closeAttempt, toSpanSubject } from './attempt-loop.ts';
import { buildCallEvent } from './build-patches.ts';
import { type DispatchResult, type InFlightCall, patchCall, toCallProgress } from './in-flight-call.ts';
import {
  handBackCall,
  recordProgress,
  releaseCall,
  retryUntilWritten,
  settleAnswer,
  settleFailed,
} from './update-call.ts';

/** How soon a frozen call is tried again. */
const FROZEN_RECHECK_MS = 1_000;

/**
 * Sends the request of the open attempt, and settles the call if the outcome is conclusive. A crash between the first byte
 * and the settlement leaves an unknown attempt. `policyVersion`: the only version under which an approved call is sent.
 */
export async function sendRequest(loop: AttemptLoop, policyVersion: string | undefined): Promise<ActionResult> {
  const { ctx, call, span } = loop;
  const sendSpan = ctx.telemetry.begin('send', toSpanSubject(call), span);
  const received = await send(ctx, call, policyVersion);
  sendSpan.end({ outcome: received.kind, attempt: call.record.attempt });
  const outcome = prepareUndoAndRedact(ctx, call, received);
  loop.lastOutcome = outcome;
  if (outcome.kind === 'not_sent' && outcome.abandoned === true) return handleAbandonedSend(ctx, call, outcome);
  ctx.reachKillPoint('answered');
  const conclusion = concludeAttempt(call.record.kind, outcome, call.record.unresolved);
  if (conclusion.state === 'open') return continueOpenCall(ctx, call, outcome, conclusion.unknown);
  const settleSpan = ctx.telemetry.begin('settle', toSpanSubject(call), span);
  try {
    return await settleAnswer(ctx, call, conclusion.state, outcome);
  } finally {
    settleSpan.end();
  }
}

/** Not async, because every promise on the path of a call costs (docs/adr/0041-cost-of-a-call.md). */
function send(ctx: Context, call: InFlightCall, policyVersion: string | undefined): Promise<Outcome> {
  return ctx.adapters.getAdapter(call.tool).send(call.tool, withLockToken(call), {
    timeoutMs: call.tool.timeoutMs,
    freshConnection: call.record.kind === 'probe' || call.record.kind === 'none',
    listener: call.progressListener,
    discreet: call.payload.secrets.length > 0,
    maySend: () => maySend(ctx, call, policyVersion),
  });
}

/** The last check, right before the first byte. Returns false if this process must not send the request. */
function maySend(ctx: Context, call: InFlightCall, policyVersion: string | undefined): boolean {
  const { controlFlags, policies, reachKillPoint } = ctx;
  reachKillPoint('sending');
  if (policyVersion !== undefined && policies().version !== policyVersion) return false;
  // The lifetime of the key may have ended while the request queued and connected.
  if (call.times.unknownSince !== null && toCallProgress(call).msToResend <= 0) return false;
  if (call.record.unresolved === 0 && controlFlags.isRecalled(call.record.txn)) return false;
  return controlFlags.canSend(call.owner) && findSendBlock(ctx, call.record) === undefined;
}

/** Prepares the undo if the attempt had its effect, and redacts the answer before it is stored and returned. */
function prepareUndoAndRedact(ctx: Context, call: InFlightCall, outcome: Outcome): Outcome {
  if (hasEffect(outcome)) call.undoArguments = prepareUndoArguments(ctx, call, () => parseResult(outcome.answer));
  if (!('answer' in outcome) || outcome.answer === undefined) return outcome;
  const answer = redactAnswer(call.tool, outcome.answer, call.payload.args, call.payload.secrets);
  return answer === outcome.answer ? outcome : { ...outcome, answer };
}

/** Whether there may be something to undo. A tool that only asked for input did nothing. */
function hasEffect(outcome: Outcome): outcome is Extract<Outcome, { kind: 'ok' | 'ok_body_lost' | 'accepted' }> {
  if (outcome.kind === 'ok') return outcome.wantsInput !== true;
  return outcome.kind === 'ok_body_lost' || outcome.kind === 'accepted';
}

/** Closes an attempt that did not end its call. Its result is recorded before the next request, or when the call is parked. */
async function continueOpenCall(
  ctx: Context,
  call: InFlightCall,
  outcome: Outcome,
  isUnknown: boolean,
): Promise<ActionResult> {
  closeAttempt(call, isUnknown);
  patchCall(call, { attemptDetail: describeOutcome(outcome) });
  const next = decideNextAction(toCallProgress(call), call.tool, false);
  if (next.do !== 'send') return next;
  const detail = { attempt: call.record.attempt, as: outcome.kind, detail: call.record.attemptDetail };
  return (await recordProgress(ctx, call, buildCallEvent('attempt_ended', detail))) ? next : { kind: 'elsewhere' };
}

/** Handles a send that a freeze, a recall or a lost lease stopped before its first byte. */
async function handleAbandonedSend(ctx: Context, call: InFlightCall, outcome: Outcome): Promise<DispatchResult> {
  closeAttempt(call, false);
  if (call.record.unresolved === 0 && ctx.controlFlags.isRecalled(call.record.txn)) {
    // The recall may concern an earlier, released claim of the same txn. Only the ledger knows.
    const stored = await retryUntilWritten(ctx, call, () => ctx.calls.read(call.record.txn));
    patchCall(call, { recalled: stored?.recalled === true });
    return call.record.recalled ? settleFailed(ctx, call, outcome) : handBackCall(ctx, call, FROZEN_RECHECK_MS);
  }
  const block = findSendBlock(ctx, call.record);
  if (block === undefined) return handBackCall(ctx, call);
  if (!canReleaseBlocked(toCallProgress(call))) return handBackCall(ctx, call, FROZEN_RECHECK_MS);
  return releaseCall(ctx, call, { ...outcome, kind: 'not_sent', detail: block.detail }, block.code);
}
