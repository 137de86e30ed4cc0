import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { CallSummary } from '../domain/calls/call.ts';
import { isFinalState } from '../domain/calls/call-state.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent } from '../domain/policy.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import { executeCall, type Services, type ToolAnswer, type ToolCall } from '../flow/calls/execute-call.ts';
import { markDelivered } from '../flow/calls/own-calls.ts';
import { replayFromCache } from '../flow/calls/replay-from-cache.ts';
import { CancelToken } from '../flow/cancel-token.ts';
import { catalogue, toolNamed } from './catalogue.ts';
import { sendCall } from './encode.ts';
import { asItCame, readArguments } from './transport/bodies.ts';
import { type CallHeaders, isDryRun, readCallHeaders } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';
import { onRequestEnd } from './transport/on-request-end.ts';

export function toolRoutes(app: FastifyInstance, flow: Services): void {
  const { station } = flow;

  app.get('/v1/tools', (request) => {
    const agent = identifyAgent(request, station.policies());
    return catalogue(station.policies(), agent, (request.query as { format?: string }).format);
  });

  app.post('/v1/tools/:tool', (request, reply) => {
    const policies = station.policies();
    const agent = identifyAgent(request, policies);
    const tool = toolNamed(policies, (request.params as { tool: string }).tool);
    if (isDryRun(request))
      return dryRun(station, () => toolCall(agent, tool, readArguments(request), readCallHeaders(request)));
    const headers = readCallHeaders(request);
    const { key, saga, trace } = headers;
    const body = key === undefined ? undefined : asItCame(request);
    const again = replayFromCache(flow, { agent, tool, key, saga, trace, body });
    if (again !== undefined) return answer(request, reply, again);
    const asked = toolCall(agent, tool, readArguments(request), headers, hangUp(request, reply), body);
    return executeCall(flow, asked).then((told) => answer(request, reply, told));
  });

  function answer(request: FastifyRequest, reply: FastifyReply, { call, repeat }: ToolAnswer): FastifyReply {
    replying(flow, reply, call);
    return sendCall(reply, call, repeat, request.url);
  }
}

/** A call as its request makes it. Always made here, so that it always looks alike to whoever compiles what reads it. */
export function toolCall(
  agent: Agent,
  tool: string,
  args: JsonObject,
  headers: CallHeaders,
  caller?: CancelToken,
  body?: string,
): ToolCall {
  return {
    agent,
    tool,
    args,
    key: headers.key,
    saga: headers.saga,
    dependsOn: headers.dependsOn,
    fence: headers.fence,
    undo: headers.undo,
    continuation: undefined,
    follower: undefined,
    trace: headers.trace,
    patienceMs: headers.patienceMs,
    caller,
    body,
  };
}

/** The answer is about to be sent; once it was handed to the connection, that is remembered. */
export function replying(flow: Services, reply: FastifyReply, call: CallSummary): void {
  flow.station.reach('replying');
  if (call.identity === 'repeat' && isFinalState(call.state)) reply.raw.once('finish', () => markDelivered(flow, call));
}

/** Whoever asks, and may go away. That ends the waiting for an answer, never the call. */
export function hangUp(request: FastifyRequest, reply: FastifyReply): CancelToken {
  const caller = new CancelToken();
  onRequestEnd(request, reply, () => caller.hangUp());
  return caller;
}
