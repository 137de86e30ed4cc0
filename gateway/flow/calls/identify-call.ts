import { randomUUID } from 'node:crypto';
import type { Continuation } from '../../domain/attempts/adapter.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
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
  readonly identity: CallRecord['identity'];
  readonly key: string | null;
  /** For a shared call: the txn of the caller's own key, which must not belong to another call. */
  readonly alias?: string;
  /** Records the generation of a call without a key (see `CallIdentity`). Run it right before the claim. */
  readonly recordGeneration?: () => Promise<void>;
  /** An identical call was answered recently, and the tool wants an approval before it runs again. */
  readonly holdAsRepeat?: boolean;
}

/** The part of a tool call that its txn depends on. */
interface IdentifiableCall {
  readonly agent: { readonly name: string };
  readonly args: JsonObject;
  readonly key: string | undefined;
  readonly saga?: string | undefined;
  readonly runEpoch?: RunEpoch | undefined;
  readonly continuation?: Continuation | undefined;
}

/**
 * Derives the txn of a call. The first of these that exists counts: the tool's shared key, the caller's key, the tool's
 * business key. A write without any key follows `repeats`: an identical request is the same call if the answer was never
 * delivered, or was delivered recently. Two replicas derive the same txn, and the claim decides between them.
 */
export function identifyCall(
  ctx: Context,
  toolCall: IdentifiableCall,
  tool: Tool,
  fingerprint: Buffer,
): IdentifiedCall | Promise<IdentifiedCall> {
  const { args, key } = toolCall;
  const agent = toolCall.agent.name;
  const deriveTxn = (identity: CallIdentity) => deriveTxnId(ctx.deployment, agent, identity);
  const isShared = tool.key?.scope === 'shared';
  if (key !== undefined && !isShared) return { txn: deriveTxn({ by: 'key', key }), identity: 'key', key };
  const scope = { args, agent, saga: toolCall.saga ?? null, run: toolCall.runEpoch?.run ?? null };
  const continuation = serializeContinuation(toolCall.continuation);
  const businessKey = evaluateBusinessKey(tool, scope);
  // An answer to a question of an MCP tool is another call, although its business key is the same.
  const fullKey = businessKey === undefined || continuation === '' ? businessKey : `${businessKey}\n${continuation}`;
  if (fullKey !== undefined && isShared) {
    const shared = { txn: deriveSharedTxnId(ctx.deployment, tool.name, fullKey), identity: 'shared' } as const;
    const alias = key === undefined ? {} : { alias: deriveKeyAlias(ctx, agent, key) };
    return { ...shared, ...alias, key: redactBusinessKey(tool, scope, businessKey ?? '') };
  }
  if (key !== undefined) return { txn: deriveTxn({ by: 'key', key }), identity: 'key', key };
  if (fullKey !== undefined) {
    const shown = redactBusinessKey(tool, scope, businessKey ?? '');
    return { txn: deriveTxn({ by: 'business', tool: tool.name, key: fullKey }), identity: 'business', key: shown };
  }
  if (tool.effect === 'read' || tool.repeats.policy === 'run') {
    return { txn: deriveTxn({ by: 'random', nonce: randomUUID() }), identity: 'random', key: null };
  }
  return identifyRepeat(ctx, scope, tool, fingerprint);
}

async function identifyRepeat(
  ctx: Context,
  scope: BusinessKeyScope,
  tool: Tool,
  fingerprint: Buffer,
): Promise<IdentifiedCall> {
  const { agent, saga, run } = scope;
  const slot = deriveRepeatSlot(ctx.deployment, agent, fingerprint, saga, run);
  const newest = await findNewestRepeat(ctx.db, slot);
  const generation = newest === undefined ? 0 : isSameRequest(newest, tool) ? newest.generation : newest.generation + 1;
  const txn = deriveTxnId(ctx.deployment, agent, { by: 'repeat', fingerprint, saga, run, generation });
  const isRecent = generation > 0 && newest !== undefined && isWithinWindow(newest.msSinceDelivered, tool);
  return {
    txn,
    identity: 'repeat',
    key: null,
    holdAsRepeat: tool.repeats.policy === 'hold' && isRecent,
    ...(newest?.generation === generation
      ? {}
      : { recordGeneration: () => recordGeneration(ctx.db, slot, generation, txn) }),
  };
}

function isSameRequest(newest: { call: CallRecord | undefined; msSinceDelivered: number | null }, tool: Tool): boolean {
  const { call, msSinceDelivered } = newest;
  if (call === undefined || !isFinalState(call.state)) return true;
  // The answer was never delivered, so an identical request counts as a retry. If the answer is erased, the retry gets `key_expired`.
  if (msSinceDelivered === null) return true;
  // The call had no effect and the caller knows that, so an identical request is a new call.
  if (call.state !== 'succeeded') return false;
  return tool.repeats.policy === 'replay' && isWithinWindow(msSinceDelivered, tool);
}

function isWithinWindow(msSinceDelivered: number | null, tool: Tool): boolean {
  return msSinceDelivered !== null && msSinceDelivered <= tool.repeats.windowMs;
}

/** The continuation as canonical text, which makes a request different from others; empty for most requests. */
export function serializeContinuation(continuation: Continuation | undefined): string {
  if (continuation === undefined) return '';
  const { inputResponses = null, requestState = null } = continuation;
  return canonicalize({ inputResponses, requestState });
}

/** The variables of a business key's template. */
interface BusinessKeyScope {
  readonly args: JsonObject;
  readonly agent: string;
  readonly saga: string | null;
  readonly run: string | null;
}

/** The business key as it may be stored: redacted if it depends on redacted arguments. */
function redactBusinessKey(tool: Tool, scope: BusinessKeyScope, key: string): string {
  const paths = pathsUnder('args', tool.redact);
  if (paths.length === 0) return key;
  const redacted = evaluateBusinessKey(tool, { ...scope, args: redact(scope.args, paths) as JsonObject });
  return redacted === key ? key : REDACTED;
}

/** Returns undefined if the key cannot be built, for example because an optional argument is absent. Then `repeats` applies. */
function evaluateBusinessKey(tool: Tool, scope: BusinessKeyScope): string | undefined {
  if (tool.key === undefined) return undefined;
  try {
    const value = tool.key.of(scope);
    if (value === null || value === '') return undefined;
    const text = typeof value === 'string' ? value : canonicalize(value);
    if (!text.includes('\0')) return text;
  } catch (error) {
    if (error instanceof ExpressionError) return undefined;
    throw error;
  }
  throw new GatewayError(
    'invalid_arguments',
    `The business key of ${tool.name} contains a NUL character, which cannot be stored.`,
  );
}
