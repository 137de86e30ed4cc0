import type { Json, JsonObject } from './json.ts';

/** The value has no canonical JSON: a number that is not finite, a lone surrogate, or a value that is not JSON. */
export class NotCanonicalError extends TypeError {}

/**
 * The canonical text of a JSON value by RFC 8785: keys sorted by UTF-16 code units, which `<` compares; numbers as ECMAScript
 * prints them; strings with the fewest escapes. Throws `NotCanonicalError` for a value without canonical text.
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

/** Up to this many keys, an insertion sort in place beats `sort`, which copies. Arguments have few keys. */
const MAX_INSERTION_SORT_KEYS = 24;

/** Sorts in place, by UTF-16 code units. */
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

/** Like `JSON.stringify`, in half the time, because most strings need no escapes. */
export function quoteJson(value: string): string {
  return NEEDS_ESCAPE.test(value) ? JSON.stringify(value) : `"${value}"`;
}

function canonicalizeString(value: string): string {
  if (!NEEDS_ESCAPE.test(value)) return `"${value}"`;
  // RFC 8785, 3.2.2.2: a lone surrogate is an error. JSON.stringify would write an escape that UTF-8 peers read differently.
  if (!(value as string & { isWellFormed(): boolean }).isWellFormed())
    throw new NotCanonicalError('a lone surrogate is not JSON');
  return JSON.stringify(value);
}
