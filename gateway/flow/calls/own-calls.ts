import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { type Call, type CallSummary, summarizeCall, toJoinerView } from '../../domain/calls/call.ts';
import { GatewayError } from '../../domain/errors.ts';
import { endHeldCall } from '../../ledger/approvals/approvals.ts';
import { type JoinedAgent, listJoinedAgents } from '../../ledger/calls/joins.ts';
import { buildCursorAt, type CallFilter, type CallPage, isCursor, listCalls } from '../../ledger/calls/list-calls.ts';
import { recordDelivery } from '../../ledger/calls/repeats.ts';
import type { CancelToken } from '../cancel-token.ts';
import { awaitCall } from './await-call.ts';
import type { Services } from './execute-call.ts';
import { hideFreezeDetails, isParticipant } from './shared-keys.ts';

export { buildCursorAt as cursorAt, type CallFilter, type CallPage };

const TXN_PATTERN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** A call, to its own agent, to one that joined it, or to a person, who names none. To others it is as if it did not exist. */
export async function readCall(
  flow: Services,
  txn: string,
  agent: string | undefined,
  patienceMs = 0,
  caller?: CancelToken,
): Promise<Call> {
  const call = TXN_PATTERN.test(txn) ? await flow.station.calls.read(txn) : undefined;
  if (call === undefined) throw buildCallNotFoundError(txn);
  if (agent !== undefined && !(await isParticipant(flow.station, call, agent))) throw buildCallNotFoundError(txn);
  const seen = (one: Call) => (agent === undefined || one.agent === agent ? one : toJoinerView(one));
  if (patienceMs === 0 || call.settledAt !== null) return seen(call);
  const waiting = awaitCall(flow.station, flow.dispatch, txn, patienceMs, caller, call.fingerprint);
  await (agent === undefined || call.agent === agent ? waiting : hideFreezeDetails(txn, waiting));
  const now = await flow.station.calls.read(txn);
  // Given up meanwhile, and perhaps somebody else's by now.
  if (now === undefined || !now.fingerprint.equals(call.fingerprint)) return seen(call);
  return seen(now);
}

/** Who joined a call: for people. */
export async function listParticipants({ station }: Services, call: Call): Promise<readonly JoinedAgent[]> {
  return call.identity === 'shared' ? listJoinedAgents(station.db, call.txn) : [];
}

export async function findCalls(flow: Services, filter: CallFilter): Promise<CallPage> {
  if (filter.cursor !== undefined && !isCursor(filter.cursor)) {
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  }
  return listCalls(flow.station.db, filter);
}

/** Withdraws a call that is still held. Again is fine; of a call that went ahead it is refused. */
export async function cancelCall(flow: Services, txn: string, agent: string): Promise<CallSummary> {
  const call = await readCall(flow, txn, agent);
  if (call.agent !== agent)
    throw new GatewayError('conflict', 'Another agent asked for this call first: only that one can withdraw it.', {
      txn,
      state: call.state,
    });
  if (call.state === 'held') {
    const entry = buildAuditEntry('call_cancelled', { txn, agent, tool: call.tool });
    await endHeldCall(flow.station.db, txn, 'cancelled', 'it was withdrawn before it was sent', entry);
  }
  const now = await readCall(flow, txn, agent);
  if (now.state !== 'cancelled') {
    throw new GatewayError('conflict', `Only a held call can be withdrawn; this one is ${now.state}.`, {
      txn,
      state: now.state,
    });
  }
  return summarizeCall(now);
}

/** The answer was handed to the caller's connection. Only calls without a key need to know. */
export function markDelivered(flow: Services, call: Pick<CallSummary, 'txn' | 'identity'>): void {
  if (call.identity !== 'repeat') return;
  recordDelivery(flow.station.db, call.txn).catch(() => {
    // Not noted means not delivered: an identical call will be told the answer again, which is the safe side.
  });
}

function buildCallNotFoundError(txn: string): GatewayError {
  return new GatewayError('not_found', `There is no call ${txn.slice(0, 64)}.`);
}
