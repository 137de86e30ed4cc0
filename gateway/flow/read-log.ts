import { setTimeout as sleep } from 'node:timers/promises';
import { GatewayError } from '../domain/errors.ts';
import { Proof } from '../domain/merkle.ts';
import { readCheckpoint } from '../domain/signed-note.ts';
import { findLeaf, type LoggedEntry, newestCheckpoint, proofHashes, readEntries } from '../ledger/audit-log.ts';
import type { Flow } from './call-tool.ts';

export type { LoggedEntry } from '../ledger/audit-log.ts';

/** An entry is sealed within about a second of what it records: whoever asks earlier waits this long at most. */
const PATIENCE_MS = 3_000;
const LOOK_AGAIN_MS = 100;

export interface Inclusion {
  readonly leaf: Buffer;
  readonly index: number;
  readonly entry: string;
  readonly size: number;
  readonly proof: readonly Buffer[];
  readonly root: Buffer;
  readonly checkpoint: string;
}

/** The newest signed checkpoint. */
export async function readNewest({ station }: Flow): Promise<string> {
  const note = await newestCheckpoint(station.db);
  if (note === undefined) throw new GatewayError('not_found', 'Nothing was signed so far: ask again in a second.');
  return note;
}

/** The public key of the log. */
export function publicKey({ sequencer }: Flow): string {
  return sequencer.key.verifier;
}

/** Signed entries. Checkpoints of an earlier key, if there was one, are left out: nobody could verify them with this one. */
export async function readLog({ station, sequencer }: Flow, from: number, to: number): Promise<LoggedEntry[]> {
  const entries = await readEntries(station.db, from, to);
  return entries.map((entry) =>
    entry.checkpoint === null || sequencer.key.isNamedIn(entry.checkpoint) ? entry : { ...entry, checkpoint: null },
  );
}

/** That an entry is in the log as it was last signed. */
export async function proveLeaf(flow: Flow, leaf: Buffer): Promise<Inclusion> {
  const { db } = flow.station;
  const found = await patiently(() => findLeaf(db, leaf));
  if (found === undefined)
    throw new GatewayError('not_found', 'The log has no entry with this leaf hash. It can take a second to get there.');
  const checkpoint = await readNewest(flow);
  const { size, root } = readCheckpoint(checkpoint);
  const proof = await proofHashes(db, Proof.inclusion(found.index, size));
  return { leaf, ...found, size, proof, root, checkpoint };
}

/** That the log of one size is how that of another began. */
export async function proveConsistency(flow: Flow, from: number, to: number | undefined) {
  const checkpoint = await readNewest(flow);
  const { size } = readCheckpoint(checkpoint);
  const until = to ?? size;
  if (until > size || from > until)
    throw new GatewayError('not_found', `The log has ${size} signed entries: ask for from <= to <= ${size}.`);
  const proof = await proofHashes(flow.station.db, Proof.consistency(from, until));
  return { from, to: until, proof, checkpoint };
}

async function patiently<T>(look: () => Promise<T | undefined>): Promise<T | undefined> {
  for (const until = performance.now() + PATIENCE_MS; ; await sleep(LOOK_AGAIN_MS)) {
    const found = await look();
    if (found !== undefined || performance.now() > until) return found;
  }
}
