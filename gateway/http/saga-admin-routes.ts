import type { FastifyInstance } from 'fastify';
import { z } from 'zod';
import { face } from '../domain/call.ts';
import { GatewayError } from '../domain/errors.ts';
import { isObject, type JsonObject } from '../domain/json.ts';
import type { Flow } from '../flow/call-tool.ts';
import { readCall } from '../flow/own-calls.ts';
import { rollBack } from '../flow/roll-back.ts';
import { awaitRollback, findSagas, readSaga } from '../flow/sagas.ts';
import { awaitUndo, close, resume, undoCall } from '../flow/undo-by-hand.ts';
import { reason } from './authority-routes.ts';
import { readBody } from './bodies.ts';
import { type Query, single } from './call-routes.ts';
import { callView } from './encode.ts';
import { identifyPerson } from './identify.ts';
import { idOf, patienceOf, readSagaFilter, savepointName } from './saga-routes.ts';
import { planView, sagaLine, sagaView } from './saga-view.ts';
import { hangUp } from './tool-routes.ts';

const rollbackSchema = z
  .strictObject({
    to: savepointName.nullish(),
    reason: reason.optional(),
    dryRun: z.boolean().optional(),
    digest: z
      .string()
      .regex(/^[0-9a-f]{64}$/, 'is not the digest of a plan')
      .optional(),
  })
  .refine((body) => body.dryRun === true || body.reason !== undefined, { path: ['reason'], message: 'Required' });
const resumeSchema = z.strictObject({ reason, waive: z.array(z.uuid()).max(1_000).optional() });
const closeSchema = z.strictObject({ reason });
const undoSchema = z.strictObject({ reason, args: z.custom<JsonObject>(isObject, 'must be an object').optional() });

/** What people see of sagas, and what they do about them. */
export function sagaAdminRoutes(app: FastifyInstance, flow: Flow): void {
  const { station } = flow;
  const policies = () => station.policies();

  app.get('/admin/sagas', async (request) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Query;
    const page = await findSagas(station, { ...readSagaFilter(query), agent: single(query, 'agent') });
    return {
      items: page.items.map((saga) => ({ ...sagaLine(saga, true), steps: saga.stepCount })),
      cursor: page.cursor,
    };
  });

  app.get('/admin/sagas/:id', async (request) => {
    identifyPerson(request, policies(), 'viewer');
    return sagaView(await readSaga(station, idOf(request), undefined), true);
  });

  app.post('/admin/sagas/:id/rollback', async (request, reply) => {
    const caller = hangUp(request, reply);
    identifyPerson(request, policies(), 'viewer');
    const body = readBody(request, rollbackSchema);
    const id = idOf(request);
    const to = body.to ?? undefined;
    if (body.dryRun === true) {
      const story = await readSaga(station, id, undefined);
      return planView(story, keepOf(story.saga.savepoints, to), to);
    }
    const person = identifyPerson(request, policies(), 'operator');
    await readSaga(station, id, undefined);
    const order = { id, to, reason: body.reason ?? '', by: person.name, again: true, digest: body.digest };
    await rollBack(station, order, { person: person.name });
    flow.rollbacks.hurry({ id, of: 'saga' });
    const story = await awaitRollback(flow, id, undefined, patienceOf(request), caller);
    return reply.status(202).header('location', `/admin/sagas/${id}`).send(sagaView(story, true));
  });

  app.post('/admin/sagas/:id/resume', async (request, reply) => {
    const caller = hangUp(request, reply);
    const person = identifyPerson(request, policies(), 'operator');
    const body = readBody(request, resumeSchema);
    const id = idOf(request);
    await resume(flow, id, body.waive ?? [], { person: person.name, reason: body.reason });
    const story = await awaitRollback(flow, id, undefined, patienceOf(request), caller);
    return reply.status(202).header('location', `/admin/sagas/${id}`).send(sagaView(story, true));
  });

  app.post('/admin/sagas/:id/close', async (request) => {
    const person = identifyPerson(request, policies(), 'operator');
    const body = readBody(request, closeSchema);
    return sagaView(await close(flow, idOf(request), { person: person.name, reason: body.reason }), true);
  });

  app.post('/admin/calls/:txn/undo', async (request, reply) => {
    const caller = hangUp(request, reply);
    const person = identifyPerson(request, policies(), 'operator');
    const { txn } = request.params as { txn: string };
    const body = readBody(request, undoSchema);
    await readCall(flow, txn, undefined);
    await undoCall(flow, txn, body.args, { person: person.name, reason: body.reason });
    const call = await awaitUndo(flow, txn, patienceOf(request), caller);
    reply.header('location', `/admin/calls/${txn}`).header('oncegate-txn', txn);
    return reply
      .status(202)
      .type('application/json')
      .send(callView(call, face(call).pursued, true));
  });
}

function keepOf(savepoints: readonly { name: string; after: number }[], to: string | undefined): number {
  if (to === undefined) return -1;
  const found = savepoints.find(({ name }) => name === to);
  if (found === undefined) throw new GatewayError('not_found', `There is no savepoint ${JSON.stringify(to)}.`);
  return found.after;
}
