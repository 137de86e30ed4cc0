import { z } from 'zod';
import { callAnswer, callState } from '../schemas/call-schemas.ts';
import { anyJson, emptyBody, jsonObject, pageOf, text, time, uuid } from '../schemas/fields.ts';
import { runAnswer, runLineAnswer, takeRunBody } from '../schemas/run-schemas.ts';
import * as sagas from '../schemas/saga-schemas.ts';
import { type AnswerSpec, get, type Operation, type Operations, post } from './operation.ts';

const CALL_HEADERS = ['IdempotencyKey', 'Prefer', 'DryRun', 'Saga', 'DependsOn', 'Run', 'Epoch', 'Undo'];
const IN_RUN = { headers: ['Run', 'Epoch'] };
const OF_HOLDER = { headers: ['Epoch!'] };

export const paging = { cursor: text, limit: z.int().min(1) };
export const waiting = { wait: z.int().max(55).describe('Seconds to wait for the end.') };
const runCallFilters = { state: callState, tool: text, saga: uuid, since: time, until: time, ...paging };
export const callFilters = { run: uuid, ...runCallFilters };
export const runFilters = { abandoned: z.enum(['true', 'false']), ...paging };
export const sagaFilters = { state: sagas.sagaState, ...paging };

export const CALL_PAGE: AnswerSpec = ['A page of calls. A page ends early at about 4 MiB.', pageOf(callAnswer)];
export const RUN_PAGE: AnswerSpec = ['A page of runs.', pageOf(runLineAnswer)];
export const SAGA_PAGE: AnswerSpec = ['A page of sagas.', pageOf(sagas.sagaLineAnswer)];
export const SAGA: AnswerSpec = ['The saga.', sagas.sagaAnswer];
export const RUN: AnswerSpec = ['The run.', runAnswer];
export const ROLLING_BACK: AnswerSpec = [
  'The rollback continues in the background. The saga as it is now.',
  sagas.sagaAnswer,
];

export const CALL_TOOL: Operation = {
  summary: 'Call a tool',
  headers: CALL_HEADERS,
  body: jsonObject,
  isBodyRequired: true,
  answers: {
    200: ['The call succeeded, now or earlier.', callAnswer],
    202: ['The call is held or in progress.', callAnswer],
  },
};

/** The operations of agents. */
export const AGENT_OPERATIONS: Operations = {
  '/v1/tools': get(
    'The tools that this agent may call',
    ['Tools with their JSON schemas.', z.object({ tools: z.array(jsonObject) })],
    { query: { format: z.enum(['openai', 'anthropic']) } },
  ),
  '/v1/tools/{tool}': { post: CALL_TOOL },
  '/v1/calls': get("The agent's own calls, newest first", CALL_PAGE, { query: callFilters }),
  '/v1/calls/{txn}': get('One call', ['The call as it is now.', callAnswer], { query: waiting }),
  '/v1/calls/{txn}/cancel': {
    post: {
      summary: 'Cancel a held call',
      answers: { 200: ['The call is cancelled.', callAnswer.pick({ txn: true, tool: true, state: true })] },
    },
  },
  '/v1/proxy/{upstream}/{path}': {
    post: {
      summary: 'Call a tool by the HTTP request of its upstream: any method',
      headers: CALL_HEADERS,
      answers: { default: ['The status and body of the upstream, or a problem.'] },
    },
  },
  '/v1/sagas': {
    ...get("The agent's own sagas, newest first", SAGA_PAGE, { query: sagaFilters }),
    ...post(
      'Open a saga',
      sagas.openSagaBody,
      { 201: ['The saga is open, now or by an earlier request with this key.', sagas.sagaAnswer] },
      { headers: ['IdempotencyKey', 'Run', 'Epoch'] },
    ),
  },
  '/v1/sagas/{id}': get('A saga, its steps, and how each is undone', SAGA),
  '/v1/sagas/{id}/commit': post('Commit a saga', emptyBody, { 200: SAGA }, IN_RUN),
  '/v1/sagas/{id}/savepoints': post(
    'Set a savepoint, to roll back to it',
    sagas.savepointBody,
    { 200: ['The savepoint existed.', sagas.savepointAnswer], 201: ['The savepoint is set.', sagas.savepointAnswer] },
    IN_RUN,
  ),
  '/v1/sagas/{id}/rollback': post(
    'Undo the steps of a saga',
    sagas.rollbackBody,
    { 202: ROLLING_BACK },
    { ...IN_RUN, query: waiting },
  ),
  '/v1/runs': {
    ...get("The agent's own runs, newest first", RUN_PAGE, { query: runFilters }),
    ...post(
      'Start a run, or take it over: its epoch grows, and the calls of older holders are fenced',
      takeRunBody,
      { 200: ['An existing run, taken over in this epoch.', runAnswer], 201: ['A new run.', runAnswer] },
      { query: waiting, headers: ['IdempotencyKey'] },
    ),
  },
  '/v1/runs/{id}': get('A run, its open calls of earlier epochs, and its checkpoint', RUN, { query: waiting }),
  '/v1/runs/{id}/calls': get('The calls of a run, newest first', CALL_PAGE, { query: runCallFilters }),
  '/v1/runs/{id}/checkpoint': {
    put: {
      ...OF_HOLDER,
      summary: 'Store what a successor needs: any JSON of at most 1 MiB',
      body: anyJson,
      isBodyRequired: true,
      answers: { 200: ['The checkpoint is stored.', runLineAnswer] },
    },
  },
  '/v1/runs/{id}/heartbeat': post(
    'Show that the holder is alive',
    emptyBody,
    { 200: ['The run is alive.', runLineAnswer] },
    OF_HOLDER,
  ),
  '/v1/runs/{id}/finish': post(
    'Finish a run: it accepts no calls until it is taken again',
    emptyBody,
    { 200: ['The run is finished.', runLineAnswer] },
    OF_HOLDER,
  ),
  '/mcp': {
    ...post(
      'The Model Context Protocol, revisions 2025-06-18, 2025-11-25 and 2026-07-28',
      jsonObject,
      { 200: ['A JSON-RPC response, as JSON or as a stream.'] },
      { isBodyRequired: true },
    ),
    ...get('The notifications of a session of an older revision', ['A stream of JSON-RPC notifications.']),
    delete: {
      summary: 'Sessions cannot be ended: the gateway stores none',
      answers: { 405: ['There is nothing to end.'] },
    },
  },
};
