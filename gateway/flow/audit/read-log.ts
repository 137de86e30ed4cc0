import { setTimeout as sleep } from 'node:timers/promises';
import { Proof } from '../../domain/audit/merkle.ts';
import { parseLogCheckpoint } from '../../domain/audit/signed-note.ts';
import { GatewayError } from '../../domain/errors.ts';
import {
  findLeaf,
  type LoggedEntry,
  readEntries,
  readNewestCheckpoint,
  readProofHashes,
} from '../../ledger/audit/audit-log.ts';
import type { Services } from '../calls/execute-call.ts';

export type { LoggedEntry } from '../../ledger/audit/audit-log.ts';

/** The sequencer appends an entry within about a second. A request for a proof waits at most this long for it. */
const MAX_WAIT_MS = 3_000;
const POLL_INTERVAL_MS = 100;

export interface InclusionProof {
  readonly leaf: Buffer;
  readonly index: number;
  readonly entry: string;
  readonly size: number;
  readonly proof: readonly Buffer[];
  readonly root: Buffer;
  readonly checkpoint: string;
}

/** The newest signed checkpoint. */
export async function requireNewestCheckpoint({ ctx }: Services): Promise<string> {
  const note = await readNewestCheckpoint(ctx.db);
  if (note === undefined)
    throw new GatewayError('not_found', 'The log has no signed checkpoint yet. Ask again in a second.');
  return note;
}

/** The public key of the log. */
export function getLogPublicKey({ sequencer }: Services): string {
  return sequencer.key.verifier;
}

/** Reads signed entries. Checkpoints of an earlier key are left out, because the current key cannot verify them. */
export async function readLogEntries({ ctx, sequencer }: Services, from: number, to: number): Promise<LoggedEntry[]> {
  const entries = await readEntries(ctx.db, from, to);
  return entries.map((entry) =>
    entry.checkpoint === null || sequencer.key.hasLineIn(entry.checkpoint) ? entry : { ...entry, checkpoint: null },
  );
}

/** Proves that an entry is in the newest signed log. */
export async function proveLeaf(services: Services, leaf: Buffer): Promise<InclusionProof> {
  const { db } = services.ctx;
  const found = await pollUntilFound(() => findLeaf(db, leaf));
  if (found === undefined)
    throw new GatewayError(
      'not_found',
      'The log has no entry with this leaf hash. A new entry can take a second to appear.',
    );
  const checkpoint = await requireNewestCheckpoint(services);
  const { size, root } = parseLogCheckpoint(checkpoint);
  const proof = await readProofHashes(db, Proof.inclusion(found.index, size));
  return { leaf, ...found, size, proof, root, checkpoint };
}

/** Proves that the log of size `to` extends the log of size `from`. */
export async function proveConsistency(services: Services, from: number, to: number | undefined) {
  const checkpoint = await requireNewestCheckpoint(services);
  const { size } = parseLogCheckpoint(checkpoint);
  const end = to ?? size;
  if (end > size || from > end)
    throw new GatewayError('not_found', `The log has ${size} signed entries. Ask for from <= to <= ${size}.`);
  const proof = await readProofHashes(services.ctx.db, Proof.consistency(from, end));
  return { from, to: end, proof, checkpoint };
}

async function pollUntilFound<T>(find: () => Promise<T | undefined>): Promise<T | undefined> {
  for (const deadline = performance.now() + MAX_WAIT_MS; ; await sleep(POLL_INTERVAL_MS)) {
    const found = await find();
    if (found !== undefined || performance.now() > deadline) return found;
  }
}
