import { hash } from 'node:crypto';
import { canonicalize, quoteJson, sortKeys } from '../canonical.ts';
import type { Json } from '../json.ts';
import { sanitize } from '../sanitize.ts';
import { sha256 } from '../sha256.ts';

/** The fields of an entry beside `at` and `what`. Undefined fields are left out. */
export interface AuditFields {
  readonly [name: string]: Json | undefined;
  readonly at?: never;
  readonly what?: never;
}

/** Builds a log entry, with digests instead of payloads. The text is canonical JSON, so its hash identifies the entry. */
export function buildAuditEntry(what: string, fields: AuditFields, at: number = Date.now()): string {
  const names = Object.keys(fields);
  names.push('at', 'what');
  sortKeys(names);
  // Every call writes two entries. The text is built in place, because copying the fields would cost as much as writing it.
  let out = '';
  for (const name of names) {
    const value = name === 'at' ? `"${formatTime(at)}"` : name === 'what' ? quoteJson(what) : formatField(fields[name]);
    if (value !== undefined) out += `${out === '' ? '{' : ','}${quoteJson(name)}:${value}`;
  }
  return `${out}}`;
}

function formatField(value: Json | undefined): string | undefined {
  if (value === undefined) return undefined;
  return canonicalize(typeof value === 'string' && value.length > MAX_FIELD_CHARACTERS ? truncateField(value) : value);
}

/** Longer than people write. Agents choose logged texts such as tool names, and could flood the log without a limit. */
const MAX_FIELD_CHARACTERS = 4_096;

/** Adds the length and hash of the full text, so that the omitted part can still be proven. */
function truncateField(text: string): string {
  const summary = `${text.length} characters, sha256 ${sha256Hex(text)}`;
  return `${sanitize(text, MAX_FIELD_CHARACTERS / 4)}… (${summary})`;
}

let cachedSecond = Number.NaN;
let cachedSecondText = '';

/** Formats a time like `toISOString`. Caches the second, because most entries share it with the entry before. */
function formatTime(at: number): string {
  const seconds = Math.floor(at / 1000);
  if (seconds !== cachedSecond) {
    cachedSecond = seconds;
    cachedSecondText = new Date(at).toISOString().slice(0, -'000Z'.length);
  }
  const rest = at - seconds * 1000;
  return `${cachedSecondText}${rest < 10 ? '00' : rest < 100 ? '0' : ''}${rest}Z`;
}

/** The leaf hash of RFC 6962: the hash of a zero byte and the entry. */
export function hashLeaf(entry: string): Buffer {
  return sha256(`\0${entry}`);
}

export function sha256Hex(text: string): string {
  return hash('sha256', text, 'hex');
}
