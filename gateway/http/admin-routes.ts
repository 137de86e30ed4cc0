import type { FastifyInstance } from 'fastify';
import { resolveDoubt } from '../flow/attempts/resolve.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { findCalls, listParticipants, readCall, readContradictions, readTimeline } from '../flow/calls/own-calls.ts';
import { listHeldLocks } from '../flow/controls/locks.ts';
import { formatCallPage } from './call-routes.ts';
import { callView, timeline } from './encode.ts';
import { verdictBody } from './schemas/call-schemas.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';
import { readFilter, readId, readLimit, readParam } from './transport/query.ts';

/** Calls and locks for people. The audit log names the person and the reason of every action. */
export function adminRoutes(app: FastifyInstance, services: Services): void {
  const policies = () => services.ctx.policies();

  app.get('/admin/calls', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Record<string, string>;
    const page = await findCalls(services, { ...readFilter(query), agent: readParam(query, 'agent') });
    return reply.type('application/json').send(formatCallPage(page, await readContradictions(services, page.items)));
  });

  app.get('/admin/calls/:txn', async (request, reply) => {
    identifyPerson(request, policies(), 'viewer');
    const call = await readCall(services, (request.params as { txn: string }).txn, undefined);
    const events = await readTimeline(services, call.txn);
    const view = callView(call, events);
    const participants = await listParticipants(services, call);
    return reply
      .type('application/json')
      .send(`${view.slice(0, -1)},"timeline":${JSON.stringify(timeline(call, events, participants))}}`);
  });

  app.get('/admin/locks', async (request) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Record<string, string>;
    const filter = {
      agent: readParam(query, 'agent'),
      holder: readId(query, 'holder'),
      cursor: readParam(query, 'cursor'),
    };
    return listHeldLocks(services.ctx, { ...filter, limit: readLimit(query) });
  });

  app.post('/admin/calls/:txn/resolve', async (request, reply) => {
    const person = identifyPerson(request, policies(), 'operator');
    const { txn } = request.params as { txn: string };
    const { result, senderIsDead, ...verdict } = readBody(request, verdictBody);
    await readCall(services, txn, undefined);
    const call = await resolveDoubt(services, {
      ...verdict,
      txn,
      person: person.name,
      ...(result === undefined ? {} : { result }),
      ...(senderIsDead === undefined ? {} : { senderIsDead }),
    });
    return reply.type('application/json').send(callView(call, await readTimeline(services, txn)));
  });
}
