import type { ServerContext } from '@modelcontextprotocol/server';
import type { Continuation, ProgressListener } from '../domain/attempts/adapter.ts';
import type { CallRecord } from '../domain/calls/call-record.ts';
import { canonicalize } from '../domain/canonical.ts';
import { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';

/** Starts a `requestState` of the gateway itself. States of upstream servers pass through unchanged. */
const HELD_STATE_PREFIX = 'oncegate.held.';

/** Asks a client of an older revision for the inputs that the tool requests. */
export async function askClient(
  { inputRequests, requestState }: JsonObject,
  listener: ProgressListener,
): Promise<Continuation> {
  const answers: Record<string, Json> = {};
  for (const [name, request] of Object.entries(isJsonObject(inputRequests) ? inputRequests : {})) {
    const { method, params } = isJsonObject(request) ? request : {};
    answers[name] = await listener.ask(String(method), isJsonObject(params) ? params : {});
  }
  return { inputResponses: answers, ...(typeof requestState === 'string' ? { requestState } : {}) };
}

/** Whether the client can open a URL for its user. */
export function canOpenUrl({ era, capabilities }: ProgressListener): boolean {
  const { elicitation } = capabilities;
  return era === 'modern' && isJsonObject(elicitation) && elicitation['url'] !== undefined;
}

/**
 * Answers a held call with the URL of its approval page; the client opens the page and then repeats the call. The state carries the
 * continuation of the call, because the client sends a continuation only once.
 */
export function buildApprovalRequest(
  origin: string,
  { txn, tool }: CallRecord,
  continuation: Continuation | undefined,
): JsonObject {
  const message = `${tool} waits for the approval of a person. Nothing was sent so far.`;
  const params = { mode: 'url', message, url: `${origin}/#approvals/${txn}` };
  return {
    resultType: 'input_required',
    inputRequests: { approval: { method: 'elicitation/create', params } },
    requestState: `${HELD_STATE_PREFIX}${encodeContinuation(continuation)}`,
  };
}

function encodeContinuation(continuation: Continuation | undefined): string {
  if (continuation === undefined) return '';
  return Buffer.from(canonicalize(continuationJson(continuation))).toString('base64url');
}

/** What the client sends to continue an earlier answer, if this call continues one. */
export function readContinuation(ctx: ServerContext): Continuation | undefined {
  const { inputResponses } = ctx.mcpReq;
  const requestState = ctx.mcpReq.requestState<string>();
  // The client returns from the approval page: continue the same call with its earlier continuation.
  if (requestState?.startsWith(HELD_STATE_PREFIX) === true)
    return decodeContinuation(requestState.slice(HELD_STATE_PREFIX.length));
  if (inputResponses === undefined && requestState === undefined) return undefined;
  return {
    ...(inputResponses === undefined ? {} : { inputResponses: inputResponses as JsonObject }),
    ...(requestState === undefined ? {} : { requestState }),
  };
}

function decodeContinuation(text: string): Continuation | undefined {
  if (text === '') return undefined;
  try {
    const { inputResponses, requestState } = JSON.parse(Buffer.from(text, 'base64url').toString()) as JsonObject;
    return {
      ...(isJsonObject(inputResponses) ? { inputResponses } : {}),
      ...(typeof requestState === 'string' ? { requestState } : {}),
    };
  } catch {
    throw new GatewayError('malformed', 'requestState must be a value that this gateway returned.');
  }
}

export function withContinuation(params: JsonObject, ctx: ServerContext): JsonObject {
  return { ...params, ...continuationJson(readContinuation(ctx) ?? {}) };
}

export function continuationJson({ inputResponses, requestState }: Continuation): JsonObject {
  return {
    ...(inputResponses === undefined ? {} : { inputResponses }),
    ...(requestState === undefined ? {} : { requestState }),
  };
}
