import type { FastifyInstance } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { readCall, readTimeline } from '../flow/calls/own-calls.ts';
import { awaitUndo, closeParkedSaga, requestUndo, resumeRollback } from '../flow/sagas/manual-undo.ts';
import { requestRollback } from '../flow/sagas/rollback.ts';
import { awaitRollback, findSagas, readSaga } from '../flow/sagas/sagas.ts';
import { callView } from './encode.ts';
import { readSagaFilter } from './saga-routes.ts';
import { planView, sagaLine, sagaView } from './saga-view.ts';
import { reasonBody } from './schemas/fields.ts';
import { adminRollbackBody, resumeBody, undoCallBody } from './schemas/saga-schemas.ts';
import { cancelTokenFor } from './tool-routes.ts';
import { readBody } from './transport/bodies.ts';
import { identifyPerson } from './transport/identify.ts';
import { type Query, readIdParam, readParam, readPatience } from './transport/query.ts';

/** Sagas and undos, for people. */
export function sagaAdminRoutes(app: FastifyInstance, services: Services): void {
  const context = services.ctx;
  const policies = () => context.policies();

  app.get('/admin/sagas', async (request) => {
    identifyPerson(request, policies(), 'viewer');
    const query = request.query as Query;
    const page = await findSagas(context, { ...readSagaFilter(query), agent: readParam(query, 'agent') });
    return {
      items: page.items.map((saga) => ({ ...sagaLine(saga, true), steps: saga.stepCount })),
      cursor: page.cursor,
    };
  });

  app.get('/admin/sagas/:id', async (request) => {
    identifyPerson(request, policies(), 'viewer');
    return sagaView(await readSaga(context, readIdParam(request), undefined), true);
  });

  app.post('/admin/sagas/:id/rollback', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    identifyPerson(request, policies(), 'viewer');
    const body = readBody(request, adminRollbackBody);
    const id = readIdParam(request);
    const to = body.to ?? undefined;
    if (body.dryRun === true) {
      const sagaWithSteps = await readSaga(context, id, undefined);
      return planView(sagaWithSteps, findSavepoint(sagaWithSteps.saga.savepoints, to), to);
    }
    const person = identifyPerson(request, policies(), 'operator');
    await readSaga(context, id, undefined);
    const rollback = { id, to, reason: body.reason ?? '', by: person.name, again: true, digest: body.digest };
    await requestRollback(context, rollback, { person: person.name });
    services.rollbacks.wake({ id, of: 'saga' });
    const sagaWithSteps = await awaitRollback(services, id, undefined, readPatience(request), cancelToken);
    return reply.status(202).header('location', `/admin/sagas/${id}`).send(sagaView(sagaWithSteps, true));
  });

  app.post('/admin/sagas/:id/resume', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    const person = identifyPerson(request, policies(), 'operator');
    const body = readBody(request, resumeBody);
    const id = readIdParam(request);
    await resumeRollback(services, id, body.waive ?? [], { person: person.name, reason: body.reason });
    const sagaWithSteps = await awaitRollback(services, id, undefined, readPatience(request), cancelToken);
    return reply.status(202).header('location', `/admin/sagas/${id}`).send(sagaView(sagaWithSteps, true));
  });

  app.post('/admin/sagas/:id/close', async (request) => {
    const person = identifyPerson(request, policies(), 'operator');
    const body = readBody(request, reasonBody);
    return sagaView(
      await closeParkedSaga(services, readIdParam(request), { person: person.name, reason: body.reason }),
      true,
    );
  });

  app.post('/admin/calls/:txn/undo', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    const person = identifyPerson(request, policies(), 'operator');
    const { txn } = request.params as { txn: string };
    const body = readBody(request, undoCallBody);
    await readCall(services, txn, undefined);
    await requestUndo(services, txn, body.args, { person: person.name, reason: body.reason });
    const call = await awaitUndo(services, txn, readPatience(request), cancelToken);
    reply.header('location', `/admin/calls/${txn}`).header('oncegate-txn', txn);
    return reply
      .status(202)
      .type('application/json')
      .send(callView(call, await readTimeline(services, txn)));
  });
}

/** The ordinal of the last step that a rollback to the savepoint keeps; -1 keeps none. */
function findSavepoint(savepoints: readonly { name: string; after: number }[], to: string | undefined): number {
  if (to === undefined) return -1;
  const found = savepoints.find(({ name }) => name === to);
  if (found === undefined) throw new GatewayError('not_found', `The saga has no savepoint ${JSON.stringify(to)}.`);
  return found.after;
}
