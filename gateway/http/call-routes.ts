import type { FastifyInstance } from 'fastify';
import { face } from '../domain/call.ts';
import { GatewayError } from '../domain/errors.ts';
import { type CallState, isFinal, STATES } from '../domain/states.ts';
import type { Flow } from '../flow/call-tool.ts';
import {
  type CallFilter,
  type CallPage,
  cancelCall,
  cursorAt,
  delivered,
  findCalls,
  readCall,
} from '../flow/own-calls.ts';
import { callView } from './encode.ts';
import { parseWait } from './headers.ts';
import { identifyAgent } from './identify.ts';
import { hangUp } from './tool-routes.ts';

export type Query = Readonly<Record<string, string | string[] | undefined>>;

/** An agent's own calls. */
export function callRoutes(app: FastifyInstance, flow: Flow): void {
  const { station } = flow;

  app.get('/v1/calls', async (request, reply) => {
    const agent = identifyAgent(request, station.policies());
    const page = await findCalls(flow, { ...readFilter(request.query as Query), agent: agent.name });
    return reply.type('application/json').send(pageText(page, false));
  });

  app.get('/v1/calls/:txn', async (request, reply) => {
    const agent = identifyAgent(request, station.policies());
    const wait = single(request.query as Query, 'wait');
    const patienceMs = wait === undefined ? 0 : parseWait('wait', wait) * 1000;
    const { txn } = request.params as { txn: string };
    const caller = patienceMs === 0 ? undefined : hangUp(request, reply);
    const call = await readCall(flow, txn, agent.name, patienceMs, caller);
    if (isFinal(call.state)) reply.raw.once('finish', () => delivered(flow, call));
    reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
    return reply.type('application/json').send(callView(call, face(call).pursued, false));
  });

  app.post('/v1/calls/:txn/cancel', async (request, reply) => {
    const agent = identifyAgent(request, station.policies());
    const call = await cancelCall(flow, (request.params as { txn: string }).txn, agent.name);
    reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
    return { txn: call.txn, tool: call.tool, state: call.state };
  });
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const MOST_ITEMS = 200;

export function readFilter(query: Query): CallFilter {
  const state = single(query, 'state');
  if (state !== undefined && !(STATES as readonly string[]).includes(state)) {
    throw new GatewayError('malformed', `state must be one of ${STATES.join(', ')}.`);
  }
  const until = readTime(query, 'until');
  return {
    tool: single(query, 'tool'),
    saga: readId(query, 'saga'),
    run: readId(query, 'run'),
    state: state as CallState | undefined,
    since: readTime(query, 'since'),
    // Whoever goes on from a cursor is before that time already.
    cursor: single(query, 'cursor') ?? (until === undefined ? undefined : cursorAt(until)),
    limit: readLimit(query),
  };
}

function readTime(query: Query, name: 'since' | 'until'): Date | undefined {
  const text = single(query, name);
  if (text === undefined) return undefined;
  const time = new Date(text);
  const isOfOurTime = time.getTime() >= 0 && time.getUTCFullYear() < 2286;
  if (isOfOurTime || (name === 'since' && !Number.isNaN(time.getTime()))) return time;
  throw new GatewayError('malformed', `${name} must be a time such as 2026-01-31T12:00:00Z.`);
}

export function readLimit(query: Query): number {
  const limit = single(query, 'limit') ?? '50';
  if (!/^\d{1,4}$/.test(limit) || Number(limit) < 1)
    throw new GatewayError('malformed', 'limit must be a number from 1.');
  return Math.min(Number(limit), MOST_ITEMS);
}

export function readId(query: Query, name: 'saga' | 'run' | 'holder'): string | undefined {
  const id = single(query, name);
  if (id === undefined || UUID.test(id)) return id;
  throw new GatewayError('malformed', `${name} must be an id, as this API gives them out.`);
}

export function single(query: Query, name: string): string | undefined {
  const value = query[name];
  if (Array.isArray(value)) throw new GatewayError('malformed', `${name} is there twice.`);
  if (value?.includes('\0') === true) throw new GatewayError('malformed', `${name} holds a NUL character.`);
  return value;
}

export function pageText(page: CallPage, full: boolean): string {
  const items = page.items.map((call) => callView(call, face(call).pursued, full));
  return `{"items":[${items.join(',')}],"cursor":${JSON.stringify(page.cursor)}}`;
}
