import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { GatewayError } from '../domain/errors.ts';
import { type ErasureScope, eraseScope } from '../flow/audit/erase.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { reason } from './authority-routes.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

const SCOPES = ['agent', 'saga', 'txn', 'subject'] as const;
const text = z.string().min(1).max(4_096);
const uuid = z.string().regex(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, 'must be an id that this API returned');
const eraseSchema = z.strictObject({
  agent: text.optional(),
  saga: uuid.optional(),
  txn: uuid.optional(),
  subject: text.optional(),
  cursor: z.string().optional(),
  reason,
});

/** Erases payloads before their retention ends. */
export function eraseRoutes(app: FastifyInstance, services: Services): void {
  app.post('/admin/erase', async (request) => {
    const person = identifyPerson(request, services.station.policies(), 'admin');
    const body = readBody(request, eraseSchema);
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
