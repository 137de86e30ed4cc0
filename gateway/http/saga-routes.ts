import type { FastifyInstance, FastifyRequest } from 'fastify';
import { z } from 'zod';
import { DURATION_PATTERN, INVALID_DURATION, parseDurationMs } from '../domain/duration.ts';
import { GatewayError } from '../domain/errors.ts';
import { SAGA_STATES } from '../domain/sagas/saga.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { findRun } from '../flow/controls/runs.ts';
import { requestRollback } from '../flow/sagas/rollback.ts';
import { awaitRollback, beginSaga, commitOwnSaga, createSavepoint, findSagas, readSaga } from '../flow/sagas/sagas.ts';
import { reason } from './authority-routes.ts';
import { type Query, readLimit, readParam } from './call-routes.ts';
import { sagaLine, sagaView } from './saga-view.ts';
import { cancelTokenFor } from './tool-routes.ts';
import { readBody } from './transport/bodies.ts';
import { parseKey, parseWait, readRunEpoch } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';

/** A year. No saga is expected to stay open longer. */
const MAX_TTL_S = 366 * 24 * 3600;

export const savepointName = z
  .string()
  .trim()
  .min(1)
  .max(128)
  .refine((text) => !text.includes('\0'), 'must not contain a NUL character');

const duration = z.string().regex(DURATION_PATTERN, INVALID_DURATION);
export const sagaSchema = z.strictObject({
  name: savepointName.nullish(),
  ttl: z
    .union([duration, z.int().min(1).max(MAX_TTL_S)], 'must be a duration such as 30s, 5m, 24h, or whole seconds')
    .nullish(),
  onExpire: z.enum(['rollback', 'park']).nullish(),
});
const savepointSchema = z.strictObject({ name: savepointName });
const rollbackSchema = z.strictObject({ to: savepointName.nullish(), reason });

/** The sagas of the agent that asks. */
export function sagaRoutes(app: FastifyInstance, services: Services): void {
  const context = services.station;
  const identify = (request: FastifyRequest) => identifyAgent(request, context.policies()).name;

  /** The run of the request; its agent must own it. A fenced holder cannot open, commit or roll back a saga. */
  const readOwnRun = async (request: FastifyRequest, agent: string) => {
    const runEpoch = readRunEpoch(request);
    if (runEpoch !== undefined) await findRun(context, runEpoch.run, agent);
    return runEpoch;
  };

  app.post('/v1/sagas', async (request, reply) => {
    const agent = identify(request);
    const key = parseKey(readKeyHeader(request));
    const { name, ttl, onExpire } = readBody(request, sagaSchema);
    const input = { name: name ?? undefined, ttlMs: parseTtl(ttl), onExpire: onExpire ?? undefined };
    const { story: sagaWithSteps, isRepeat } = await beginSaga(
      context,
      agent,
      input,
      key,
      await readOwnRun(request, agent),
    );
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
    readBody(request, z.strictObject({}));
    return sagaView(await commitOwnSaga(context, readIdParam(request), agent, await readOwnRun(request, agent)), false);
  });

  app.post('/v1/sagas/:id/savepoints', async (request, reply) => {
    const agent = identify(request);
    const { name } = readBody(request, savepointSchema);
    const runEpoch = await readOwnRun(request, agent);
    const { created, after } = await createSavepoint(context, readIdParam(request), agent, name, runEpoch);
    return reply.status(created ? 201 : 200).send({ saga: readIdParam(request), name, after });
  });

  app.post('/v1/sagas/:id/rollback', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    const agent = identify(request);
    const id = readIdParam(request);
    const body = readBody(request, rollbackSchema);
    const patienceMs = readPatience(request);
    await readSaga(context, id, agent);
    const runEpoch = await readOwnRun(request, agent);
    const rollback = { id, to: body.to ?? undefined, reason: body.reason, by: 'agent', again: false, fence: runEpoch };
    await requestRollback(context, rollback, { agent });
    services.rollbacks.wake({ id, of: 'saga' });
    const sagaWithSteps = await awaitRollback(services, id, agent, patienceMs, cancelToken);
    return reply.status(202).header('location', `/v1/sagas/${id}`).send(sagaView(sagaWithSteps, false));
  });
}

export function parseTtl(ttl: string | number | null | undefined): number | undefined {
  if (ttl == null) return undefined;
  const ms = typeof ttl === 'number' ? ttl * 1000 : parseDurationMs(ttl);
  if (ms <= MAX_TTL_S * 1000) return ms;
  throw new GatewayError('malformed', 'ttl must be at most 366 days.');
}

export function readIdParam(request: FastifyRequest): string {
  return (request.params as { id: string }).id;
}

/** How long to wait for the end. Without `wait` the answer is immediate, and the work continues in the background. */
export function readPatience(request: FastifyRequest): number {
  const wait = readParam(request.query as Query, 'wait');
  return wait === undefined ? 0 : parseWait('wait', wait) * 1000;
}

export function readSagaFilter(query: Query) {
  const state = readParam(query, 'state');
  const known = SAGA_STATES.find((name) => name === state);
  if (state !== undefined && known === undefined)
    throw new GatewayError('malformed', `state must be one of ${SAGA_STATES.join(', ')}.`);
  return { state: known, cursor: readParam(query, 'cursor'), limit: readLimit(query) };
}

export function readKeyHeader(request: FastifyRequest): string | undefined {
  const value = request.headers['idempotency-key'];
  return Array.isArray(value) ? value.join(', ') : value;
}
