import { createHash } from 'node:crypto';
import { canonical } from './canonical.ts';
import type { JsonObject } from './json.ts';

const LEAF_PREFIX = Buffer.from([0]);

/** One entry of the log: what happened, with digests instead of payloads. Canonical, so that its hash is its identity. */
export function auditEntry(what: string, fields: JsonObject, at: Date = new Date()): string {
  return canonical({ ...fields, at: at.toISOString(), what });
}

/** RFC 6962 leaf hash. */
export function leafHash(entry: string): Buffer {
  return createHash('sha256').update(LEAF_PREFIX).update(entry).digest();
}

export function digest(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}
