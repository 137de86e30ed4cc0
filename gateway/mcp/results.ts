import { ProtocolError } from '@modelcontextprotocol/server';
import type { UpstreamAnswer } from '../domain/attempts/adapter.ts';
import type { CallSummary } from '../domain/calls/call.ts';
import type { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import type { ToolAnswer } from '../flow/calls/execute-call.ts';
import { asGatewayError, callText, problemJson, problemOf, resultJson } from '../http/encode.ts';

/** What an agent is told of a call, as a model reads it. */
export function resultOf({ call, repeat }: ToolAnswer, isMcpTool: boolean, bringsAnswers = false): JsonObject {
  const problem = problemOf(call, repeat);
  if (problem !== undefined) return problemResult(problem, call.answer, isMcpTool ? passing(bringsAnswers) : NONE);
  if (call.state !== 'succeeded') return waitingResult(call, repeat);
  const marks = { 'oncegate/txn': call.txn, 'oncegate/replayed': repeat, ...receipt(call) };
  const result = (isMcpTool ? ownResult(call) : writtenResult(call)) ?? withoutResult(call, repeat);
  const { _meta } = result;
  return {
    ...result,
    // To whoever reads the result a replay looks like something that happened twice, unless it is told.
    ...(repeat && call.identity !== 'key' && Array.isArray(result['content'])
      ? { content: [...result['content'], text(replayWords(call))] }
      : {}),
    _meta: { ...(isJsonObject(_meta) ? _meta : {}), ...marks },
  };
}

function replayWords({ txn, identity }: CallSummary): string {
  if (identity === 'shared')
    return `(This was asked for before, perhaps by another agent, and was not carried out again. What you see is its recorded result, transaction ${txn}.)`;
  return `(This exact call was made before and was not carried out again. What you see is its recorded result, transaction ${txn}. If you mean to do it once more, send another idempotency key.)`;
}

function receipt({ leaf }: CallSummary): JsonObject {
  return leaf === null ? {} : { 'oncegate/receipt': leaf.toString('hex') };
}

/** A tool of an MCP server answered as tools of MCP servers do: it passes as it is. */
function ownResult({ answer }: CallSummary): JsonObject | undefined {
  const result = answer?.body == null ? undefined : (JSON.parse(answer.body) as Json);
  if (isJsonObject(result) && (Array.isArray(result['content']) || result['resultType'] === 'input_required'))
    return result;
  return undefined;
}

/** The call itself stands where the result would: where a schema promises something structured there must be something. */
function withoutResult(call: CallSummary, repeat: boolean): JsonObject {
  const structuredContent = JSON.parse(callText(call, repeat)) as JsonObject;
  return { content: [text(whyWithoutResult(call.outcome))], structuredContent };
}

function whyWithoutResult(outcome: string | null): string {
  if (outcome === 'body_unavailable') return 'It succeeded, but its answer was lost on the way and cannot be shown.';
  if (outcome === 'observed') return 'The answer was lost, but looked at again everything is as asked.';
  if (outcome === 'already_satisfied') return 'Everything was already as asked: nothing was sent.';
  return 'It succeeded. There is no result to show.';
}

function writtenResult(call: CallSummary): JsonObject | undefined {
  const { answer } = call;
  if (answer?.body == null) return undefined;
  if (answer.encoding === 'base64') return { content: [binary(call, answer, answer.body)] };
  const value = resultJson(answer);
  const written = typeof value === 'string' ? value : answer.body;
  return { content: [text(written)], ...(isJsonObject(value) ? { structuredContent: value } : {}) };
}

function binary({ txn }: CallSummary, { contentType }: UpstreamAnswer, data: string): JsonObject {
  const mimeType = contentType?.split(';')[0]?.trim() ?? 'application/octet-stream';
  const [kind] = mimeType.split('/');
  if (kind === 'image' || kind === 'audio') return { type: kind, data, mimeType };
  return { type: 'resource', resource: { uri: `oncegate://calls/${txn}/result`, mimeType, blob: data } };
}

/** Held by a person, or not ended yet: the call as it stands, and how to hear of it again. */
function waitingResult(call: CallSummary, repeat: boolean): JsonObject {
  const why = call.state === 'held' ? whyHeld(call) : 'This call is still being carried out.';
  const how = `Ask again with the same arguments and the same key, or with oncegate__get_call and txn ${call.txn}: it is not carried out twice.`;
  return {
    isError: true,
    content: [text(`${why} ${how}`)],
    structuredContent: JSON.parse(callText(call, repeat)) as JsonObject,
    _meta: { 'oncegate/txn': call.txn, 'oncegate/replayed': repeat },
  };
}

function whyHeld({ hold }: CallSummary): string {
  return hold?.kind === 'delay'
    ? `This call is delayed on purpose and leaves by itself at ${hold.until.toISOString()}, unless it is withdrawn. Nothing was sent so far.`
    : 'This call waits for a person to approve it. Nothing was sent so far.';
}

/**
 * A refusal, a failure or a doubt, for the model to read: first what the tool itself said, then what it means. What concerns
 * the client more than the model stays an error of the protocol.
 */
export function problemResult(problem: GatewayError, answer: UpstreamAnswer | null = null, passed = NONE): JsonObject {
  if (problem.code === 'malformed' || problem.code === 'unknown_tool')
    throw new ProtocolError(-32602, problem.message, problemJson(problem, '/mcp'));
  const said = answer === null ? null : resultJson(answer);
  if (problem.code === 'tool_failed') refuseAsTheServerDid(said, passed);
  const { txn } = problem.extras;
  return {
    isError: true,
    content: [...contentOf(said), text(words(problem))],
    structuredContent: problemJson(problem, '/mcp'),
    ...(txn === undefined ? {} : { _meta: { 'oncegate/txn': txn } }),
  };
}

/**
 * Errors of a server that are about the client and not about the tool, and that the client itself must see: it lacks a
 * capability, it must visit a page, its headers or revision are wrong; or the state that it brings back is not the server's.
 */
const ABOUT_THE_CLIENT = [-32020, -32021, -32022, -32042];
const NONE: readonly number[] = [];

function passing(bringsAnswers: boolean): readonly number[] {
  return bringsAnswers ? [...ABOUT_THE_CLIENT, -32602] : ABOUT_THE_CLIENT;
}

function refuseAsTheServerDid(said: Json, passed: readonly number[]): void {
  const error = isJsonObject(said) && isJsonObject(said['error']) ? said['error'] : undefined;
  if (error === undefined || typeof error['code'] !== 'number' || typeof error['message'] !== 'string') return;
  if (passed.includes(error['code'])) throw new ProtocolError(error['code'], error['message'], error['data']);
}

function contentOf(said: Json): readonly Json[] {
  const { content, error } = isJsonObject(said) ? said : {};
  if (Array.isArray(content)) return content;
  return isJsonObject(error) && typeof error['message'] === 'string' ? [text(error['message'])] : [];
}

const ADVICE = {
  never: 'Trying again will not help.',
  same_key: 'You may ask again with the same key: it is never carried out twice.',
  new_key: 'If you still want it, make a new call.',
  after_delay: 'Nothing was sent. Try again in a while.',
} as const;

function words(problem: GatewayError): string {
  const { retry, title, detail, code } = problemJson(problem, '/mcp') as {
    retry: keyof typeof ADVICE;
    title: string;
    detail: string;
    code: string;
  };
  return `${title} (${code}): ${detail} ${ADVICE[retry]}`;
}

function text(words: string): JsonObject {
  return { type: 'text', text: words };
}

/** Whatever was thrown, as a result; what is no error of ours is thrown on. */
export function thrownResult(error: unknown): JsonObject {
  const told = asGatewayError(error);
  if (told === undefined) throw error;
  return problemResult(told);
}
