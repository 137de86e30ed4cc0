import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { type CallEvent, type CallRecord, toJoinerView } from '../../domain/calls/call-record.ts';
import { deriveRepeatSlot } from '../../domain/calls/txn-id.ts';
import { GatewayError } from '../../domain/errors.ts';
import { endHeldCall } from '../../ledger/approvals/approvals.ts';
import { findContradictions, readCallEvents } from '../../ledger/calls/call-events.ts';
import { type JoinedAgent, listJoinedAgents } from '../../ledger/calls/joins.ts';
import { buildCursorAt, type CallFilter, type CallPage, isCursor, listCalls } from '../../ledger/calls/list-calls.ts';
import { recordDelivery } from '../../ledger/calls/repeats.ts';
import type { CancelToken } from '../cancel-token.ts';
import { awaitCall } from './await-result.ts';
import type { Services } from './execute-call.ts';
import { hideFreezeDetails, isParticipant } from './shared-keys.ts';

export { buildCursorAt, type CallFilter, type CallPage };

const TXN_PATTERN = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Reads a call for its agent, for an agent that joined it, or for a person (`agent` undefined). Others get `not_found`. */
export async function readCall(
  services: Services,
  txn: string,
  agent: string | undefined,
  patienceMs = 0,
  cancelToken?: CancelToken,
): Promise<CallRecord> {
  const call = TXN_PATTERN.test(txn) ? await services.ctx.calls.read(txn) : undefined;
  if (call === undefined) throw buildCallNotFoundError(txn);
  if (agent !== undefined && !(await isParticipant(services.ctx, call, agent))) throw buildCallNotFoundError(txn);
  const isOwn = agent === undefined || call.agent === agent;
  const toView = (one: CallRecord) => (agent === undefined || one.agent === agent ? one : toJoinerView(one));
  if (patienceMs === 0 || call.settledAt !== null) return toView(call);
  const waiting = awaitCall(services, call.fingerprint, txn, performance.now() + patienceMs, cancelToken);
  await (isOwn ? waiting : hideFreezeDetails(txn, waiting));
  const now = await services.ctx.calls.read(txn);
  // The claim was released meanwhile. Another request may have claimed the txn since.
  if (now === undefined || !now.fingerprint.equals(call.fingerprint)) return toView(call);
  return toView(now);
}

/** What happened to a call between its claim and its outcome. For people only. */
export async function readTimeline({ ctx }: Services, txn: string): Promise<readonly CallEvent[]> {
  return (await readCallEvents(ctx.db, [txn])).get(txn) ?? [];
}

/** The late answers that contradict final states. For people only. */
export function readContradictions(
  { ctx }: Services,
  calls: readonly { readonly txn: string }[],
): Promise<ReadonlyMap<string, CallEvent>> {
  return findContradictions(
    ctx.db,
    calls.map(({ txn }) => txn),
  );
}

/** The agents that joined a shared call. For people only. */
export async function listParticipants({ ctx }: Services, call: CallRecord): Promise<readonly JoinedAgent[]> {
  return call.identity === 'shared' ? listJoinedAgents(ctx.db, call.txn) : [];
}

export async function findCalls(services: Services, filter: CallFilter): Promise<CallPage> {
  if (filter.cursor !== undefined && !isCursor(filter.cursor)) {
    throw new GatewayError('malformed', 'The cursor is invalid. Use the cursor of the previous page.');
  }
  return listCalls(services.ctx.db, filter);
}

/** Withdraws a held call. Repeating the request is safe. Fails with `conflict` if the call was sent or ended otherwise. */
export async function cancelCall(services: Services, txn: string, agent: string): Promise<CallRecord> {
  const call = await readCall(services, txn, agent);
  if (call.agent !== agent)
    throw new GatewayError('conflict', 'Another agent made this call first. Only that agent can withdraw it.', {
      txn,
      state: call.state,
    });
  if (call.state === 'held') {
    const entry = buildAuditEntry('call_cancelled', { txn, agent, tool: call.tool });
    await endHeldCall(services.ctx.db, txn, 'cancelled', 'it was withdrawn before it was sent', entry);
  }
  const now = await readCall(services, txn, agent);
  if (now.state !== 'cancelled') {
    throw new GatewayError('conflict', `Only a held call can be withdrawn; this one is ${now.state}.`, {
      txn,
      state: now.state,
    });
  }
  return now;
}

/** The part of a call that names its slot (see `deriveRepeatSlot`). */
export type DeliveredCall = Pick<CallRecord, 'txn' | 'identity' | 'agent' | 'fingerprint' | 'saga' | 'run'>;

/** Records that the answer was written to the caller's connection. Only calls without a key need this. */
export function markDelivered({ ctx }: Services, call: DeliveredCall): void {
  if (call.identity !== 'repeat') return;
  const slot = deriveRepeatSlot(ctx.deployment, call.agent, call.fingerprint, call.saga, call.run);
  recordDelivery(ctx.db, slot, call.txn).catch(() => {
    // Without the record the answer counts as not delivered, so an identical call is answered with a replay. That is safe.
  });
}

function buildCallNotFoundError(txn: string): GatewayError {
  return new GatewayError('not_found', `There is no call ${txn.slice(0, 64)}.`);
}
