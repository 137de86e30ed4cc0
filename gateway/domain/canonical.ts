import type { Json, JsonObject } from './json.ts';

/** A number without end, half a surrogate pair, or what is no JSON at all. */
export class NotCanonicalError extends TypeError {}

/**
 * RFC 8785: the one text of a JSON value, whoever wrote it and in whatever order. Keys go by UTF-16 code units (what `<`
 * compares), numbers as ECMAScript prints them, strings with the fewest escapes. What has no such text is `NotCanonical`.
 */
export function canonicalize(value: Json): string {
  if (typeof value === 'string') return canonicalizeString(value);
  if (typeof value === 'number') return canonicalizeNumber(value);
  if (value === null) return 'null';
  if (typeof value === 'boolean') return value ? 'true' : 'false';
  if (typeof value !== 'object') throw new NotCanonicalError(`${typeof value} is not JSON`);
  return Array.isArray(value) ? canonicalizeArray(value) : canonicalizeObject(value as JsonObject);
}

function canonicalizeArray(values: readonly Json[]): string {
  if (values.length === 0) return '[]';
  let out = `[${canonicalize(values[0] as Json)}`;
  for (let i = 1; i < values.length; i++) out += `,${canonicalize(values[i] as Json)}`;
  return `${out}]`;
}

function canonicalizeObject(values: JsonObject): string {
  const keys = Object.keys(values);
  if (keys.length === 0) return '{}';
  sortKeys(keys);
  let out = '';
  let before = '{';
  for (const key of keys) {
    out += `${before}${canonicalizeString(key)}:${canonicalize(values[key] as Json)}`;
    before = ',';
  }
  return `${out}}`;
}

/** Arguments have few keys: up to here inserting in place beats `sort`, which copies. */
const MAX_INSERTION_SORT_KEYS = 24;

/** In place, by UTF-16 code units. */
export function sortKeys(keys: string[]): void {
  if (keys.length > MAX_INSERTION_SORT_KEYS) {
    keys.sort();
    return;
  }
  for (let i = 1; i < keys.length; i++) {
    const key = keys[i] as string;
    let slot = i;
    for (; slot > 0 && (keys[slot - 1] as string) > key; slot--) keys[slot] = keys[slot - 1] as string;
    keys[slot] = key;
  }
}

function canonicalizeNumber(value: number): string {
  if (!Number.isFinite(value)) throw new NotCanonicalError(`${value} is not JSON`);
  return `${value}`;
}

const NEEDS_ESCAPE = /["\\\p{Cc}\p{Cs}]/u;

/** As `JSON.stringify` writes it, in half the time: most strings need no escapes. */
export function quoteJson(value: string): string {
  return NEEDS_ESCAPE.test(value) ? JSON.stringify(value) : `"${value}"`;
}

function canonicalizeString(value: string): string {
  if (!NEEDS_ESCAPE.test(value)) return `"${value}"`;
  // RFC 8785 3.2.2.2: half a surrogate pair is an error. JSON.stringify would write an escape that no UTF-8 peer agrees on.
  if (!(value as string & { isWellFormed(): boolean }).isWellFormed())
    throw new NotCanonicalError('a lone surrogate is not JSON');
  return JSON.stringify(value);
}
