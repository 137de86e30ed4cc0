import { hash } from 'node:crypto';
import { canonical, quote, sortNames } from './canonical.ts';
import type { Json } from './json.ts';
import { legible } from './legible.ts';
import { sha256 } from './sha256.ts';

/** What an entry says beside when it was and what happened. A member that is undefined is not said. */
export interface AuditFields {
  readonly [name: string]: Json | undefined;
  readonly at?: never;
  readonly what?: never;
}

/** One entry of the log: what happened, with digests instead of payloads. Canonical, so that its hash is its identity. */
export function auditEntry(what: string, fields: AuditFields, at: number = Date.now()): string {
  const names = Object.keys(fields);
  names.push('at', 'what');
  sortNames(names);
  // Every call writes two: put together here, because a copy of the fields would cost as much as their text.
  let out = '';
  for (const name of names) {
    const value = name === 'at' ? `"${timeText(at)}"` : name === 'what' ? quote(what) : textOf(fields[name]);
    if (value !== undefined) out += `${out === '' ? '{' : ','}${quote(name)}:${value}`;
  }
  return `${out}}`;
}

function textOf(value: Json | undefined): string | undefined {
  if (value === undefined) return undefined;
  return canonical(typeof value === 'string' && value.length > MOST_CHARACTERS ? cut(value) : value);
}

/** More than people write. Agents name tools, and what they name is logged: without a bound they could bury the log. */
const MOST_CHARACTERS = 4_096;

/** What is left out can still be proven. */
function cut(text: string): string {
  const whole = `${text.length} characters, sha256 ${digest(text)}`;
  return `${legible(text, MOST_CHARACTERS / 4)}… (${whole})`;
}

let second = Number.NaN;
let upToSecond = '';

/** As `toISOString` writes it. Most entries are of the same second as the one before. */
function timeText(at: number): string {
  const seconds = Math.floor(at / 1000);
  if (seconds !== second) {
    second = seconds;
    upToSecond = new Date(at).toISOString().slice(0, -'000Z'.length);
  }
  const rest = at - seconds * 1000;
  return `${upToSecond}${rest < 10 ? '00' : rest < 100 ? '0' : ''}${rest}Z`;
}

/** RFC 6962 leaf hash: of a zero byte and the entry. */
export function leafHash(entry: string): Buffer {
  return sha256(`\0${entry}`);
}

export function digest(text: string): string {
  return hash('sha256', text, 'hex');
}
