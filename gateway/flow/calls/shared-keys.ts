import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { type CallRecord, hidePrivateProblem } from '../../domain/calls/call-record.ts';
import { deriveTxnId } from '../../domain/calls/txn-id.ts';
import { GatewayError } from '../../domain/errors.ts';
import { findAliasedTxn, hasJoined, joinCall } from '../../ledger/calls/joins.ts';
import type { Context } from '../context.ts';
import { refuseStaleEpoch } from '../controls/runs.ts';
import { findExposure, isUntrusted } from '../controls/taint.ts';
import type { ToolAnswer, ToolCall } from './execute-call.ts';
import { buildReleasedError } from './refusals.ts';

// Calls of a tool with a shared key: equal requests of several agents are one call. The agent that asks first owns the
// call: its rules, limits, saga, run and locks count. Later agents join: nothing is sent for them, and they get the result.

/** Whether an agent owns or has joined a call. Other agents must not learn that it exists. */
export async function isParticipant({ db }: Context, call: CallRecord, agent: string): Promise<boolean> {
  if (call.agent === agent) return true;
  return call.identity === 'shared' && (await hasJoined(db, call.txn, agent));
}

/**
 * Records that an agent, allowed by its own rules, joins a call. A crash afterwards leaves an agent that may read the
 * call.
 */
export async function joinSharedCall(ctx: Context, call: CallRecord, toolCall: ToolCall): Promise<void> {
  if (call.identity !== 'shared') return;
  const { txn, tool } = call;
  const agent = toolCall.agent.name;
  const alias = toolCall.key === undefined ? undefined : deriveKeyAlias(ctx, agent, toolCall.key);
  if (call.agent === agent && alias === undefined) return;
  // The decision used the run of this request, so the agent must hold that run.
  if (call.agent !== agent && toolCall.runEpoch !== undefined) await refuseStaleEpoch(ctx, toolCall.runEpoch, agent);
  const policies = ctx.policies();
  const declared = policies.tools.get(tool);
  const recipient = { agent, saga: null, run: toolCall.runEpoch?.run ?? null };
  const exposure =
    declared !== undefined && isUntrusted(policies, declared) ? findExposure(ctx, recipient, { txn, tool }) : undefined;
  await joinCall(ctx.db, {
    txn,
    agent,
    alias,
    exposure,
    entry: buildAuditEntry('call_joined', { txn, agent, tool }),
  });
  ctx.taintCache.add(exposure?.scopes ?? []);
}

/** The txn that the caller's own key would give if the tool had no shared key. */
export function deriveKeyAlias({ deployment }: Pick<Context, 'deployment'>, agent: string, key: string): string {
  return deriveTxnId(deployment, agent, { by: 'key', key });
}

/** Finds the shared call that a caller's own key was bound to. */
export async function resolveAlias({ db, calls }: Context, alias: string): Promise<CallRecord | undefined> {
  const txn = await findAliasedTxn(db, alias);
  return txn === undefined ? undefined : calls.read(txn);
}

/** Whether a caller's own key already belongs to a call other than this shared call. */
export async function isAliasTaken({ db, calls }: Context, alias: string, txn: string): Promise<boolean> {
  const boundTxn = await findAliasedTxn(db, alias);
  return boundTxn === undefined ? (await calls.read(alias)) !== undefined : boundTxn !== txn;
}

/** The answer for an agent that joined, without the private details of the first agent. */
export async function redactForJoiner(txn: string, answer: Promise<ToolAnswer>): Promise<ToolAnswer> {
  const { call, repeat } = await hideFreezeDetails(txn, answer);
  return { call: hidePrivateProblem(call), repeat };
}

/** Replaces `frozen` by `unavailable` for an agent that joined: it must not learn who froze the first agent. */
export async function hideFreezeDetails<T>(txn: string, waiting: Promise<T>): Promise<T> {
  try {
    return await waiting;
  } catch (error) {
    if (!(error instanceof GatewayError) || error.code !== 'frozen') throw error;
    throw buildReleasedError(txn, 'unavailable', 'the agent that made this call first may not send now');
  }
}
