import type { PreparedRequest, StoredRequest, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { Call } from '../../domain/calls/call.ts';
import { decrypt, encrypt } from '../../domain/calls/encryption.ts';
import {
  buildSecretScrubber,
  collectLeavesAt,
  pathsUnder,
  REDACTED,
  redact,
  toLatin1,
} from '../../domain/calls/redact.ts';
import { canonicalize } from '../../domain/canonical.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { Tool } from '../../domain/policy.ts';

export interface Payload {
  readonly args: JsonObject;
  readonly request: PreparedRequest;
  /** Of a compensation: what the call that it undoes redacts. It is taken out of the answer. */
  readonly secrets?: SecretValues;
}

export type SecretValues = readonly (string | number)[];

interface StoredPayload {
  readonly args: string;
  readonly request: StoredRequest | null;
  readonly sealed: Buffer | null;
}

/** What of arguments and request goes into the ledger: in clear, or redacted with the whole of it sealed beside. */
export function encodePayload(
  key: Buffer,
  txn: string,
  tool: Tool,
  payload: Payload,
  canonicalArgs: string,
): StoredPayload {
  if (tool.redact.length === 0) {
    const { base, method, path, headers, body, manner } = payload.request;
    const known = body === canonicalArgs ? true : body;
    return { args: canonicalArgs, request: { base, method, path, headers, body: known, manner }, sealed: null };
  }
  return {
    args: canonicalize(redact(payload.args, pathsUnder('args', tool.redact))),
    request: null,
    sealed: encrypt(key, txn, JSON.stringify(payload)),
  };
}

/** The payload of a stored call, or why there is none to send again. */
export function decodePayload(key: Buffer, call: Call): Payload | string {
  if (call.sealed !== null) {
    try {
      return JSON.parse(decrypt(key, call.txn, call.sealed)) as Payload;
    } catch {
      return 'its sealed request does not open with the key of this gateway';
    }
  }
  if (call.request === null || call.args === null) return 'its request is no longer stored';
  const body = call.request.body === true ? call.args : call.request.body;
  return { args: JSON.parse(call.args) as JsonObject, request: { ...call.request, body } };
}

/**
 * An answer as it may be kept and told: what the tool redacts of its result, and what the upstream echoes of redacted
 * arguments, is gone for the first caller too.
 */
export function redactAnswer(
  tool: Tool,
  answer: UpstreamAnswer,
  args: JsonObject,
  secrets: SecretValues = [],
): UpstreamAnswer {
  if ((tool.redact.length === 0 && secrets.length === 0) || answer.body === null) return answer;
  const silent = redactEchoes(answer, [...collectLeavesAt(args, pathsUnder('args', tool.redact)), ...secrets]);
  const paths = pathsUnder('result', tool.redact);
  if (paths.length === 0) return silent;
  const parsed = parseJsonBody(silent);
  if (parsed === undefined) return { ...silent, body: null };
  try {
    return { ...silent, body: JSON.stringify(redact(parsed, paths)) };
  } catch (error) {
    // Nested so deeply that it cannot be written again: what cannot be redacted is not kept.
    if (error instanceof RangeError) return { ...silent, body: null };
    throw error;
  }
}

/** Shorter ones stand in too many places by chance: a text is then only taken out where it is a whole JSON string. */
export const MIN_ECHO_CHARS = 4;

/** One pass for all texts and one for all numbers, however many: everybody else waits. What cannot be looked through is not kept. */
function redactEchoes(answer: UpstreamAnswer, values: SecretValues): UpstreamAnswer {
  if (answer.body === null || values.length === 0) return answer;
  const texts = values.filter((value) => typeof value === 'string');
  const long = texts.filter((text) => text.length >= MIN_ECHO_CHARS);
  const clean = buildSecretScrubber(long);
  const contentType = answer.contentType === null ? null : (clean(answer.contentType) ?? null);
  if (answer.encoding === 'base64') {
    // Its letters may be in UTF-8 although the whole is not.
    const bytes = buildSecretScrubber([...long.map(toLatin1), ...long])(
      Buffer.from(answer.body, 'base64').toString('latin1'),
    );
    return {
      ...answer,
      contentType,
      body: bytes === undefined ? null : Buffer.from(bytes, 'latin1').toString('base64'),
    };
  }
  const body = clean(answer.body);
  if (body === undefined) return { ...answer, contentType, body: null };
  const short = new Set(texts.filter((text) => text.length < MIN_ECHO_CHARS));
  const numbers = new Set(values.filter((value) => typeof value === 'number').map(String));
  return { ...answer, contentType, body: redactNumbers(redactShortStrings(body, short), numbers) };
}

const SHORT_STRING_PATTERN = /(?<=")(?:[^"\\]|\\(?:u[\da-fA-F]{4}|[^u])){1,3}(?=")/g;

function redactShortStrings(body: string, secrets: ReadonlySet<string>): string {
  if (secrets.size === 0) return body;
  return body.replace(SHORT_STRING_PATTERN, (written) =>
    secrets.has(unescapeJsonString(written)) ? REDACTED : written,
  );
}

function unescapeJsonString(written: string): string {
  if (!written.includes('\\')) return written;
  try {
    return JSON.parse(`"${written}"`) as string;
  } catch {
    return written;
  }
}

const NUMBER_PATTERN = /(?<![\w.+-])-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])/g;

/** In whatever way JSON may write them. */
function redactNumbers(body: string, secrets: ReadonlySet<string>): string {
  const long = new Set([...secrets].filter((digits) => digits.length >= MIN_ECHO_CHARS));
  if (long.size === 0) return body;
  return body.replace(NUMBER_PATTERN, (written) => (long.has(String(Number(written))) ? 'null' : written));
}

/** The result an expression sees: JSON if it is JSON, else the text. */
export function parseResult(answer: UpstreamAnswer): Json {
  if (answer.body === null) return null;
  return parseJsonBody(answer) ?? answer.body;
}

function parseJsonBody(answer: UpstreamAnswer): Json | undefined {
  if (answer.body === null || answer.encoding !== 'utf8') return undefined;
  try {
    return JSON.parse(answer.body) as Json;
  } catch {
    return undefined;
  }
}
