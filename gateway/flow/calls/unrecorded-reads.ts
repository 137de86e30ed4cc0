import { randomInt } from 'node:crypto';
import { type CallRecord, createCallRecord } from '../../domain/calls/call-record.ts';
import { GatewayError } from '../../domain/errors.ts';
import { createInFlightCall, type InFlightCall } from '../attempts/in-flight-call.ts';
import { type CancelToken, withTimeout } from '../cancel-token.ts';
import type { PreparedCall } from './admit-call.ts';
import type { RegisteredCall } from './claims.ts';
import type { Services } from './execute-call.ts';
import { buildReleasedError, refuseUnlessLeaseHeld } from './refusals.ts';

/**
 * Whether a read is sent without a record in the ledger: its contract says so, and nothing about this call needs a record.
 * A call with a key, saga or run needs one, because it is replayed or listed later. Claim guards need the claim.
 */
export function canSkipLedger({ allowed, guards, identified }: PreparedCall): boolean {
  const { saga, runEpoch } = allowed.call.toolCall;
  const isStandalone = saga === undefined && runEpoch === undefined;
  return (
    allowed.decision.tool.unrecorded === true &&
    guards === undefined &&
    identified.identity === 'random' &&
    isStandalone
  );
}

/**
 * Registers a read that is sent without a claim. It is sent like any call, with retries, circuit breaker and freezes. A crash
 * leaves nothing, and a read has no effect.
 */
export function registerUnrecordedRead({ ctx, dispatch }: Services, prepared: PreparedCall): RegisteredCall {
  const { allowed, identified, request } = prepared;
  const { call, policies, decision } = allowed;
  const { toolCall, fingerprint, span } = call;
  const { txn, identity } = identified;
  const { tool, rule } = decision;
  const owner = ctx.lease.id;
  refuseUnlessLeaseHeld(ctx, owner);
  const record = createCallRecord({
    txn,
    agent: toolCall.agent.name,
    tool: tool.name,
    identity,
    fingerprint,
    kind: 'read',
    fence: randomInt(1, 1_000_000_000),
    state: 'sending',
    owner,
    policyVersion: policies.version,
    rule: rule.id,
  });
  const payload = { args: toolCall.args, request };
  const { progressListener } = toolCall;
  const inFlight = createInFlightCall({ record, owner, tool, payload, progressListener, span, isRecorded: false });
  return { kind: 'registered', inFlight: dispatch.register(inFlight) };
}

/** Waits for an unrecorded read. Nothing about it can be read later, so a read that takes too long fails. */
export async function awaitUnrecordedRead(
  { record, result }: InFlightCall,
  until: number,
  cancelToken: CancelToken | undefined,
): Promise<CallRecord> {
  const { txn, tool } = record;
  const ended = await withTimeout(result, until - performance.now(), cancelToken);
  switch (ended?.kind) {
    case 'reported':
      return ended.call;
    case 'released':
      // Not `buildReleasedError`: this read was never claimed, so the audit log has no entry about it.
      throw new GatewayError(ended.code, `Nothing was sent: ${ended.detail}.`, { txn, retryAfterSeconds: 1 });
    case 'elsewhere':
      throw buildReleasedError(txn, 'unavailable', 'this replica is shutting down');
  }
  const detail = `${tool} did not answer within your wait time. It is a read: ask again, or wait longer (Prefer: wait=N).`;
  throw new GatewayError('tool_failed', detail, { txn, retry: 'after_delay' });
}
