import type { FastifyInstance, FastifyRequest } from 'fastify';
import type { Services } from '../flow/calls/execute-call.ts';
import { openApi } from './openapi/openapi.ts';
import { identifyPerson, maybeAgent } from './transport/identify.ts';

export interface Health {
  /** Why calls cannot be served right now; empty when they can. */
  readonly troubles: () => Promise<readonly string[]>;
  /** What is not as it should be although calls are served, such as a policy change that was refused. */
  readonly warnings: () => readonly string[];
}

/** The metrics of this process, as Prometheus reads them. */
export interface MetricsPage {
  readonly contentType: string;
  text(): Promise<string>;
}

export function publicRoutes(
  app: FastifyInstance,
  flow: Services,
  health: Health,
  metrics: MetricsPage,
  version: string,
): void {
  const policies = () => flow.station.policies();

  app.get('/openapi.json', (request) => openApi(policies(), maybeAgent(request, policies()), version));
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
    if (!fromThisMachine(request)) identifyPerson(request, policies(), 'viewer');
    return reply.type(metrics.contentType).send(await metrics.text());
  });
}

/** A proxy on this machine connects from loopback too, and says that it speaks for somebody else. */
function fromThisMachine({ headers, socket }: FastifyRequest): boolean {
  if (headers.forwarded !== undefined || headers['x-forwarded-for'] !== undefined) return false;
  return /^(?:::ffff:)?127\.|^::1$/.test(socket.remoteAddress ?? '');
}
