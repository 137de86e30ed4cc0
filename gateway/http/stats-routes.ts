import type { FastifyInstance } from 'fastify';
import type { Services } from '../flow/calls/execute-call.ts';
import { Stats } from '../flow/stats.ts';
import type { PolicyControl } from './authority-routes.ts';
import { identifyPerson } from './transport/identify.ts';

/** How things stand, for whoever looks after them. */
export function statsRoutes(app: FastifyInstance, flow: Services, control: PolicyControl, version: string): void {
  const standing = new Stats(flow.station);

  app.get('/admin/stats', async (request) => {
    const policies = flow.station.policies();
    const { name, roles, groups } = identifyPerson(request, policies, 'viewer');
    return {
      ...(await standing.read()),
      gateway: version,
      you: { person: name, roles: [...roles], groups: [...groups] },
      policies: { version: policies.version, refused: [...control.faults()] },
    };
  });
}
