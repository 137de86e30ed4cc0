import { type CallSummary, summarizeCall } from '../../domain/calls/call.ts';
import { type CallState, isFinalState } from '../../domain/calls/call-state.ts';
import { type ErrorCode, GatewayError } from '../../domain/errors.ts';
import type { Dispatch } from '../attempts/dispatch.ts';
import { type CancelToken, sleepUnlessCancelled, withTimeout } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { ReleasedError } from './refusal.ts';

/** How often a call of another replica is read. The interval grows up to `maxMs`. */
const POLL_DELAY = { firstMs: 25, maxMs: 500 };

/** A caller gets no error for a ledger failure shorter than this. Callers must get an answer within two seconds of a failure. */
const LEDGER_GRACE_MS = 400;

/** Whether waiting longer is useless: the call is final, or in doubt until a person resolves it. */
function isWaitOver(call: CallSummary): boolean {
  return isFinalState(call.state) || (call.state === 'in_doubt' && !call.pursued);
}

/**
 * Waits until a call is final, or in doubt until a person decides, or until `patienceMs` has passed. Then returns the call.
 * Returns undefined if the claim was released, so that the call no longer exists. If the caller hangs up, only the wait ends.
 */
export async function awaitCall(
  ctx: Context,
  dispatch: Dispatch,
  txn: string,
  patienceMs: number,
  cancelToken?: CancelToken,
  fingerprint?: Buffer,
): Promise<CallSummary | undefined> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL_DELAY.firstMs; ; poll = Math.min(poll * 1.5, POLL_DELAY.maxMs)) {
    const local = dispatch.findInFlight(txn);
    if (local !== undefined) {
      const { job } = local;
      let result = await withTimeout(local.result, until - performance.now(), cancelToken, job.ledgerFailure);
      if (
        result === undefined &&
        job.ledgerFailure.isCancelled &&
        performance.now() < until &&
        cancelToken?.isCancelled !== true
      ) {
        result = await withTimeout(local.result, LEDGER_GRACE_MS, cancelToken);
        if (result === undefined) throw buildUnrecordedError(txn, job.state);
      }
      if (result?.kind === 'reported' && isWaitOver(result.call)) return result.call;
      if (result?.kind === 'released') throw buildReleasedError(txn, result.code, result.detail);
    }
    const call = await ctx.calls.read(txn);
    // The claim was released. Another request may have claimed the txn since.
    if (call === undefined || fingerprint?.equals(call.fingerprint) === false) return undefined;
    const summary = summarizeCall(call);
    const left = until - performance.now();
    if (isWaitOver(summary) || left <= 0 || cancelToken?.isCancelled === true || dispatch.shutdownToken.isCancelled)
      return summary;
    await sleepUnlessCancelled(Math.min(poll, left), cancelToken, dispatch.shutdownToken);
  }
}

export function buildReleasedError(txn: string, code: ErrorCode, detail: string): ReleasedError {
  const text = `Nothing was sent: ${detail}. The key can be used again.`;
  return new ReleasedError(code, text, { txn, retryAfterSeconds: 1 });
}

/**
 * This process may know the outcome, but callers never hear an outcome that the ledger has not recorded. The error is not
 * `unavailable` either: the call may have been sent, and a caller that believed otherwise would repeat it under another key
 * (docs/adr/0045-unavailable-means-nothing-was-sent.md).
 */
export function buildUnrecordedError(txn: string, state?: CallState): GatewayError {
  const detail =
    'The outcome of this call cannot be recorded or read now. Ask again with the same key: the call is not executed twice.';
  return new GatewayError('in_doubt', detail, { txn, ...(state === undefined ? {} : { state }), retryAfterSeconds: 1 });
}
