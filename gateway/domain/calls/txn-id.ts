import { hash } from 'node:crypto';
import { quoteJson } from '../canonical.ts';
import { sha256 } from '../sha256.ts';

/**
 * A txn is a hash of the agent and the identity of the call, not a random number. So one index serves identity and dedupe, and
 * every replica derives the same id for a retry, even after the ledger was restored or lost. The upstream gets the same key
 * and still recognises the repeat.
 *
 * Never change a literal below. Another encoding would give retries of existing calls new ids, and they would run twice.
 */

/** Distinguishes a call from every other call of the same agent. */
export type CallIdentity =
  | { readonly by: 'key'; readonly key: string }
  | { readonly by: 'business'; readonly tool: string; readonly key: string }
  | {
      readonly by: 'repeat';
      readonly fingerprint: Buffer;
      readonly saga: string | null;
      readonly run: string | null;
      /** Numbers the identical calls. A repeat has the number of the call that it repeats. */
      readonly generation: number;
    }
  /** The compensation of the call `of`. `generation` counts the earlier compensations, which had no effect. */
  | { readonly by: 'undo'; readonly of: string; readonly generation: number }
  | { readonly by: 'random'; readonly nonce: string };

/**
 * SHA-256 of the RFC 8785 text of `[tool, arguments]`, which anybody can recompute. JSON strings are self-delimiting, so two
 * different pairs never have the same text. `canonicalExtra` is the RFC 8785 text of an optional third element: other content by
 * which requests differ.
 */
export function computeFingerprint(tool: string, canonicalArgs: string, canonicalExtra = ''): Buffer {
  return sha256(`[${quoteJson(tool)},${canonicalArgs}${canonicalExtra === '' ? '' : `,${canonicalExtra}`}]`);
}

export function deriveTxnId(deployment: string, agent: string, identity: CallIdentity): string {
  return hashToUuid(['oncegate.txn.1', deployment, agent, identity.by, ...listIdentityParts(identity)]);
}

/** The txn of a shared key. It includes no agent, and its tag keeps it apart from the calls of single agents. */
export function deriveSharedTxnId(deployment: string, tool: string, key: string): string {
  return hashToUuid(['oncegate.shared-txn.1', deployment, tool, key]);
}

/** The id of the row that stores the generation of identical calls without a key. Requests that may be repeats share the row. */
export function deriveRepeatSlot(
  deployment: string,
  agent: string,
  fingerprint: Buffer,
  saga: string | null,
  run: string | null,
): string {
  return hashToUuid(['oncegate.repeat-slot.1', deployment, agent, fingerprint.toString('hex'), saga, run]);
}

type IdPart = string | number | null;

function listIdentityParts(identity: CallIdentity): IdPart[] {
  switch (identity.by) {
    case 'key':
      return [identity.key];
    case 'business':
      return [identity.tool, identity.key];
    case 'repeat':
      return [
        identity.fingerprint.toString('hex'),
        identity.saga,
        identity.run,
        requireSafeInteger(identity.generation),
      ];
    case 'undo':
      return [identity.of, requireSafeInteger(identity.generation)];
    case 'random':
      return [identity.nonce];
  }
}

/** Other numbers could give two calls one id: JSON writes NaN as null, and above 2^53 different integers are equal numbers. */
function requireSafeInteger(generation: number): number {
  if (!Number.isSafeInteger(generation)) throw new RangeError(`generation must be a safe integer (got ${generation}).`);
  return generation;
}

/** The id of a saga: the same for every retry of its creation. */
export function deriveSagaId(
  deployment: string,
  agent: string,
  by: { readonly key: string } | { readonly nonce: string },
) {
  return hashToUuid(['oncegate.saga.1', deployment, agent, ...('key' in by ? ['key', by.key] : ['random', by.nonce])]);
}

/** The id of a run: the same for every request of the agent with that name. */
export function deriveRunId(deployment: string, agent: string, name: string): string {
  return hashToUuid(['oncegate.run.1', deployment, agent, name]);
}

const HEX_DIGITS = '0123456789abcdef';

/** UUIDv8 (RFC 9562): 122 bits of a SHA-256. A JSON array of strings, numbers and nulls is unambiguous. */
function hashToUuid(parts: readonly IdPart[]): string {
  const hex = hash('sha256', JSON.stringify(parts), 'hex');
  const variant = '89ab'.charAt(HEX_DIGITS.indexOf(hex.charAt(16)) & 3);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
