import { decideNextAction, isUnsentRead, type NextAction } from '../../domain/attempts/next-action.ts';
import type { Context } from '../context.ts';
import { type ActionResult, type AttemptLoop, closeAttempt } from './attempt-loop.ts';
import { observeEffect, probeEffect } from './find-effect.ts';
import { type Job, toCallProgress } from './job.ts';
import { sendAttempt } from './send-attempt.ts';
import { type DispatchResult, handBackCall, parkCall, releaseCall, settleFailed } from './update-call.ts';

/** How soon a call is tried again after an internal error, which will most likely occur again. */
const INTERNAL_ERROR_RECHECK_MS = 5_000;

/**
 * Decides the next action of an open call, performs it, and decides again, until the work on the call ends. Never rejects:
 * a call that an internal error interrupts is parked or handed back.
 */
export async function runAttempts(loop: AttemptLoop): Promise<DispatchResult> {
  const { ctx, job } = loop;
  try {
    let result: ActionResult = job.attemptOpen
      ? { do: 'send', afterMs: 0 }
      : decideNextAction(toCallProgress(job), job.tool, job.isDue);
    while ('do' in result) result = await performAction(loop, result);
    return result;
  } catch (error) {
    ctx.log.error({ err: error, txn: job.txn }, 'An internal error interrupted a call. It is parked or handed back.');
    return await parkOrDrop(ctx, job);
  }
}

function performAction(loop: AttemptLoop, action: NextAction): Promise<ActionResult> {
  const { ctx, job, lastOutcome } = loop;
  switch (action.do) {
    case 'send':
      return sendAttempt(loop, action.afterMs);
    case 'probe':
      return probeEffect(ctx, job);
    case 'observe':
      return observeEffect(ctx, job);
    case 'doubt':
      return parkCall(ctx, job, action.wakeMs, action.why, lastOutcome);
    case 'release':
      return releaseCall(ctx, job, lastOutcome);
    case 'fail':
      return isUnsentRead(toCallProgress(job), lastOutcome)
        ? releaseCall(ctx, job, lastOutcome)
        : settleFailed(ctx, job, lastOutcome);
  }
}

async function parkOrDrop(ctx: Context, job: Job): Promise<DispatchResult> {
  try {
    return await parkAfterInternalError(ctx, job);
  } catch (error) {
    ctx.log.error({ err: error, txn: job.txn }, 'A call could not be parked. Recovery releases it later.');
    return { kind: 'elsewhere' };
  }
}

/**
 * Gives up a call after an internal error, or after its upstream vanished from the policies. Other processes ignore a call
 * while its owner lives, so this process must not keep it. An open attempt is unknown, and recovery tries again later.
 */
function parkAfterInternalError(ctx: Context, job: Job): Promise<DispatchResult> {
  const why = 'an internal error of the gateway interrupted this call';
  if (job.kind === 'read') return settleFailed(ctx, job, { kind: 'ambiguous', detail: why });
  if (job.attempt === 0) return handBackCall(ctx, job, INTERNAL_ERROR_RECHECK_MS);
  closeAttempt(job, job.attemptOpen);
  return parkCall(ctx, job, job.tool.retry.maxMs, why, undefined);
}
