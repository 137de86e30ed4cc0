import type { FastifyInstance } from 'fastify';
import type { CallEvent } from '../domain/calls/call-record.ts';
import { isFinalState } from '../domain/calls/call-state.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { type CallPage, cancelCall, findCalls, markDelivered, readCall } from '../flow/calls/own-calls.ts';
import { callView } from './encode.ts';
import { cancelTokenFor } from './tool-routes.ts';
import { identifyAgent } from './transport/identify.ts';
import { type Query, readFilter, readPatience } from './transport/query.ts';

/** The calls of the agent that asks. */
export function callRoutes(app: FastifyInstance, services: Services): void {
  const context = services.ctx;

  app.get('/v1/calls', async (request, reply) => {
    const agent = identifyAgent(request, context.policies());
    const page = await findCalls(services, { ...readFilter(request.query as Query), agent: agent.name });
    return reply.type('application/json').send(formatCallPage(page));
  });

  app.get('/v1/calls/:txn', async (request, reply) => {
    const agent = identifyAgent(request, context.policies());
    const patienceMs = readPatience(request);
    const { txn } = request.params as { txn: string };
    const cancelToken = patienceMs === 0 ? undefined : cancelTokenFor(request, reply);
    const call = await readCall(services, txn, agent.name, patienceMs, cancelToken);
    if (isFinalState(call.state)) reply.raw.once('finish', () => markDelivered(services, call));
    reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
    return reply.type('application/json').send(callView(call));
  });

  app.post('/v1/calls/:txn/cancel', async (request, reply) => {
    const agent = identifyAgent(request, context.policies());
    const call = await cancelCall(services, (request.params as { txn: string }).txn, agent.name);
    reply.header('oncegate-txn', call.txn).header('oncegate-state', call.state);
    return { txn: call.txn, tool: call.tool, state: call.state };
  });
}

/** A page of calls. Given the contradictions of its calls, the views have the members that only people see. */
export function formatCallPage(page: CallPage, contradictions?: ReadonlyMap<string, CallEvent>): string {
  const pick = (txn: string) => [contradictions?.get(txn) ?? []].flat();
  const items = page.items.map((call) => callView(call, contradictions && pick(call.txn)));
  return `{"items":[${items.join(',')}],"cursor":${JSON.stringify(page.cursor)}}`;
}
