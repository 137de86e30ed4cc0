import type { Answer, PreparedRequest } from '../domain/adapter.ts';
import type { Call } from '../domain/call.ts';
import { canonical } from '../domain/canonical.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Tool } from '../domain/policy.ts';
import { pathsUnder, redact } from '../domain/redact.ts';
import { seal, unseal } from '../domain/seal.ts';

export interface Payload {
  readonly args: JsonObject;
  readonly request: PreparedRequest;
}

interface Stored {
  readonly args: string;
  readonly request: PreparedRequest | null;
  readonly sealed: Buffer | null;
}

/** What of arguments and request goes into the ledger: in clear, or redacted with the whole of it sealed beside. */
export function store(key: Buffer, txn: string, tool: Tool, payload: Payload, canonicalArgs: string): Stored {
  if (tool.redact.length === 0) return { args: canonicalArgs, request: payload.request, sealed: null };
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
  return { args: JSON.parse(call.args) as JsonObject, request: call.request };
}

/** An answer as it may be kept and told: what the tool redacts of its result is gone for the first caller too. */
export function redactAnswer(tool: Tool, answer: Answer): Answer {
  const paths = pathsUnder('result', tool.redact);
  if (paths.length === 0 || answer.body === null) return answer;
  const parsed = parseJson(answer);
  return parsed === undefined ? { ...answer, body: null } : { ...answer, body: JSON.stringify(redact(parsed, paths)) };
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
