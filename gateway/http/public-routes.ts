import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Services } from '../flow/calls/execute-call.ts';
import { openApi } from './openapi/openapi.ts';
import { identifyOptionalAgent, identifyPerson } from './transport/identify.ts';

export interface Health {
  /** Why calls cannot be served now; empty when they can. */
  readonly troubles: () => Promise<readonly string[]>;
  /** Faults that do not stop calls, such as a refused policy change. */
  readonly warnings: () => readonly string[];
}

/** The metrics of this process in the Prometheus text format. */
export interface MetricsPage {
  readonly contentType: string;
  text(): Promise<string>;
}

export function publicRoutes(
  app: FastifyInstance,
  services: Services,
  health: Health,
  metrics: MetricsPage,
  version: string,
): void {
  const policies = () => services.ctx.policies();

  app.get('/openapi.json', (request) => openApi(policies(), identifyOptionalAgent(request, policies()), version));
  app.get('/healthz', () => ({ status: 'alive' }));
  app.get('/readyz', async (_request, reply) => {
    const troubles = await health.troubles();
    const body = {
      status: troubles.length === 0 ? 'ready' : 'not ready',
      troubles,
      warnings: health.warnings(),
      policyVersion: policies().version,
    };
    return reply.status(troubles.length === 0 ? 200 : 503).send(body);
  });
  app.get('/metrics', async (request, reply) => {
    if (!isFromLoopback(request)) identifyPerson(request, policies(), 'viewer');
    return reply.type(metrics.contentType).send(await metrics.text());
  });
}

/** A local reverse proxy also connects from loopback; its forwarding headers reveal it. */
function isFromLoopback({ headers, socket }: FastifyRequest): boolean {
  if (headers.forwarded !== undefined || headers['x-forwarded-for'] !== undefined) return false;
  return /^(?:::ffff:)?127\.|^::1$/.test(socket.remoteAddress ?? '');
}
