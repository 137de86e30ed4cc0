import { Readable } from 'node:stream';
import { createMcpHandler, type McpRequestContext, ProtocolError } from '@modelcontextprotocol/server';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { isFinalState } from '../domain/calls/call-state.ts';
import { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import { parseStrictJson, StrictJsonError } from '../domain/strict-json.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { markDelivered } from '../flow/calls/own-calls.ts';
import { cancelTokenFor } from '../http/tool-routes.ts';
import { readCallHeaders } from '../http/transport/headers.ts';
import { identifyAgent } from '../http/transport/identify.ts';
import { ClientRequests, createSessionId, parseSessionCapabilities } from './clients.ts';
import { isCrossOrigin } from './origin.ts';
import { createServer, type McpRequest, readerFor } from './server.ts';
import { SessionStreams } from './streams.ts';

const MCP_PATH = '/mcp';
const SESSION_HEADER = 'mcp-session-id';

/**
 * The MCP endpoint. Every request is served statelessly. The newest revision has no sessions; in older ones the session id encodes the
 * capabilities of the client.
 */
export function mcpRoutes(app: FastifyInstance, services: Services, version: string): void {
  const mcpRequests = new WeakMap<Request, McpRequest>();
  const clientRequests = new ClientRequests();
  const handler = createMcpHandler(
    ({ era, requestInfo }: McpRequestContext) => {
      const mcpRequest = requestInfo && mcpRequests.get(requestInfo);
      if (mcpRequest === undefined) throw new TypeError('The MCP handler received an unregistered request.');
      return createServer(mcpRequest, era);
    },
    { onerror: (error) => services.ctx.log.info({ err: error.message }, 'An MCP request was refused.') },
  );
  const streams = new SessionStreams();
  services.ctx.imports.onChange((method, params) => {
    streams.notify(method, params);
    if (method === 'notifications/resources/updated') handler.notify.resourceUpdated(String(params['uri']));
    if (method === 'notifications/tools/list_changed') handler.notify.toolsChanged();
    if (method === 'notifications/prompts/list_changed') handler.notify.promptsChanged();
    if (method === 'notifications/resources/list_changed') handler.notify.resourcesChanged();
  });
  app.addHook('preClose', async () => {
    streams.close();
    await handler.close();
  });

  app.route({
    method: ['GET', 'POST', 'DELETE'],
    url: MCP_PATH,
    handler: async (request, reply) => {
      const cancelToken = cancelTokenFor(request, reply);
      if (isCrossOrigin(request))
        throw new GatewayError(
          'forbidden',
          'This origin or host may not use this gateway: a page must have the origin of the gateway.',
        );
      const agent = identifyCaller(request, reply, services);
      const body = request.method === 'POST' ? readMessage(request) : undefined;
      if (body instanceof StrictJsonError) return sendParseError(reply, request, body);
      // No supported revision has batches, and limits would count a batch as one request.
      if (Array.isArray(body))
        return sendJsonRpcError(reply, -32600, 'Invalid request: send one message, not a batch.');
      if (
        isJsonObject(body) &&
        !('method' in body) &&
        body['id'] !== undefined &&
        ('result' in body || 'error' in body)
      ) {
        clientRequests.answer(agent.name, body);
        return reply.status(202).send();
      }
      const session = readHeader(request, SESSION_HEADER);
      if (request.method === 'GET' && session !== undefined && streams.open(agent.name, session, reply)) return reply;
      const mcpRequest: McpRequest = {
        services,
        agent,
        headers: readCallHeaders(request),
        rawKey: readHeader(request, 'idempotency-key'),
        cancelToken,
        capabilities: parseSessionCapabilities(session),
        clientRequests,
        subscribe: (uri) => {
          if (session === undefined || !streams.subscribe(agent.name, session, uri))
            throw new ProtocolError(
              -32603,
              'Cannot subscribe: the request has no session, or the session has too many subscriptions.',
            );
        },
        unsubscribe: (uri) => {
          if (session !== undefined) streams.unsubscribe(agent.name, session, uri);
        },
        version,
        origin: originOf(request),
        answeredCalls: [],
      };
      const gone = new AbortController();
      cancelToken.onCancel(() => gone.abort());
      const fetchRequest = new Request(`http://gateway${MCP_PATH}`, {
        method: request.method,
        headers: Object.entries(request.headers).flatMap(([name, value]) =>
          typeof value === 'string' && name !== 'content-length' ? [[name, value] as [string, string]] : [],
        ),
        signal: gone.signal,
      });
      mcpRequests.set(fetchRequest, mcpRequest);
      reply.raw.once('finish', () => {
        for (const call of mcpRequest.answeredCalls) if (isFinalState(call.state)) markDelivered(services, call);
      });
      const message = await withAllowedSubscriptions(body, mcpRequest);
      const response = await handler.fetch(fetchRequest, message === undefined ? {} : { parsedBody: message });
      if (isInitialize(body) && response.ok)
        reply.header(SESSION_HEADER, createSessionId(readClientCapabilities(body)));
      return sendResponse(reply, response);
    },
  });
}

function identifyCaller(request: FastifyRequest, reply: FastifyReply, services: Services) {
  const policies = services.ctx.policies();
  try {
    return identifyAgent(request, policies);
  } catch (error) {
    if ([...policies.agents.values()].some(({ jwt }) => jwt !== undefined))
      reply.header('www-authenticate', `Bearer realm="oncegate", resource_metadata="${metadataUrl(request)}"`);
    throw error;
  }
}

/** Tells clients which authorization servers issue tokens (RFC 9728). */
export function resourceMetadataRoutes(app: FastifyInstance, services: Services): void {
  const handler = async (request: FastifyRequest): Promise<Json> => {
    const agents = [...services.ctx.policies().agents.values()];
    const issuers = [...new Set(agents.flatMap(({ jwt }) => (jwt === undefined ? [] : [jwt.issuer])))];
    if (issuers.length === 0)
      throw new GatewayError('not_found', 'No agent of this gateway uses tokens: send a bearer key.');
    return {
      resource: `${originOf(request)}${MCP_PATH}`,
      authorization_servers: issuers,
      bearer_methods_supported: ['header'],
      resource_name: 'Oncegate',
    };
  };
  app.get('/.well-known/oauth-protected-resource', handler);
  app.get(`/.well-known/oauth-protected-resource${MCP_PATH}`, handler);
}

function originOf(request: FastifyRequest): string {
  return `${request.protocol}://${request.host}`;
}

function metadataUrl(request: FastifyRequest): string {
  return `${originOf(request)}/.well-known/oauth-protected-resource${MCP_PATH}`;
}

/** Reads the message as strictly as the arguments of a call. */
function readMessage(request: FastifyRequest): Json | StrictJsonError {
  const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
  try {
    return parseStrictJson(body);
  } catch (error) {
    if (error instanceof StrictJsonError) return error;
    throw error;
  }
}

/** Answers with the id of the message where a lenient parser can read it, else as a parse error without id. */
function sendParseError(reply: FastifyReply, request: FastifyRequest, { message }: StrictJsonError): FastifyReply {
  const id = readIdLeniently(request);
  return id === undefined
    ? sendJsonRpcError(reply, -32700, `Parse error: ${message}`)
    : sendJsonRpcError(reply, -32602, `Invalid params: ${message}`, id);
}

function readIdLeniently({ body }: FastifyRequest): string | number | undefined {
  try {
    const id: unknown = (JSON.parse(String(body)) as { id?: unknown } | null)?.id;
    return typeof id === 'string' || typeof id === 'number' ? id : undefined;
  } catch {
    return undefined;
  }
}

function sendJsonRpcError(reply: FastifyReply, code: number, message: string, id: string | number | null = null) {
  return reply.status(400).send({ jsonrpc: '2.0', id, error: { code, message } });
}

function isInitialize(body: Json | undefined): body is JsonObject {
  return isJsonObject(body) && body['method'] === 'initialize';
}

/** Limits the subscriptions of `subscriptions/listen` to resources that the agent may read and an upstream can watch. */
async function withAllowedSubscriptions(body: Json | undefined, mcpRequest: McpRequest): Promise<Json | undefined> {
  const requested = readSubscriptions(body);
  if (requested.length === 0 || !isJsonObject(body) || !isJsonObject(body['params'])) return body;
  if (requested.length > MAX_URIS)
    throw new GatewayError(
      'malformed',
      `resourceSubscriptions must name at most ${MAX_URIS} resources (got ${requested.length}).`,
    );
  const reader = readerFor(mcpRequest, 'modern', undefined);
  const watched: string[] = [];
  for (const uri of new Set(requested)) {
    if (mcpRequest.cancelToken.isCancelled) break;
    if (await reader.subscribeResource(uri).catch(() => false)) watched.push(uri);
  }
  const { notifications } = body['params'];
  const allowed = { ...(isJsonObject(notifications) ? notifications : {}), resourceSubscriptions: watched };
  return { ...body, params: { ...body['params'], notifications: allowed } };
}

const MAX_URIS = 64;

/** The resource URIs of a `subscriptions/listen` message. */
function readSubscriptions(body: Json | undefined): string[] {
  if (!isJsonObject(body) || body['method'] !== 'subscriptions/listen' || !isJsonObject(body['params'])) return [];
  const { notifications } = body['params'];
  const uris = isJsonObject(notifications) ? notifications['resourceSubscriptions'] : undefined;
  return Array.isArray(uris) ? uris.filter((uri) => typeof uri === 'string') : [];
}

function readClientCapabilities({ params }: JsonObject): JsonObject {
  const capabilities = isJsonObject(params) ? params['capabilities'] : undefined;
  return isJsonObject(capabilities) ? capabilities : {};
}

function readHeader(request: FastifyRequest, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value.join(', ') : value;
}

async function sendResponse(reply: FastifyReply, response: Response): Promise<FastifyReply> {
  reply.status(response.status);
  response.headers.forEach((value, name) => {
    reply.header(name, value);
  });
  if (response.body === null) return reply.send();
  if (!/^text\/event-stream/.test(response.headers.get('content-type') ?? ''))
    return reply.send(Buffer.from(await response.arrayBuffer()));
  return reply.send(Readable.fromWeb(response.body as Parameters<typeof Readable.fromWeb>[0]));
}
