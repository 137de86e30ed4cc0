import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { sha256Hex } from '../domain/audit/audit.ts';
import { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import type { Policies, Tool } from '../domain/policy.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import { executeCall, type Services, type ToolAnswer, type ToolCall } from '../flow/calls/execute-call.ts';
import { logIfRefused, Refusal } from '../flow/calls/refusal.ts';
import type { CancelToken } from '../flow/cancel-token.ts';
import { sendCall } from './encode.ts';
import { hangUp, replying, toolCall } from './tool-routes.ts';
import { readArguments } from './transport/bodies.ts';
import { isDryRun, readCallHeaders } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';

/**
 * For tools that already speak HTTP: the request is matched to the declared tool with that method and path, walks the
 * same way as any call, and the upstream's own status and body come back.
 */
export function proxyRoutes(app: FastifyInstance, flow: Services): void {
  app.all('/v1/proxy/:upstream/*', async (request, reply) => {
    const policies = flow.station.policies();
    const agent = identifyAgent(request, policies);
    const ask = (caller?: CancelToken): ToolCall => {
      const headers = readCallHeaders(request);
      const { tool, args } = match(policies, request);
      return toolCall(agent, tool, args, headers, caller);
    };
    if (isDryRun(request)) return dryRun(flow.station, ask);
    // What is no call of any tool is denied before there is one, and logged like any denial.
    const asked = await logIfRefused(flow.station, { agent: agent.name }, async () => ask(hangUp(request, reply)));
    const answer = await executeCall(flow, asked);
    replying(flow, reply, answer.call);
    return sendUpstream(reply, answer, request.url);
  });
}

function sendUpstream(reply: FastifyReply, { call, repeat }: ToolAnswer, instance: string): FastifyReply {
  const { answer } = call;
  const told = call.state === 'succeeded' || call.state === 'failed';
  if (!told || answer === null) return sendCall(reply, call, repeat, instance);
  reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
  if (repeat) reply.header('idempotent-replayed', 'true');
  if (call.outcome === 'body_unavailable') reply.header('oncegate-outcome', call.outcome);
  if (answer.contentType !== null) reply.type(answer.contentType);
  const body =
    answer.body === null ? null : answer.encoding === 'base64' ? Buffer.from(answer.body, 'base64') : answer.body;
  return reply.status(answer.status).send(body ?? '');
}

function match(policies: Policies, request: FastifyRequest): { tool: string; args: JsonObject } {
  const { upstream } = request.params as { upstream: string };
  const segments = pathBelow(request);
  let best: { readonly tool: Tool; readonly found: PathMatch } | undefined;
  for (const tool of policies.tools.values()) {
    if (tool.upstream !== upstream || tool.request?.method !== request.method) continue;
    const found = matchPath(tool, segments);
    if (found !== undefined && (best === undefined || found.shape < best.found.shape)) best = { tool, found };
  }
  if (best !== undefined) return { tool: best.tool.name, args: collect(request, best.tool, best.found.values) };
  const path = `/${segments.join('/')}`;
  const denied = new GatewayError('denied', `No declared tool of ${upstream} has ${request.method} ${path}.`);
  // The log is for ever, and nobody knows what is in a path that no tool has.
  throw new Refusal(denied, {
    upstream,
    method: request.method,
    path: sha256Hex(path),
    reason: 'no tool has this path',
  });
}

/**
 * What follows `/v1/proxy/{upstream}/`, as it was sent: split first and decoded once per segment, so that an encoded slash
 * stays inside its segment.
 */
function pathBelow(request: FastifyRequest): string[] {
  const path = request.url.replace(/^https?:\/\/[^/?#]*/i, '').replace(/[?#].*$/s, '');
  try {
    return path.split('/').slice(4).map(decodeURIComponent);
  } catch {
    throw new GatewayError('malformed', 'The path has a % that starts no escape.');
  }
}

const VARIABLE = /^\$\{\s*args(?:\.([A-Za-z_]\w*)|\["([^"\\]+)"\])\s*\}$/;

interface PathMatch {
  readonly values: Readonly<Record<string, string>>;
  /** `0` for a segment met literally, `1` for one that fills a variable: the smallest is the most specific. */
  readonly shape: string;
}

function matchPath(tool: Tool, segments: readonly string[]): PathMatch | undefined {
  const template = tool.request?.pathTemplate.replace(/^\//, '').split('/') ?? [];
  if (template.length !== segments.length) return undefined;
  const values: Record<string, string> = {};
  let shape = '';
  for (const [i, part] of template.entries()) {
    const [, word, quoted] = VARIABLE.exec(part) ?? [];
    const name = word ?? quoted;
    const segment = segments[i] ?? '';
    if (name === undefined && part !== segment) return undefined;
    if (name !== undefined && segment === '') return undefined;
    if (name !== undefined) values[name] = segment;
    shape += name === undefined ? '0' : '1';
  }
  return { values, shape };
}

/** Body, then path and query parameters. A parameter that says otherwise than the body is refused. */
function collect(request: FastifyRequest, tool: Tool, path: PathMatch['values']): JsonObject {
  const hasBody = Buffer.isBuffer(request.body) && request.body.length > 0;
  const args: Record<string, Json> = hasBody ? { ...readArguments(request) } : {};
  const query = request.query as Record<string, string | string[]>;
  for (const [name, value] of [...Object.entries(path), ...Object.entries(query)]) {
    if (name === '__proto__') throw new GatewayError('malformed', 'A parameter must not be called __proto__.');
    const typed = Array.isArray(value)
      ? value.map((item) => coerce(tool, name, item, true))
      : coerce(tool, name, value, false);
    if (Object.hasOwn(args, name) && JSON.stringify(args[name]) !== JSON.stringify(typed)) {
      throw new GatewayError('malformed', `${name} is given twice, with different values.`);
    }
    args[name] = typed;
  }
  return args;
}

/** A parameter is text on the wire; the tool's schema says what it means. */
function coerce(tool: Tool, name: string, text: string, item: boolean): Json {
  const properties = tool.input['properties'];
  let schema = isJsonObject(properties) ? properties[name] : undefined;
  if (item && isJsonObject(schema)) schema = schema['items'];
  const type = isJsonObject(schema) ? schema['type'] : undefined;
  if (
    (type === 'integer' || type === 'number') &&
    /^-?(0|[1-9]\d*)(\.\d+)?$/.test(text) &&
    String(Number(text)) === text
  )
    return Number(text);
  if (type === 'boolean' && (text === 'true' || text === 'false')) return text === 'true';
  return type === 'array' && !item ? [coerce(tool, name, text, true)] : text;
}
