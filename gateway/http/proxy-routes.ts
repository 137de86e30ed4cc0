import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { sha256Hex } from '../domain/audit/audit.ts';
import { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import type { Policies, Tool } from '../domain/policy.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import { executeCall, type Services, type ToolAnswer, type ToolCall } from '../flow/calls/execute-call.ts';
import { logIfRefused, Refusal } from '../flow/calls/refusals.ts';
import type { CancelToken } from '../flow/cancel-token.ts';
import { sendCall } from './encode.ts';
import { buildToolCall, cancelTokenFor, markDeliveredOnFinish } from './tool-routes.ts';
import { readArguments } from './transport/bodies.ts';
import { isDryRun, readCallHeaders } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';

/**
 * For clients that already speak HTTP to the upstream. The method and path select the declared tool, the call is processed like any
 * other, and the answer has the status and body of the upstream.
 */
export function proxyRoutes(app: FastifyInstance, services: Services): void {
  app.all('/v1/proxy/:upstream/*', async (request, reply) => {
    const policies = services.ctx.policies();
    const agent = identifyAgent(request, policies);
    const readToolCall = (cancelToken?: CancelToken): ToolCall => {
      const headers = readCallHeaders(request);
      const { tool, args } = matchTool(policies, request);
      return buildToolCall(agent, tool, args, headers, cancelToken);
    };
    if (isDryRun(request)) return dryRun(services.ctx, readToolCall);
    // A request without a matching tool is denied and logged like any other denial.
    const toolCall = await logIfRefused(services.ctx, { agent: agent.name }, async () =>
      readToolCall(cancelTokenFor(request, reply)),
    );
    const answer = await executeCall(services, toolCall);
    markDeliveredOnFinish(services, reply, answer.call);
    return sendUpstream(reply, answer, request.url);
  });
}

function sendUpstream(reply: FastifyReply, { call, repeat }: ToolAnswer, instance: string): FastifyReply {
  const { answer } = call;
  const hasUpstreamAnswer = call.state === 'succeeded' || call.state === 'failed';
  if (!hasUpstreamAnswer || answer === null) return sendCall(reply, call, repeat, instance);
  reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
  if (repeat) reply.header('idempotent-replayed', 'true');
  if (call.outcome === 'body_unavailable' || call.outcome === 'accepted')
    reply.header('oncegate-outcome', call.outcome);
  if (answer.contentType !== null) reply.type(answer.contentType);
  const body =
    answer.body === null ? null : answer.encoding === 'base64' ? Buffer.from(answer.body, 'base64') : answer.body;
  return reply.status(answer.status).send(body ?? '');
}

function matchTool(policies: Policies, request: FastifyRequest): { tool: string; args: JsonObject } {
  const { upstream } = request.params as { upstream: string };
  const segments = readPathSegments(request);
  const matches = findMostSpecific(policies, upstream, request.method, segments);
  const [only] = matches.length > 1 ? matches.filter(({ tool }) => tool.isProxyTarget) : matches;
  if (only !== undefined)
    return { tool: only.tool.name, args: collectArguments(request, only.tool, only.match.values) };
  const path = `/${segments.join('/')}`;
  const detail =
    matches.length === 0
      ? `No declared tool of ${upstream} has ${request.method} ${path}.`
      : `Several tools of ${upstream} have ${request.method} ${path}: ${formatNames(matches)}. Call one of them by name, or declare proxy: true in one of them.`;
  // The log is permanent and an unknown path may contain personal data, so only its hash is logged.
  throw new Refusal(new GatewayError('denied', detail), {
    upstream,
    method: request.method,
    path: sha256Hex(path),
    reason: matches.length === 0 ? 'no tool has this path' : 'several tools have this path',
  });
}

interface ToolMatch {
  readonly tool: Tool;
  readonly match: PathMatch;
}

/** The tools whose path template fits best. Several, if they have one template. */
function findMostSpecific(
  policies: Policies,
  upstream: string,
  method: string,
  segments: readonly string[],
): readonly ToolMatch[] {
  let best: ToolMatch[] = [];
  for (const tool of policies.tools.values()) {
    if (tool.upstream !== upstream || tool.request?.method !== method) continue;
    const match = matchPath(tool, segments);
    if (match === undefined) continue;
    const shape = best[0]?.match.shape;
    if (shape === undefined || match.shape < shape) best = [{ tool, match }];
    else if (match.shape === shape) best.push({ tool, match });
  }
  return best;
}

const MAX_NAMED_TOOLS = 12;

function formatNames(matches: readonly ToolMatch[]): string {
  const names = matches.slice(0, MAX_NAMED_TOOLS).map(({ tool }) => tool.name);
  const more = matches.length - names.length;
  return more === 0 ? names.join(', ') : `${names.join(', ')} and ${more} more`;
}

/**
 * The segments after `/v1/proxy/{upstream}/`. The raw path is split before it is decoded, so that an encoded slash stays inside its
 * segment.
 */
function readPathSegments(request: FastifyRequest): string[] {
  const path = request.url.replace(/^https?:\/\/[^/?#]*/i, '').replace(/[?#].*$/s, '');
  try {
    return path.split('/').slice(4).map(decodeURIComponent);
  } catch {
    throw new GatewayError('malformed', 'The path contains a % that does not start an escape sequence.');
  }
}

const VARIABLE = /^\$\{\s*args(?:\.([A-Za-z_]\w*)|\["([^"\\]+)"\])\s*\}$/;

interface PathMatch {
  readonly values: Readonly<Record<string, string>>;
  /** `0` per literal segment, `1` per variable segment. The smallest shape is the most specific match. */
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

/** Merges the body with path and query parameters. A parameter that contradicts the body is refused. */
function collectArguments(request: FastifyRequest, tool: Tool, path: PathMatch['values']): JsonObject {
  const hasBody = Buffer.isBuffer(request.body) && request.body.length > 0;
  const args: Record<string, Json> = hasBody ? { ...readArguments(request) } : {};
  const query = request.query as Record<string, string | string[]>;
  for (const [name, value] of [...Object.entries(path), ...Object.entries(query)]) {
    if (name === '__proto__') throw new GatewayError('malformed', 'A parameter must not be named __proto__.');
    const typed = Array.isArray(value)
      ? value.map((item) => coerce(tool, name, item, true))
      : coerce(tool, name, value, false);
    if (Object.hasOwn(args, name) && JSON.stringify(args[name]) !== JSON.stringify(typed)) {
      throw new GatewayError('malformed', `${name} appears twice with different values.`);
    }
    args[name] = typed;
  }
  return args;
}

/** Converts the text of a parameter to the type in the schema of the tool. */
function coerce(tool: Tool, name: string, text: string, isItem: boolean): Json {
  const properties = tool.input['properties'];
  let schema = isJsonObject(properties) ? properties[name] : undefined;
  if (isItem && isJsonObject(schema)) schema = schema['items'];
  const type = isJsonObject(schema) ? schema['type'] : undefined;
  if (
    (type === 'integer' || type === 'number') &&
    /^-?(0|[1-9]\d*)(\.\d+)?$/.test(text) &&
    String(Number(text)) === text
  )
    return Number(text);
  if (type === 'boolean' && (text === 'true' || text === 'false')) return text === 'true';
  return type === 'array' && !isItem ? [coerce(tool, name, text, true)] : text;
}
