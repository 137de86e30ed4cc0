import { isDeepStrictEqual } from 'node:util';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { z } from 'zod';
import type { EffectJournal } from './effect-journal.ts';
import { dropAnswer, newId, ServiceError } from './service-answers.ts';
import type { Charge } from './service-state.ts';

const chargeBody = z.object({
  amount: z.int().min(1),
  currency: z.string().length(3),
  card: z.string().min(1),
  order: z.string().optional(),
});
const chargeFilter = z.object({ card: z.string().optional(), order: z.string().optional() });
const byId = z.object({ id: z.string() });

/** A payment provider that recognises a repeat by its `Idempotency-Key`, as Stripe does. */
export function registerPayments(app: FastifyInstance, journal: EffectJournal): void {
  app.post('/charges', async (request, reply) => {
    const key = requireIdempotencyKey(request);
    const asked = chargeBody.parse(request.body);
    if (asked.card === 'card_declined') throw new ServiceError(422, 'declined', 'The card was declined.');
    const id = newId('ch');
    const state = await journal.record(({ chargeOfKey }) =>
      chargeOfKey.has(key) ? undefined : { did: 'charge', id, key, asked },
    );
    const charge = state.chargeOfKey.get(key);
    if (charge === undefined || !isDeepStrictEqual(charge.asked, asked)) {
      throw new ServiceError(422, 'key_reused', 'This Idempotency-Key belongs to another charge.');
    }
    const isNew = charge.id === id;
    if (isNew && asked.card === 'card_lost_answer') return dropAnswer(request, reply);
    return reply.code(isNew ? 201 : 200).send(toPublicCharge(charge));
  });

  app.post('/charges/:id/refunds', async (request, reply) => {
    const key = requireIdempotencyKey(request);
    const { id: charge } = byId.parse(request.params);
    const id = newId('re');
    const state = await journal.record(({ charges, refundOfKey }) => {
      if (!charges.has(charge)) throw new ServiceError(404, 'no_such_charge', `There is no charge ${charge}.`);
      return refundOfKey.has(key) ? undefined : { did: 'refund', id, key, charge };
    });
    const refund = state.refundOfKey.get(key);
    if (refund === undefined) throw new ServiceError(422, 'already_refunded', `${charge} is already refunded.`);
    if (refund.charge !== charge) throw new ServiceError(422, 'key_reused', 'This key belongs to another refund.');
    return reply.code(refund.id === id ? 201 : 200).send(refund);
  });

  app.get('/charges/:id', async (request) => {
    const { id } = byId.parse(request.params);
    const charge = (await journal.readState()).charges.get(id);
    if (charge === undefined) throw new ServiceError(404, 'no_such_charge', `There is no charge ${id}.`);
    return toPublicCharge(charge);
  });

  app.get('/charges', async (request) => {
    const { card, order } = chargeFilter.parse(request.query);
    const charges = [...(await journal.readState()).charges.values()].filter(
      ({ asked }) => (card ?? asked.card) === asked.card && (order ?? asked.order) === asked.order,
    );
    return { charges: charges.map(toPublicCharge) };
  });
}

function requireIdempotencyKey(request: FastifyRequest): string {
  const key = request.headers['idempotency-key'];
  if (typeof key !== 'string' || key === '') {
    throw new ServiceError(400, 'key_missing', 'A payment needs an Idempotency-Key.');
  }
  return key;
}

/** Returns the last four digits of the card, never the card. */
function toPublicCharge({ id, asked: { card, ...asked }, refunded }: Charge): object {
  return { id, ...asked, last4: card.slice(-4), refunded };
}
