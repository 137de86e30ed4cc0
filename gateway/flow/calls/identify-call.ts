import { randomUUID } from 'node:crypto';
import type { Continuation } from '../../domain/attempts/adapter.ts';
import type { Call } from '../../domain/calls/call.ts';
import { isFinalState } from '../../domain/calls/call-state.ts';
import { pathsUnder, REDACTED, redact } from '../../domain/calls/redact.ts';
import { type CallIdentity, deriveRepeatSlot, deriveSharedTxnId, deriveTxnId } from '../../domain/calls/txn-id.ts';
import { canonicalize } from '../../domain/canonical.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { ExpressionError, type Tool } from '../../domain/policy.ts';
import { findNewestRepeat, recordGeneration } from '../../ledger/calls/repeats.ts';
import type { Context } from '../context.ts';
import { deriveKeyAlias } from './shared-keys.ts';

export interface IdentifiedCall {
  readonly txn: string;
  readonly identity: Call['identity'];
  readonly key: string | null;
  /** Of a shared wish: the key that came with it, which must stand for no other call. */
  readonly alias?: string;
  /** To be done once the call is sure to be claimed, before it is: notes the generation of an unkeyed wish. */
  readonly announce?: () => Promise<void>;
  /** An identical call was answered a moment ago and the tool asks for a person before it runs again. */
  readonly holdAsRepeat?: boolean;
}

/** As much of a request as tells which call it is. */
interface IdentifiableRequest {
  readonly agent: { readonly name: string };
  readonly args: JsonObject;
  readonly key: string | undefined;
  readonly saga?: string | undefined;
  readonly fence?: RunEpoch | undefined;
  readonly continuation?: Continuation | undefined;
}

/**
 * Which transaction this call is. In this order: the tool's key if it is shared, the key that the call brings, the tool's
 * key otherwise, and for a write without any the rule for repeats: an identical wish whose answer was never delivered, or
 * was delivered a moment ago, is the same call. Two replicas that decide the same thing at once arrive at the same txn, and
 * the claim decides between them.
 */
export function identifyCall(
  station: Context,
  asked: IdentifiableRequest,
  tool: Tool,
  fingerprint: Buffer,
): IdentifiedCall | Promise<IdentifiedCall> {
  const { args, key } = asked;
  const agent = asked.agent.name;
  const txnOf = (identity: CallIdentity) => deriveTxnId(station.deployment, agent, identity);
  const isShared = tool.key?.scope === 'shared';
  if (key !== undefined && !isShared) return { txn: txnOf({ by: 'key', key }), identity: 'key', key };
  const seen = { args, agent, saga: asked.saga ?? null, run: asked.fence?.run ?? null };
  const round = serializeContinuation(asked.continuation);
  const wish = evaluateBusinessKey(tool, seen);
  // What a tool asked back for, and now gets, is another request of the same wish.
  const business = wish === undefined || round === '' ? wish : `${wish}\n${round}`;
  if (business !== undefined && isShared) {
    const shared = { txn: deriveSharedTxnId(station.deployment, tool.name, business), identity: 'shared' } as const;
    const alias = key === undefined ? {} : { alias: deriveKeyAlias(station, agent, key) };
    return { ...shared, ...alias, key: redactBusinessKey(tool, seen, wish ?? '') };
  }
  if (key !== undefined) return { txn: txnOf({ by: 'key', key }), identity: 'key', key };
  if (business !== undefined) {
    const shown = redactBusinessKey(tool, seen, wish ?? '');
    return { txn: txnOf({ by: 'business', tool: tool.name, key: business }), identity: 'business', key: shown };
  }
  if (tool.effect === 'read' || tool.repeats.policy === 'run') {
    return { txn: txnOf({ by: 'random', nonce: randomUUID() }), identity: 'random', key: null };
  }
  return identifyRepeat(station, seen, tool, fingerprint);
}

async function identifyRepeat(
  station: Context,
  seen: BusinessKeyScope,
  tool: Tool,
  fingerprint: Buffer,
): Promise<IdentifiedCall> {
  const { agent, saga, run } = seen;
  const slot = deriveRepeatSlot(station.deployment, agent, fingerprint, saga, run);
  const newest = await findNewestRepeat(station.db, slot);
  const generation = newest === undefined ? 0 : isSameRequest(newest, tool) ? newest.generation : newest.generation + 1;
  const txn = deriveTxnId(station.deployment, agent, { by: 'repeat', fingerprint, saga, run, generation });
  const recent = generation > 0 && newest !== undefined && isWithinWindow(newest.msSinceDelivered, tool);
  return {
    txn,
    identity: 'repeat',
    key: null,
    holdAsRepeat: tool.repeats.policy === 'hold' && recent,
    ...(newest?.generation === generation
      ? {}
      : { announce: () => recordGeneration(station.db, slot, generation, txn) }),
  };
}

function isSameRequest(newest: { call: Call | undefined; msSinceDelivered: number | null }, tool: Tool): boolean {
  const { call, msSinceDelivered } = newest;
  if (call === undefined || !isFinalState(call.state)) return true;
  // Also when the answer is erased by now: whoever lost it and comes back still means that call, and hears that it is gone.
  if (msSinceDelivered === null) return true;
  // Nothing happened and the caller knows it: asking again is a new wish, not a repeat to be protected from.
  if (call.state !== 'succeeded') return false;
  return tool.repeats.policy === 'replay' && isWithinWindow(msSinceDelivered, tool);
}

function isWithinWindow(msSinceDelivered: number | null, tool: Tool): boolean {
  return msSinceDelivered !== null && msSinceDelivered <= tool.repeats.windowMs;
}

/** What else makes it another request, as canonical text; nothing for most. */
export function serializeContinuation(continuation: Continuation | undefined): string {
  if (continuation === undefined) return '';
  const { inputResponses = null, requestState = null } = continuation;
  return canonicalize({ inputResponses, requestState });
}

/** What a business key is made from. */
interface BusinessKeyScope {
  readonly args: JsonObject;
  readonly agent: string;
  readonly saga: string | null;
  readonly run: string | null;
}

/** The business key as it may be stored: not when it tells what the tool redacts. */
function redactBusinessKey(tool: Tool, seen: BusinessKeyScope, key: string): string {
  const paths = pathsUnder('args', tool.redact);
  if (paths.length === 0) return key;
  return evaluateBusinessKey(tool, { ...seen, args: redact(seen.args, paths) as JsonObject }) === key ? key : REDACTED;
}

/** A key that cannot be read from these arguments (an optional one is absent) is no key: the rule for repeats applies. */
function evaluateBusinessKey(tool: Tool, seen: BusinessKeyScope): string | undefined {
  if (tool.key === undefined) return undefined;
  try {
    const value = tool.key.of(seen);
    if (value === null || value === '') return undefined;
    const text = typeof value === 'string' ? value : canonicalize(value);
    if (!text.includes('\0')) return text;
  } catch (error) {
    if (error instanceof ExpressionError) return undefined;
    throw error;
  }
  throw new GatewayError('invalid_arguments', `The key of ${tool.name} holds a NUL character, which cannot be stored.`);
}
