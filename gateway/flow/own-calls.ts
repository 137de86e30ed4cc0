import { auditEntry } from '../domain/audit.ts';
import { asJoined, type Call, type CallFace, face } from '../domain/call.ts';
import { GatewayError } from '../domain/errors.ts';
import { endHeld } from '../ledger/approvals.ts';
import { type Joined, joinedBy } from '../ledger/joins.ts';
import { type CallFilter, type CallPage, cursorAt, isCursor, listCalls } from '../ledger/lists.ts';
import { noteDelivered } from '../ledger/repeats.ts';
import { awaitCall } from './await-call.ts';
import type { Flow } from './call-tool.ts';
import { tookPart, withoutNames } from './join.ts';
import type { Caller } from './patience.ts';

export { type CallFilter, type CallPage, cursorAt };

const TXN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** A call, to its own agent, to one that joined it, or to a person, who names none. To others it is as if it did not exist. */
export async function readCall(
  flow: Flow,
  txn: string,
  agent: string | undefined,
  patienceMs = 0,
  caller?: Caller,
): Promise<Call> {
  const call = TXN.test(txn) ? await flow.station.calls.read(txn) : undefined;
  if (call === undefined) throw notFound(txn);
  if (agent !== undefined && !(await tookPart(flow.station, call, agent))) throw notFound(txn);
  const seen = (one: Call) => (agent === undefined || one.agent === agent ? one : asJoined(one));
  if (patienceMs === 0 || call.settledAt !== null) return seen(call);
  const waiting = awaitCall(flow.station, flow.dispatch, txn, patienceMs, caller, call.fingerprint);
  await (agent === undefined || call.agent === agent ? waiting : withoutNames(txn, waiting));
  const now = await flow.station.calls.read(txn);
  // Given up meanwhile, and perhaps somebody else's by now.
  if (now === undefined || !now.fingerprint.equals(call.fingerprint)) return seen(call);
  return seen(now);
}

/** Who joined a call: for people. */
export async function participants({ station }: Flow, call: Call): Promise<readonly Joined[]> {
  return call.identity === 'shared' ? joinedBy(station.db, call.txn) : [];
}

export async function findCalls(flow: Flow, filter: CallFilter): Promise<CallPage> {
  if (filter.cursor !== undefined && !isCursor(filter.cursor)) {
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  }
  return listCalls(flow.station.db, filter);
}

/** Withdraws a call that is still held. Again is fine; of a call that went ahead it is refused. */
export async function cancelCall(flow: Flow, txn: string, agent: string): Promise<CallFace> {
  const call = await readCall(flow, txn, agent);
  if (call.agent !== agent)
    throw new GatewayError('conflict', 'Another agent asked for this call first: only that one can withdraw it.', {
      txn,
      state: call.state,
    });
  if (call.state === 'held') {
    const entry = auditEntry('call_cancelled', { txn, agent, tool: call.tool });
    await endHeld(flow.station.db, txn, 'cancelled', 'it was withdrawn before it was sent', entry);
  }
  const now = await readCall(flow, txn, agent);
  if (now.state !== 'cancelled') {
    throw new GatewayError('conflict', `Only a held call can be withdrawn; this one is ${now.state}.`, {
      txn,
      state: now.state,
    });
  }
  return face(now);
}

/** The answer was handed to the caller's connection. Only calls without a key need to know. */
export function delivered(flow: Flow, call: Pick<CallFace, 'txn' | 'identity'>): void {
  if (call.identity !== 'repeat') return;
  noteDelivered(flow.station.db, call.txn).catch(() => {
    // Not noted means not delivered: an identical call will be told the answer again, which is the safe side.
  });
}

function notFound(txn: string): GatewayError {
  return new GatewayError('not_found', `There is no call ${txn.slice(0, 64)}.`);
}
