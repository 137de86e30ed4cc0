import { type CallRecord, isPursued } from '../../domain/calls/call-record.ts';
import { type CallState, isFinalState } from '../../domain/calls/call-state.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import type { DispatchResult, InFlightCall } from '../attempts/in-flight-call.ts';
import { type CancelToken, sleepUnlessCancelled, withTimeout } from '../cancel-token.ts';
import type { ParsedCall, Services } from './execute-call.ts';
import { buildReleasedError } from './refusals.ts';
import { awaitUnrecordedRead } from './unrecorded-reads.ts';

/** How often a call of another replica is read. The interval grows up to `maxMs`. */
const POLL_DELAY = { firstMs: 25, maxMs: 500 };

/** A caller gets no error for a ledger failure shorter than this. Callers must get an answer within two seconds of a failure. */
const LEDGER_GRACE_MS = 400;

/** A call to wait for: what runs its attempts in this process, or its txn if this process may not run any. */
type AwaitedCall = InFlightCall | string;

/** Waits for the result of a call for as long as its caller waits. A ledger failure is answered `in_doubt`. */
export function awaitResult(
  services: Services,
  call: ParsedCall,
  awaited: AwaitedCall,
  until: number = call.until,
): Promise<CallRecord> {
  const { cancelToken } = call.toolCall;
  if (typeof awaited !== 'string' && !awaited.isRecorded) return awaitUnrecordedRead(awaited, until, cancelToken);
  return awaitRecordedResult(services, call.fingerprint, awaited, until, cancelToken);
}

async function awaitRecordedResult(
  services: Services,
  fingerprint: Buffer,
  awaited: AwaitedCall,
  until: number,
  cancelToken: CancelToken | undefined,
): Promise<CallRecord> {
  const txn = typeof awaited === 'string' ? awaited : awaited.record.txn;
  let call: CallRecord | undefined;
  try {
    call = await awaitCall(services, fingerprint, awaited, until, cancelToken);
  } catch (error) {
    throw toInDoubtError(txn, undefined, error);
  }
  if (call === undefined) throw buildReleasedError(txn, 'unavailable', 'the call was released before it was sent');
  return call;
}

/**
 * Waits until a call is final, or in doubt until a person decides, or until `until` on the monotonic clock. Then returns the
 * call. Returns undefined if the claim was released, so that the call no longer exists. If the caller hangs up, only the wait
 * ends.
 */
export async function awaitCall(
  { ctx, dispatch }: Services,
  fingerprint: Buffer,
  awaited: AwaitedCall,
  until: number,
  cancelToken: CancelToken | undefined,
): Promise<CallRecord | undefined> {
  const txn = typeof awaited === 'string' ? awaited : awaited.record.txn;
  let inFlight = typeof awaited === 'string' ? dispatch.findInFlight(awaited) : awaited;
  for (let poll = POLL_DELAY.firstMs; ; poll = Math.min(poll * 1.5, POLL_DELAY.maxMs)) {
    if (inFlight !== undefined) {
      const { ledgerFailure } = inFlight;
      let ended = await withTimeout(inFlight.result, until - performance.now(), cancelToken, ledgerFailure);
      const isLedgerFailing = ended === undefined && ledgerFailure.isCancelled;
      if (isLedgerFailing && performance.now() < until && cancelToken?.isCancelled !== true)
        ended = await awaitDespiteLedgerFailure(inFlight, cancelToken);
      if (ended?.kind === 'reported' && isWaitOver(ended.call)) return ended.call;
      if (ended?.kind === 'released') throw buildReleasedError(txn, ended.code, ended.detail);
    }
    const call = await ctx.calls.read(txn);
    // The claim was released. Another request may have claimed the txn since.
    if (call === undefined || !fingerprint.equals(call.fingerprint)) return undefined;
    const left = until - performance.now();
    if (isWaitOver(call) || left <= 0 || cancelToken?.isCancelled === true || dispatch.shutdownToken.isCancelled)
      return call;
    await sleepUnlessCancelled(Math.min(poll, left), cancelToken, dispatch.shutdownToken);
    // Another process may have handed the call to this one.
    inFlight = dispatch.findInFlight(txn);
  }
}

/** Waits a little longer for a call whose ledger write fails. Throws `in_doubt` if the failure lasts. */
async function awaitDespiteLedgerFailure(
  { record, result }: InFlightCall,
  cancelToken: CancelToken | undefined,
): Promise<DispatchResult> {
  const ended = await withTimeout(result, LEDGER_GRACE_MS, cancelToken);
  if (ended === undefined) throw buildUnrecordedError(record.txn, record.state);
  return ended;
}

/** Whether waiting longer is useless: the call is final, or in doubt until a person resolves it. */
function isWaitOver(call: CallRecord): boolean {
  return isFinalState(call.state) || (call.state === 'in_doubt' && !isPursued(call));
}

/** The error for the caller of a call that may have been sent: a ledger failure becomes `in_doubt`. */
export function toInDoubtError(txn: string, state: CallState | undefined, error: unknown): unknown {
  return error instanceof LedgerError ? buildUnrecordedError(txn, state) : error;
}

/**
 * This process may know the outcome, but callers never hear an outcome that the ledger has not recorded. The error is not
 * `unavailable` either: the call may have been sent, and a caller that believed otherwise would repeat it under another key
 * (docs/adr/0045-unavailable-means-nothing-was-sent.md).
 */
function buildUnrecordedError(txn: string, state?: CallState): GatewayError {
  const detail =
    'The outcome of this call cannot be recorded or read now. Ask again with the same key: the call is not executed twice.';
  return new GatewayError('in_doubt', detail, { txn, ...(state === undefined ? {} : { state }), retryAfterSeconds: 1 });
}
