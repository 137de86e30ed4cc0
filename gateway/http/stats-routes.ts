import type { FastifyInstance } from 'fastify';
import type { Flow } from '../flow/call-tool.ts';
import { Standing } from '../flow/standing.ts';
import type { PolicyControl } from './authority-routes.ts';
import { identifyPerson } from './identify.ts';

/** How things stand, for whoever looks after them. */
export function statsRoutes(app: FastifyInstance, flow: Flow, control: PolicyControl, version: string): void {
  const standing = new Standing(flow.station);

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
