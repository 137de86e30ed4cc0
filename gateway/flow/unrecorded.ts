import { randomInt } from 'node:crypto';
import type { PreparedRequest } from '../domain/adapter.ts';
import type { CallFace } from '../domain/call.ts';
import { GatewayError } from '../domain/errors.ts';
import type { Tool } from '../domain/policy.ts';
import type { Stint } from '../domain/watch.ts';
import type { Guards } from '../ledger/calls.ts';
import { released } from './await-call.ts';
import type { Flow, ToolCall } from './call-tool.ts';
import type { Identified } from './identify-call.ts';
import { freshJob } from './job.ts';
import { withPatience } from './patience.ts';
import { refuseUnlessInForce } from './refuse.ts';

/** A call that passed judgement, as far as it is carried without the ledger. */
interface Unrecorded {
  readonly asked: ToolCall;
  readonly tool: Tool;
  readonly identified: Identified;
  readonly fingerprint: Buffer;
  readonly request: PreparedRequest;
  readonly guards: Guards | undefined;
  readonly stint: Stint;
}

/**
 * Whether a read passes without the ledger: its contract says so, and nothing about this call needs one. A key promises the same
 * answer again; a saga and a run want to know their calls; limits and approvals are counted where the claim is.
 */
export function goesUnrecorded({ tool, guards, identified, asked }: Unrecorded): boolean {
  const isLoose = asked.saga === undefined && asked.fence === undefined;
  return tool.unrecorded === true && guards === undefined && identified.identity === 'random' && isLoose;
}

/** Carried as any call is, with its retries, breaker and kill switch. A crash here leaves nothing, and nothing happened. */
export async function readUnrecorded({ station, dispatch }: Flow, read: Unrecorded): Promise<CallFace> {
  const { asked, tool, identified, fingerprint, request, stint } = read;
  const { txn, identity } = identified;
  const owner = station.lease.id;
  refuseUnlessInForce(station, owner);
  const claim = { txn, identity, fingerprint, agent: asked.agent.name, kind: 'read', state: 'sending' } as const;
  const job = freshJob(
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
  const ending = await withPatience(dispatch.carry(job), asked.patienceMs, asked.caller);
  if (ending?.as === 'told') return ending.face;
  // It was never claimed, so the log has nothing of it.
  if (ending?.as === 'released')
    throw new GatewayError(ending.code, `Nothing was sent: ${ending.detail}.`, { txn, retryAfterSeconds: 1 });
  if (ending?.as === 'elsewhere') throw released(txn, 'unavailable', 'this process is about to end');
  const detail = `${tool.name} did not answer in the time that you wait. It is a read: ask again, or wait longer (Prefer: wait=N).`;
  throw new GatewayError('tool_failed', detail, { txn, retry: 'after_delay' });
}
