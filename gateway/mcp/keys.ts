import { createHash } from 'node:crypto';
import { canonicalize } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import { parseKey } from '../http/transport/headers.ts';

/** The `_meta` members where frameworks put the id of a tool call. A retry has the same id, another call has another. */
export const FRAMEWORK_IDS = [
  'claudecode/toolUseId',
  'anthropic/toolUseId',
  'openai/toolCallId',
  'ai-sdk/toolCallId',
  'langchain/toolCallId',
  'mastra/toolCallId',
  'toolCallId',
  'tool_call_id',
] as const;

const OWN_KEY = 'oncegate/idempotency-key';

/** The key of a `tools/call`: from `_meta`, else from the header, else the id of the framework. */
export function readKey(meta: JsonObject, header: string | undefined): string | undefined {
  const metaKey = meta[OWN_KEY];
  if (metaKey !== undefined) {
    if (typeof metaKey !== 'string') throw new GatewayError('malformed', `_meta["${OWN_KEY}"] must be a string.`);
    return parseKey(metaKey);
  }
  const fromHeader = parseKey(header);
  if (fromHeader !== undefined) return fromHeader;
  for (const name of FRAMEWORK_IDS) {
    const id = meta[name];
    if (typeof id === 'string' && id !== '' && !(COUNTER_ID.test(id) && !UNIQUE_IDS.has(name))) return toKey(id);
  }
  return undefined;
}

/** Ids of frameworks that only count, such as `call_0`. The next run starts again at 0, so such an id is not a key. */
const COUNTER_ID = /^(?:\d{1,6}|.*[^A-Za-z0-9]\d{1,4}|[A-Za-z]{1,16}\d{1,4})$/;
/** Members whose ids never are counters. */
const UNIQUE_IDS: ReadonlySet<string> = new Set(['claudecode/toolUseId', 'anthropic/toolUseId']);

/** The id of a framework as a key. An id that is not a valid key is hashed. */
function toKey(id: string): string {
  return /^[\x21\x23-\x7e][\x21-\x7e]{0,254}$/.test(id) ? id : `sha256:${sha256(id)}`;
}

/** Derives the key of a call that continues an earlier answer, because it is a call of its own. */
export function deriveContinuationKey(key: string, continuation: JsonObject): string {
  return `${sha256(key).slice(0, 32)}.${sha256(canonicalize(continuation))}`;
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

/** A text in `_meta` that replaces one of our headers. */
export function readMetaText(meta: JsonObject, name: string): string | undefined {
  const value = meta[name];
  if (value === undefined) return undefined;
  if (typeof value === 'string') return value;
  if (typeof value === 'number') return String(value);
  throw new GatewayError('malformed', `_meta["${name}"] must be a string.`);
}
