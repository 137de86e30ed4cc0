import { randomUUID } from 'node:crypto';
import type { Continuation } from '../domain/adapter.ts';
import type { Call } from '../domain/call.ts';
import { canonical } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import { ExpressionError, type Tool } from '../domain/policy.ts';
import { pathsUnder, REDACTED, redact } from '../domain/redact.ts';
import type { Fence } from '../domain/run.ts';
import { isFinal } from '../domain/states.ts';
import { type CallIdentity, repeatSlot, sharedTxnId, txnId } from '../domain/txn-id.ts';
import { newestRepeat, noteGeneration } from '../ledger/repeats.ts';
import { aliasOf } from './join.ts';
import type { Station } from './station.ts';

export interface Identified {
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
interface Asked {
  readonly agent: { readonly name: string };
  readonly args: JsonObject;
  readonly key: string | undefined;
  readonly saga?: string | undefined;
  readonly fence?: Fence | undefined;
  readonly continuation?: Continuation | undefined;
}

/**
 * Which transaction this call is. In this order: the tool's key if it is shared, the key that the call brings, the tool's
 * key otherwise, and for a write without any the rule for repeats: an identical wish whose answer was never delivered, or
 * was delivered a moment ago, is the same call. Two replicas that decide the same thing at once arrive at the same txn, and
 * the claim decides between them.
 */
export function identifyCall(
  station: Station,
  asked: Asked,
  tool: Tool,
  fingerprint: Buffer,
): Identified | Promise<Identified> {
  const { args, key } = asked;
  const agent = asked.agent.name;
  const txnOf = (identity: CallIdentity) => txnId(station.deployment, agent, identity);
  const isShared = tool.key?.scope === 'shared';
  if (key !== undefined && !isShared) return { txn: txnOf({ by: 'key', key }), identity: 'key', key };
  const seen = { args, agent, saga: asked.saga ?? null, run: asked.fence?.run ?? null };
  const round = continuationText(asked.continuation);
  const wish = businessKey(tool, seen);
  // What a tool asked back for, and now gets, is another request of the same wish.
  const business = wish === undefined || round === '' ? wish : `${wish}\n${round}`;
  if (business !== undefined && isShared) {
    const shared = { txn: sharedTxnId(station.deployment, tool.name, business), identity: 'shared' } as const;
    const alias = key === undefined ? {} : { alias: aliasOf(station, agent, key) };
    return { ...shared, ...alias, key: shownKey(tool, seen, wish ?? '') };
  }
  if (key !== undefined) return { txn: txnOf({ by: 'key', key }), identity: 'key', key };
  if (business !== undefined) {
    const shown = shownKey(tool, seen, wish ?? '');
    return { txn: txnOf({ by: 'business', tool: tool.name, key: business }), identity: 'business', key: shown };
  }
  if (tool.effect === 'read' || tool.repeats.policy === 'run') {
    return { txn: txnOf({ by: 'random', nonce: randomUUID() }), identity: 'random', key: null };
  }
  return identifyRepeat(station, seen, tool, fingerprint);
}

async function identifyRepeat(station: Station, seen: Seen, tool: Tool, fingerprint: Buffer): Promise<Identified> {
  const { agent, saga, run } = seen;
  const slot = repeatSlot(station.deployment, agent, fingerprint, saga, run);
  const newest = await newestRepeat(station.db, slot);
  const generation = newest === undefined ? 0 : isSameWish(newest, tool) ? newest.generation : newest.generation + 1;
  const txn = txnId(station.deployment, agent, { by: 'repeat', fingerprint, saga, run, generation });
  const recent = generation > 0 && newest !== undefined && withinWindow(newest.msSinceDelivered, tool);
  return {
    txn,
    identity: 'repeat',
    key: null,
    holdAsRepeat: tool.repeats.policy === 'hold' && recent,
    ...(newest?.generation === generation ? {} : { announce: () => noteGeneration(station.db, slot, generation, txn) }),
  };
}

function isSameWish(newest: { call: Call | undefined; msSinceDelivered: number | null }, tool: Tool): boolean {
  const { call, msSinceDelivered } = newest;
  if (call === undefined || !isFinal(call.state)) return true;
  // Also when the answer is erased by now: whoever lost it and comes back still means that call, and hears that it is gone.
  if (msSinceDelivered === null) return true;
  // Nothing happened and the caller knows it: asking again is a new wish, not a repeat to be protected from.
  if (call.state !== 'succeeded') return false;
  return tool.repeats.policy === 'replay' && withinWindow(msSinceDelivered, tool);
}

function withinWindow(msSinceDelivered: number | null, tool: Tool): boolean {
  return msSinceDelivered !== null && msSinceDelivered <= tool.repeats.windowMs;
}

/** What else makes it another request, as canonical text; nothing for most. */
export function continuationText(continuation: Continuation | undefined): string {
  if (continuation === undefined) return '';
  const { inputResponses = null, requestState = null } = continuation;
  return canonical({ inputResponses, requestState });
}

/** What a business key is made from. */
interface Seen {
  readonly args: JsonObject;
  readonly agent: string;
  readonly saga: string | null;
  readonly run: string | null;
}

/** The business key as it may be stored: not when it tells what the tool redacts. */
function shownKey(tool: Tool, seen: Seen, key: string): string {
  const paths = pathsUnder('args', tool.redact);
  if (paths.length === 0) return key;
  return businessKey(tool, { ...seen, args: redact(seen.args, paths) as JsonObject }) === key ? key : REDACTED;
}

/** A key that cannot be read from these arguments (an optional one is absent) is no key: the rule for repeats applies. */
function businessKey(tool: Tool, seen: Seen): string | undefined {
  if (tool.key === undefined) return undefined;
  try {
    const value = tool.key.of(seen);
    if (value === null || value === '') return undefined;
    const text = typeof value === 'string' ? value : canonical(value);
    if (!text.includes('\0')) return text;
  } catch (error) {
    if (error instanceof ExpressionError) return undefined;
    throw error;
  }
  throw new GatewayError('invalid_arguments', `The key of ${tool.name} holds a NUL character, which cannot be stored.`);
}
