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

/** An unchanged export with the key that signed it. */
export interface SignedExport {
  readonly key: NoteSigner;
  readonly entries: readonly string[];
  /** The lines of the export, without newlines. */
  readonly lines: readonly string[];
  /** Signed checkpoints by the size of the log. */
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

/** Verifies like the command line does, in chunks of random length. */
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

/** A changed export. `first` is the first changed entry; undefined if no entry changed. */
export interface Mutation {
  readonly bytes: Buffer;
  readonly first: number | undefined;
}

type Mutator = (original: SignedExport, random: Random) => Mutation | undefined;

const toMutation = (lines: readonly string[], first: number | undefined): Mutation => ({
  bytes: Buffer.from(joinLines(lines)),
  first,
});
const randomBelow = (random: Random, limit: number) => Math.floor(random() * limit);

/** Rebuilds the export from changed entries with all that needs no key: indexes, leaf hashes and, at random, old checkpoints. */
function forge(original: SignedExport, entries: readonly string[], first: number, random: Random): Mutation {
  const hasCheckpoints = random() < 0.5;
  const lines = buildExportLines(entries, (size) => (hasCheckpoints ? (original.checkpoints.get(size) ?? null) : null));
  return toMutation([...lines, formatLastLine(original.newest, original.key.verifier)], first);
}

function editEntry(entry: string, random: Random): string {
  const digit = /[0-9]/g;
  const positions = [...entry.matchAll(digit)].map((match) => match.index);
  const at = positions[randomBelow(random, positions.length)] ?? 0;
  return `${entry.slice(0, at)}${(Number(entry[at]) + 1 + randomBelow(random, 8)) % 10}${entry.slice(at + 1)}`;
}

export const MUTATIONS: Readonly<Record<string, Mutator>> = {
  'one byte is changed': (original, random) => {
    const bytes = Buffer.from(joinLines(original.lines));
    const at = randomBelow(random, bytes.length);
    const before = bytes[at] ?? 0;
    bytes[at] = (before + 1 + randomBelow(random, 255)) % 256;
    const line = bytes.subarray(0, at).filter((byte) => byte === 10).length;
    return { bytes, first: line < original.entries.length ? line : undefined };
  },
  'an entry is edited and hashed again': (original, random) => {
    const at = randomBelow(random, original.entries.length);
    const entry = editEntry(original.entries[at] ?? '', random);
    const line = formatEntryLine({
      index: at,
      leaf: hashLeaf(entry),
      entry,
      checkpoint: original.checkpoints.get(at + 1) ?? null,
    });
    return toMutation(original.lines.with(at, line), at);
  },
  'an entry is edited, and all later lines are rebuilt': (original, random) => {
    const at = randomBelow(random, original.entries.length);
    return forge(original, original.entries.with(at, editEntry(original.entries[at] ?? '', random)), at, random);
  },
  'lines are deleted': (original, random) => {
    const at = randomBelow(random, original.entries.length);
    return toMutation(original.lines.toSpliced(at, 1 + randomBelow(random, 3)), at);
  },
  'an entry is deleted, and all later lines are rebuilt': (original, random) => {
    const at = randomBelow(random, original.entries.length);
    return forge(original, original.entries.toSpliced(at, 1), at, random);
  },
  'a line is inserted': (original, random) => {
    const at = randomBelow(random, original.entries.length);
    const from = randomBelow(random, original.lines.length);
    // If the inserted line repeats its neighbour, the second of the two is the bad one.
    return toMutation(original.lines.toSpliced(at, 0, original.lines[from] ?? ''), from === at ? at + 1 : at);
  },
  'an entry is inserted, and all later lines are rebuilt': (original, random) => {
    const at = randomBelow(random, original.entries.length);
    return forge(original, original.entries.toSpliced(at, 0, buildRandomEntry(-1, random)), at, random);
  },
  'two lines are swapped': (original, random) => {
    const [a, b] = [randomBelow(random, original.entries.length), randomBelow(random, original.entries.length)];
    if (a === b) return undefined;
    return toMutation(original.lines.with(a, original.lines[b] ?? '').with(b, original.lines[a] ?? ''), Math.min(a, b));
  },
  'two entries are swapped, and all lines are rebuilt': (original, random) => {
    const [a, b] = [randomBelow(random, original.entries.length), randomBelow(random, original.entries.length)];
    if (a === b) return undefined;
    const swapped = original.entries.with(a, original.entries[b] ?? '').with(b, original.entries[a] ?? '');
    return forge(original, swapped, Math.min(a, b), random);
  },
  'it is cut off at a random byte': (original, random) => {
    const bytes = Buffer.from(joinLines(original.lines));
    const at = randomBelow(random, bytes.length);
    const line = bytes.subarray(0, at).filter((byte) => byte === 10).length;
    return { bytes: bytes.subarray(0, at), first: line < original.entries.length ? line : undefined };
  },
  'it is cut back to an older checkpoint': (original, random) => {
    const sizes = [...original.checkpoints.keys()].slice(0, -1);
    const size = sizes[randomBelow(random, sizes.length)];
    if (size === undefined) return undefined;
    return toMutation(
      [...original.lines.slice(0, size), formatLastLine(original.checkpoints.get(size) ?? '', original.key.verifier)],
      size,
    );
  },
  'it is rewritten with another key': (original, random) => {
    const other = new NoteSigner('oncegate/kept', generateKeyPairSync('ed25519').privateKey);
    const at = randomBelow(random, original.entries.length);
    const entries = original.entries.with(at, editEntry(original.entries[at] ?? '', random));
    let newest = '';
    const lines = buildExportLines(entries, (size, root) => {
      newest = other.sign(size, root);
      return original.checkpoints.has(size) ? newest : null;
    });
    return toMutation([...lines, formatLastLine(newest, other.verifier)], undefined);
  },
};

/** Verifies a mutated export. Returns what is wrong with the verdict; undefined if it names the right entry. */
export function findMissedDetection(original: SignedExport, name: string, random: Random): string | undefined {
  const mutation = MUTATIONS[name]?.(original, random);
  if (mutation === undefined || mutation.bytes.equals(Buffer.from(joinLines(original.lines)))) return undefined;
  const { fault } = verifyInChunks(mutation.bytes, { key: original.key.verifier, checkpoint: original.newest }, random);
  if (fault === null) return `${name}: not detected`;
  const { first } = mutation;
  if (first === undefined) return undefined;
  const { entry, upTo } = fault;
  if (entry !== null && upTo !== null && entry <= first && first <= upTo) return undefined;
  return `${name}: entry ${first} is the first bad one, but the verdict is ${JSON.stringify(fault)}`;
}
