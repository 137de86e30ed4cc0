import { isJsonObject, type Json, type JsonObject } from '../../../domain/json.ts';
import { stringifyExact } from '../../exact-json.ts';
import type { Style } from '../../output.ts';
import { NotGood } from '../../verb.ts';

export function stateStyle(state: string): Style | undefined {
  if (state === 'succeeded') return 'green';
  if (state === 'in_doubt' || state === 'held') return 'yellow';
  return state === 'failed' || state === 'rejected' || state === 'expired' ? 'red' : undefined;
}

/** A member of a call as text: JSON for what is no plain text, nothing for what is not there. */
export function textOf(value: Json | undefined): string {
  if (value === undefined || value === null) return '';
  const text = stringifyExact(value, 0);
  // A number that had to travel as a string comes out without quotes.
  return typeof value === 'string' && text.startsWith('"') ? value : text;
}

export function member(call: JsonObject, name: string): string {
  return textOf(call[name]);
}

export function memberObject(of: JsonObject, name: string): JsonObject {
  const value = of[name];
  return isJsonObject(value) ? value : {};
}

export function memberList(of: JsonObject, name: string): readonly JsonObject[] {
  const value = of[name];
  return Array.isArray(value) ? value.filter(isJsonObject) : [];
}

export const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** The path of a call in the admin API. Nothing else than a txn may become part of a path. */
export function callPath(txn: string): string {
  if (UUID.test(txn)) return `/admin/calls/${txn.toLowerCase()}`;
  const message = `there is no call ${JSON.stringify(txn)}: a txn is a UUID, and "oncegate calls" lists them`;
  throw new NotGood('not_found', message);
}
