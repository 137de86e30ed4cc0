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

/** A call that passed judgement, as far as it is carried without the ledger. */
interface UnrecordedRead {
  readonly asked: ToolCall;
  readonly tool: Tool;
  readonly identified: IdentifiedCall;
  readonly fingerprint: Buffer;
  readonly request: PreparedRequest;
  readonly guards: ClaimGuards | undefined;
  readonly stint: Span;
}

/**
 * Whether a read passes without the ledger: its contract says so, and nothing about this call needs one. A key promises the same
 * answer again; a saga and a run want to know their calls; limits and approvals are counted where the claim is.
 */
export function canSkipLedger({ tool, guards, identified, asked }: UnrecordedRead): boolean {
  const isLoose = asked.saga === undefined && asked.fence === undefined;
  return tool.unrecorded === true && guards === undefined && identified.identity === 'random' && isLoose;
}

/** Carried as any call is, with its retries, breaker and kill switch. A crash here leaves nothing, and nothing happened. */
export async function executeUnrecordedRead(
  { station, dispatch }: Services,
  read: UnrecordedRead,
): Promise<CallSummary> {
  const { asked, tool, identified, fingerprint, request, stint } = read;
  const { txn, identity } = identified;
  const owner = station.lease.id;
  refuseUnlessLeaseHeld(station, owner);
  const claim = { txn, identity, fingerprint, agent: asked.agent.name, kind: 'read', state: 'sending' } as const;
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
    { args: asked.args, request },
    { lockToken: null, recorded: false, follower: asked.follower, stint },
  );
  const ending = await withTimeout(dispatch.start(job), asked.patienceMs, asked.caller);
  if (ending?.as === 'told') return ending.face;
  // It was never claimed, so the log has nothing of it.
  if (ending?.as === 'released')
    throw new GatewayError(ending.code, `Nothing was sent: ${ending.detail}.`, { txn, retryAfterSeconds: 1 });
  if (ending?.as === 'elsewhere') throw buildReleasedError(txn, 'unavailable', 'this process is about to end');
  const detail = `${tool.name} did not answer in the time that you wait. It is a read: ask again, or wait longer (Prefer: wait=N).`;
  throw new GatewayError('tool_failed', detail, { txn, retry: 'after_delay' });
}
