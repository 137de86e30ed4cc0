import { Readable } from 'node:stream';
import { createMcpHandler, type McpRequestContext, ProtocolError } from '@modelcontextprotocol/server';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { isFinalState } from '../domain/calls/call-state.ts';
import { GatewayError } from '../domain/errors.ts';
import { isJsonObject, type Json, type JsonObject } from '../domain/json.ts';
import { parseStrictJson, StrictJsonError } from '../domain/strict-json.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { markDelivered } from '../flow/calls/own-calls.ts';
import { hangUp } from '../http/tool-routes.ts';
import { readCallHeaders } from '../http/transport/headers.ts';
import { identifyAgent } from '../http/transport/identify.ts';
import { capabilitiesOf, Questions, sessionFor } from './clients.ts';
import { isForeign } from './origin.ts';
import { offersFor, serverFor, type Visit } from './server.ts';
import { Streams } from './streams.ts';

const PATH = '/mcp';
const SESSION = 'mcp-session-id';

/**
 * The MCP front. Each request is served for itself, whatever revision its client speaks: the newest one is made so, and a
 * session of an older one carries in its id all that there is to know.
 */
export function mcpRoutes(app: FastifyInstance, flow: Services, version: string): void {
  const visits = new WeakMap<Request, Visit>();
  const questions = new Questions();
  const handler = createMcpHandler(
    ({ era, requestInfo }: McpRequestContext) => {
      const visit = requestInfo && visits.get(requestInfo);
      if (visit === undefined) throw new TypeError('a request that nobody let in');
      return serverFor(visit, era);
    },
    { onerror: (error) => flow.station.log.info({ err: error.message }, 'an MCP request was refused') },
  );
  const streams = new Streams();
  flow.station.imports.onChange((method, params) => {
    streams.tell(method, params);
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
    url: PATH,
    handler: async (request, reply) => {
      const caller = hangUp(request, reply);
      if (isForeign(request))
        throw new GatewayError('forbidden', 'This origin or host is not one from which this gateway is used.');
      const agent = identify(request, reply, flow);
      const body = request.method === 'POST' ? readMessage(request) : undefined;
      if (body instanceof StrictJsonError) return sendUnread(reply, request, body);
      // No revision that is spoken here knows batches, and one request would be counted for any number of calls.
      if (Array.isArray(body)) return sendRefusal(reply, -32600, 'Invalid request: send one message, not a batch.');
      if (
        isJsonObject(body) &&
        !('method' in body) &&
        body['id'] !== undefined &&
        ('result' in body || 'error' in body)
      ) {
        questions.answer(agent.name, body);
        return reply.status(202).send();
      }
      const session = headerOf(request, SESSION);
      if (request.method === 'GET' && session !== undefined && streams.open(agent.name, session, reply)) return reply;
      const visit: Visit = {
        flow,
        agent,
        headers: readCallHeaders(request),
        rawKey: headerOf(request, 'idempotency-key'),
        caller,
        capabilities: capabilitiesOf(session),
        questions,
        subscribe: (uri) => {
          if (session === undefined || !streams.subscribe(agent.name, session, uri))
            throw new ProtocolError(-32603, 'There is no session to tell of it, or it subscribed to too much.');
        },
        unsubscribe: (uri) => {
          if (session !== undefined) streams.unsubscribe(agent.name, session, uri);
        },
        version,
        origin: originOf(request),
        answered: [],
      };
      const gone = new AbortController();
      caller.onGone(() => gone.abort());
      const asked = new Request(`http://gateway${PATH}`, {
        method: request.method,
        headers: Object.entries(request.headers).flatMap(([name, value]) =>
          typeof value === 'string' && name !== 'content-length' ? [[name, value] as [string, string]] : [],
        ),
        signal: gone.signal,
      });
      visits.set(asked, visit);
      reply.raw.once('finish', () => {
        for (const call of visit.answered) if (isFinalState(call.state)) markDelivered(flow, call);
      });
      const message = await withWatched(body, visit);
      const response = await handler.fetch(asked, message === undefined ? {} : { parsedBody: message });
      if (isInitialize(body) && response.ok) reply.header(SESSION, sessionFor(clientOf(body)));
      return send(reply, response);
    },
  });
}

function identify(request: FastifyRequest, reply: FastifyReply, flow: Services) {
  const policies = flow.station.policies();
  try {
    return identifyAgent(request, policies);
  } catch (error) {
    if ([...policies.agents.values()].some(({ jwt }) => jwt !== undefined))
      reply.header('www-authenticate', `Bearer realm="oncegate", resource_metadata="${metadataUrl(request)}"`);
    throw error;
  }
}

/** Where clients that bring tokens learn whom to get them from (RFC 9728). */
export function resourceMetadata(app: FastifyInstance, flow: Services): void {
  const handler = async (request: FastifyRequest): Promise<Json> => {
    const agents = [...flow.station.policies().agents.values()];
    const issuers = [...new Set(agents.flatMap(({ jwt }) => (jwt === undefined ? [] : [jwt.issuer])))];
    if (issuers.length === 0)
      throw new GatewayError('not_found', 'No agent of this gateway comes with tokens: use a bearer key.');
    return {
      resource: `${originOf(request)}${PATH}`,
      authorization_servers: issuers,
      bearer_methods_supported: ['header'],
      resource_name: 'Oncegate',
    };
  };
  app.get('/.well-known/oauth-protected-resource', handler);
  app.get(`/.well-known/oauth-protected-resource${PATH}`, handler);
}

function originOf(request: FastifyRequest): string {
  return `${request.protocol}://${request.host}`;
}

function metadataUrl(request: FastifyRequest): string {
  return `${originOf(request)}/.well-known/oauth-protected-resource${PATH}`;
}

/** Read as strictly as the arguments of any call: what is judged is what is sent. */
function readMessage(request: FastifyRequest): Json | StrictJsonError {
  const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
  try {
    return parseStrictJson(body);
  } catch (error) {
    if (error instanceof StrictJsonError) return error;
    throw error;
  }
}

/** What others would read, and who asks is told under the id it gave; or what nobody can. */
function sendUnread(reply: FastifyReply, request: FastifyRequest, { message }: StrictJsonError): FastifyReply {
  const id = lenientId(request);
  return id === undefined
    ? sendRefusal(reply, -32700, `Parse error: ${message}`)
    : sendRefusal(reply, -32602, `Invalid params: ${message}`, id);
}

function lenientId({ body }: FastifyRequest): string | number | undefined {
  try {
    const id: unknown = (JSON.parse(String(body)) as { id?: unknown } | null)?.id;
    return typeof id === 'string' || typeof id === 'number' ? id : undefined;
  } catch {
    return undefined;
  }
}

function sendRefusal(reply: FastifyReply, code: number, message: string, id: string | number | null = null) {
  return reply.status(400).send({ jsonrpc: '2.0', id, error: { code, message } });
}

function isInitialize(body: Json | undefined): body is JsonObject {
  return isJsonObject(body) && body['method'] === 'initialize';
}

/** A client of the newest revision hears of the resources that it may read and that somebody can tell about, of no others. */
async function withWatched(body: Json | undefined, visit: Visit): Promise<Json | undefined> {
  const wanted = subscriptionsOf(body);
  if (wanted.length === 0 || !isJsonObject(body) || !isJsonObject(body['params'])) return body;
  if (wanted.length > MOST_URIS)
    throw new GatewayError('malformed', `More than ${MOST_URIS} resources are too many to listen for at once.`);
  const offers = offersFor(visit, 'modern', undefined);
  const watched: string[] = [];
  for (const uri of new Set(wanted)) {
    if (visit.caller.gone) break;
    if (await offers.subscribeResource(uri).catch(() => false)) watched.push(uri);
  }
  const { notifications } = body['params'];
  const allowed = { ...(isJsonObject(notifications) ? notifications : {}), resourceSubscriptions: watched };
  return { ...body, params: { ...body['params'], notifications: allowed } };
}

const MOST_URIS = 64;

/** The resources that a client of the newest revision wants to hear of. */
function subscriptionsOf(body: Json | undefined): string[] {
  if (!isJsonObject(body) || body['method'] !== 'subscriptions/listen' || !isJsonObject(body['params'])) return [];
  const { notifications } = body['params'];
  const uris = isJsonObject(notifications) ? notifications['resourceSubscriptions'] : undefined;
  return Array.isArray(uris) ? uris.filter((uri) => typeof uri === 'string') : [];
}

function clientOf({ params }: JsonObject): JsonObject {
  const capabilities = isJsonObject(params) ? params['capabilities'] : undefined;
  return isJsonObject(capabilities) ? capabilities : {};
}

function headerOf(request: FastifyRequest, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value.join(', ') : value;
}

async function send(reply: FastifyReply, response: Response): Promise<FastifyReply> {
  reply.status(response.status);
  response.headers.forEach((value, name) => {
    reply.header(name, value);
  });
  if (response.body === null) return reply.send();
  if (!/^text\/event-stream/.test(response.headers.get('content-type') ?? ''))
    return reply.send(Buffer.from(await response.arrayBuffer()));
  return reply.send(Readable.fromWeb(response.body as Parameters<typeof Readable.fromWeb>[0]));
}
