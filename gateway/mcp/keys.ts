import { createHash } from 'node:crypto';
import { canonicalize } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import { parseKey } from '../http/transport/headers.ts';

/** Where frameworks put the id of a tool call: it is the same on a retry, and no other call has it. */
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

const OWN = 'oncegate/idempotency-key';

/** The key of a `tools/call`: its own, the request's, or the id its framework gave it. None: the tool says what a repeat is. */
export function keyOf(meta: JsonObject, header: string | undefined): string | undefined {
  const own = meta[OWN];
  if (own !== undefined) {
    if (typeof own !== 'string') throw new GatewayError('malformed', `_meta["${OWN}"] must be a string.`);
    return parseKey(own);
  }
  const fromHeader = parseKey(header);
  if (fromHeader !== undefined) return fromHeader;
  for (const name of FRAMEWORK_IDS) {
    const id = meta[name];
    if (typeof id === 'string' && id !== '' && !(COUNTED.test(id) && !VENDORS.has(name))) return fitting(id);
  }
  return undefined;
}

/** Some frameworks only count (`call_0`, `functions.charge:3`): the next run's first call has the same id, and is another wish. */
const COUNTED = /^(?:\d{1,6}|.*[^A-Za-z0-9]\d{1,4}|[A-Za-z]{1,16}\d{1,4})$/;
/** These never do. */
const VENDORS: ReadonlySet<string> = new Set(['claudecode/toolUseId', 'anthropic/toolUseId']);

/** A framework's id may be longer, or written otherwise, than a key may be: then its digest is the key. */
function fitting(id: string): string {
  return /^[\x21\x23-\x7e][\x21-\x7e]{0,254}$/.test(id) ? id : `sha256:${sha256(id)}`;
}

/** A call that brings what an earlier answer asked for is another call: its key says so. */
export function continuedKey(key: string, continuation: JsonObject): string {
  return `${sha256(key).slice(0, 32)}.${sha256(canonicalize(continuation))}`;
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex');
}

/** A text from `_meta` that stands for one of our headers. */
export function metaText(meta: JsonObject, name: string): string | undefined {
  const value = meta[name];
  if (value === undefined) return undefined;
  if (typeof value === 'string') return value;
  if (typeof value === 'number') return String(value);
  throw new GatewayError('malformed', `_meta["${name}"] must be a string.`);
}
