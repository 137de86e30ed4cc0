import { ProtocolError, Server, type ServerContext } from '@modelcontextprotocol/server';
import type { Continuation, McpEra, ProgressListener } from '../domain/attempts/adapter.ts';
import type { CallSummary } from '../domain/calls/call.ts';
import { canonicalize } from '../domain/canonical.ts';
import type { RunEpoch } from '../domain/controls/run.ts';
import { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import { McpError } from '../domain/mcp-error.ts';
import type { Agent } from '../domain/policy.ts';
import { parseTraceContext, type TraceContext } from '../domain/telemetry.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import { executeCall, type Services } from '../flow/calls/execute-call.ts';
import type { CancelToken } from '../flow/cancel-token.ts';
import { McpReader } from '../flow/mcp/offers.ts';
import { toolNamed } from '../http/catalogue.ts';
import { type CallHeaders, parseDependsOn, parseFence, parseSaga } from '../http/transport/headers.ts';
import { builtInNamed, useBuiltIn } from './built-in.ts';
import type { Questions } from './clients.ts';
import { continuedKey, keyOf, metaText } from './keys.ts';
import { resultOf, thrownResult } from './results.ts';
import { toolList } from './tool-list.ts';

/** One request that came in over MCP: who asks, and what its HTTP part says. */
export interface Visit {
  readonly flow: Services;
  readonly agent: Agent;
  readonly headers: CallHeaders;
  readonly rawKey: string | undefined;
  readonly caller: CancelToken;
  /** What a client of the older revisions can do. */
  readonly capabilities: JsonObject;
  readonly questions: Questions;
  /** To be told when a resource changes, or no longer. */
  readonly subscribe: (uri: string) => void;
  readonly unsubscribe: (uri: string) => void;
  readonly version: string;
  /** Where the client found this gateway. */
  readonly origin: string;
  /** The calls that were answered: once the answer has left, they are remembered as delivered. */
  readonly answered: CallSummary[];
}

const META = 'io.modelcontextprotocol';
/** How long a list may be used without asking again. */
const CACHE = { ttlMs: 5_000, cacheScope: 'private' } as const;

/** The gateway as an MCP server, for one request of one agent. */
export function serverFor(visit: Visit, era: McpEra): Server {
  const { flow, agent, version } = visit;
  const { station } = flow;
  const nobody = offersFor(visit, era, undefined);
  const capabilities = { tools: { listChanged: true }, logging: {}, ...nobody.capabilities() };
  const server = new Server(
    { name: 'oncegate', title: 'Oncegate', version },
    {
      capabilities,
      cacheHints: {
        'tools/list': CACHE,
        'prompts/list': CACHE,
        'resources/list': CACHE,
        'resources/templates/list': CACHE,
        'resources/read': { ttlMs: 0, cacheScope: 'private' },
      },
      // Questions of servers are relayed by us, so that their answers find the way back to this process.
      inputRequired: { legacyShim: false },
    },
  );
  const raw = relaying(server as unknown as RawServer);
  raw.setRequestHandler('tools/list', () => ({ tools: toolList(station.policies(), agent, era) }));
  raw.setRequestHandler('tools/call', (request, ctx) => callOne(visit, server, era, request.params, ctx));
  const offers = (ctx: ServerContext) => offersFor(visit, era, { server, ctx });
  if ('resources' in capabilities) {
    raw.setRequestHandler('resources/list', (_, ctx) => offers(ctx).list('resources', 'resources/list', 'resources'));
    raw.setRequestHandler('resources/templates/list', (_, ctx) =>
      offers(ctx).list('resources', 'resources/templates/list', 'resourceTemplates'),
    );
    raw.setRequestHandler('resources/subscribe', async ({ params: { uri } }, ctx) => {
      if (!(await offers(ctx).subscribeResource(String(uri)))) throw new McpError(-32602, 'There is no such resource.');
      visit.subscribe(String(uri));
      return {};
    });
    raw.setRequestHandler('resources/unsubscribe', ({ params: { uri } }) => {
      visit.unsubscribe(String(uri));
      return {};
    });
    raw.setRequestHandler('resources/read', (request, ctx) => offers(ctx).readResource(withRound(request.params, ctx)));
  }
  if ('prompts' in capabilities) {
    raw.setRequestHandler('prompts/list', (_, ctx) => offers(ctx).list('prompts', 'prompts/list', 'prompts'));
    raw.setRequestHandler('prompts/get', (request, ctx) => offers(ctx).getPrompt(withRound(request.params, ctx)));
  }
  if ('completions' in capabilities)
    raw.setRequestHandler('completion/complete', (request, ctx) => offers(ctx).complete(request.params));
  return server;
}

/** The SDK's server without its types of results, which are ours to keep: what a server said passes as it is. */
interface RawServer {
  setRequestHandler(
    method: string,
    handler: (request: { params: JsonObject }, ctx: ServerContext) => unknown | Promise<unknown>,
  ): void;
}

/** What a server behind us answered as an error is our answer too. */
function relaying(server: RawServer): RawServer {
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

async function callOne(
  visit: Visit,
  server: Server,
  era: McpEra,
  params: JsonObject,
  ctx: ServerContext,
): Promise<Json> {
  try {
    return await call(visit, server, era, params, ctx);
  } catch (error) {
    return thrownResult(error);
  }
}

async function call(visit: Visit, server: Server, era: McpEra, params: JsonObject, ctx: ServerContext): Promise<Json> {
  const { flow, agent, headers, caller } = visit;
  const meta = (ctx.mcpReq._meta ?? {}) as JsonObject;
  const args = isJsonObject(params['arguments']) ? params['arguments'] : {};
  const name = String(params['name']);
  if (name.length > MOST_NAME) throw new McpError(-32602, `The name of a tool has at most ${MOST_NAME} characters.`);
  const key = keyOf(meta, visit.rawKey);
  const builtIn = builtInNamed(name);
  if (builtIn !== undefined) {
    if (headers.dryRun) throw new GatewayError('malformed', `There is no dry run of ${name}: it was not carried out.`);
    const patienceMs = builtIn.effect === 'read' ? 0 : headers.patienceMs;
    const use = { flow, agent, key, caller, patienceMs, fence: fenceFor(meta, headers) };
    const value = await useBuiltIn(builtIn, use, args);
    return told(value);
  }
  const policies = flow.station.policies();
  const tool = toolNamed(policies, name);
  const saga = parseSaga(metaText(meta, 'oncegate/saga')) ?? headers.saga;
  const follower = followerOf(visit, era, server, ctx);
  const asked = {
    agent,
    tool,
    args,
    saga,
    dependsOn: parseDependsOn(metaText(meta, 'oncegate/depends-on'), saga) ?? headers.dependsOn,
    undo: headers.undo,
    fence: fenceFor(meta, headers),
    trace: traceFor(meta, headers),
    follower,
    patienceMs: headers.patienceMs,
    caller,
  };
  if (headers.dryRun) return told(await dryRun(flow.station, () => ({ ...asked, key })));
  const upstream = policies.upstreams.get(policies.tools.get(tool)?.upstream ?? '');
  let continuation = continuationOf(ctx);
  for (let round = 1; ; round += 1) {
    const answer = await executeCall(flow, {
      ...asked,
      key: key === undefined || continuation === undefined ? key : continuedKey(key, asJson(continuation)),
      continuation,
    });
    visit.answered.push(answer.call);
    if (answer.call.state === 'held' && answer.call.hold?.kind !== 'delay' && mayVisit(follower))
      return visitRequest(visit, answer.call, continuation);
    const result = resultOf(answer, upstream?.adapter === 'mcp', continuation !== undefined);
    if (era === 'modern' || result['resultType'] !== 'input_required') return result;
    if (round === MOST_ROUNDS) throw new McpError(-32603, `The tool asked ${round} times and is not content.`);
    // A client of an older revision cannot come back with the answers: it is asked right here.
    continuation = await answersOf(result, follower);
  }
}

/** The run in `_meta`, or in the headers. */
function fenceFor(meta: JsonObject, { fence }: CallHeaders): RunEpoch | undefined {
  const own = { run: metaText(meta, 'oncegate/run'), epoch: metaText(meta, 'oncegate/epoch') };
  return own.run === undefined && own.epoch === undefined ? fence : parseFence(own);
}

/** In `_meta`, where the newest revision puts it, or in the headers. */
function traceFor(meta: JsonObject, { trace }: CallHeaders): TraceContext {
  const own = parseTraceContext((name) => (typeof meta[name] === 'string' ? meta[name] : undefined));
  return own.traceparent === undefined ? trace : own;
}

function told(value: Json): JsonObject {
  return { content: [{ type: 'text', text: JSON.stringify(value) }], structuredContent: value };
}

const MOST_ROUNDS = 8;
/** As over HTTP. */
const MOST_NAME = 512;

async function answersOf(
  { inputRequests, requestState }: JsonObject,
  follower: ProgressListener,
): Promise<Continuation> {
  const answers: Record<string, Json> = {};
  for (const [name, question] of Object.entries(isJsonObject(inputRequests) ? inputRequests : {})) {
    const { method, params } = isJsonObject(question) ? question : {};
    answers[name] = await follower.ask(String(method), isJsonObject(params) ? params : {});
  }
  return { inputResponses: answers, ...(typeof requestState === 'string' ? { requestState } : {}) };
}

/** Whether the client can show somebody a page. */
function mayVisit({ era, capabilities }: ProgressListener): boolean {
  const { elicitation } = capabilities;
  return era === 'modern' && isJsonObject(elicitation) && elicitation['url'] !== undefined;
}

/**
 * A held call, for a client that can take somebody to the page where it is decided and then ask again. What the call brought
 * goes out and comes back with the state, because such a client sends it only once.
 */
function visitRequest(
  { origin }: Visit,
  { txn, tool }: CallSummary,
  continuation: Continuation | undefined,
): JsonObject {
  const message = `${tool} waits for a person's approval. Nothing was sent so far.`;
  const params = { mode: 'url', message, url: `${origin}/#approvals/${txn}` };
  return {
    resultType: 'input_required',
    inputRequests: { approval: { method: 'elicitation/create', params } },
    requestState: `${HELD}${continuation === undefined ? '' : Buffer.from(canonicalize(asJson(continuation))).toString('base64url')}`,
  };
}

const HELD = 'oncegate.held.';

function continuationOf(ctx: ServerContext): Continuation | undefined {
  const { inputResponses } = ctx.mcpReq;
  const requestState = ctx.mcpReq.requestState<string>();
  // It comes back from the page where a held call is decided: the same call, with what that brought.
  if (requestState?.startsWith(HELD) === true) return broughtBefore(requestState.slice(HELD.length));
  if (inputResponses === undefined && requestState === undefined) return undefined;
  return {
    ...(inputResponses === undefined ? {} : { inputResponses: inputResponses as JsonObject }),
    ...(requestState === undefined ? {} : { requestState }),
  };
}

function broughtBefore(text: string): Continuation | undefined {
  if (text === '') return undefined;
  try {
    const { inputResponses, requestState } = JSON.parse(Buffer.from(text, 'base64url').toString()) as JsonObject;
    return {
      ...(isJsonObject(inputResponses) ? { inputResponses } : {}),
      ...(typeof requestState === 'string' ? { requestState } : {}),
    };
  } catch {
    throw new GatewayError('malformed', 'requestState is not one that this gateway gave.');
  }
}

function withRound(params: JsonObject, ctx: ServerContext): JsonObject {
  return { ...params, ...asJson(continuationOf(ctx) ?? {}) };
}

function asJson({ inputResponses, requestState }: Continuation): JsonObject {
  return {
    ...(inputResponses === undefined ? {} : { inputResponses }),
    ...(requestState === undefined ? {} : { requestState }),
  };
}

export function offersFor(
  visit: Visit,
  era: McpEra,
  asked: { server: Server; ctx: ServerContext } | undefined,
): McpReader {
  const follower =
    asked === undefined
      ? { era, capabilities: {}, meta: {}, tell: () => {}, ask: () => Promise.reject(new Error('nobody asks')) }
      : followerOf(visit, era, asked.server, asked.ctx);
  return new McpReader(visit.flow.station, visit.agent, follower);
}

/** The client of this request, as the servers behind us see it. */
function followerOf(visit: Visit, era: McpEra, server: Server, ctx: ServerContext): ProgressListener {
  const { mcpReq } = ctx;
  const envelope = (mcpReq.envelope ?? {}) as JsonObject;
  const declared = envelope[`${META}/clientCapabilities`];
  const token = mcpReq._meta?.progressToken;
  const level = envelope[`${META}/logLevel`];
  return {
    era,
    capabilities: era === 'legacy' ? visit.capabilities : isJsonObject(declared) ? declared : {},
    meta: level === undefined ? {} : { [`${META}/logLevel`]: level },
    tell: (method, params) => {
      const isProgress = method === 'notifications/progress';
      if (isProgress && token === undefined) return;
      const told = isProgress ? { ...params, progressToken: token } : params;
      // A client that has gone hears nothing, and that changes nothing.
      mcpReq.notify({ method, params: told } as Parameters<typeof mcpReq.notify>[0]).catch(() => {});
    },
    ask: async (method, params) => {
      if (era === 'modern') throw new Error('it speaks a revision in which servers do not ask');
      const send = async (id: string) =>
        server.transport?.send({ jsonrpc: '2.0', id, method, params }, { relatedRequestId: mcpReq.id });
      const response = await visit.questions.ask(visit.agent.name, send, mcpReq.signal);
      if (isJsonObject(response['result'])) return response['result'];
      const error = response['error'];
      throw new Error(
        isJsonObject(error) && typeof error['message'] === 'string' ? error['message'] : 'it gave no answer',
      );
    },
  };
}
