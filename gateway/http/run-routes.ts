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
import { formatCallPage, type Query, readFilter, readLimit, readParam } from './call-routes.ts';
import { runLine, runText } from './run-view.ts';
import { readIdParam, readKeyHeader, readPatience } from './saga-routes.ts';
import { cancelTokenFor } from './tool-routes.ts';
import { readBody, readJson } from './transport/bodies.ts';
import { parseKey, readPathRunEpoch } from './transport/headers.ts';
import { identifyAgent, identifyPerson } from './transport/identify.ts';

const MAX_CHECKPOINT_BYTES = 1_048_576;
const MAX_TTL_S = 366 * 24 * 3600;

const takeSchema = z.strictObject({
  name: z
    .string()
    .trim()
    .min(1)
    .max(128)
    .refine((text) => !text.includes('\0'), 'must not contain a NUL character'),
  ttl: z
    .union(
      [z.string().regex(DURATION_PATTERN, INVALID_DURATION), z.int().min(1).max(MAX_TTL_S)],
      'must be a duration such as 30s, 5m, 24h, or whole seconds',
    )
    .nullish(),
});

/** Runs, for their agents and for people. */
export function runRoutes(app: FastifyInstance, services: Services): void {
  const context = services.station;
  const identify = (request: FastifyRequest) => identifyAgent(request, context.policies()).name;

  app.post('/v1/runs', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    const agent = identify(request);
    const key = parseKey(readKeyHeader(request));
    const { name, ttl } = readBody(request, takeSchema);
    const patienceMs = readPatience(request);
    const taken = await takeOverRun(services, { agent, name, ttlMs: parseTtl(ttl), key }, patienceMs, cancelToken);
    if (taken.isRepeat) reply.header('idempotent-replayed', 'true');
    return reply
      .status(taken.epoch === 1 ? 201 : 200)
      .header('location', `/v1/runs/${taken.run.id}`)
      .type('application/json')
      .send(runText(taken, taken.epoch, false));
  });

  app.get('/v1/runs', async (request) => {
    const agent = identify(request);
    const page = await findRuns(context, { ...readRunFilter(request.query as Query), agent });
    return { items: page.items.map((run) => runLine(run, false)), cursor: page.cursor };
  });

  app.get('/v1/runs/:id', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    const view = await awaitRunDrained(
      services,
      readIdParam(request),
      identify(request),
      readPatience(request),
      cancelToken,
    );
    return reply.type('application/json').send(runText(view, view.run.epoch, false));
  });

  app.get('/v1/runs/:id/calls', async (request, reply) => {
    const agent = identify(request);
    const run = await findRun(context, readIdParam(request), agent);
    // All calls of a run belong to its agent. Filtering by run alone uses one index.
    const page = await findCalls(services, { ...readFilter(request.query as Query), run: run.id });
    return reply.type('application/json').send(formatCallPage(page, false));
  });

  app.put('/v1/runs/:id/checkpoint', { bodyLimit: MAX_CHECKPOINT_BYTES }, async (request) => {
    const agent = identify(request);
    const runEpoch = readPathRunEpoch(request, readIdParam(request));
    const checkpoint = JSON.stringify(readJson(request, 'the checkpoint'));
    return runLine(await recordRunCheckpoint(context, agent, runEpoch, checkpoint), false);
  });

  app.post('/v1/runs/:id/heartbeat', async (request) => {
    const agent = identify(request);
    readBody(request, z.strictObject({}));
    return runLine(await keepRunAlive(context, agent, readPathRunEpoch(request, readIdParam(request))), false);
  });

  app.post('/v1/runs/:id/finish', async (request) => {
    const agent = identify(request);
    readBody(request, z.strictObject({}));
    return runLine(await finishRun(context, agent, readPathRunEpoch(request, readIdParam(request))), false);
  });

  app.get('/admin/runs', async (request) => {
    identifyPerson(request, context.policies(), 'viewer');
    const query = request.query as Query;
    const page = await findRuns(context, { ...readRunFilter(query), agent: readParam(query, 'agent') });
    return { items: page.items.map((run) => runLine(run, true)), cursor: page.cursor };
  });

  app.get('/admin/runs/:id', async (request, reply) => {
    identifyPerson(request, context.policies(), 'viewer');
    const view = await viewRun(context, readIdParam(request), undefined);
    return reply.type('application/json').send(runText(view, view.run.epoch, true));
  });

  app.post('/admin/runs/:id/finish', async (request, reply) => {
    const person = identifyPerson(request, context.policies(), 'operator');
    const body = readBody(request, finishSchema);
    const view = await finishRunAsOperator(context, readIdParam(request), { person: person.name, reason: body.reason });
    return reply.type('application/json').send(runText(view, view.run.epoch, true));
  });
}

const finishSchema = z.strictObject({ reason });

function parseTtl(ttl: string | number | null | undefined): number | undefined {
  const ttlMs = ttl == null ? undefined : typeof ttl === 'number' ? ttl * 1000 : parseDurationMs(ttl);
  if (ttlMs === undefined || (ttlMs > 0 && ttlMs <= MAX_TTL_S * 1000)) return ttlMs;
  throw new GatewayError('malformed', 'ttl must be more than 0 and at most 366 days.');
}

function readRunFilter(query: Query) {
  const abandoned = readParam(query, 'abandoned');
  if (abandoned !== undefined && abandoned !== 'true' && abandoned !== 'false')
    throw new GatewayError('malformed', 'abandoned must be true or false.');
  return {
    abandoned: abandoned === undefined ? undefined : abandoned === 'true',
    cursor: readParam(query, 'cursor'),
    limit: readLimit(query),
  };
}
