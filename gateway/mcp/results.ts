import { ProtocolError } from '@modelcontextprotocol/server';
import type { UpstreamAnswer } from '../domain/attempts/adapter.ts';
import type { CallRecord } from '../domain/calls/call-record.ts';
import type { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import type { ToolAnswer } from '../flow/calls/execute-call.ts';
import { asGatewayError, callText, problemJson, problemOf, resultJson } from '../http/encode.ts';

/** The answer to a call as a tool result for the model. */
export function buildResult({ call, repeat }: ToolAnswer, isMcpTool: boolean, isContinuation = false): JsonObject {
  const problem = problemOf(call, repeat);
  if (problem !== undefined)
    return buildProblemResult(problem, call.answer, isMcpTool ? listPassedCodes(isContinuation) : NO_CODES);
  if (call.state !== 'succeeded') return buildWaitingResult(call, repeat);
  const accepted = call.outcome === 'accepted' ? { 'oncegate/outcome': call.outcome } : {};
  const marks = { 'oncegate/txn': call.txn, 'oncegate/replayed': repeat, ...accepted, ...receipt(call) };
  const result = (isMcpTool ? readMcpResult(call) : buildTextResult(call)) ?? buildEmptyResult(call, repeat);
  const { _meta } = result;
  const notes = listNotes(call, repeat).map(textContent);
  return {
    ...result,
    ...(notes.length > 0 && Array.isArray(result['content']) ? { content: [...result['content'], ...notes] } : {}),
    _meta: { ...(isJsonObject(_meta) ? _meta : {}), ...marks },
  };
}

/** What a model would misread without a note: it would take accepted work for done, and a replay for a second execution. */
function listNotes(call: CallRecord, repeat: boolean): string[] {
  const isReplay = repeat && call.identity !== 'key';
  return [
    ...(call.outcome === 'accepted' && call.answer?.body != null ? [ACCEPTED_NOTE] : []),
    ...(isReplay ? [describeReplay(call)] : []),
  ];
}

const ACCEPTED_NOTE = '(The service accepted this work, and may not have done it yet.)';

function describeReplay({ txn, identity }: CallRecord): string {
  if (identity === 'shared')
    return `(This call was made before, possibly by another agent, and was not executed again. This is its recorded result, transaction ${txn}.)`;
  return `(This exact call was made before and was not executed again. This is its recorded result, transaction ${txn}. To execute it once more, send another idempotency key.)`;
}

function receipt({ leaf }: CallRecord): JsonObject {
  return leaf === null ? {} : { 'oncegate/receipt': leaf.toString('hex') };
}

/** The result of an MCP upstream, passed on unchanged. */
function readMcpResult({ answer }: CallRecord): JsonObject | undefined {
  const result = answer?.body == null ? undefined : (JSON.parse(answer.body) as Json);
  if (isJsonObject(result) && (Array.isArray(result['content']) || result['resultType'] === 'input_required'))
    return result;
  return undefined;
}

/** Shows the call in place of a missing result, because an output schema requires structured content. */
function buildEmptyResult(call: CallRecord, repeat: boolean): JsonObject {
  const structuredContent = JSON.parse(callText(call, repeat)) as JsonObject;
  return { content: [textContent(describeEmptyResult(call.outcome))], structuredContent };
}

function describeEmptyResult(outcome: string | null): string {
  if (outcome === 'body_unavailable') return 'The call succeeded, but its answer was lost and cannot be shown.';
  if (outcome === 'accepted') return 'The service accepted this work, and may not have done it yet.';
  if (outcome === 'observed') return 'The answer was lost, but a second observation shows the requested state.';
  if (outcome === 'already_satisfied') return 'The requested state already existed. Nothing was sent.';
  return 'The call succeeded. It has no result.';
}

function buildTextResult(call: CallRecord): JsonObject | undefined {
  const { answer } = call;
  if (answer?.body == null) return undefined;
  if (answer.encoding === 'base64') return { content: [buildBinaryContent(call, answer, answer.body)] };
  const value = resultJson(answer);
  const body = typeof value === 'string' ? value : answer.body;
  return { content: [textContent(body)], ...(isJsonObject(value) ? { structuredContent: value } : {}) };
}

function buildBinaryContent({ txn }: CallRecord, { contentType }: UpstreamAnswer, data: string): JsonObject {
  const mimeType = contentType?.split(';')[0]?.trim() ?? 'application/octet-stream';
  const [kind] = mimeType.split('/');
  if (kind === 'image' || kind === 'audio') return { type: kind, data, mimeType };
  return { type: 'resource', resource: { uri: `oncegate://calls/${txn}/result`, mimeType, blob: data } };
}

/** A call that is held or in progress: its state, and how to ask again. */
function buildWaitingResult(call: CallRecord, repeat: boolean): JsonObject {
  const why = call.state === 'held' ? describeHold(call) : 'This call is still in progress.';
  const how = `Ask again with the same arguments and the same key, or with oncegate__get_call and txn ${call.txn}. The call is not executed twice.`;
  return {
    isError: true,
    content: [textContent(`${why} ${how}`)],
    structuredContent: JSON.parse(callText(call, repeat)) as JsonObject,
    _meta: { 'oncegate/txn': call.txn, 'oncegate/replayed': repeat },
  };
}

function describeHold({ hold }: CallRecord): string {
  return hold?.kind === 'delay'
    ? `This call is delayed by policy and will be sent at ${hold.until.toISOString()}, unless it is cancelled. Nothing was sent so far.`
    : 'This call waits for a person to approve it. Nothing was sent so far.';
}

/**
 * A problem as a tool result for the model: first the content of the tool, then its meaning. Problems that the client must handle
 * are thrown as protocol errors.
 */
export function buildProblemResult(
  problem: GatewayError,
  answer: UpstreamAnswer | null = null,
  passed = NO_CODES,
): JsonObject {
  if (problem.code === 'malformed' || problem.code === 'unknown_tool')
    throw new ProtocolError(-32602, problem.message, problemJson(problem, '/mcp'));
  const toolResult = answer === null ? null : resultJson(answer);
  if (problem.code === 'tool_failed') rethrowServerError(toolResult, passed);
  const { txn } = problem.extras;
  return {
    isError: true,
    content: [...readContent(toolResult), textContent(describeProblem(problem))],
    structuredContent: problemJson(problem, '/mcp'),
    ...(txn === undefined ? {} : { _meta: { 'oncegate/txn': txn } }),
  };
}

/**
 * Error codes of a server that concern the client, not the tool: a missing capability, a page to visit, wrong headers or revision.
 * For a continuation also -32602, which rejects the state that the client sent back.
 */
const CLIENT_ERROR_CODES = [-32020, -32021, -32022, -32042];
const NO_CODES: readonly number[] = [];

function listPassedCodes(isContinuation: boolean): readonly number[] {
  return isContinuation ? [...CLIENT_ERROR_CODES, -32602] : CLIENT_ERROR_CODES;
}

function rethrowServerError(toolResult: Json, passed: readonly number[]): void {
  const error = isJsonObject(toolResult) && isJsonObject(toolResult['error']) ? toolResult['error'] : undefined;
  if (error === undefined || typeof error['code'] !== 'number' || typeof error['message'] !== 'string') return;
  if (passed.includes(error['code'])) throw new ProtocolError(error['code'], error['message'], error['data']);
}

function readContent(toolResult: Json): readonly Json[] {
  const { content, error } = isJsonObject(toolResult) ? toolResult : {};
  if (Array.isArray(content)) return content;
  return isJsonObject(error) && typeof error['message'] === 'string' ? [textContent(error['message'])] : [];
}

const ADVICE = {
  never: 'Trying again will not help.',
  same_key: 'You may ask again with the same key. The call is never executed twice.',
  new_key: 'To try again, make a new call.',
  after_delay: 'Nothing was sent. Try again later.',
} as const;

function describeProblem(problem: GatewayError): string {
  const { retry, title, detail, code } = problemJson(problem, '/mcp') as {
    retry: keyof typeof ADVICE;
    title: string;
    detail: string;
    code: string;
  };
  return `${title} (${code}): ${detail} ${ADVICE[retry]}`;
}

function textContent(text: string): JsonObject {
  return { type: 'text', text };
}

/** Turns a gateway error into a result; rethrows any other error. */
export function buildErrorResult(error: unknown): JsonObject {
  const gatewayError = asGatewayError(error);
  if (gatewayError === undefined) throw error;
  return buildProblemResult(gatewayError);
}
