import type { FastifyInstance, FastifyRequest } from 'fastify';
import { SAGA_STATES } from '../domain/sagas/saga.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { findRun } from '../flow/controls/runs.ts';
import { requestRollback } from '../flow/sagas/rollback.ts';
import { awaitRollback, beginSaga, commitOwnSaga, createSavepoint, findSagas, readSaga } from '../flow/sagas/sagas.ts';
import { sagaLine, sagaView } from './saga-view.ts';
import { emptyBody } from './schemas/fields.ts';
import { openSagaBody, rollbackBody, savepointBody } from './schemas/saga-schemas.ts';
import { cancelTokenFor } from './tool-routes.ts';
import { parseTtl, readBody } from './transport/bodies.ts';
import { readKeyHeader, readRunEpoch } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';
import { type Query, readChoice, readIdParam, readLimit, readParam, readPatience } from './transport/query.ts';

/** The sagas of the agent that asks. */
export function sagaRoutes(app: FastifyInstance, services: Services): void {
  const context = services.ctx;
  const identify = (request: FastifyRequest) => identifyAgent(request, context.policies()).name;

  /** The run of the request; its agent must own it. A fenced holder cannot open, commit or roll back a saga. */
  const readOwnRun = async (request: FastifyRequest, agent: string) => {
    const runEpoch = readRunEpoch(request);
    if (runEpoch !== undefined) await findRun(context, runEpoch.run, agent);
    return runEpoch;
  };

  app.post('/v1/sagas', async (request, reply) => {
    const agent = identify(request);
    const key = readKeyHeader(request);
    const { name, ttl, onExpire } = readBody(request, openSagaBody);
    const input = { name: name ?? undefined, ttlMs: parseTtl(ttl), onExpire: onExpire ?? undefined };
    const { sagaWithSteps, isRepeat } = await beginSaga(context, agent, input, key, await readOwnRun(request, agent));
    if (isRepeat) reply.header('idempotent-replayed', 'true');
    return reply
      .status(201)
      .header('location', `/v1/sagas/${sagaWithSteps.saga.id}`)
      .send(sagaView(sagaWithSteps, false));
  });

  app.get('/v1/sagas', async (request) => {
    const page = await findSagas(context, { ...readSagaFilter(request.query as Query), agent: identify(request) });
    return {
      items: page.items.map((saga) => ({ ...sagaLine(saga, false), steps: saga.stepCount })),
      cursor: page.cursor,
    };
  });

  app.get('/v1/sagas/:id', async (request) => {
    const agent = identify(request);
    return sagaView(await readSaga(context, readIdParam(request), agent), false);
  });

  app.post('/v1/sagas/:id/commit', async (request) => {
    const agent = identify(request);
    readBody(request, emptyBody);
    return sagaView(await commitOwnSaga(context, readIdParam(request), agent, await readOwnRun(request, agent)), false);
  });

  app.post('/v1/sagas/:id/savepoints', async (request, reply) => {
    const agent = identify(request);
    const { name } = readBody(request, savepointBody);
    const runEpoch = await readOwnRun(request, agent);
    const { created, after } = await createSavepoint(context, readIdParam(request), agent, name, runEpoch);
    return reply.status(created ? 201 : 200).send({ saga: readIdParam(request), name, after });
  });

  app.post('/v1/sagas/:id/rollback', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    const agent = identify(request);
    const id = readIdParam(request);
    const body = readBody(request, rollbackBody);
    const patienceMs = readPatience(request);
    await readSaga(context, id, agent);
    const runEpoch = await readOwnRun(request, agent);
    const rollback = { id, to: body.to ?? undefined, reason: body.reason, by: 'agent', again: false, runEpoch };
    await requestRollback(context, rollback, { agent });
    services.rollbacks.wake({ id, of: 'saga' });
    const sagaWithSteps = await awaitRollback(services, id, agent, patienceMs, cancelToken);
    return reply.status(202).header('location', `/v1/sagas/${id}`).send(sagaView(sagaWithSteps, false));
  });
}

export function readSagaFilter(query: Query) {
  return {
    state: readChoice(query, 'state', SAGA_STATES),
    cursor: readParam(query, 'cursor'),
    limit: readLimit(query),
  };
}
