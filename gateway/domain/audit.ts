import { hash } from 'node:crypto';
import { canonical } from './canonical.ts';
import type { JsonObject } from './json.ts';

/** One entry of the log: what happened, with digests instead of payloads. Canonical, so that its hash is its identity. */
export function auditEntry(what: string, fields: JsonObject, at: Date = new Date()): string {
  return canonical({ ...fields, at: at.toISOString(), what });
}

/** RFC 6962 leaf hash: of a zero byte and the entry. */
export function leafHash(entry: string): Buffer {
  return hash('sha256', `\0${entry}`, 'buffer');
}

export function digest(text: string): string {
  return hash('sha256', text, 'hex');
}
