import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import type { EffectJournal } from './effect-journal.ts';
import { dropAnswer, newId, ServiceError } from './service-answers.ts';

const ticketBody = z.object({ title: z.string().min(1), body: z.string().optional(), reference: z.string().min(1) });
const ticketFilter = z.object({ reference: z.string().optional() });
const byId = z.object({ id: z.string() });

/** A tracker that opens a ticket on every request. Its tickets can be found by their reference. */
export function registerTickets(app: FastifyInstance, journal: EffectJournal): void {
  app.post('/', async (request, reply) => {
    const asked = ticketBody.parse(request.body);
    const id = newId('tk');
    const state = await journal.record(() => ({ did: 'open_ticket', id, asked }));
    if (asked.title === 'lost answer') return dropAnswer(request, reply);
    return reply.code(201).send(state.tickets.get(id));
  });

  app.get('/', async (request) => {
    const { reference } = ticketFilter.parse(request.query);
    const all = [...(await journal.readState()).tickets.values()];
    return { tickets: all.filter((ticket) => (reference ?? ticket.reference) === ticket.reference) };
  });

  app.post('/:id/close', async (request) => {
    const { id } = byId.parse(request.params);
    const state = await journal.record((before) => {
      const ticket = before.tickets.get(id);
      if (ticket === undefined) throw new ServiceError(404, 'no_such_ticket', `There is no ticket ${id}.`);
      return ticket.state === 'closed' ? undefined : { did: 'close_ticket', id };
    });
    return state.tickets.get(id);
  });
}
