import type { Answer, PreparedRequest, StoredRequest } from '../domain/adapter.ts';
import type { Call } from '../domain/call.ts';
import { canonical } from '../domain/canonical.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Tool } from '../domain/policy.ts';
import { asBytes, cleanerOf, leavesAt, pathsUnder, REDACTED, redact } from '../domain/redact.ts';
import { seal, unseal } from '../domain/seal.ts';

export interface Payload {
  readonly args: JsonObject;
  readonly request: PreparedRequest;
  /** Of a compensation: what the call that it undoes redacts. It is taken out of the answer. */
  readonly secrets?: Secrets;
}

export type Secrets = readonly (string | number)[];

interface Stored {
  readonly args: string;
  readonly request: StoredRequest | null;
  readonly sealed: Buffer | null;
}

/** What of arguments and request goes into the ledger: in clear, or redacted with the whole of it sealed beside. */
export function store(key: Buffer, txn: string, tool: Tool, payload: Payload, canonicalArgs: string): Stored {
  if (tool.redact.length === 0) {
    const { base, method, path, headers, body, manner } = payload.request;
    const known = body === canonicalArgs ? true : body;
    return { args: canonicalArgs, request: { base, method, path, headers, body: known, manner }, sealed: null };
  }
  return {
    args: canonical(redact(payload.args, pathsUnder('args', tool.redact))),
    request: null,
    sealed: seal(key, txn, JSON.stringify(payload)),
  };
}

/** The payload of a stored call, or why there is none to send again. */
export function load(key: Buffer, call: Call): Payload | string {
  if (call.sealed !== null) {
    try {
      return JSON.parse(unseal(key, call.txn, call.sealed)) as Payload;
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
export function redactAnswer(tool: Tool, answer: Answer, args: JsonObject, secrets: Secrets = []): Answer {
  if ((tool.redact.length === 0 && secrets.length === 0) || answer.body === null) return answer;
  const silent = withoutEchoes(answer, [...leavesAt(args, pathsUnder('args', tool.redact)), ...secrets]);
  const paths = pathsUnder('result', tool.redact);
  if (paths.length === 0) return silent;
  const parsed = parseJson(silent);
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
export const LEAST_ECHO = 4;

/** One pass for all texts and one for all numbers, however many: everybody else waits. What cannot be looked through is not kept. */
function withoutEchoes(answer: Answer, values: Secrets): Answer {
  if (answer.body === null || values.length === 0) return answer;
  const texts = values.filter((value) => typeof value === 'string');
  const long = texts.filter((text) => text.length >= LEAST_ECHO);
  const clean = cleanerOf(long);
  const contentType = answer.contentType === null ? null : (clean(answer.contentType) ?? null);
  if (answer.encoding === 'base64') {
    // Its letters may be in UTF-8 although the whole is not.
    const bytes = cleanerOf([...long.map(asBytes), ...long])(Buffer.from(answer.body, 'base64').toString('latin1'));
    return {
      ...answer,
      contentType,
      body: bytes === undefined ? null : Buffer.from(bytes, 'latin1').toString('base64'),
    };
  }
  const body = clean(answer.body);
  if (body === undefined) return { ...answer, contentType, body: null };
  const short = new Set(texts.filter((text) => text.length < LEAST_ECHO));
  const numbers = new Set(values.filter((value) => typeof value === 'number').map(String));
  return { ...answer, contentType, body: withoutNumbers(withoutShort(body, short), numbers) };
}

const SHORT_STRING = /(?<=")(?:[^"\\]|\\(?:u[\da-fA-F]{4}|[^u])){1,3}(?=")/g;

function withoutShort(body: string, secrets: ReadonlySet<string>): string {
  if (secrets.size === 0) return body;
  return body.replace(SHORT_STRING, (written) => (secrets.has(meantBy(written)) ? REDACTED : written));
}

function meantBy(written: string): string {
  if (!written.includes('\\')) return written;
  try {
    return JSON.parse(`"${written}"`) as string;
  } catch {
    return written;
  }
}

const NUMBER = /(?<![\w.+-])-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])/g;

/** In whatever way JSON may write them. */
function withoutNumbers(body: string, secrets: ReadonlySet<string>): string {
  const long = new Set([...secrets].filter((digits) => digits.length >= LEAST_ECHO));
  if (long.size === 0) return body;
  return body.replace(NUMBER, (written) => (long.has(String(Number(written))) ? 'null' : written));
}

/** The result an expression sees: JSON if it is JSON, else the text. */
export function resultOf(answer: Answer): Json {
  if (answer.body === null) return null;
  return parseJson(answer) ?? answer.body;
}

function parseJson(answer: Answer): Json | undefined {
  if (answer.body === null || answer.encoding !== 'utf8') return undefined;
  try {
    return JSON.parse(answer.body) as Json;
  } catch {
    return undefined;
  }
}
