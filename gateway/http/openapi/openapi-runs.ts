import { CALL_STATES } from '../../domain/calls/call-state.ts';
import type { JsonObject } from '../../domain/json.ts';
import { json, path, problem, query, ref, TAINTED } from './openapi-parts.ts';

const RUN_MEMBERS: JsonObject = {
  run: { type: 'string', format: 'uuid' },
  name: { type: 'string' },
  epoch: { type: 'integer', minimum: 1 },
  drained: { type: 'boolean', description: 'No call of an earlier epoch can have an effect any more.' },
  createdAt: { type: 'string', format: 'date-time' },
  takenAt: { type: 'string', format: 'date-time' },
  lastSeenAt: { type: 'string', format: 'date-time', description: 'Taken, a heartbeat, a checkpoint or a call.' },
  ttlSeconds: { type: ['number', 'null'] },
  abandoned: { type: 'boolean', description: 'No sign of life for longer than its ttl.' },
  endedAt: { type: ['string', 'null'], format: 'date-time' },
  checkpointAt: { type: ['string', 'null'], format: 'date-time' },
  tainted: TAINTED,
  agent: { type: 'string', description: 'Only people see it.' },
};

const RUN_LINE: JsonObject = {
  type: 'object',
  required: ['run', 'name', 'epoch', 'drained', 'lastSeenAt', 'abandoned'],
  properties: RUN_MEMBERS,
};

const RUN: JsonObject = {
  type: 'object',
  required: ['run', 'name', 'epoch', 'drained', 'open', 'checkpoint'],
  properties: {
    ...RUN_MEMBERS,
    open: {
      type: 'array',
      description: 'Calls of earlier epochs that may still land, the oldest first, 1000 at most.',
      items: {
        type: 'object',
        properties: {
          txn: { type: 'string', format: 'uuid' },
          tool: { type: 'string' },
          state: { type: 'string', enum: [...CALL_STATES] },
          epoch: { type: 'integer' },
          createdAt: { type: 'string', format: 'date-time' },
        },
      },
    },
    checkpoint: { description: 'Any JSON; null: there is none.' },
  },
};

export const RUN_SCHEMAS: JsonObject = { Run: RUN, RunLine: RUN_LINE };

const RUN_ID = path('id');
const EPOCH: JsonObject = {
  name: 'Oncegate-Epoch',
  in: 'header',
  required: true,
  schema: { type: 'integer', minimum: 1 },
};
const WAIT = query('wait', { type: 'integer', maximum: 55, description: 'Seconds to wait until it is drained.' });
const answer = (description: string, schema: 'Run' | 'RunLine'): JsonObject => ({
  description,
  content: json(ref(schema)),
});

/** Something that only the holder of the current epoch may do. */
function holders(summary: string, schema: JsonObject, required = false): JsonObject {
  return {
    summary,
    parameters: [RUN_ID, EPOCH],
    requestBody: { required, content: json(schema) },
    responses: { 200: answer('It is so.', 'RunLine'), default: problem },
  };
}

function listed(summary: string, filters: readonly JsonObject[]): JsonObject {
  const page = {
    type: 'object',
    properties: { items: { type: 'array', items: ref('RunLine') }, cursor: { type: ['string', 'null'] } },
  };
  return {
    summary,
    parameters: [...filters, query('abandoned', { enum: ['true', 'false'] }), query('cursor'), query('limit')],
    responses: { 200: { description: 'A page of runs.', content: json(page) }, default: problem },
  };
}

const TAKE: JsonObject = {
  type: 'object',
  additionalProperties: false,
  required: ['name'],
  properties: {
    name: { type: 'string', minLength: 1, maxLength: 128 },
    ttl: {
      type: ['string', 'integer'],
      description: 'A duration such as 5m, or seconds: without a sign of life for so long it counts as abandoned.',
    },
  },
};

/** Runs, as their agents and as people see them. */
export function runPaths(): JsonObject {
  const nothing = { type: 'object', additionalProperties: false };
  const calls = {
    type: 'object',
    properties: { items: { type: 'array', items: ref('Call') }, cursor: { type: ['string', 'null'] } },
  };
  const filters = ['state', 'tool', 'saga', 'since', 'cursor', 'limit'].map((name) => query(name));
  return {
    '/v1/runs': {
      get: listed("The agent's own runs, newest first", []),
      post: {
        summary: 'Take a run, or take it over: its epoch grows, and what an older holder begins is fenced',
        parameters: [{ $ref: '#/components/parameters/IdempotencyKey' }, WAIT],
        requestBody: { required: true, content: json(TAKE) },
        responses: {
          200: answer('It was there and is yours now, in this epoch.', 'Run'),
          201: answer('It is new and yours.', 'Run'),
          default: problem,
        },
      },
    },
    '/v1/runs/{id}': {
      get: {
        summary: 'A run, what of it may still land, and its checkpoint',
        parameters: [RUN_ID, WAIT],
        responses: { 200: answer('The run.', 'Run'), default: problem },
      },
    },
    '/v1/runs/{id}/calls': {
      get: {
        summary: 'Everything that was called in this run, newest first',
        parameters: [RUN_ID, ...filters],
        responses: { 200: { description: 'A page of calls.', content: json(calls) }, default: problem },
      },
    },
    '/v1/runs/{id}/checkpoint': {
      put: holders('Write down what a successor needs: any JSON of at most 1 MiB', {}, true),
    },
    '/v1/runs/{id}/heartbeat': { post: holders('A sign of life', nothing) },
    '/v1/runs/{id}/finish': { post: holders('It is done: it takes no more calls until it is taken again', nothing) },
    '/admin/runs': { get: listed('All runs, newest first', [query('agent')]) },
    '/admin/runs/{id}/finish': {
      post: {
        summary: 'End a run that nobody looks after: whoever held it is fenced',
        parameters: [RUN_ID],
        requestBody: {
          required: true,
          content: json({ type: 'object', required: ['reason'], properties: { reason: { type: 'string' } } }),
        },
        responses: { 200: answer('It is finished, now or before.', 'Run'), default: problem },
      },
    },
    '/admin/runs/{id}': {
      get: {
        summary: 'One run',
        parameters: [RUN_ID],
        responses: { 200: answer('The run.', 'Run'), default: problem },
      },
    },
  };
}
