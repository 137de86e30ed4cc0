import { type CallFace, face } from '../domain/call.ts';
import { type ErrorCode, GatewayError } from '../domain/errors.ts';
import { type CallState, isFinal } from '../domain/states.ts';
import type { Dispatch } from './dispatch.ts';
import { type Caller, pause, withPatience } from './patience.ts';
import { Released } from './refusal.ts';
import type { Station } from './station.ts';

/** Another replica's call is looked at this often, rarer the longer it takes. */
const POLL = { firstMs: 25, mostMs: 500 };

/** A ledger that stumbles for no longer than this is not worth telling a caller about, who is owed an answer in two seconds. */
const TROUBLE_MS = 400;

/** Whether there is nothing more to wait for: final, waiting for a person, or unknown to all but a person. */
function isAtRest(call: CallFace): boolean {
  return isFinal(call.state) || (call.state === 'in_doubt' && !call.pursued);
}

/**
 * Waits until a call comes to rest or the patience ends, and tells how it stands then. Undefined: there is no such call
 * (any more): its claim was released. The caller's going away ends the waiting and nothing else.
 */
export async function awaitCall(
  station: Station,
  dispatch: Dispatch,
  txn: string,
  patienceMs: number,
  caller?: Caller,
  fingerprint?: Buffer,
): Promise<CallFace | undefined> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL.firstMs; ; poll = Math.min(poll * 1.5, POLL.mostMs)) {
    const here = dispatch.carried(txn);
    if (here !== undefined) {
      const { ending: coming, job } = here;
      let ending = await withPatience(coming, until - performance.now(), caller, job.ledger);
      if (ending === undefined && job.ledger.gone && performance.now() < until && caller?.gone !== true) {
        ending = await withPatience(coming, TROUBLE_MS, caller);
        if (ending === undefined) throw unrecorded(txn, job.state);
      }
      if (ending?.as === 'told' && isAtRest(ending.face)) return ending.face;
      if (ending?.as === 'released') throw released(txn, ending.code, ending.detail);
    }
    const call = await station.calls.read(txn);
    // Given up; and perhaps the txn is another request's by now.
    if (call === undefined || fingerprint?.equals(call.fingerprint) === false) return undefined;
    const now = face(call);
    const left = until - performance.now();
    if (isAtRest(now) || left <= 0 || caller?.gone === true || dispatch.stopping.gone) return now;
    await pause(Math.min(poll, left), caller, dispatch.stopping);
  }
}

export function released(txn: string, code: ErrorCode, detail: string): Released {
  const why = `Nothing was sent: ${detail}. The key is free to be used again.`;
  return new Released(code, why, { txn, retryAfterSeconds: 1 });
}

/**
 * The outcome may be known here, but nobody is told what the ledger does not know. Nor that nothing was sent: it may have been, and
 * whoever believed that it was not would ask for it under another key (docs/adr/0045-unavailable-means-that-nothing-was-sent.md).
 */
export function unrecorded(txn: string, state?: CallState): GatewayError {
  const detail =
    'What became of it cannot be recorded or read just now. Ask again with the same key: it is not executed anew.';
  return new GatewayError('in_doubt', detail, { txn, ...(state === undefined ? {} : { state }), retryAfterSeconds: 1 });
}
