import type { Json, JsonObject } from './json.ts';

/** A number without end, half a surrogate pair, or what is no JSON at all. */
export class NotCanonical extends TypeError {}

/**
 * RFC 8785: the one text of a JSON value, whoever wrote it and in whatever order. Keys go by UTF-16 code units (what `<`
 * compares), numbers as ECMAScript prints them, strings with the fewest escapes. What has no such text is `NotCanonical`.
 */
export function canonical(value: Json): string {
  if (typeof value === 'string') return text(value);
  if (typeof value === 'number') return number(value);
  if (value === null) return 'null';
  if (typeof value === 'boolean') return value ? 'true' : 'false';
  if (typeof value !== 'object') throw new NotCanonical(`${typeof value} is not JSON`);
  return Array.isArray(value) ? array(value) : object(value as JsonObject);
}

function array(values: readonly Json[]): string {
  if (values.length === 0) return '[]';
  let out = `[${canonical(values[0] as Json)}`;
  for (let i = 1; i < values.length; i++) out += `,${canonical(values[i] as Json)}`;
  return `${out}]`;
}

function object(values: JsonObject): string {
  const keys = Object.keys(values);
  if (keys.length === 0) return '{}';
  sortNames(keys);
  let out = '';
  let before = '{';
  for (const key of keys) {
    out += `${before}${text(key)}:${canonical(values[key] as Json)}`;
    before = ',';
  }
  return `${out}}`;
}

/** Arguments have few keys: up to here inserting in place beats `sort`, which copies. */
const FEW = 24;

/** In place, by UTF-16 code units. */
export function sortNames(keys: string[]): void {
  if (keys.length > FEW) {
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

function number(value: number): string {
  if (!Number.isFinite(value)) throw new NotCanonical(`${value} is not JSON`);
  return `${value}`;
}

const NEEDS_CARE = /["\\\p{Cc}\p{Cs}]/u;

/** As `JSON.stringify` writes it, in half the time: most strings need no escapes. */
export function quote(value: string): string {
  return NEEDS_CARE.test(value) ? JSON.stringify(value) : `"${value}"`;
}

function text(value: string): string {
  if (!NEEDS_CARE.test(value)) return `"${value}"`;
  // RFC 8785 3.2.2.2: half a surrogate pair is an error. JSON.stringify would write an escape that no UTF-8 peer agrees on.
  if (!(value as string & { isWellFormed(): boolean }).isWellFormed())
    throw new NotCanonical('a lone surrogate is not JSON');
  return JSON.stringify(value);
}
