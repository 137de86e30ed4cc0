import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import { stringifyExact } from './exact-json.ts';

/** A JSON value as one line of text: a string without quotes, nothing for `null` or an absent value. */
export function formatJson(value: Json | undefined): string {
  if (value === undefined || value === null) return '';
  const text = stringifyExact(value, 0);
  // A large number is held as a marked string (see exact-json.ts), which stringifyExact prints without quotes.
  return typeof value === 'string' && text.startsWith('"') ? value : text;
}

export function textField(object: JsonObject, name: string): string {
  return formatJson(object[name]);
}

export function objectField(object: JsonObject, name: string): JsonObject {
  const value = object[name];
  return isJsonObject(value) ? value : {};
}

export function listField(object: JsonObject, name: string): readonly JsonObject[] {
  const value = object[name];
  return Array.isArray(value) ? value.filter(isJsonObject) : [];
}
