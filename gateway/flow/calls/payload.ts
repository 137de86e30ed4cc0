import type { PreparedRequest, StoredRequest, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { parseJsonBody } from '../../domain/attempts/classify-answer.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
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
import type { JsonObject } from '../../domain/json.ts';
import type { Tool } from '../../domain/policy.ts';

export interface Payload {
  readonly args: JsonObject;
  readonly request: PreparedRequest;
  /** For a compensation: the values that the undone call redacts. They are removed from the answer. */
  readonly secrets?: SecretValues;
}

export type SecretValues = readonly (string | number)[];

interface StoredPayload {
  readonly args: string;
  readonly request: StoredRequest | null;
  readonly sealed: Buffer | null;
}

/** Encodes arguments and request for the ledger: in clear, or redacted, with the full payload encrypted beside them. */
export function encodePayload(
  key: Buffer,
  txn: string,
  tool: Tool,
  payload: Payload,
  canonicalArgs: string,
): StoredPayload {
  if (tool.redact.length === 0) {
    const { base, method, path, headers, body, manner } = payload.request;
    // `true` stands for a body that equals the arguments, which are stored anyway.
    const storedBody = body === canonicalArgs ? true : body;
    return { args: canonicalArgs, request: { base, method, path, headers, body: storedBody, manner }, sealed: null };
  }
  return {
    args: canonicalize(redact(payload.args, pathsUnder('args', tool.redact))),
    request: null,
    sealed: encrypt(key, txn, JSON.stringify(payload)),
  };
}

/** Decodes the payload of a stored call. Returns a string, the reason, when it cannot be sent again. */
export function decodePayload(key: Buffer, call: CallRecord): Payload | string {
  if (call.sealed !== null) {
    try {
      return JSON.parse(decrypt(key, call.txn, call.sealed)) as Payload;
    } catch {
      return 'its stored request cannot be decrypted with the key of this gateway';
    }
  }
  if (call.request === null || call.args === null) return 'its request is no longer stored';
  const body = call.request.body === true ? call.args : call.request.body;
  return { args: JSON.parse(call.args) as JsonObject, request: { ...call.request, body } };
}

/**
 * Removes redacted values from an answer: the redacted parts of the result, and redacted arguments that the upstream
 * echoes. The first caller gets the redacted answer too.
 */
export function redactAnswer(
  tool: Tool,
  answer: UpstreamAnswer,
  args: JsonObject,
  secrets: SecretValues = [],
): UpstreamAnswer {
  if ((tool.redact.length === 0 && secrets.length === 0) || answer.body === null) return answer;
  const clean = redactEchoes(answer, [...collectLeavesAt(args, pathsUnder('args', tool.redact)), ...secrets]);
  const paths = pathsUnder('result', tool.redact);
  if (paths.length === 0) return clean;
  const parsed = parseJsonBody(clean);
  if (parsed === undefined) return { ...clean, body: null };
  try {
    return { ...clean, body: JSON.stringify(redact(parsed, paths)) };
  } catch (error) {
    // Nested too deeply to serialize. A body that cannot be redacted is dropped.
    if (error instanceof RangeError) return { ...clean, body: null };
    throw error;
  }
}

/** The shortest secret that is removed anywhere in a text. Shorter ones occur by chance, so only whole JSON strings are compared. */
export const MIN_ECHO_CHARS = 4;

/**
 * Removes echoed secrets in one pass for texts and one for numbers, however many there are, because the event loop waits.
 * A body that cannot be searched in time is dropped.
 */
function redactEchoes(answer: UpstreamAnswer, values: SecretValues): UpstreamAnswer {
  if (answer.body === null || values.length === 0) return answer;
  const texts = values.filter((value) => typeof value === 'string');
  const long = texts.filter((text) => text.length >= MIN_ECHO_CHARS);
  const scrub = buildSecretScrubber(long);
  const contentType = answer.contentType === null ? null : (scrub(answer.contentType) ?? null);
  if (answer.encoding === 'base64') {
    // A body that is not valid UTF-8 may still contain secrets encoded in UTF-8.
    const bytes = buildSecretScrubber([...long.map(toLatin1), ...long])(
      Buffer.from(answer.body, 'base64').toString('latin1'),
    );
    return {
      ...answer,
      contentType,
      body: bytes === undefined ? null : Buffer.from(bytes, 'latin1').toString('base64'),
    };
  }
  const body = scrub(answer.body);
  if (body === undefined) return { ...answer, contentType, body: null };
  const short = new Set(texts.filter((text) => text.length < MIN_ECHO_CHARS));
  const numbers = new Set(values.filter((value) => typeof value === 'number').map(String));
  return { ...answer, contentType, body: redactNumbers(redactShortStrings(body, short), numbers) };
}

const SHORT_STRING_PATTERN = /(?<=")(?:[^"\\]|\\(?:u[\da-fA-F]{4}|[^u])){1,3}(?=")/g;

function redactShortStrings(body: string, secrets: ReadonlySet<string>): string {
  if (secrets.size === 0) return body;
  return body.replace(SHORT_STRING_PATTERN, (literal) =>
    secrets.has(unescapeJsonString(literal)) ? REDACTED : literal,
  );
}

function unescapeJsonString(literal: string): string {
  if (!literal.includes('\\')) return literal;
  try {
    return JSON.parse(`"${literal}"`) as string;
  } catch {
    return literal;
  }
}

const NUMBER_PATTERN = /(?<![\w.+-])-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])/g;

/** Finds a number in any spelling that JSON allows, such as 1e3 for 1000. */
function redactNumbers(body: string, secrets: ReadonlySet<string>): string {
  const long = new Set([...secrets].filter((digits) => digits.length >= MIN_ECHO_CHARS));
  if (long.size === 0) return body;
  return body.replace(NUMBER_PATTERN, (literal) => (long.has(String(Number(literal))) ? 'null' : literal));
}
