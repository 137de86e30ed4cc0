/**
 * Names of things that calls lock: segments separated by slashes, `card/4242`. One that ends in the segment `*` stands for
 * everything below: `table/*` conflicts with every `table/…`. Two that conflict are never held at once, unless both share.
 */
export type LockMode = 'shared' | 'exclusive';
export type LockScope = 'call' | 'saga' | 'run';

/** So many things may be locked by one call. */
export const MAX_LOCKS = 10_000;
/**
 * What covers a name is looked up segment by segment, and whoever locks anything else waits meanwhile: so many segments a name
 * may have, and so many all the names of a call together.
 */
export const MAX_LOCK_SEGMENTS = 16;
export const MAX_LOCK_SEGMENTS_PER_CALL = 40_000;
export const MAX_LOCK_CHARACTERS = 1_024;

/** What is wrong with a name; undefined: nothing. */
export function findLockNameFault(name: string): string | undefined {
  const segments = name.split('/');
  if (name === '' || segments.includes('')) return 'has an empty segment';
  if (name.length > MAX_LOCK_CHARACTERS) return `is longer than ${MAX_LOCK_CHARACTERS} characters`;
  if (segments.length > MAX_LOCK_SEGMENTS) return `has more than ${MAX_LOCK_SEGMENTS} segments`;
  if (name.includes('\0')) return 'holds a NUL character';
  if (name === '*') return 'would lock everything there is: name something before /*';
  return segments.slice(0, -1).some((segment) => segment === '*') ? 'has a * that is not its last segment' : undefined;
}

export function isPrefixLock(name: string): boolean {
  return name.endsWith('/*');
}

/** The prefixes that cover a name, itself not among them: `a/b/c` is covered by `a/*` and `a/b/*`. */
export function listCoveringPrefixes(name: string): string[] {
  const segments = name.split('/').slice(0, isPrefixLock(name) ? -2 : -1);
  return segments.map((_, i) => `${segments.slice(0, i + 1).join('/')}/*`);
}
