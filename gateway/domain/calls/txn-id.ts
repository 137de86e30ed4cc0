import { hash } from 'node:crypto';
import { quoteJson } from '../canonical.ts';
import { sha256 } from '../sha256.ts';

/**
 * The txn is a hash of who calls and how the call is told from others, not a random number: one random-access index is
 * then both identity and dedupe, and every replica finds the same id for a retry, also after a restore, and even if the
 * ledger was lost: the key sent downstream stays the same, so the upstream can still recognise the repeat.
 *
 * Every literal below is for ever. A changed encoding gives the retries of calls already made new ids, and they run twice.
 */

/** What tells this call from every other call of the same agent. */
export type CallIdentity =
  | { readonly by: 'key'; readonly key: string }
  | { readonly by: 'business'; readonly tool: string; readonly key: string }
  | {
      readonly by: 'repeat';
      readonly fingerprint: Buffer;
      readonly saga: string | null;
      readonly run: string | null;
      /** Counts the identical calls that were not repeats of one another. */
      readonly generation: number;
    }
  /** The compensation of a call, by that call's txn; `generation` counts those before it that had no effect. */
  | { readonly by: 'undo'; readonly of: string; readonly generation: number }
  | { readonly by: 'random'; readonly nonce: string };

/**
 * What is asked for: SHA-256 of the RFC 8785 text of `[tool, arguments]`, so anybody can recompute it. A JSON string
 * says itself where it ends: no tool and arguments can pass for another tool and other arguments. `more`, where there is
 * any, is the RFC 8785 text of what else makes it another request, as a third element.
 */
export function computeFingerprint(tool: string, canonicalArgs: string, more = ''): Buffer {
  return sha256(`[${quoteJson(tool)},${canonicalArgs}${more === '' ? '' : `,${more}`}]`);
}

export function deriveTxnId(deployment: string, agent: string, identity: CallIdentity): string {
  return hashToUuid(['oncegate.txn.1', deployment, agent, identity.by, ...listIdentityParts(identity)]);
}

/** A wish that is the same whoever has it: no agent is part of it, and by its tag it is no agent's call. */
export function deriveSharedTxnId(deployment: string, tool: string, key: string): string {
  return hashToUuid(['oncegate.shared-txn.1', deployment, tool, key]);
}

/** Where the generation of identical unkeyed calls is kept: one slot for all that would be repeats of one another. */
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

/** JSON writes NaN as null, and past 2^53 neighbours are one number. */
function requireSafeInteger(generation: number): number {
  if (!Number.isSafeInteger(generation)) throw new RangeError(`generation ${generation}`);
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

/** The id of a run: the same whoever of its agent asks for it by that name. */
export function deriveRunId(deployment: string, agent: string, name: string): string {
  return hashToUuid(['oncegate.run.1', deployment, agent, name]);
}

const HEX_DIGITS = '0123456789abcdef';

/** UUIDv8 (RFC 9562): 122 bits of a SHA-256. A JSON array of strings, numbers and nulls has one reading only. */
function hashToUuid(parts: readonly IdPart[]): string {
  const hex = hash('sha256', JSON.stringify(parts), 'hex');
  const variant = '89ab'.charAt(HEX_DIGITS.indexOf(hex.charAt(16)) & 3);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-${variant}${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
