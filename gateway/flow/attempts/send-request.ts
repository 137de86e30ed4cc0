import type { Outcome } from '../../domain/attempts/adapter.ts';
import { describeOutcome } from '../../domain/attempts/describe-outcome.ts';
import { canReleaseBlocked, concludeAttempt, decideNextAction } from '../../domain/attempts/next-action.ts';
import { parseResult, redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import { withLockToken } from '../controls/locks.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import { type ActionResult, type AttemptLoop, closeAttempt, toSpanSubject } from './attempt-loop.ts';
import { buildCallEvent } from './build-call-update.ts';
import { type Job, toCallProgress } from './job.ts';
import {
  type DispatchResult,
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
  const { ctx, job, span } = loop;
  const sendSpan = ctx.telemetry.begin('send', toSpanSubject(job), span);
  const received = await send(ctx, job, policyVersion);
  sendSpan.end({ outcome: received.kind, attempt: job.attempt });
  const outcome = prepareUndoAndRedact(ctx, job, received);
  loop.lastOutcome = outcome;
  if (outcome.kind === 'not_sent' && outcome.abandoned === true) return handleAbandonedSend(ctx, job, outcome);
  ctx.reachKillPoint('answered');
  const conclusion = concludeAttempt(job.kind, outcome, job.unresolved);
  if (conclusion.state === 'open') return continueOpenCall(ctx, job, outcome, conclusion.unknown);
  const settleSpan = ctx.telemetry.begin('settle', toSpanSubject(job), span);
  try {
    return await settleAnswer(ctx, job, conclusion.state, outcome);
  } finally {
    settleSpan.end();
  }
}

/** Not async, because every promise on the path of a call costs (docs/adr/0041-cost-of-a-call.md). */
function send(ctx: Context, job: Job, policyVersion: string | undefined): Promise<Outcome> {
  return ctx.adapters.getAdapter(job.tool).send(job.tool, withLockToken(job), {
    timeoutMs: job.tool.timeoutMs,
    freshConnection: job.kind === 'probe' || job.kind === 'none',
    listener: job.progressListener,
    discreet: job.secrets.length > 0,
    maySend: () => maySend(ctx, job, policyVersion),
  });
}

/** The last check, right before the first byte. Returns false if this process must not send the request. */
function maySend(ctx: Context, job: Job, policyVersion: string | undefined): boolean {
  const { controlFlags, policies, reachKillPoint } = ctx;
  reachKillPoint('sending');
  if (policyVersion !== undefined && policies().version !== policyVersion) return false;
  // The lifetime of the key may have ended while the request queued and connected.
  if (job.unknownSince !== null && toCallProgress(job).msToResend <= 0) return false;
  if (job.unresolved === 0 && controlFlags.isRecalled(job.txn)) return false;
  return controlFlags.canSend(job.owner) && findSendBlock(ctx, job) === undefined;
}

/** Prepares the undo if the attempt had its effect, and redacts the answer before it is stored and returned. */
function prepareUndoAndRedact(ctx: Context, job: Job, outcome: Outcome): Outcome {
  if ((outcome.kind === 'ok' && outcome.wantsInput !== true) || outcome.kind === 'ok_body_lost')
    job.undoArguments = prepareUndoArguments(ctx, job, () => parseResult(outcome.answer));
  if (!('answer' in outcome) || outcome.answer === undefined) return outcome;
  const answer = redactAnswer(job.tool, outcome.answer, job.args, job.secrets);
  return answer === outcome.answer ? outcome : { ...outcome, answer };
}

/** Closes an attempt that did not end its call. Its result is recorded before the next request, or when the call is parked. */
async function continueOpenCall(ctx: Context, job: Job, outcome: Outcome, isUnknown: boolean): Promise<ActionResult> {
  closeAttempt(job, isUnknown);
  job.attemptDetail = describeOutcome(outcome);
  const next = decideNextAction(toCallProgress(job), job.tool, false);
  if (next.do !== 'send') return next;
  const detail = { attempt: job.attempt, as: outcome.kind, detail: job.attemptDetail };
  return (await recordProgress(ctx, job, buildCallEvent('attempt_ended', detail))) ? next : { kind: 'elsewhere' };
}

/** Handles a send that a freeze, a recall or a lost lease stopped before its first byte. */
async function handleAbandonedSend(ctx: Context, job: Job, outcome: Outcome): Promise<DispatchResult> {
  closeAttempt(job, false);
  if (job.unresolved === 0 && ctx.controlFlags.isRecalled(job.txn)) {
    // The recall may concern an earlier, released claim of the same txn. Only the ledger knows.
    const call = await retryUntilWritten(ctx, job, () => ctx.calls.read(job.txn));
    job.recalled = call?.recalled === true;
    return job.recalled ? settleFailed(ctx, job, outcome) : handBackCall(ctx, job, FROZEN_RECHECK_MS);
  }
  const block = findSendBlock(ctx, job);
  if (block === undefined) return handBackCall(ctx, job);
  if (!canReleaseBlocked(toCallProgress(job))) return handBackCall(ctx, job, FROZEN_RECHECK_MS);
  return releaseCall(ctx, job, { ...outcome, kind: 'not_sent', detail: block.detail }, block.code);
}
