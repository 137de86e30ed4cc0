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
import { type Query, readLimit, single } from './call-routes.ts';
import { sagaLine, sagaView } from './saga-view.ts';
import { hangUp } from './tool-routes.ts';
import { readBody } from './transport/bodies.ts';
import { parseKey, parseWait, readRunHeaders } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';

/** A year: longer than anything that is still one piece of work. */
const MOST_TTL_S = 366 * 24 * 3600;

export const savepointName = z
  .string()
  .trim()
  .min(1)
  .max(128)
  .refine((text) => !text.includes('\0'), 'holds a NUL character');

const duration = z.string().regex(DURATION_PATTERN, INVALID_DURATION);
export const sagaSchema = z.strictObject({
  name: savepointName.nullish(),
  ttl: z
    .union([duration, z.int().min(1).max(MOST_TTL_S)], 'must be a duration such as 30s, 5m, 24h, or whole seconds')
    .nullish(),
  onExpire: z.enum(['rollback', 'park']).nullish(),
});
const savepointSchema = z.strictObject({ name: savepointName });
const rollbackSchema = z.strictObject({ to: savepointName.nullish(), reason });

/** An agent's own sagas. */
export function sagaRoutes(app: FastifyInstance, flow: Services): void {
  const { station } = flow;
  const agentOf = (request: FastifyRequest) => identifyAgent(request, station.policies()).name;

  /** A holder that was replaced neither opens, commits nor rolls back anything; another agent's run is none. */
  const fenceOf = async (request: FastifyRequest, agent: string) => {
    const fence = readRunHeaders(request);
    if (fence !== undefined) await findRun(station, fence.run, agent);
    return fence;
  };

  app.post('/v1/sagas', async (request, reply) => {
    const agent = agentOf(request);
    const key = parseKey(keyHeader(request));
    const { name, ttl, onExpire } = readBody(request, sagaSchema);
    const wish = { name: name ?? undefined, ttlMs: ttlOf(ttl), onExpire: onExpire ?? undefined };
    const { story, isRepeat } = await beginSaga(station, agent, wish, key, await fenceOf(request, agent));
    if (isRepeat) reply.header('idempotent-replayed', 'true');
    return reply.status(201).header('location', `/v1/sagas/${story.saga.id}`).send(sagaView(story, false));
  });

  app.get('/v1/sagas', async (request) => {
    const page = await findSagas(station, { ...readSagaFilter(request.query as Query), agent: agentOf(request) });
    return {
      items: page.items.map((saga) => ({ ...sagaLine(saga, false), steps: saga.stepCount })),
      cursor: page.cursor,
    };
  });

  app.get('/v1/sagas/:id', async (request) => {
    const agent = agentOf(request);
    return sagaView(await readSaga(station, idOf(request), agent), false);
  });

  app.post('/v1/sagas/:id/commit', async (request) => {
    const agent = agentOf(request);
    readBody(request, z.strictObject({}));
    return sagaView(await commitOwnSaga(station, idOf(request), agent, await fenceOf(request, agent)), false);
  });

  app.post('/v1/sagas/:id/savepoints', async (request, reply) => {
    const agent = agentOf(request);
    const { name } = readBody(request, savepointSchema);
    const fence = await fenceOf(request, agent);
    const { created, after } = await createSavepoint(station, idOf(request), agent, name, fence);
    return reply.status(created ? 201 : 200).send({ saga: idOf(request), name, after });
  });

  app.post('/v1/sagas/:id/rollback', async (request, reply) => {
    const caller = hangUp(request, reply);
    const agent = agentOf(request);
    const id = idOf(request);
    const { to, reason: why } = readBody(request, rollbackSchema);
    const patienceMs = patienceOf(request);
    await readSaga(station, id, agent);
    const fence = await fenceOf(request, agent);
    const order = { id, to: to ?? undefined, reason: why, by: 'agent', again: false, fence };
    await requestRollback(station, order, { agent });
    flow.rollbacks.wake({ id, of: 'saga' });
    const story = await awaitRollback(flow, id, agent, patienceMs, caller);
    return reply.status(202).header('location', `/v1/sagas/${id}`).send(sagaView(story, false));
  });
}

export function ttlOf(ttl: string | number | null | undefined): number | undefined {
  if (ttl == null) return undefined;
  const ms = typeof ttl === 'number' ? ttl * 1000 : parseDurationMs(ttl);
  if (ms <= MOST_TTL_S * 1000) return ms;
  throw new GatewayError('malformed', 'ttl: longer than a year is no ttl: leave it out.');
}

export function idOf(request: FastifyRequest): string {
  return (request.params as { id: string }).id;
}

/** Without `wait` a rollback is answered at once: it goes on by itself. */
export function patienceOf(request: FastifyRequest): number {
  const wait = single(request.query as Query, 'wait');
  return wait === undefined ? 0 : parseWait('wait', wait) * 1000;
}

export function readSagaFilter(query: Query) {
  const state = single(query, 'state');
  const known = SAGA_STATES.find((name) => name === state);
  if (state !== undefined && known === undefined)
    throw new GatewayError('malformed', `state must be one of ${SAGA_STATES.join(', ')}.`);
  return { state: known, cursor: single(query, 'cursor'), limit: readLimit(query) };
}

export function keyHeader(request: FastifyRequest): string | undefined {
  const value = request.headers['idempotency-key'];
  return Array.isArray(value) ? value.join(', ') : value;
}
