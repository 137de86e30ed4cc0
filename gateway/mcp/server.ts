import { ProtocolError, Server, type ServerContext } from '@modelcontextprotocol/server';
import type { McpEra, ProgressListener } from '../domain/attempts/adapter.ts';
import type { CallRecord } from '../domain/calls/call-record.ts';
import type { RunEpoch } from '../domain/controls/run.ts';
import { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import { McpError } from '../domain/mcp-error.ts';
import type { Agent } from '../domain/policy.ts';
import { parseTraceContext, type TraceContext } from '../domain/telemetry.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import { executeCall, type Services, type ToolCall } from '../flow/calls/execute-call.ts';
import type { CancelToken } from '../flow/cancel-token.ts';
import { McpReader } from '../flow/mcp/mcp-reader.ts';
import { resolveToolName } from '../http/catalogue.ts';
import { type CallHeaders, parseDependsOn, parseRunEpoch, parseSaga } from '../http/transport/headers.ts';
import { findBuiltIn, runBuiltIn } from './built-in.ts';
import type { ClientRequests } from './clients.ts';
import {
  askClient,
  buildApprovalRequest,
  canOpenUrl,
  continuationJson,
  readContinuation,
  withContinuation,
} from './continuation.ts';
import { deriveContinuationKey, readKey, readMetaText } from './keys.ts';
import { buildErrorResult, buildResult } from './results.ts';
import { listMcpTools } from './tool-list.ts';

/** One MCP request: the agent, the HTTP headers and the client. */
export interface McpRequest {
  readonly services: Services;
  readonly agent: Agent;
  readonly headers: CallHeaders;
  readonly rawKey: string | undefined;
  readonly cancelToken: CancelToken;
  /** The capabilities of a client of an older revision. */
  readonly capabilities: JsonObject;
  readonly clientRequests: ClientRequests;
  /** Starts or stops the notifications about a resource. */
  readonly subscribe: (uri: string) => void;
  readonly unsubscribe: (uri: string) => void;
  readonly version: string;
  /** The URL under which the client reaches this gateway. */
  readonly origin: string;
  /** The answered calls, to record as delivered once the answer has been sent. */
  readonly answeredCalls: CallRecord[];
}

const META_PREFIX = 'io.modelcontextprotocol';
/** How long a client may cache a list. */
const LIST_CACHE = { ttlMs: 5_000, cacheScope: 'private' } as const;

/** The gateway as an MCP server, for one request of one agent. */
export function createServer(mcpRequest: McpRequest, era: McpEra): Server {
  const { services, agent, version } = mcpRequest;
  const context = services.ctx;
  const anonymousReader = readerFor(mcpRequest, era, undefined);
  const capabilities = { tools: { listChanged: true }, logging: {}, ...anonymousReader.capabilities() };
  const server = new Server(
    { name: 'oncegate', title: 'Oncegate', version },
    {
      capabilities,
      cacheHints: {
        'tools/list': LIST_CACHE,
        'prompts/list': LIST_CACHE,
        'resources/list': LIST_CACHE,
        'resources/templates/list': LIST_CACHE,
        'resources/read': { ttlMs: 0, cacheScope: 'private' },
      },
      // The gateway relays requests of upstream servers itself, so that the responses reach this process.
      inputRequired: { legacyShim: false },
    },
  );
  const raw = withErrorRelay(server as unknown as RawServer);
  raw.setRequestHandler('tools/list', () => ({ tools: listMcpTools(context.policies(), agent, era) }));
  raw.setRequestHandler('tools/call', (request, ctx) => handleToolCall(mcpRequest, server, era, request.params, ctx));
  const reader = (ctx: ServerContext) => readerFor(mcpRequest, era, { server, ctx });
  if ('resources' in capabilities) {
    raw.setRequestHandler('resources/list', (_, ctx) => reader(ctx).list('resources', 'resources/list', 'resources'));
    raw.setRequestHandler('resources/templates/list', (_, ctx) =>
      reader(ctx).list('resources', 'resources/templates/list', 'resourceTemplates'),
    );
    raw.setRequestHandler('resources/subscribe', async ({ params: { uri } }, ctx) => {
      if (!(await reader(ctx).subscribeResource(String(uri))))
        throw new McpError(-32602, 'There is no such resource, or no upstream can watch it.');
      mcpRequest.subscribe(String(uri));
      return {};
    });
    raw.setRequestHandler('resources/unsubscribe', ({ params: { uri } }) => {
      mcpRequest.unsubscribe(String(uri));
      return {};
    });
    raw.setRequestHandler('resources/read', (request, ctx) =>
      reader(ctx).readResource(withContinuation(request.params, ctx)),
    );
  }
  if ('prompts' in capabilities) {
    raw.setRequestHandler('prompts/list', (_, ctx) => reader(ctx).list('prompts', 'prompts/list', 'prompts'));
    raw.setRequestHandler('prompts/get', (request, ctx) =>
      reader(ctx).getPrompt(withContinuation(request.params, ctx)),
    );
  }
  if ('completions' in capabilities)
    raw.setRequestHandler('completion/complete', (request, ctx) => reader(ctx).complete(request.params));
  return server;
}

/** The server of the SDK without result types, because results of upstream servers pass through unchanged. */
interface RawServer {
  setRequestHandler(
    method: string,
    handler: (request: { params: JsonObject }, ctx: ServerContext) => unknown | Promise<unknown>,
  ): void;
}

/** Passes the errors of upstream servers on to the client. */
function withErrorRelay(server: RawServer): RawServer {
  return {
    setRequestHandler: (method, handler) =>
      server.setRequestHandler(method, async (request, ctx) => {
        try {
          return await handler(request, ctx);
        } catch (error) {
          if (error instanceof McpError) throw new ProtocolError(error.code, error.message, error.data);
          throw error;
        }
      }),
  };
}

async function handleToolCall(
  mcpRequest: McpRequest,
  server: Server,
  era: McpEra,
  params: JsonObject,
  ctx: ServerContext,
): Promise<Json> {
  try {
    return await callTool(mcpRequest, server, era, params, ctx);
  } catch (error) {
    return buildErrorResult(error);
  }
}

async function callTool(
  mcpRequest: McpRequest,
  server: Server,
  era: McpEra,
  params: JsonObject,
  ctx: ServerContext,
): Promise<Json> {
  const { services, agent, headers, cancelToken } = mcpRequest;
  const meta = (ctx.mcpReq._meta ?? {}) as JsonObject;
  const args = isJsonObject(params['arguments']) ? params['arguments'] : {};
  const name = String(params['name']);
  if (name.length > MAX_TOOL_NAME)
    throw new McpError(
      -32602,
      `The name of a tool must have at most ${MAX_TOOL_NAME} characters (got ${name.length}).`,
    );
  const key = readKey(meta, mcpRequest.rawKey);
  const builtIn = findBuiltIn(name);
  if (builtIn !== undefined) {
    if (headers.dryRun) throw new GatewayError('malformed', `${name} has no dry run. It was not executed.`);
    const patienceMs = builtIn.effect === 'read' ? 0 : headers.patienceMs;
    const runEpoch = readRunEpoch(meta, headers);
    const request = { services, agent, key, cancelToken, patienceMs, runEpoch };
    return buildJsonResult(await runBuiltIn(builtIn, request, args));
  }
  const policies = services.ctx.policies();
  const tool = resolveToolName(policies, name);
  const saga = parseSaga(readMetaText(meta, 'oncegate/saga')) ?? headers.saga;
  const listener = listenerFor(mcpRequest, era, server, ctx);
  const toolCall: Omit<ToolCall, 'key' | 'continuation'> = {
    agent,
    tool,
    args,
    saga,
    dependsOn: parseDependsOn(readMetaText(meta, 'oncegate/depends-on'), saga) ?? headers.dependsOn,
    undo: headers.undo,
    runEpoch: readRunEpoch(meta, headers),
    trace: readTrace(meta, headers),
    progressListener: listener,
    patienceMs: headers.patienceMs,
    cancelToken,
  };
  if (headers.dryRun) return buildJsonResult(await dryRun(services.ctx, () => ({ ...toolCall, key })));
  const upstream = policies.upstreams.get(policies.tools.get(tool)?.upstream ?? '');
  let continuation = readContinuation(ctx);
  for (let round = 1; ; round += 1) {
    const answer = await executeCall(services, {
      ...toolCall,
      key:
        key === undefined || continuation === undefined
          ? key
          : deriveContinuationKey(key, continuationJson(continuation)),
      continuation,
    });
    mcpRequest.answeredCalls.push(answer.call);
    if (answer.call.state === 'held' && answer.call.hold?.kind !== 'delay' && canOpenUrl(listener))
      return buildApprovalRequest(mcpRequest.origin, answer.call, continuation);
    const result = buildResult(answer, upstream?.adapter === 'mcp', continuation !== undefined);
    if (era === 'modern' || result['resultType'] !== 'input_required') return result;
    if (round === MAX_ROUNDS)
      throw new McpError(-32603, `The tool asked for input ${round} times, which is the limit.`);
    // A client of an older revision cannot send the answers in a second call, so ask it now.
    continuation = await askClient(result, listener);
  }
}

/** The run in `_meta`, else in the headers. */
function readRunEpoch(meta: JsonObject, { runEpoch }: CallHeaders): RunEpoch | undefined {
  const own = { run: readMetaText(meta, 'oncegate/run'), epoch: readMetaText(meta, 'oncegate/epoch') };
  return own.run === undefined && own.epoch === undefined ? runEpoch : parseRunEpoch(own);
}

/** The trace in `_meta`, where the newest revision puts it, else in the headers. */
function readTrace(meta: JsonObject, { trace }: CallHeaders): TraceContext {
  const own = parseTraceContext((name) => (typeof meta[name] === 'string' ? meta[name] : undefined));
  return own.traceparent === undefined ? trace : own;
}

function buildJsonResult(value: Json): JsonObject {
  return { content: [{ type: 'text', text: JSON.stringify(value) }], structuredContent: value };
}

/** How often a tool may ask for input during one call. */
const MAX_ROUNDS = 8;
/** The same limit as for the tool name in the path over HTTP (`maxParamLength`). */
const MAX_TOOL_NAME = 512;

export function readerFor(
  mcpRequest: McpRequest,
  era: McpEra,
  client: { server: Server; ctx: ServerContext } | undefined,
): McpReader {
  const listener: ProgressListener =
    client === undefined
      ? { era, capabilities: {}, meta: {}, tell: () => {}, ask: () => Promise.reject(new Error('there is no client')) }
      : listenerFor(mcpRequest, era, client.server, client.ctx);
  return new McpReader(mcpRequest.services.ctx, mcpRequest.agent, listener);
}

/** The client of this request as upstream servers see it. */
function listenerFor(mcpRequest: McpRequest, era: McpEra, server: Server, ctx: ServerContext): ProgressListener {
  const { mcpReq } = ctx;
  const envelope = (mcpReq.envelope ?? {}) as JsonObject;
  const declared = envelope[`${META_PREFIX}/clientCapabilities`];
  const token = mcpReq._meta?.progressToken;
  const level = envelope[`${META_PREFIX}/logLevel`];
  return {
    era,
    capabilities: era === 'legacy' ? mcpRequest.capabilities : isJsonObject(declared) ? declared : {},
    meta: level === undefined ? {} : { [`${META_PREFIX}/logLevel`]: level },
    tell: (method, params) => {
      const isProgress = method === 'notifications/progress';
      if (isProgress && token === undefined) return;
      const message = isProgress ? { ...params, progressToken: token } : params;
      // A failed notification means that the client disconnected; the call continues.
      mcpReq.notify({ method, params: message } as Parameters<typeof mcpReq.notify>[0]).catch(() => {});
    },
    ask: async (method, params) => {
      if (era === 'modern') throw new Error('the client speaks a revision without requests from servers');
      const send = async (id: string) =>
        server.transport?.send({ jsonrpc: '2.0', id, method, params }, { relatedRequestId: mcpReq.id });
      const response = await mcpRequest.clientRequests.ask(mcpRequest.agent.name, send, mcpReq.signal);
      if (isJsonObject(response['result'])) return response['result'];
      const error = response['error'];
      throw new Error(
        isJsonObject(error) && typeof error['message'] === 'string' ? error['message'] : 'the client sent no result',
      );
    },
  };
}
