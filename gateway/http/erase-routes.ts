import type { FastifyInstance } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import { type ErasureScope, eraseScope } from '../flow/audit/erase.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { eraseBody } from './schemas/audit-schemas.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

const SCOPES = ['agent', 'saga', 'txn', 'subject'] as const;

/** Erases payloads before their retention ends. */
export function eraseRoutes(app: FastifyInstance, services: Services): void {
  app.post('/admin/erase', async (request) => {
    const person = identifyPerson(request, services.ctx.policies(), 'admin');
    const body = readBody(request, eraseBody);
    const scopes = SCOPES.flatMap((of): ErasureScope[] => {
      const value = body[of];
      return value === undefined ? [] : [{ of, value }];
    });
    const [scope] = scopes;
    if (scope === undefined || scopes.length > 1)
      throw new GatewayError('malformed', `Send exactly one of ${SCOPES.join(', ')}.`);
    return eraseScope(services, scope, { person: person.name, reason: body.reason }, body.cursor);
  });
}
