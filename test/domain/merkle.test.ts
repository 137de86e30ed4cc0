import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { hashLeaf } from '../../gateway/domain/audit/audit.ts';
import {
  EMPTY_ROOT,
  Frontier,
  Proof,
  type StoredHash,
  StoredHashes,
  verifyConsistency,
  verifyInclusion,
} from '../../gateway/domain/audit/merkle.ts';

/** A literal, slow implementation of the definitions in RFC 6962, section 2.1. */
const sha = (...parts: Uint8Array[]) => createHash('sha256').update(Buffer.concat(parts)).digest();
const largestPowerBelow = (n: number): number => 2 ** Math.ceil(Math.log2(n) - 1);
function naiveRoot(leaves: readonly Buffer[]): Buffer {
  if (leaves.length === 0) return sha();
  if (leaves.length === 1) return leaves[0] as Buffer;
  const k = largestPowerBelow(leaves.length);
  return sha(Buffer.from([1]), naiveRoot(leaves.slice(0, k)), naiveRoot(leaves.slice(k)));
}
function naivePath(m: number, leaves: readonly Buffer[]): Buffer[] {
  if (leaves.length === 1) return [];
  const k = largestPowerBelow(leaves.length);
  return m < k
    ? [...naivePath(m, leaves.slice(0, k)), naiveRoot(leaves.slice(k))]
    : [...naivePath(m - k, leaves.slice(k)), naiveRoot(leaves.slice(0, k))];
}
function naiveSubproof(m: number, leaves: readonly Buffer[], whole: boolean): Buffer[] {
  if (m === leaves.length) return whole ? [] : [naiveRoot(leaves)];
  const k = largestPowerBelow(leaves.length);
  return m <= k
    ? [...naiveSubproof(m, leaves.slice(0, k), whole), naiveRoot(leaves.slice(k))]
    : [...naiveSubproof(m - k, leaves.slice(k), false), naiveRoot(leaves.slice(0, k))];
}

/** The frontier and the stored hashes of a log with these leaves. */
function growTree(leaves: readonly Buffer[]): { frontier: Frontier; stored: StoredHash[] } {
  const frontier = new Frontier();
  const stored = leaves.map((hash, index): StoredHash => ({ level: 0, index, hash }));
  for (const leaf of leaves) frontier.append(leaf, (node) => stored.push(node));
  return { frontier, stored };
}

/** Computes a proof from only those hashes that the proof requires. */
function computeProof(proof: Proof, stored: readonly StoredHash[]): Buffer[] {
  const ranges = proof.listRequiredRanges();
  for (const { from, to } of ranges) expect(to - from).toBeLessThanOrEqual(128);
  const required = stored.filter((node) =>
    ranges.some(({ level, from, to }) => node.level === level && node.index >= from && node.index < to),
  );
  return proof.computeHashes(new StoredHashes(required));
}

const leavesOf = (n: number) => Array.from({ length: n }, (_, i) => hashLeaf(`entry ${i}`));
const hex = (hashes: readonly Buffer[]) => hashes.map((hash) => hash.toString('hex'));

describe('known answers', () => {
  const inputs = ['', '00', '10', '2021', '3031', '40414243', '5051525354555657', '606162636465666768696a6b6c6d6e6f'];
  const leaves = inputs.map((input) => sha(Buffer.from([0]), Buffer.from(input, 'hex')));
  const roots = [
    'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',
    '6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d',
    'fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125',
    'aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77',
    'd37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7',
    '4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4',
    '76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef',
    'ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c',
    '5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328',
  ];

  it('match the roots of the RFC 6962 test vectors', () => {
    for (const [size, root] of roots.entries()) {
      const { frontier } = growTree(leaves.slice(0, size));
      expect([size, frontier.computeRoot().toString('hex')]).toEqual([size, root]);
    }
    expect(EMPTY_ROOT.toString('hex')).toBe(roots[0]);
  });

  it('match the inclusion and consistency proofs of the test vectors', () => {
    const { stored } = growTree(leaves);
    expect(hex(computeProof(Proof.inclusion(5, 8), stored))).toEqual([
      'bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b',
      'ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0',
      'd37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7',
    ]);
    expect(hex(computeProof(Proof.consistency(6, 8), stored))).toEqual([
      '0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a',
      'ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0',
      'd37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7',
    ]);
  });
});

describe('compared with the definitions of the RFC', () => {
  it('roots and proofs are equal, and the proofs verify', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 700 }), fc.nat(), fc.nat(), (size, a, b) => {
        const all = leavesOf(size + (b % 40));
        const leaves = all.slice(0, size);
        const { stored } = growTree(all);
        const root = naiveRoot(leaves);
        expect(computeProof(Proof.root(size), stored)).toEqual([root]);

        const index = a % size;
        const path = computeProof(Proof.inclusion(index, size), stored);
        expect(hex(path)).toEqual(hex(naivePath(index, leaves)));
        expect(verifyInclusion(leaves[index] as Buffer, index, size, path, root)).toBe(true);

        const first = a % (size + 1);
        const proof = computeProof(Proof.consistency(first, size), stored);
        expect(hex(proof)).toEqual(hex(first === 0 ? [] : naiveSubproof(first, leaves, true)));
        const before = { size: first, root: naiveRoot(leaves.slice(0, first)) };
        expect(verifyConsistency(before, { size, root }, proof)).toBe(true);
      }),
      { numRuns: 300 },
    );
  });

  it('a tree restored from stored hashes grows like one that never stopped', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 1_200 }), fc.integer({ min: 0, max: 300 }), (before, more) => {
        const leaves = leavesOf(before + more);
        const { stored } = growTree(leaves.slice(0, before));
        const ranges = Frontier.listRequiredRanges(before);
        const read = stored.filter((node) =>
          ranges.some(({ level, from, to }) => node.level === level && node.index >= from && node.index < to),
        );
        const frontier = Frontier.restore(before, new StoredHashes(read));
        for (const leaf of leaves.slice(before)) frontier.append(leaf);
        expect(frontier.size).toBe(leaves.length);
        expect(frontier.computeRoot()).toEqual(naiveRoot(leaves));
      }),
      { numRuns: 100 },
    );
  });

  it('another leaf, index, size or root, or a changed proof, does not verify', () => {
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 300 }), fc.nat(), fc.nat(), (size, a, b) => {
        const leaves = leavesOf(size);
        const { stored } = growTree(leaves);
        const root = naiveRoot(leaves);
        const index = a % size;
        const leaf = leaves[index] as Buffer;
        const path = computeProof(Proof.inclusion(index, size), stored);
        const other = hashLeaf('another');
        const changed = path.with(b % path.length, other);
        expect(verifyInclusion(other, index, size, path, root)).toBe(false);
        expect(verifyInclusion(leaf, index, size, changed, root)).toBe(false);
        expect(verifyInclusion(leaf, index, size, path.slice(1), root)).toBe(false);
        expect(verifyInclusion(leaf, index, size, [...path, other], root)).toBe(false);
        expect(verifyInclusion(leaf, (index + 1) % size, size, path, root)).toBe(false);
        expect(verifyInclusion(leaf, index, size, path, other)).toBe(false);
        expect(verifyInclusion(leaf, size, size, path, root)).toBe(false);

        const first = 1 + (a % (size - 1));
        const before = { size: first, root: naiveRoot(leaves.slice(0, first)) };
        const now = { size, root };
        const proof = computeProof(Proof.consistency(first, size), stored);
        expect(verifyConsistency({ ...before, root: other }, now, proof)).toBe(false);
        expect(verifyConsistency(before, { ...now, root: other }, proof)).toBe(false);
        expect(verifyConsistency(before, now, proof.with(b % proof.length, other))).toBe(false);
        expect(verifyConsistency(before, now, proof.slice(1))).toBe(false);
        expect(verifyConsistency(before, now, [...proof, other])).toBe(false);
        expect(verifyConsistency(now, before, proof)).toBe(false);
      }),
      { numRuns: 200 },
    );
  });
});
