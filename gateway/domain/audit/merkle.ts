import { sha256 } from '../sha256.ts';

/**
 * The Merkle tree of RFC 6962. The code is pure; the ledger stores the hashes. It stores the leaves and, for every 256 complete
 * hashes of a level, the hash above them. That is enough to build any proof with a few short reads.
 */
const HEIGHT_PER_LEVEL = 8;

export const HASH_BYTES = 32;
export const EMPTY_ROOT: Buffer = sha256('');

const scratch = Buffer.alloc(1 + 2 * HASH_BYTES, 1);

export function hashNode(left: Buffer, right: Buffer): Buffer {
  scratch.set(left, 1);
  scratch.set(right, 1 + HASH_BYTES);
  return sha256(scratch);
}

/** A stored hash. Level 0 holds the leaves; a hash of any other level covers 256 hashes of the level below. */
export interface StoredHash {
  readonly level: number;
  readonly index: number;
  readonly hash: Buffer;
}

/** Stored hashes of one level, `from` inclusive, `to` exclusive. */
export interface StoredRange {
  readonly level: number;
  readonly from: number;
  readonly to: number;
}

/** The right edge of a tree, which is enough to append leaves and to compute the root. */
export class Frontier {
  /** Roots of the complete subtrees, the largest first; their sizes are the binary digits of `size`. */
  readonly #peaks: Buffer[] = [];
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** The stored hashes that `restore` needs for a tree of this size. */
  static listRequiredRanges(size: number): StoredRange[] {
    return splitIntoSubtrees({ from: 0, to: size }).map(toStoredRange);
  }

  static restore(size: number, stored: StoredHashes): Frontier {
    const frontier = new Frontier();
    for (const subtree of splitIntoSubtrees({ from: 0, to: size })) frontier.#peaks.push(hashSubtree(subtree, stored));
    frontier.#size = size;
    return frontier;
  }

  /** Appends a leaf. Calls `onComplete` with each hash that the leaf completes and that must be stored. */
  append(leaf: Buffer, onComplete?: (stored: StoredHash) => void): void {
    let node = leaf;
    let index = this.#size;
    for (let height = 1; index % 2 === 1; height++) {
      node = hashNode(this.#peaks.pop() as Buffer, node);
      index = (index - 1) / 2;
      if (height % HEIGHT_PER_LEVEL === 0) onComplete?.({ level: height / HEIGHT_PER_LEVEL, index, hash: node });
    }
    this.#peaks.push(node);
    this.#size += 1;
  }

  computeRoot(): Buffer {
    return combinePeaks(this.#peaks);
  }
}

/** A subtree over the leaves `from` inclusive to `to` exclusive. */
interface LeafRange {
  readonly from: number;
  readonly to: number;
}

/** The ranges whose hashes, in this order, are the proof. */
export class Proof {
  readonly #ranges: readonly LeafRange[];

  private constructor(ranges: readonly LeafRange[]) {
    this.#ranges = ranges;
  }

  /** Proves that a leaf is in the tree of that size: RFC 6962, 2.1.1. */
  static inclusion(index: number, size: number): Proof {
    if (!(index >= 0 && index < size)) throw new RangeError(`A tree of size ${size} has no leaf ${index}.`);
    return new Proof(buildInclusionPath(index, { from: 0, to: size }));
  }

  /** Proves that the tree of size `to` extends the tree of size `from`: RFC 6962, 2.1.2. */
  static consistency(from: number, to: number): Proof {
    if (!(from >= 0 && from <= to)) throw new RangeError(`A tree of size ${to} cannot extend one of size ${from}.`);
    return new Proof(from === 0 || from === to ? [] : buildConsistencyPath(from, { from: 0, to }, true));
  }

  /** The root of the tree when it had that size. */
  static root(size: number): Proof {
    return new Proof([{ from: 0, to: size }]);
  }

  /** The stored hashes that `computeHashes` needs. */
  listRequiredRanges(): StoredRange[] {
    return this.#ranges.flatMap(splitIntoSubtrees).map(toStoredRange);
  }

  computeHashes(stored: StoredHashes): Buffer[] {
    return this.#ranges.map((range) =>
      combinePeaks(splitIntoSubtrees(range).map((subtree) => hashSubtree(subtree, stored))),
    );
  }
}

/** Hashes read from the store. A missing hash means that the log has a hole. */
export class StoredHashes {
  readonly #hashes = new Map<string, Buffer>();

  constructor(hashes: Iterable<StoredHash>) {
    for (const { level, index, hash: value } of hashes) this.#hashes.set(`${level}/${index}`, value);
  }

  get(level: number, index: number): Buffer {
    const found = this.#hashes.get(`${level}/${index}`);
    if (found === undefined) throw new MissingHashError(level, index);
    return found;
  }
}

export class MissingHashError extends Error {
  override readonly name = 'MissingHash';

  constructor(level: number, index: number) {
    super(`The log has no hash ${index} of level ${level}.`);
  }
}

/** RFC 9162, 2.1.3.2. */
export function verifyInclusion(
  leaf: Buffer,
  index: number,
  size: number,
  proof: readonly Buffer[],
  root: Buffer,
): boolean {
  if (!(index >= 0 && index < size)) return false;
  let [fn, sn, node] = [index, size - 1, leaf];
  for (const sibling of proof) {
    if (sn === 0) return false;
    if (fn % 2 === 1 || fn === sn) {
      node = hashNode(sibling, node);
      while (fn % 2 === 0 && fn !== 0) [fn, sn] = [half(fn), half(sn)];
    } else node = hashNode(node, sibling);
    [fn, sn] = [half(fn), half(sn)];
  }
  return sn === 0 && node.equals(root);
}

interface TreeHead {
  readonly size: number;
  readonly root: Buffer;
}

/** RFC 9162, 2.1.4.2. */
export function verifyConsistency(first: TreeHead, second: TreeHead, proof: readonly Buffer[]): boolean {
  if (first.size > second.size || first.size < 0) return false;
  if (first.size === 0) return proof.length === 0 && first.root.equals(EMPTY_ROOT);
  if (first.size === second.size) return proof.length === 0 && first.root.equals(second.root);
  const path = isPowerOfTwo(first.size) ? [first.root, ...proof] : proof;
  let [fn, sn] = [first.size - 1, second.size - 1];
  while (fn % 2 === 1) [fn, sn] = [half(fn), half(sn)];
  let [older, newer] = [path[0], path[0]];
  if (older === undefined || newer === undefined) return false;
  for (const node of path.slice(1)) {
    if (sn === 0) return false;
    if (fn % 2 === 1 || fn === sn) {
      [older, newer] = [hashNode(node, older), hashNode(node, newer)];
      while (fn % 2 === 0 && fn !== 0) [fn, sn] = [half(fn), half(sn)];
    } else newer = hashNode(newer, node);
    [fn, sn] = [half(fn), half(sn)];
  }
  return sn === 0 && older.equals(first.root) && newer.equals(second.root);
}

function buildInclusionPath(index: number, { from, to }: LeafRange): LeafRange[] {
  if (to - from === 1) return [];
  const middle = from + findLargestPowerBelow(to - from);
  return index < middle
    ? [...buildInclusionPath(index, { from, to: middle }), { from: middle, to }]
    : [...buildInclusionPath(index, { from: middle, to }), { from, to: middle }];
}

function buildConsistencyPath(size: number, { from, to }: LeafRange, isWhole: boolean): LeafRange[] {
  if (size === to) return isWhole ? [] : [{ from, to }];
  const middle = from + findLargestPowerBelow(to - from);
  return size <= middle
    ? [...buildConsistencyPath(size, { from, to: middle }, isWhole), { from: middle, to }]
    : [...buildConsistencyPath(size, { from: middle, to }, false), { from, to: middle }];
}

/** The largest power of two below n. */
function findLargestPowerBelow(n: number): number {
  let k = 1;
  while (k * 2 < n) k *= 2;
  return k;
}

/** A complete subtree: 2^height leaves, the first of them at index · 2^height. */
interface Subtree {
  readonly height: number;
  readonly index: number;
}

/** Splits a range into complete subtrees, large to small. A range of a proof starts at a multiple of its largest subtree. */
function splitIntoSubtrees({ from, to }: LeafRange): Subtree[] {
  const subtrees: Subtree[] = [];
  for (let at = from; at < to; ) {
    let height = 0;
    while (2 ** (height + 1) <= to - at) height += 1;
    subtrees.push({ height, index: at / 2 ** height });
    at += 2 ** height;
  }
  return subtrees;
}

function toStoredRange({ height, index }: Subtree): StoredRange {
  const width = 2 ** (height % HEIGHT_PER_LEVEL);
  return { level: Math.floor(height / HEIGHT_PER_LEVEL), from: index * width, to: (index + 1) * width };
}

function hashSubtree(subtree: Subtree, stored: StoredHashes): Buffer {
  const { level, from, to } = toStoredRange(subtree);
  let nodes = Array.from({ length: to - from }, (_, i) => stored.get(level, from + i));
  while (nodes.length > 1)
    nodes = Array.from({ length: nodes.length / 2 }, (_, i) =>
      hashNode(nodes[2 * i] as Buffer, nodes[2 * i + 1] as Buffer),
    );
  return nodes[0] as Buffer;
}

/** Computes the root over complete subtrees, given the largest first. */
function combinePeaks(peaks: readonly Buffer[]): Buffer {
  return peaks.length === 0 ? EMPTY_ROOT : peaks.reduceRight((right, left) => hashNode(left, right));
}

function half(n: number): number {
  return Math.floor(n / 2);
}

function isPowerOfTwo(n: number): boolean {
  return n === findLargestPowerBelow(n + 1);
}
