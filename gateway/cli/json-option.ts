import type { Json } from '../domain/json.ts';
import { parseStrictJson, StrictJsonError } from '../domain/strict-json.ts';
import { UsageError } from './verb.ts';

/** The value of an option as JSON, read as strictly as the gateway reads a body. */
export function jsonOption(name: string, text: string): Json {
  try {
    return parseStrictJson(text);
  } catch (error) {
    if (error instanceof StrictJsonError) throw new UsageError(`--${name} is not good JSON: ${error.message}`);
    throw error;
  }
}
