import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { type Call, hidePrivateProblem } from '../../domain/calls/call.ts';
import { deriveTxnId } from '../../domain/calls/txn-id.ts';
import { GatewayError } from '../../domain/errors.ts';
import { findAliasedTxn, hasJoined, joinCall } from '../../ledger/calls/joins.ts';
import type { Context } from '../context.ts';
import { refuseStaleEpoch } from '../controls/runs.ts';
import { findExposure, isUntrusted } from '../controls/taint.ts';
import { buildReleasedError } from './await-call.ts';
import type { ToolAnswer, ToolCall } from './execute-call.ts';

/**
 * Calls of a tool whose key is shared: the same wish of several agents is one call. Whoever asks first is its agent: its rules,
 * limits, saga, run and locks count. Whoever asks later joins: nothing is sent for them, and they are told how it went.
 */

/** Whether an agent may hear of a call at all. */
export async function isParticipant({ db }: Context, call: Call, agent: string): Promise<boolean> {
  if (call.agent === agent) return true;
  return call.identity === 'shared' && (await hasJoined(db, call.txn, agent));
}

/**
 * Notes that an agent, which its own rules allow this, asks for a call that is there. A crash after it leaves an agent that
 * may ask how the call went.
 */
export async function joinSharedCall(station: Context, call: Call, asked: ToolCall): Promise<void> {
  if (call.identity !== 'shared') return;
  const { txn, tool } = call;
  const agent = asked.agent.name;
  const alias = asked.key === undefined ? undefined : deriveKeyAlias(station, agent, asked.key);
  if (call.agent === agent && alias === undefined) return;
  // Its rules were asked about the run that it names: that one must be its own.
  if (call.agent !== agent && asked.fence !== undefined) await refuseStaleEpoch(station, asked.fence, agent);
  const policies = station.policies();
  const declared = policies.tools.get(tool);
  const place = { agent, saga: null, run: asked.fence?.run ?? null };
  const exposure =
    declared !== undefined && isUntrusted(policies, declared) ? findExposure(station, place, { txn, tool }) : undefined;
  await joinCall(station.db, {
    txn,
    agent,
    alias,
    exposure,
    entry: buildAuditEntry('call_joined', { txn, agent, tool }),
  });
  station.taints.add(exposure?.scopes ?? []);
}

/** What a caller's own key would identify, did the tool's key not do it. */
export function deriveKeyAlias({ deployment }: Pick<Context, 'deployment'>, agent: string, key: string): string {
  return deriveTxnId(deployment, agent, { by: 'key', key });
}

/** The call that a key stands for because it once came with a shared wish. */
export async function resolveAlias({ db, calls }: Context, alias: string): Promise<Call | undefined> {
  const txn = await findAliasedTxn(db, alias);
  return txn === undefined ? undefined : calls.read(txn);
}

/** Whether a key that came with a shared wish belongs to another call already. */
export async function isAliasTaken({ db, calls }: Context, alias: string, txn: string): Promise<boolean> {
  const meant = await findAliasedTxn(db, alias);
  return meant === undefined ? (await calls.read(alias)) !== undefined : meant !== txn;
}

/** The answer as it is told to one who joined: without what is the first one's affair. */
export async function redactForJoiner(txn: string, answer: Promise<ToolAnswer>): Promise<ToolAnswer> {
  const { call, repeat } = await hideFreezeDetails(txn, answer);
  return { call: hidePrivateProblem(call), repeat };
}

/** Who froze whom is the first one's affair too. */
export async function hideFreezeDetails<T>(txn: string, waiting: Promise<T>): Promise<T> {
  try {
    return await waiting;
  } catch (error) {
    if (!(error instanceof GatewayError) || error.code !== 'frozen') throw error;
    throw buildReleasedError(txn, 'unavailable', 'whoever asked for it first may not send now');
  }
}
