import { randomInt } from 'node:crypto';
import type { PreparedRequest } from '../../domain/attempts/adapter.ts';
import type { CallSummary } from '../../domain/calls/call.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Tool } from '../../domain/policy.ts';
import type { Span } from '../../domain/telemetry.ts';
import type { ClaimGuards } from '../../ledger/calls/calls.ts';
import { createJob } from '../attempts/job.ts';
import { withTimeout } from '../cancel-token.ts';
import { buildReleasedError } from './await-call.ts';
import type { Services, ToolCall } from './execute-call.ts';
import type { IdentifiedCall } from './identify-call.ts';
import { refuseUnlessLeaseHeld } from './refuse.ts';

/** The part of an allowed read that is needed to send it without a claim. */
interface UnrecordedRead {
  readonly toolCall: ToolCall;
  readonly tool: Tool;
  readonly identified: IdentifiedCall;
  readonly fingerprint: Buffer;
  readonly request: PreparedRequest;
  readonly guards: ClaimGuards | undefined;
  readonly span: Span;
}

/**
 * Whether a read is sent without a record in the ledger: its contract says so, and nothing about this call needs a record.
 * A call with a key, saga or run needs one, because it is replayed or listed later. Claim guards need the claim.
 */
export function canSkipLedger({ tool, guards, identified, toolCall }: UnrecordedRead): boolean {
  const isStandalone = toolCall.saga === undefined && toolCall.runEpoch === undefined;
  return tool.unrecorded === true && guards === undefined && identified.identity === 'random' && isStandalone;
}

/** Sends a read like any call, with retries, circuit breaker and freezes. A crash here leaves nothing, and a read has no effect. */
export async function executeUnrecordedRead({ ctx, dispatch }: Services, read: UnrecordedRead): Promise<CallSummary> {
  const { toolCall, tool, identified, fingerprint, request, span } = read;
  const { txn, identity } = identified;
  const owner = ctx.lease.id;
  refuseUnlessLeaseHeld(ctx, owner);
  const claim = { txn, identity, fingerprint, agent: toolCall.agent.name, kind: 'read', state: 'sending' } as const;
  const job = createJob(
    {
      ...claim,
      fence: randomInt(1, 1_000_000_000),
      keyLifetimeMs: null,
      saga: null,
      undoes: null,
      run: null,
      undo: null,
    },
    tool,
    owner,
    { args: toolCall.args, request },
    { lockToken: null, isRecorded: false, progressListener: toolCall.progressListener, span },
  );
  const result = await withTimeout(dispatch.start(dispatch.register(job)), toolCall.patienceMs, toolCall.cancelToken);
  switch (result?.kind) {
    case 'reported':
      return result.call;
    case 'released':
      // Not a ReleasedError, whose release is in the audit log: this call was never claimed.
      throw new GatewayError(result.code, `Nothing was sent: ${result.detail}.`, { txn, retryAfterSeconds: 1 });
    case 'elsewhere':
      throw buildReleasedError(txn, 'unavailable', 'this replica is shutting down');
  }
  const detail = `${tool.name} did not answer within your wait time. It is a read: ask again, or wait longer (Prefer: wait=N).`;
  throw new GatewayError('tool_failed', detail, { txn, retry: 'after_delay' });
}
