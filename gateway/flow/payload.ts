import type { Answer, PreparedRequest, StoredRequest } from '../domain/adapter.ts';
import type { Call } from '../domain/call.ts';
import { canonical } from '../domain/canonical.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Tool } from '../domain/policy.ts';
import { asBytes, leavesAt, pathsUnder, REDACTED, redact, scrub } from '../domain/redact.ts';
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
const LEAST_ECHO = 4;

function withoutEchoes(answer: Answer, values: Secrets): Answer {
  if (answer.body === null || values.length === 0) return answer;
  const texts = values.filter((value) => typeof value === 'string' && value !== '').sort(longestFirst) as string[];
  const long = texts.filter((text) => text.length >= LEAST_ECHO);
  const contentType = answer.contentType === null ? null : scrub(answer.contentType, long);
  if (answer.encoding === 'base64') {
    const bytes = Buffer.from(answer.body, 'base64').toString('latin1');
    // Its letters may be in UTF-8 although the whole is not.
    const clean = scrub(scrub(bytes, long.map(asBytes)), long);
    return { ...answer, contentType, body: Buffer.from(clean, 'latin1').toString('base64') };
  }
  let body = scrub(answer.body, long);
  for (const text of texts.slice(long.length)) body = body.replaceAll(JSON.stringify(text), JSON.stringify(REDACTED));
  for (const value of values) {
    const digits = String(value);
    if (typeof value !== 'number' || digits.length < LEAST_ECHO) continue;
    body = body.replaceAll(new RegExp(`(?<![\\w.+-])${digits.replaceAll('.', '\\.')}(?![\\w.])`, 'g'), 'null');
  }
  return { ...answer, contentType, body };
}

function longestFirst(a: string | number, b: string | number): number {
  return String(b).length - String(a).length;
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
