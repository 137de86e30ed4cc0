import type { FastifyInstance } from 'fastify';
import type { Services } from '../flow/calls/execute-call.ts';
import { Stats } from '../flow/stats.ts';
import type { PolicyControl } from './control-routes.ts';
import { identifyPerson } from './transport/identify.ts';

/** `GET /admin/stats`: current numbers, the person that asks and the faults of the policies. Read by the console. */
export function statsRoutes(app: FastifyInstance, services: Services, control: PolicyControl, version: string): void {
  const stats = new Stats(services.ctx);

  app.get('/admin/stats', async (request) => {
    const policies = services.ctx.policies();
    const { name, roles, groups } = identifyPerson(request, policies, 'viewer');
    return {
      ...(await stats.read()),
      gateway: version,
      you: { person: name, roles: [...roles], groups: [...groups] },
      policies: { version: policies.version, refused: [...control.faults()] },
    };
  });
}
