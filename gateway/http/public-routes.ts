import type { FastifyInstance } from 'fastify';
import type { Flow } from '../flow/call-tool.ts';
import { frontPage } from './front-page.ts';
import { maybeAgent } from './identify.ts';
import { openApi } from './openapi.ts';

export interface Health {
  /** Why calls cannot be served right now; empty when they can. */
  readonly troubles: () => Promise<readonly string[]>;
  /** What is not as it should be although calls are served, such as a policy change that was refused. */
  readonly warnings: () => readonly string[];
}

export function publicRoutes(app: FastifyInstance, flow: Flow, health: Health, version: string): void {
  const policies = () => flow.station.policies();

  app.get('/', (request, reply) => {
    const page = frontPage(version, `${request.protocol}://${request.host}`);
    return reply.type('text/html; charset=utf-8').send(page);
  });
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
}
