import { decideNextAction, isUnsentRead, type NextAction } from '../../domain/attempts/next-action.ts';
import type { Context } from '../context.ts';
import { type ActionResult, type AttemptLoop, closeAttempt } from './attempt-loop.ts';
import { observeEffect, probeEffect } from './find-effect.ts';
import { type DispatchResult, type InFlightCall, toCallProgress } from './in-flight-call.ts';
import { sendAttempt } from './send-attempt.ts';
import { handBackCall, parkCall, releaseCall, settleFailed } from './update-call.ts';

/** How soon a call is tried again after an internal error, which will most likely occur again. */
const INTERNAL_ERROR_RECHECK_MS = 5_000;

/**
 * Decides the next action of an open call, performs it, and decides again, until the work on the call ends. Never rejects:
 * a call that an internal error interrupts is parked or handed back.
 */
export async function runAttempts(loop: AttemptLoop): Promise<DispatchResult> {
  const { ctx, call } = loop;
  try {
    let result: ActionResult = call.record.attemptOpen
      ? { do: 'send', afterMs: 0 }
      : decideNextAction(toCallProgress(call), call.tool, call.isDue);
    while ('do' in result) result = await performAction(loop, result);
    return result;
  } catch (error) {
    ctx.log.error(
      { err: error, txn: call.record.txn },
      'An internal error interrupted a call. It is parked or handed back.',
    );
    return await parkOrDrop(ctx, call);
  }
}

function performAction(loop: AttemptLoop, action: NextAction): Promise<ActionResult> {
  const { ctx, call, lastOutcome } = loop;
  switch (action.do) {
    case 'send':
      return sendAttempt(loop, action.afterMs);
    case 'probe':
      return probeEffect(ctx, call);
    case 'observe':
      return observeEffect(ctx, call);
    case 'doubt':
      return parkCall(ctx, call, action.wakeMs, action.why, lastOutcome);
    case 'release':
      return releaseCall(ctx, call, lastOutcome);
    case 'fail':
      return isUnsentRead(toCallProgress(call), lastOutcome)
        ? releaseCall(ctx, call, lastOutcome)
        : settleFailed(ctx, call, lastOutcome);
  }
}

async function parkOrDrop(ctx: Context, call: InFlightCall): Promise<DispatchResult> {
  try {
    return await parkAfterInternalError(ctx, call);
  } catch (error) {
    ctx.log.error({ err: error, txn: call.record.txn }, 'A call could not be parked. Recovery releases it later.');
    return { kind: 'elsewhere' };
  }
}

/**
 * Gives up a call after an internal error, or after its upstream vanished from the policies. Other processes ignore a call
 * while its owner lives, so this process must not keep it. An open attempt is unknown, and recovery tries again later.
 */
function parkAfterInternalError(ctx: Context, call: InFlightCall): Promise<DispatchResult> {
  const why = 'an internal error of the gateway interrupted this call';
  if (call.record.kind === 'read') return settleFailed(ctx, call, { kind: 'ambiguous', detail: why });
  if (call.record.attempt === 0) return handBackCall(ctx, call, INTERNAL_ERROR_RECHECK_MS);
  closeAttempt(call, call.record.attemptOpen);
  return parkCall(ctx, call, call.tool.retry.maxMs, why, undefined);
}
