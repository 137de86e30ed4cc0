import type { FastifyInstance, FastifyRequest } from 'fastify';
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
import { formatCallPage } from './call-routes.ts';
import { runLine, runText } from './run-view.ts';
import { emptyBody, reasonBody } from './schemas/fields.ts';
import { takeRunBody } from './schemas/run-schemas.ts';
import { cancelTokenFor } from './tool-routes.ts';
import { parseTtl, readBody, readJson } from './transport/bodies.ts';
import { readKeyHeader, readPathRunEpoch } from './transport/headers.ts';
import { identifyAgent, identifyPerson } from './transport/identify.ts';
import {
  type Query,
  readChoice,
  readFilter,
  readIdParam,
  readLimit,
  readParam,
  readPatience,
} from './transport/query.ts';

const MAX_CHECKPOINT_BYTES = 1_048_576;

/** Runs, for their agents and for people. */
export function runRoutes(app: FastifyInstance, services: Services): void {
  const context = services.ctx;
  const identify = (request: FastifyRequest) => identifyAgent(request, context.policies()).name;

  app.post('/v1/runs', async (request, reply) => {
    const cancelToken = cancelTokenFor(request, reply);
    const agent = identify(request);
    const key = readKeyHeader(request);
    const { name, ttl } = readBody(request, takeRunBody);
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
    return reply.type('application/json').send(formatCallPage(page));
  });

  app.put('/v1/runs/:id/checkpoint', { bodyLimit: MAX_CHECKPOINT_BYTES }, async (request) => {
    const agent = identify(request);
    const runEpoch = readPathRunEpoch(request, readIdParam(request));
    const checkpoint = JSON.stringify(readJson(request, 'the checkpoint'));
    return runLine(await recordRunCheckpoint(context, agent, runEpoch, checkpoint), false);
  });

  app.post('/v1/runs/:id/heartbeat', async (request) => {
    const agent = identify(request);
    readBody(request, emptyBody);
    return runLine(await keepRunAlive(context, agent, readPathRunEpoch(request, readIdParam(request))), false);
  });

  app.post('/v1/runs/:id/finish', async (request) => {
    const agent = identify(request);
    readBody(request, emptyBody);
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
    const body = readBody(request, reasonBody);
    const view = await finishRunAsOperator(context, readIdParam(request), { person: person.name, reason: body.reason });
    return reply.type('application/json').send(runText(view, view.run.epoch, true));
  });
}

function readRunFilter(query: Query) {
  const abandoned = readChoice(query, 'abandoned', ['true', 'false']);
  return {
    abandoned: abandoned === undefined ? undefined : abandoned === 'true',
    cursor: readParam(query, 'cursor'),
    limit: readLimit(query),
  };
}
