import type { Json } from '../domain/json.ts';
import { parseStrictJson, StrictJsonError } from '../domain/strict-json.ts';
import { UsageError } from './verb.ts';

/** Parses a JSON option, such as `--args`, as strictly as the gateway parses a body. */
export function parseJsonOption(name: string, text: string): Json {
  try {
    return parseStrictJson(text);
  } catch (error) {
    if (error instanceof StrictJsonError) throw new UsageError(`--${name} is not valid JSON: ${error.message}`);
    throw error;
  }
}
