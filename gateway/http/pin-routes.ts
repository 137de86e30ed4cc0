import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import type { Pin } from '../flow/mcp/imports.ts';
import { reason } from './authority-routes.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';

const acceptSchema = z.strictObject({
  reason,
  digest: z.string().regex(/^[0-9a-f]{64}$/, 'is not the digest of what is offered'),
});

/** What MCP servers say of their tools: as it was pinned, and as they say it now where that differs. */
export function pinRoutes(app: FastifyInstance, { station }: Services): void {
  app.get('/admin/pins', (request) => {
    identifyPerson(request, station.policies(), 'viewer');
    return { items: station.imports.pins().map(pinView), cursor: null };
  });

  app.post('/admin/pins/:upstream/:tool/accept', async (request) => {
    const person = identifyPerson(request, station.policies(), 'operator');
    const { upstream, tool } = request.params as { upstream: string; tool: string };
    const { digest, reason: why } = readBody(request, acceptSchema);
    return pinView(await station.imports.acceptPin(upstream, tool, digest, person.name, why));
  });
}

function pinView(pin: Pin): JsonObject {
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
