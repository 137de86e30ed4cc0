import type { FastifyInstance } from 'fastify';
import type { Json } from '../domain/json.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import type { Pin } from '../flow/mcp/imports.ts';
import { acceptPinBody, type PinJson } from './schemas/control-schemas.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

/** Pins of imported tools: the pinned definition, and the offered one where it differs. */
export function pinRoutes(app: FastifyInstance, { ctx: context }: Services): void {
  app.get('/admin/pins', (request) => {
    identifyPerson(request, context.policies(), 'viewer');
    return { items: context.imports.pins().map(pinView), cursor: null };
  });

  app.post('/admin/pins/:upstream/:tool/accept', async (request) => {
    const person = identifyPerson(request, context.policies(), 'operator');
    const { upstream, tool } = request.params as { upstream: string; tool: string };
    const { digest, reason: why } = readBody(request, acceptPinBody);
    return pinView(await context.imports.acceptPin(upstream, tool, digest, person.name, why));
  });
}

function pinView(pin: Pin): PinJson {
  return {
    upstream: pin.upstream,
    tool: pin.tool,
    state: pin.offered === null ? 'pinned' : 'changed',
    digest: pin.digest.toString('hex'),
    definition: JSON.parse(pin.definition) as Json,
    pinnedAt: pin.pinnedAt.toISOString(),
    acceptedBy: pin.acceptedBy,
    offered:
      pin.offered === null
        ? null
        : {
            digest: pin.offeredDigest?.toString('hex') ?? null,
            definition: JSON.parse(pin.offered) as Json,
            since: pin.offeredAt?.toISOString() ?? null,
          },
  };
}
