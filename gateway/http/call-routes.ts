import type { FastifyInstance } from 'fastify';
import { summarizeCall } from '../domain/calls/call.ts';
import { CALL_STATES, type CallState, isFinalState } from '../domain/calls/call-state.ts';
import { GatewayError } from '../domain/errors.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import {
  type CallFilter,
  type CallPage,
  cancelCall,
  cursorAt,
  findCalls,
  markDelivered,
  readCall,
} from '../flow/calls/own-calls.ts';
import { callView } from './encode.ts';
import { cancelTokenFor } from './tool-routes.ts';
import { parseWait } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';

export type Query = Readonly<Record<string, string | string[] | undefined>>;

/** The calls of the agent that asks. */
export function callRoutes(app: FastifyInstance, services: Services): void {
  const context = services.station;

  app.get('/v1/calls', async (request, reply) => {
    const agent = identifyAgent(request, context.policies());
    const page = await findCalls(services, { ...readFilter(request.query as Query), agent: agent.name });
    return reply.type('application/json').send(formatCallPage(page, false));
  });

  app.get('/v1/calls/:txn', async (request, reply) => {
    const agent = identifyAgent(request, context.policies());
    const wait = readParam(request.query as Query, 'wait');
    const patienceMs = wait === undefined ? 0 : parseWait('wait', wait) * 1000;
    const { txn } = request.params as { txn: string };
    const cancelToken = patienceMs === 0 ? undefined : cancelTokenFor(request, reply);
    const call = await readCall(services, txn, agent.name, patienceMs, cancelToken);
    if (isFinalState(call.state)) reply.raw.once('finish', () => markDelivered(services, call));
    reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
    return reply.type('application/json').send(callView(call, summarizeCall(call).pursued, false));
  });

  app.post('/v1/calls/:txn/cancel', async (request, reply) => {
    const agent = identifyAgent(request, context.policies());
    const call = await cancelCall(services, (request.params as { txn: string }).txn, agent.name);
    reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
    return { txn: call.txn, tool: call.tool, state: call.state };
  });
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const MAX_ITEMS = 200;

export function readFilter(query: Query): CallFilter {
  const state = readParam(query, 'state');
  if (state !== undefined && !(CALL_STATES as readonly string[]).includes(state)) {
    throw new GatewayError('malformed', `state must be one of ${CALL_STATES.join(', ')}.`);
  }
  const until = readTime(query, 'until');
  return {
    tool: readParam(query, 'tool'),
    saga: readId(query, 'saga'),
    run: readId(query, 'run'),
    state: state as CallState | undefined,
    since: readTime(query, 'since'),
    // A cursor is already older than `until`.
    cursor: readParam(query, 'cursor') ?? (until === undefined ? undefined : cursorAt(until)),
    limit: readLimit(query),
  };
}

function readTime(query: Query, name: 'since' | 'until'): Date | undefined {
  const text = readParam(query, name);
  if (text === undefined) return undefined;
  const time = new Date(text);
  const isInRange = time.getTime() >= 0 && time.getUTCFullYear() < 2286;
  if (isInRange || (name === 'since' && !Number.isNaN(time.getTime()))) return time;
  throw new GatewayError('malformed', `${name} must be a time such as 2026-01-31T12:00:00Z.`);
}

export function readLimit(query: Query): number {
  const limit = readParam(query, 'limit') ?? '50';
  if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1)
    throw new GatewayError('malformed', 'limit must be a whole number, at least 1.');
  return Math.min(Number(limit), MAX_ITEMS);
}

export function readId(query: Query, name: 'saga' | 'run' | 'holder'): string | undefined {
  const id = readParam(query, name);
  if (id === undefined || UUID.test(id)) return id;
  throw new GatewayError('malformed', `${name} must be an id that this API returned.`);
}

export function readParam(query: Query, name: string): string | undefined {
  const value = query[name];
  if (Array.isArray(value)) throw new GatewayError('malformed', `${name} appears more than once.`);
  if (value?.includes('\0') === true) throw new GatewayError('malformed', `${name} must not contain a NUL character.`);
  return value;
}

export function formatCallPage(page: CallPage, full: boolean): string {
  const items = page.items.map((call) => callView(call, summarizeCall(call).pursued, full));
  return `{"items":[${items.join(',')}],"cursor":${JSON.stringify(page.cursor)}}`;
}
