/**
 * A lock name consists of segments separated by slashes: `card/4242`. A name that ends in `*` covers everything below:
 * `table/*` conflicts with every `table/…`. Conflicting locks are never held at once, unless both are shared.
 */
export type LockMode = 'shared' | 'exclusive';
export type LockScope = 'call' | 'saga' | 'run';

/** The limit of locks per call. */
export const MAX_LOCKS = 10_000;
/**
 * The limits of segments per name, and of all names of a call. The ledger looks up every prefix of a name, and other calls that
 * take locks wait meanwhile.
 */
export const MAX_LOCK_SEGMENTS = 16;
export const MAX_LOCK_SEGMENTS_PER_CALL = 40_000;
export const MAX_LOCK_CHARACTERS = 1_024;

/** What is wrong with a lock name; undefined if it is valid. */
export function findLockNameFault(name: string): string | undefined {
  const segments = name.split('/');
  if (name === '' || segments.includes('')) return 'has an empty segment';
  if (name.length > MAX_LOCK_CHARACTERS) return `is longer than ${MAX_LOCK_CHARACTERS} characters`;
  if (segments.length > MAX_LOCK_SEGMENTS) return `has more than ${MAX_LOCK_SEGMENTS} segments`;
  if (name.includes('\0')) return 'holds a NUL character';
  if (name === '*') return 'would lock everything: put a name before /*';
  return segments.slice(0, -1).some((segment) => segment === '*') ? 'has a * that is not its last segment' : undefined;
}

export function isPrefixLock(name: string): boolean {
  return name.endsWith('/*');
}

/** The prefix locks that cover a name, without the name itself: `a/*` and `a/b/*` cover `a/b/c`. */
export function listCoveringPrefixes(name: string): string[] {
  const segments = name.split('/').slice(0, isPrefixLock(name) ? -2 : -1);
  return segments.map((_, i) => `${segments.slice(0, i + 1).join('/')}/*`);
}
