import Fastify, { type FastifyError, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import type { Logger } from 'pino';
import { registerDemoServices } from '../demo/services.ts';
import { type ErrorCode, GatewayError, LedgerError } from './domain/errors.ts';
import type { Services } from './flow/calls/execute-call.ts';
import { adminRoutes } from './http/admin-routes.ts';
import { approvalRoutes } from './http/approval-routes.ts';
import { auditRoutes } from './http/audit-routes.ts';
import { callRoutes } from './http/call-routes.ts';
import { type ConsoleFile, consoleRoutes } from './http/console-routes.ts';
import { controlRoutes, type PolicyControl } from './http/control-routes.ts';
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
  readonly services: Services;
  readonly health: Health;
  readonly control: PolicyControl;
  readonly tokens: TokenCheck;
  readonly metrics: MetricsPage;
  readonly console: readonly ConsoleFile[];
  readonly log: Logger;
  readonly version: string;
  readonly bodyBytes: number;
  /** Further concurrent requests are refused before any work is done. */
  readonly maxInflight: number;
  readonly doorLimits: DoorLimits;
  readonly demo: { readonly stateFile: string; readonly token: string } | undefined;
}

/** Builds the HTTP application. Plugins and routes are registered in the order of this file. */
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
    // The router itself refuses a path with a broken escape or a segment that is too long.
    frameworkErrors: (error, request, reply) =>
      sendProblem(reply as FastifyReply, new GatewayError('malformed', error.message), request.url),
    clientErrorHandler: (error, socket) => unreadable.answer(error, socket),
  });

  app.setErrorHandler((error: FastifyError, request, reply) => {
    // Fastify closes the connection after it refuses a body. drainBody discards the rest of the body, so keep it open.
    if (reply.raw.shouldKeepAlive) reply.removeHeader('connection');
    const known = request.is404 ? buildNotFoundError(request) : (asGatewayError(error) ?? toProtocolError(error));
    if (known === undefined)
      options.log.error({ err: error, route: request.routeOptions.url }, 'A request failed unexpectedly.');
    // PostgreSQL refused a statement, which is a bug here: no retry helps.
    if (error instanceof LedgerError && error.isRejected)
      options.log.error({ err: error.message, route: request.routeOptions.url }, 'PostgreSQL refused a statement.');
    return sendProblem(
      reply,
      known ?? new GatewayError('internal', 'The gateway failed unexpectedly. Try again with the same key.'),
      request.url,
    );
  });
  app.setNotFoundHandler((request, reply) => sendProblem(reply, buildNotFoundError(request), request.url));
  // Do not parse the body of an unknown route. Each scope that takes bodies adds its own parser.
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
  const { policies } = options.services.ctx;
  const inflight = new Inflight(options.maxInflight, () => policies().agents.size);
  inflight.limitTotal(app);
  await frontDoor(app, policies, options.tokens, options.doorLimits);
  inflight.limitPerAgent(app);
  // During shutdown, close connections: an open one would delay the end of the process.
  app.addHook('onSend', (_request, reply, _payload, done) => {
    if (options.services.dispatch.shutdownToken.isCancelled) reply.header('connection', 'close');
    done();
  });
  publicRoutes(app, options.services, options.health, options.metrics, options.version);
  toolRoutes(app, options.services);
  callRoutes(app, options.services);
  sagaRoutes(app, options.services);
  runRoutes(app, options.services);
  proxyRoutes(app, options.services);
  mcpRoutes(app, options.services, options.version);
  resourceMetadataRoutes(app, options.services);
  adminRoutes(app, options.services);
  sagaAdminRoutes(app, options.services);
  approvalRoutes(app, options.services);
  controlRoutes(app, options.services, options.control);
  pinRoutes(app, options.services);
  auditRoutes(app, options.services);
  eraseRoutes(app, options.services);
  statsRoutes(app, options.services, options.control, options.version);
  eventRoutes(app, options.services);
}

function buildNotFoundError({ method, url }: FastifyRequest): GatewayError {
  const path = url.split('?')[0] ?? url;
  // curl sends GET when it is given no body.
  const hint = /^\/v1\/tools\/[^/]+$/.test(path) ? ' Call a tool with POST /v1/tools/{tool}.' : '';
  return new GatewayError('not_found', `There is no ${method} ${path}.${hint}`);
}

const PROTOCOL_ERRORS: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: ['unsupported_media', 'Send the body as content-type: application/json.'],
  FST_ERR_CTP_EMPTY_TYPE: ['unsupported_media', 'Send the body as content-type: application/json.'],
};

function toProtocolError(error: FastifyError): GatewayError | undefined {
  const known = PROTOCOL_ERRORS[error.code];
  if (known !== undefined) return new GatewayError(...known);
  if (error.statusCode !== undefined && error.statusCode >= 400 && error.statusCode < 500)
    return new GatewayError('malformed', error.message);
  return undefined;
}
