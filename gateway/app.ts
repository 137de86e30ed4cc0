import Fastify, { type FastifyError, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import type { Logger } from 'pino';
import { registerDemoServices } from '../demo/services.ts';
import { type ErrorCode, GatewayError, LedgerError } from './domain/errors.ts';
import type { Services } from './flow/calls/execute-call.ts';
import { adminRoutes } from './http/admin-routes.ts';
import { auditRoutes } from './http/audit-routes.ts';
import { authorityRoutes, type PolicyControl } from './http/authority-routes.ts';
import { callRoutes } from './http/call-routes.ts';
import { type ConsoleFile, consoleRoutes } from './http/console-routes.ts';
import { asGatewayError, sendProblem } from './http/encode.ts';
import { eraseRoutes } from './http/erase-routes.ts';
import { eventRoutes } from './http/event-routes.ts';
import { pinRoutes } from './http/pin-routes.ts';
import { proxyRoutes } from './http/proxy-routes.ts';
import { type Health, type MetricsPage, publicRoutes } from './http/public-routes.ts';
import { runRoutes } from './http/run-routes.ts';
import { sagaAdminRoutes } from './http/saga-admin-routes.ts';
import { sagaRoutes } from './http/saga-routes.ts';
import { statsRoutes } from './http/stats-routes.ts';
import { toolRoutes } from './http/tool-routes.ts';
import { ClientErrorResponder } from './http/transport/client-errors.ts';
import { drainBody } from './http/transport/drain-body.ts';
import { type DoorLimits, frontDoor, type TokenCheck } from './http/transport/front-door.ts';
import { gatherBodies } from './http/transport/gather-body.ts';
import { Inflight } from './http/transport/inflight.ts';
import { closeUnusedConnections } from './http/transport/unused-connections.ts';
import { mcpRoutes, resourceMetadataRoutes } from './mcp/routes.ts';

export interface AppOptions {
  readonly flow: Services;
  readonly health: Health;
  readonly control: PolicyControl;
  readonly tokens: TokenCheck;
  readonly metrics: MetricsPage;
  readonly console: readonly ConsoleFile[];
  readonly log: Logger;
  readonly version: string;
  readonly bodyBytes: number;
  /** More calls at once than this are turned away before any work is done. */
  readonly inflight: number;
  readonly doorLimits: DoorLimits;
  readonly demo: { readonly stateFile: string; readonly token: string } | undefined;
}

/** The HTTP application: plugins and routes in the order in which they are written here. */
export async function buildApp(options: AppOptions): Promise<FastifyInstance> {
  const unreadable = new ClientErrorResponder();
  const app = Fastify({
    logger: false,
    bodyLimit: options.bodyBytes,
    requestTimeout: 60_000,
    keepAliveTimeout: 72_000,
    forceCloseConnections: 'idle',
    return503OnClosing: false,
    routerOptions: { maxParamLength: 512, ignoreTrailingSlash: false },
    // A path that the router itself cannot read: a broken escape, a segment that is too long.
    frameworkErrors: (error, request, reply) =>
      sendProblem(reply as FastifyReply, new GatewayError('malformed', error.message), request.url),
    clientErrorHandler: (error, socket) => unreadable.answer(error, socket),
  });

  app.setErrorHandler((error: FastifyError, request, reply) => {
    // Fastify hangs up on whoever sends a body it will not take. Nothing is wrong with the connection: what is left of the body
    // flows away, and the next request may come.
    if (reply.raw.shouldKeepAlive) reply.removeHeader('connection');
    const told = request.is404 ? nothingThere(request) : (asGatewayError(error) ?? protocolError(error));
    if (told === undefined) options.log.error({ err: error, route: request.routeOptions.url }, 'unexpected failure');
    // The ledger is there and refused a statement: that is a fault of ours, which no retry mends.
    if (error instanceof LedgerError && error.isRejected)
      options.log.error({ err: error.message, route: request.routeOptions.url }, 'the ledger refused a statement');
    return sendProblem(
      reply,
      told ?? new GatewayError('internal', 'Something failed that should not have. Ask again with the same key.'),
      request.url,
    );
  });
  app.setNotFoundHandler((request, reply) => sendProblem(reply, nothingThere(request), request.url));
  // What is sent to where nothing is, anybody can send: none of it is read. Each scope that takes bodies says how.
  app.removeAllContentTypeParsers();

  unreadable.watch(app.server);
  drainBody(app.server);
  closeUnusedConnections(app);
  if (options.demo !== undefined) {
    const demo = options.demo;
    await app.register((scope) => registerDemoServices(scope, demo), { prefix: '/demo' });
  }
  await app.register(async (scope) => consoleRoutes(scope, options.console));
  await app.register((scope) => gatewayRoutes(scope, options));
  return app;
}

async function gatewayRoutes(app: FastifyInstance, options: AppOptions): Promise<void> {
  gatherBodies(app);
  const { policies } = options.flow.station;
  const inflight = new Inflight(options.inflight, () => policies().agents.size);
  inflight.limitTotal(app);
  await frontDoor(app, policies, options.tokens, options.doorLimits);
  inflight.limitPerAgent(app);
  // A connection that is kept alive would keep a process that is about to end waiting for it.
  app.addHook('onSend', (_request, reply, _payload, done) => {
    if (options.flow.dispatch.shutdownToken.gone) reply.header('connection', 'close');
    done();
  });
  publicRoutes(app, options.flow, options.health, options.metrics, options.version);
  toolRoutes(app, options.flow);
  callRoutes(app, options.flow);
  sagaRoutes(app, options.flow);
  runRoutes(app, options.flow);
  proxyRoutes(app, options.flow);
  mcpRoutes(app, options.flow, options.version);
  resourceMetadataRoutes(app, options.flow);
  adminRoutes(app, options.flow);
  sagaAdminRoutes(app, options.flow);
  authorityRoutes(app, options.flow, options.control);
  pinRoutes(app, options.flow);
  auditRoutes(app, options.flow);
  eraseRoutes(app, options.flow);
  statsRoutes(app, options.flow, options.control, options.version);
  eventRoutes(app, options.flow);
}

function nothingThere({ method, url }: FastifyRequest): GatewayError {
  const path = url.split('?')[0] ?? url;
  // As curl asks when it is given no body.
  const hint = /^\/v1\/tools\/[^/]+$/.test(path) ? ' Call a tool with POST /v1/tools/{tool}.' : '';
  return new GatewayError('not_found', `There is no ${method} ${path}.${hint}`);
}

const PROTOCOL_ERRORS: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: ['unsupported_media', 'Send the body as content-type: application/json.'],
  FST_ERR_CTP_EMPTY_TYPE: ['unsupported_media', 'Send the body as content-type: application/json.'],
};

function protocolError(error: FastifyError): GatewayError | undefined {
  const known = PROTOCOL_ERRORS[error.code];
  if (known !== undefined) return new GatewayError(...known);
  if (error.statusCode !== undefined && error.statusCode >= 400 && error.statusCode < 500)
    return new GatewayError('malformed', error.message);
  return undefined;
}
