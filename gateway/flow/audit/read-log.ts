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

/** An entry is sealed within about a second of what it records: whoever asks earlier waits this long at most. */
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
export async function requireNewestCheckpoint({ station: ctx }: Services): Promise<string> {
  const note = await readNewestCheckpoint(ctx.db);
  if (note === undefined) throw new GatewayError('not_found', 'Nothing was signed so far: ask again in a second.');
  return note;
}

/** The public key of the log. */
export function getLogPublicKey({ sequencer }: Services): string {
  return sequencer.key.verifier;
}

/** Signed entries. Checkpoints of an earlier key, if there was one, are left out: nobody could verify them with this one. */
export async function readLogEntries(
  { station: ctx, sequencer }: Services,
  from: number,
  to: number,
): Promise<LoggedEntry[]> {
  const entries = await readEntries(ctx.db, from, to);
  return entries.map((entry) =>
    entry.checkpoint === null || sequencer.key.hasLineIn(entry.checkpoint) ? entry : { ...entry, checkpoint: null },
  );
}

/** That an entry is in the log as it was last signed. */
export async function proveLeaf(services: Services, leaf: Buffer): Promise<InclusionProof> {
  const { db } = services.station;
  const found = await pollUntilFound(() => findLeaf(db, leaf));
  if (found === undefined)
    throw new GatewayError('not_found', 'The log has no entry with this leaf hash. It can take a second to get there.');
  const checkpoint = await requireNewestCheckpoint(services);
  const { size, root } = parseLogCheckpoint(checkpoint);
  const proof = await readProofHashes(db, Proof.inclusion(found.index, size));
  return { leaf, ...found, size, proof, root, checkpoint };
}

/** That the log of one size is how that of another began. */
export async function proveConsistency(services: Services, from: number, to: number | undefined) {
  const checkpoint = await requireNewestCheckpoint(services);
  const { size } = parseLogCheckpoint(checkpoint);
  const until = to ?? size;
  if (until > size || from > until)
    throw new GatewayError('not_found', `The log has ${size} signed entries: ask for from <= to <= ${size}.`);
  const proof = await readProofHashes(services.station.db, Proof.consistency(from, until));
  return { from, to: until, proof, checkpoint };
}

async function pollUntilFound<T>(look: () => Promise<T | undefined>): Promise<T | undefined> {
  for (const until = performance.now() + MAX_WAIT_MS; ; await sleep(POLL_INTERVAL_MS)) {
    const found = await look();
    if (found !== undefined || performance.now() > until) return found;
  }
}
