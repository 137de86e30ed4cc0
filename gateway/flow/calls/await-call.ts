import { type CallSummary, summarizeCall } from '../../domain/calls/call.ts';
import { type CallState, isFinalState } from '../../domain/calls/call-state.ts';
import { type ErrorCode, GatewayError } from '../../domain/errors.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import { type CancelToken, sleepUnlessCancelled, withTimeout } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { ReleasedError } from './refusal.ts';

/** Another replica's call is looked at this often, rarer the longer it takes. */
const POLL_DELAY = { firstMs: 25, mostMs: 500 };

/** A ledger that stumbles for no longer than this is not worth telling a caller about, who is owed an answer in two seconds. */
const LEDGER_GRACE_MS = 400;

/** Whether there is nothing more to wait for: final, waiting for a person, or unknown to all but a person. */
function isWaitOver(call: CallSummary): boolean {
  return isFinalState(call.state) || (call.state === 'in_doubt' && !call.pursued);
}

/**
 * Waits until a call comes to rest or the patience ends, and tells how it stands then. Undefined: there is no such call
 * (any more): its claim was released. The caller's going away ends the waiting and nothing else.
 */
export async function awaitCall(
  station: Context,
  dispatch: Dispatch,
  txn: string,
  patienceMs: number,
  caller?: CancelToken,
  fingerprint?: Buffer,
): Promise<CallSummary | undefined> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL_DELAY.firstMs; ; poll = Math.min(poll * 1.5, POLL_DELAY.mostMs)) {
    const here = dispatch.inFlight(txn);
    if (here !== undefined) {
      const { ending: coming, job } = here;
      let ending = await withTimeout(coming, until - performance.now(), caller, job.ledger);
      if (ending === undefined && job.ledger.gone && performance.now() < until && caller?.gone !== true) {
        ending = await withTimeout(coming, LEDGER_GRACE_MS, caller);
        if (ending === undefined) throw buildUnrecordedError(txn, job.state);
      }
      if (ending?.as === 'told' && isWaitOver(ending.face)) return ending.face;
      if (ending?.as === 'released') throw buildReleasedError(txn, ending.code, ending.detail);
    }
    const call = await station.calls.read(txn);
    // Given up; and perhaps the txn is another request's by now.
    if (call === undefined || fingerprint?.equals(call.fingerprint) === false) return undefined;
    const now = summarizeCall(call);
    const left = until - performance.now();
    if (isWaitOver(now) || left <= 0 || caller?.gone === true || dispatch.shutdownToken.gone) return now;
    await sleepUnlessCancelled(Math.min(poll, left), caller, dispatch.shutdownToken);
  }
}

export function buildReleasedError(txn: string, code: ErrorCode, detail: string): ReleasedError {
  const why = `Nothing was sent: ${detail}. The key is free to be used again.`;
  return new ReleasedError(code, why, { txn, retryAfterSeconds: 1 });
}

/**
 * The outcome may be known here, but nobody is told what the ledger does not know. Nor that nothing was sent: it may have been, and
 * whoever believed that it was not would ask for it under another key (docs/adr/0045-unavailable-means-nothing-was-sent.md).
 */
export function buildUnrecordedError(txn: string, state?: CallState): GatewayError {
  const detail =
    'What became of it cannot be recorded or read just now. Ask again with the same key: it is not executed anew.';
  return new GatewayError('in_doubt', detail, { txn, ...(state === undefined ? {} : { state }), retryAfterSeconds: 1 });
}
