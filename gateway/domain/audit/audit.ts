import { hash } from 'node:crypto';
import { canonicalize, quoteJson, sortKeys } from '../canonical.ts';
import type { Json } from '../json.ts';
import { sanitize } from '../sanitize.ts';
import { sha256 } from '../sha256.ts';

/** What an entry says beside when it was and what happened. A member that is undefined is not said. */
export interface AuditFields {
  readonly [name: string]: Json | undefined;
  readonly at?: never;
  readonly what?: never;
}

/** One entry of the log: what happened, with digests instead of payloads. Canonical, so that its hash is its identity. */
export function buildAuditEntry(what: string, fields: AuditFields, at: number = Date.now()): string {
  const names = Object.keys(fields);
  names.push('at', 'what');
  sortKeys(names);
  // Every call writes two: put together here, because a copy of the fields would cost as much as their text.
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

/** More than people write. Agents name tools, and what they name is logged: without a bound they could bury the log. */
const MAX_FIELD_CHARACTERS = 4_096;

/** What is left out can still be proven. */
function truncateField(text: string): string {
  const whole = `${text.length} characters, sha256 ${sha256Hex(text)}`;
  return `${sanitize(text, MAX_FIELD_CHARACTERS / 4)}… (${whole})`;
}

let cachedSecond = Number.NaN;
let cachedSecondText = '';

/** As `toISOString` writes it. Most entries are of the same second as the one before. */
function formatTime(at: number): string {
  const seconds = Math.floor(at / 1000);
  if (seconds !== cachedSecond) {
    cachedSecond = seconds;
    cachedSecondText = new Date(at).toISOString().slice(0, -'000Z'.length);
  }
  const rest = at - seconds * 1000;
  return `${cachedSecondText}${rest < 10 ? '00' : rest < 100 ? '0' : ''}${rest}Z`;
}

/** RFC 6962 leaf hash: of a zero byte and the entry. */
export function hashLeaf(entry: string): Buffer {
  return sha256(`\0${entry}`);
}

export function sha256Hex(text: string): string {
  return hash('sha256', text, 'hex');
}
