import type { FastifyInstance, FastifyRequest } from 'fastify';
import { z } from 'zod';
import { DURATION_PATTERN, INVALID_DURATION, parseDurationMs } from '../domain/duration.ts';
import { GatewayError } from '../domain/errors.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { findCalls } from '../flow/calls/own-calls.ts';
import {
  awaitRunDrained,
  findRun,
  findRuns,
  finishRun,
  finishRunAsOperator,
  keepRunAlive,
  recordRunCheckpoint,
  takeOverRun,
  viewRun,
} from '../flow/controls/runs.ts';
import { reason } from './authority-routes.ts';
import { pageText, type Query, readFilter, readLimit, single } from './call-routes.ts';
import { runLine, runText } from './run-view.ts';
import { idOf, keyHeader, patienceOf } from './saga-routes.ts';
import { hangUp } from './tool-routes.ts';
import { readBody, readJson } from './transport/bodies.ts';
import { parseKey, readFence } from './transport/headers.ts';
import { identifyAgent, identifyPerson } from './transport/identify.ts';

const CHECKPOINT_BYTES = 1_048_576;
const MOST_TTL_S = 366 * 24 * 3600;

const takeSchema = z.strictObject({
  name: z
    .string()
    .trim()
    .min(1)
    .max(128)
    .refine((text) => !text.includes('\0'), 'holds a NUL character'),
  ttl: z
    .union(
      [z.string().regex(DURATION_PATTERN, INVALID_DURATION), z.int().min(1).max(MOST_TTL_S)],
      'must be a duration such as 30s, 5m, 24h, or whole seconds',
    )
    .nullish(),
});

/** An agent's own runs, and what people see of all of them. */
export function runRoutes(app: FastifyInstance, flow: Services): void {
  const { station } = flow;
  const agentOf = (request: FastifyRequest) => identifyAgent(request, station.policies()).name;

  app.post('/v1/runs', async (request, reply) => {
    const caller = hangUp(request, reply);
    const agent = agentOf(request);
    const key = parseKey(keyHeader(request));
    const { name, ttl } = readBody(request, takeSchema);
    const patienceMs = patienceOf(request);
    const taken = await takeOverRun(flow, { agent, name, ttlMs: ttlOf(ttl), key }, patienceMs, caller);
    if (taken.isRepeat) reply.header('idempotent-replayed', 'true');
    return reply
      .status(taken.epoch === 1 ? 201 : 200)
      .header('location', `/v1/runs/${taken.run.id}`)
      .type('application/json')
      .send(runText(taken, taken.epoch, false));
  });

  app.get('/v1/runs', async (request) => {
    const agent = agentOf(request);
    const page = await findRuns(station, { ...readRunFilter(request.query as Query), agent });
    return { items: page.items.map((run) => runLine(run, false)), cursor: page.cursor };
  });

  app.get('/v1/runs/:id', async (request, reply) => {
    const caller = hangUp(request, reply);
    const story = await awaitRunDrained(flow, idOf(request), agentOf(request), patienceOf(request), caller);
    return reply.type('application/json').send(runText(story, story.run.epoch, false));
  });

  app.get('/v1/runs/:id/calls', async (request, reply) => {
    const agent = agentOf(request);
    const run = await findRun(station, idOf(request), agent);
    // Every call of a run is its agent's: asked by the run alone, the list is that of one index.
    const page = await findCalls(flow, { ...readFilter(request.query as Query), run: run.id });
    return reply.type('application/json').send(pageText(page, false));
  });

  app.put('/v1/runs/:id/checkpoint', { bodyLimit: CHECKPOINT_BYTES }, async (request) => {
    const agent = agentOf(request);
    const fence = readFence(request, idOf(request));
    const checkpoint = JSON.stringify(readJson(request, 'the checkpoint'));
    return runLine(await recordRunCheckpoint(station, agent, fence, checkpoint), false);
  });

  app.post('/v1/runs/:id/heartbeat', async (request) => {
    const agent = agentOf(request);
    readBody(request, z.strictObject({}));
    return runLine(await keepRunAlive(station, agent, readFence(request, idOf(request))), false);
  });

  app.post('/v1/runs/:id/finish', async (request) => {
    const agent = agentOf(request);
    readBody(request, z.strictObject({}));
    return runLine(await finishRun(station, agent, readFence(request, idOf(request))), false);
  });

  app.get('/admin/runs', async (request) => {
    identifyPerson(request, station.policies(), 'viewer');
    const query = request.query as Query;
    const page = await findRuns(station, { ...readRunFilter(query), agent: single(query, 'agent') });
    return { items: page.items.map((run) => runLine(run, true)), cursor: page.cursor };
  });

  app.get('/admin/runs/:id', async (request, reply) => {
    identifyPerson(request, station.policies(), 'viewer');
    const story = await viewRun(station, idOf(request), undefined);
    return reply.type('application/json').send(runText(story, story.run.epoch, true));
  });

  app.post('/admin/runs/:id/finish', async (request, reply) => {
    const person = identifyPerson(request, station.policies(), 'operator');
    const { reason: why } = readBody(request, byHandSchema);
    const story = await finishRunAsOperator(station, idOf(request), { person: person.name, reason: why });
    return reply.type('application/json').send(runText(story, story.run.epoch, true));
  });
}

const byHandSchema = z.strictObject({ reason });

function ttlOf(ttl: string | number | null | undefined): number | undefined {
  const ttlMs = ttl == null ? undefined : typeof ttl === 'number' ? ttl * 1000 : parseDurationMs(ttl);
  if (ttlMs === undefined || (ttlMs > 0 && ttlMs <= MOST_TTL_S * 1000)) return ttlMs;
  throw new GatewayError('malformed', 'ttl must be more than nothing and at most a year.');
}

function readRunFilter(query: Query) {
  const abandoned = single(query, 'abandoned');
  if (abandoned !== undefined && abandoned !== 'true' && abandoned !== 'false')
    throw new GatewayError('malformed', 'abandoned must be true or false.');
  return {
    abandoned: abandoned === undefined ? undefined : abandoned === 'true',
    cursor: single(query, 'cursor'),
    limit: readLimit(query),
  };
}
