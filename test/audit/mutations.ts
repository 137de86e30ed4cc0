import { generateKeyPairSync } from 'node:crypto';
import { buildAuditEntry, hashLeaf } from '../../gateway/domain/audit/audit.ts';
import {
  type ExportVerification,
  ExportVerifier,
  formatEntryLine,
  formatLastLine,
  parseLastLine,
  type TrustedInputs,
} from '../../gateway/domain/audit/audit-export.ts';
import { Frontier } from '../../gateway/domain/audit/merkle.ts';
import { NoteSigner } from '../../gateway/domain/audit/signed-note.ts';

export type Random = () => number;

/** A log that was kept well. */
export interface SignedExport {
  readonly key: NoteSigner;
  readonly entries: readonly string[];
  /** The lines of its export, without newlines. */
  readonly lines: readonly string[];
  /** The checkpoint that was signed at each of these sizes. */
  readonly checkpoints: ReadonlyMap<number, string>;
  readonly newest: string;
}

export function buildSignedExport(size: number, every: number, random: Random): SignedExport {
  const key = new NoteSigner('oncegate/kept', generateKeyPairSync('ed25519').privateKey);
  const entries = Array.from({ length: size }, (_, i) => buildRandomEntry(i, random));
  const checkpoints = new Map<number, string>();
  const lines = buildExportLines(entries, (count, root) => {
    if (count % every !== 0 && count !== size) return null;
    checkpoints.set(count, key.sign(count, root));
    return checkpoints.get(count) ?? null;
  });
  const newest = checkpoints.get(size) ?? '';
  return { key, entries, lines: [...lines, formatLastLine(newest, key.verifier)], checkpoints, newest };
}

export function buildExportLines(
  entries: readonly string[],
  sign: (size: number, root: Buffer) => string | null,
): string[] {
  const frontier = new Frontier();
  return entries.map((entry, index) => {
    const leaf = hashLeaf(entry);
    frontier.append(leaf);
    return formatEntryLine({ index, leaf, entry, checkpoint: sign(index + 1, frontier.computeRoot()) });
  });
}

function buildRandomEntry(i: number, random: Random): string {
  const note = String.fromCodePoint(0x20 + Math.floor(random() * 0x2000)).repeat(1 + Math.floor(random() * 40));
  return buildAuditEntry('call_claimed', { txn: `t${i}`, agent: 'bot', amount: Math.floor(random() * 1e6), note });
}

export const joinLines = (lines: readonly string[]) => lines.map((line) => `${line}\n`).join('');

/** As the command line does it, cut wherever chance cuts. */
export function verifyInChunks(
  bytes: Buffer,
  trusted: TrustedInputs,
  random: Random = Math.random,
): ExportVerification {
  const last = bytes.toString('utf8').trimEnd().split('\n').at(-1) ?? '';
  const verifier = new ExportVerifier(parseLastLine(last)?.publicKey, trusted);
  const copy = Buffer.from(bytes);
  for (let at = 0; at < copy.length; ) {
    const end = at + 1 + Math.floor(random() * 5_000);
    verifier.feed(copy.subarray(at, end));
    at = end;
  }
  return verifier.finish();
}

/** What somebody did to an export. `first` is the first entry that is not what it was; undefined: no entry. */
export interface Mutation {
  readonly bytes: Buffer;
  readonly first: number | undefined;
}

type Mutator = (kept: SignedExport, random: Random) => Mutation | undefined;

const toMutation = (lines: readonly string[], first: number | undefined): Mutation => ({
  bytes: Buffer.from(joinLines(lines)),
  first,
});
const randomBelow = (random: Random, most: number) => Math.floor(random() * most);

/** Whoever changes entries and makes everything fit again that needs no key: indexes, leaf hashes, and which checkpoints go along. */
function forge(kept: SignedExport, entries: readonly string[], first: number, random: Random): Mutation {
  const keepsCheckpoints = random() < 0.5;
  const lines = buildExportLines(entries, (size) => (keepsCheckpoints ? (kept.checkpoints.get(size) ?? null) : null));
  return toMutation([...lines, formatLastLine(kept.newest, kept.key.verifier)], first);
}

function editEntry(entry: string, random: Random): string {
  const digit = /[0-9]/g;
  const places = [...entry.matchAll(digit)].map((match) => match.index);
  const at = places[randomBelow(random, places.length)] ?? 0;
  return `${entry.slice(0, at)}${(Number(entry[at]) + 1 + randomBelow(random, 8)) % 10}${entry.slice(at + 1)}`;
}

export const MUTATIONS: Readonly<Record<string, Mutator>> = {
  'one byte is another': (kept, random) => {
    const bytes = Buffer.from(joinLines(kept.lines));
    const at = randomBelow(random, bytes.length);
    const before = bytes[at] ?? 0;
    bytes[at] = (before + 1 + randomBelow(random, 255)) % 256;
    const line = bytes.subarray(0, at).filter((byte) => byte === 10).length;
    return { bytes, first: line < kept.entries.length ? line : undefined };
  },
  'an entry is edited and hashed anew': (kept, random) => {
    const at = randomBelow(random, kept.entries.length);
    const entry = editEntry(kept.entries[at] ?? '', random);
    const line = formatEntryLine({
      index: at,
      leaf: hashLeaf(entry),
      entry,
      checkpoint: kept.checkpoints.get(at + 1) ?? null,
    });
    return toMutation(kept.lines.with(at, line), at);
  },
  'an entry is edited, and everything after it made to fit': (kept, random) => {
    const at = randomBelow(random, kept.entries.length);
    return forge(kept, kept.entries.with(at, editEntry(kept.entries[at] ?? '', random)), at, random);
  },
  'lines are deleted': (kept, random) => {
    const at = randomBelow(random, kept.entries.length);
    return toMutation(kept.lines.toSpliced(at, 1 + randomBelow(random, 3)), at);
  },
  'an entry is deleted, and everything after it made to fit': (kept, random) => {
    const at = randomBelow(random, kept.entries.length);
    return forge(kept, kept.entries.toSpliced(at, 1), at, random);
  },
  'a line is inserted': (kept, random) => {
    const at = randomBelow(random, kept.entries.length);
    const from = randomBelow(random, kept.lines.length);
    // Of a line that is there twice in a row, the second is the one too many.
    return toMutation(kept.lines.toSpliced(at, 0, kept.lines[from] ?? ''), from === at ? at + 1 : at);
  },
  'an entry is inserted, and everything after it made to fit': (kept, random) => {
    const at = randomBelow(random, kept.entries.length);
    return forge(kept, kept.entries.toSpliced(at, 0, buildRandomEntry(-1, random)), at, random);
  },
  'two lines are swapped': (kept, random) => {
    const [a, b] = [randomBelow(random, kept.entries.length), randomBelow(random, kept.entries.length)];
    if (a === b) return undefined;
    return toMutation(kept.lines.with(a, kept.lines[b] ?? '').with(b, kept.lines[a] ?? ''), Math.min(a, b));
  },
  'two entries are swapped, and everything made to fit': (kept, random) => {
    const [a, b] = [randomBelow(random, kept.entries.length), randomBelow(random, kept.entries.length)];
    if (a === b) return undefined;
    const swapped = kept.entries.with(a, kept.entries[b] ?? '').with(b, kept.entries[a] ?? '');
    return forge(kept, swapped, Math.min(a, b), random);
  },
  'it is cut off anywhere': (kept, random) => {
    const bytes = Buffer.from(joinLines(kept.lines));
    const at = randomBelow(random, bytes.length);
    const line = bytes.subarray(0, at).filter((byte) => byte === 10).length;
    return { bytes: bytes.subarray(0, at), first: line < kept.entries.length ? line : undefined };
  },
  'it is cut back to an older checkpoint': (kept, random) => {
    const sizes = [...kept.checkpoints.keys()].slice(0, -1);
    const size = sizes[randomBelow(random, sizes.length)];
    if (size === undefined) return undefined;
    return toMutation(
      [...kept.lines.slice(0, size), formatLastLine(kept.checkpoints.get(size) ?? '', kept.key.verifier)],
      size,
    );
  },
  'it is written anew under another key': (kept, random) => {
    const other = new NoteSigner('oncegate/kept', generateKeyPairSync('ed25519').privateKey);
    const at = randomBelow(random, kept.entries.length);
    const entries = kept.entries.with(at, editEntry(kept.entries[at] ?? '', random));
    let newest = '';
    const lines = buildExportLines(entries, (size, root) => {
      newest = other.sign(size, root);
      return kept.checkpoints.has(size) ? newest : null;
    });
    return toMutation([...lines, formatLastLine(newest, other.verifier)], undefined);
  },
};

/** What is wrong with the verdict over a mutated export; undefined when it was found out, and the right entry named. */
export function findMissedDetection(kept: SignedExport, name: string, random: Random): string | undefined {
  const mutation = MUTATIONS[name]?.(kept, random);
  if (mutation === undefined || mutation.bytes.equals(Buffer.from(joinLines(kept.lines)))) return undefined;
  const { fault } = verifyInChunks(mutation.bytes, { key: kept.key.verifier, checkpoint: kept.newest }, random);
  if (fault === null) return `${name}: not detected`;
  const { first } = mutation;
  if (first === undefined) return undefined;
  const { entry, upTo } = fault;
  if (entry !== null && upTo !== null && entry <= first && first <= upTo) return undefined;
  return `${name}: entry ${first} was the first bad one, ${JSON.stringify(fault)} was named`;
}
