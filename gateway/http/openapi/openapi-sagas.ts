import { CALL_STATES } from '../../domain/calls/call-state.ts';
import type { JsonObject } from '../../domain/json.ts';
import { SAGA_STATES, UNDO_STATES } from '../../domain/sagas/saga.ts';
import { callAnswer, json, path, problem, query, ref, TAINTED } from './openapi-parts.ts';

const UNDO: JsonObject = {
  type: 'object',
  description: 'How a call is, would be, or was undone.',
  properties: {
    state: { type: 'string', enum: [...UNDO_STATES] },
    kind: { enum: ['reversible', 'compensable', 'irreversible', 'none', null] },
    tool: { type: ['string', 'null'] },
    args: { type: ['object', 'null'], description: 'Only people see them.' },
    txn: { type: ['string', 'null'], format: 'uuid', description: 'The call that undoes it.' },
    reason: { type: ['string', 'null'] },
  },
};

const SAGA_MEMBERS: JsonObject = {
  saga: { type: 'string', format: 'uuid' },
  name: { type: ['string', 'null'] },
  state: { type: 'string', enum: [...SAGA_STATES] },
  reason: { type: ['string', 'null'] },
  createdAt: { type: 'string', format: 'date-time' },
  expiresAt: { type: ['string', 'null'], format: 'date-time' },
  onExpire: { enum: ['rollback', 'park'] },
  tainted: TAINTED,
  endedAt: { type: ['string', 'null'], format: 'date-time' },
  agent: { type: 'string', description: 'Only people see it.' },
  by: { type: ['string', 'null'], description: 'Who asked for the last change. Only people see it.' },
};

const SAGA_LINE: JsonObject = {
  type: 'object',
  required: ['saga', 'name', 'state', 'reason', 'steps'],
  properties: { ...SAGA_MEMBERS, steps: { type: 'integer', description: 'How many.' } },
};

const STEP_MEMBERS: JsonObject = {
  txn: { type: 'string', format: 'uuid' },
  tool: { type: 'string' },
  state: { type: 'string', enum: [...CALL_STATES] },
  dependsOn: { type: 'array', items: { type: 'string', format: 'uuid' } },
  undo: ref('Undo'),
};

const SAGA: JsonObject = {
  type: 'object',
  required: ['saga', 'name', 'state', 'reason', 'steps', 'savepoints'],
  properties: {
    ...SAGA_MEMBERS,
    steps: {
      type: 'array',
      description: 'In the order taken.',
      items: {
        type: 'object',
        required: ['txn', 'tool', 'state', 'dependsOn', 'undo'],
        properties: {
          ...STEP_MEMBERS,
          waived: { type: 'boolean', description: 'What it rests on no longer waits for it. Only people see it.' },
        },
      },
    },
    savepoints: {
      type: 'array',
      items: { type: 'object', properties: { name: { type: 'string' }, after: { type: 'integer' } } },
    },
  },
};

const DIGEST: JsonObject = { type: 'string', pattern: '^[0-9a-f]{64}$' };
const PLAN: JsonObject = {
  type: 'object',
  required: ['dryRun', 'saga', 'state', 'to', 'digest', 'wouldEnd', 'plan', 'kept'],
  properties: {
    dryRun: { const: true },
    saga: { type: 'string', format: 'uuid' },
    state: { type: 'string', enum: [...SAGA_STATES] },
    to: { type: ['string', 'null'] },
    digest: {
      ...DIGEST,
      description: 'Of what would be undone. A rollback that sends it along undoes exactly this, or nothing.',
    },
    wouldEnd: { type: 'string', enum: [...SAGA_STATES] },
    plan: {
      type: 'array',
      description: 'The first thing first.',
      items: {
        type: 'object',
        properties: {
          ...STEP_MEMBERS,
          dependsOn: { type: ['array', 'null'], description: 'null: on all earlier steps.' },
          does: { enum: ['undo', 'nothing', 'wait', 'cancel', 'cannot'] },
          wave: { type: ['integer', 'null'], description: 'All of one wave at once, the first one first.' },
          why: { type: ['string', 'null'] },
          blockedBy: { type: ['string', 'null'], description: 'The step that it would wait for.' },
        },
      },
    },
    kept: { type: 'array', items: { type: 'object' } },
  },
};

export const SAGA_SCHEMAS: JsonObject = { Saga: SAGA, SagaLine: SAGA_LINE, Plan: PLAN, Undo: UNDO };

const SAGA_ID = path('id');
const IN_RUN = ['Run', 'Epoch'].map((name) => ({ $ref: `#/components/parameters/${name}` }));
const WAIT = query('wait', { type: 'integer', maximum: 55, description: 'Seconds to wait for its end.' });
const sagaAnswer = (description: string): JsonObject => ({ description, content: json(ref('Saga')) });
const REASON: JsonObject = { type: 'string', minLength: 1, maxLength: 2_000 };
const NAME: JsonObject = { type: 'string', minLength: 1, maxLength: 128 };

function posts(
  summary: string,
  parameters: readonly JsonObject[],
  body: { readonly properties: JsonObject; readonly required?: readonly string[] },
  responses: JsonObject,
): JsonObject {
  const { properties, required = [] } = body;
  const schema = { type: 'object', additionalProperties: false, required: [...required], properties };
  const requestBody = { required: required.length > 0, content: json(schema) };
  return { summary, parameters: [...parameters], requestBody, responses: { ...responses, default: problem } };
}

/** Sagas, as their agents and as people see them, and the undoing of single calls. */
export function sagaPaths(): JsonObject {
  const page = {
    type: 'object',
    properties: { items: { type: 'array', items: ref('SagaLine') }, cursor: { type: ['string', 'null'] } },
  };
  const list = (summary: string, filters: readonly JsonObject[]): JsonObject => ({
    summary,
    parameters: [query('state', { enum: [...SAGA_STATES] }), ...filters, query('cursor'), query('limit')],
    responses: { 200: { description: 'A page of sagas.', content: json(page) }, default: problem },
  });
  const one = (summary: string): JsonObject => ({
    get: { summary, parameters: [SAGA_ID], responses: { 200: sagaAnswer('The saga.'), default: problem } },
  });
  const under = { 202: sagaAnswer('It goes on by itself; how it stands now.') };
  const savepoint = {
    type: 'object',
    properties: { saga: { type: 'string', format: 'uuid' }, name: NAME, after: { type: 'integer' } },
  };
  return {
    '/v1/sagas': {
      get: list("The agent's own sagas, newest first", []),
      post: posts(
        'Open a saga',
        [{ $ref: '#/components/parameters/IdempotencyKey' }, ...IN_RUN],
        {
          properties: {
            name: NAME,
            ttl: { type: ['string', 'integer'], description: 'A duration such as 5m, or seconds.' },
            onExpire: { enum: ['rollback', 'park'], default: 'rollback' },
          },
        },
        { 201: sagaAnswer('It is open, now or before.') },
      ),
    },
    '/v1/sagas/{id}': one('A saga, its steps, and how each is undone'),
    '/v1/sagas/{id}/commit': {
      post: posts(
        'Keep what was done',
        [SAGA_ID, ...IN_RUN],
        { properties: {} },
        { 200: sagaAnswer('It is committed.') },
      ),
    },
    '/v1/sagas/{id}/savepoints': {
      post: posts(
        'Name this place, to roll back to it',
        [SAGA_ID, ...IN_RUN],
        { properties: { name: NAME }, required: ['name'] },
        {
          200: { description: 'It was there already.', content: json(savepoint) },
          201: { description: 'It is there.', content: json(savepoint) },
        },
      ),
    },
    '/v1/sagas/{id}/rollback': {
      post: posts(
        'Undo its steps',
        [SAGA_ID, WAIT, ...IN_RUN],
        { properties: { to: { ...NAME, description: 'A savepoint.' }, reason: REASON }, required: ['reason'] },
        under,
      ),
    },
    '/admin/sagas': { get: list('All sagas, newest first', [query('agent')]) },
    '/admin/sagas/{id}': one('A saga, its steps, and what each undo is called with'),
    '/admin/sagas/{id}/rollback': {
      post: posts(
        'Undo its steps, or plan it',
        [SAGA_ID, WAIT],
        {
          properties: {
            to: { ...NAME, description: 'A savepoint.' },
            reason: { ...REASON, description: 'Required unless it is a dry run.' },
            dryRun: { type: 'boolean' },
            digest: {
              ...DIGEST,
              description:
                'Of the plan of a dry run: if anything else would be undone by now, nothing is, and the answer is 409.',
            },
          },
        },
        { 200: { description: 'What would be done: a dry run.', content: json(ref('Plan')) }, ...under },
      ),
    },
    '/admin/sagas/{id}/resume': {
      post: posts(
        'Take a parked rollback up again',
        [SAGA_ID, WAIT],
        {
          properties: {
            reason: REASON,
            waive: {
              type: 'array',
              items: { type: 'string', format: 'uuid' },
              description: 'Steps that no longer hold up what they rest on.',
            },
          },
          required: ['reason'],
        },
        under,
      ),
    },
    '/admin/sagas/{id}/close': {
      post: posts(
        'A parked saga was seen to by hand',
        [SAGA_ID],
        { properties: { reason: REASON }, required: ['reason'] },
        { 200: sagaAnswer('It is closed, now or before.') },
      ),
    },
    '/admin/calls/{txn}/undo': {
      post: posts(
        'Undo one call',
        [path('txn'), WAIT],
        {
          properties: {
            reason: REASON,
            args: { type: 'object', description: 'What its undo is called with, where that could not be known.' },
          },
          required: ['reason'],
        },
        { 202: callAnswer('It goes on by itself; the call as it stands.') },
      ),
    },
  };
}
