import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { dropAnswer, newId } from './answers.ts';
import type { EffectJournal } from './journal.ts';

const mailBody = z.object({ to: z.string().min(3), subject: z.string().min(1), body: z.string() });

/** A mail server: it sends whatever it is given as often as it is given it, and shows no outbox. */
export function registerMail(app: FastifyInstance, journal: EffectJournal): void {
  app.post('/', async (request, reply) => {
    const { to, subject } = mailBody.parse(request.body);
    const id = newId('msg');
    await journal.record(() => ({ did: 'send_mail', id, to, subject }));
    if (subject === 'lost answer') return dropAnswer(request, reply);
    return reply.code(202).send({ id });
  });
}
