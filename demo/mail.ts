import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import type { EffectJournal } from './effect-journal.ts';
import { dropAnswer, newId } from './service-answers.ts';

const mailBody = z.object({ to: z.string().min(3), subject: z.string().min(1), body: z.string() });

/** A mail server. It sends a mail on every request, and has no outbox that a probe could read. */
export function registerMail(app: FastifyInstance, journal: EffectJournal): void {
  app.post('/', async (request, reply) => {
    const { to, subject } = mailBody.parse(request.body);
    const id = newId('msg');
    await journal.record(() => ({ did: 'send_mail', id, to, subject }));
    if (subject === 'lost answer') return dropAnswer(request, reply);
    return reply.code(202).send({ id });
  });
}
