import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { CallFace } from '../domain/call.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent } from '../domain/policy.ts';
import { isFinal } from '../domain/states.ts';
import { callTool, type Flow, type ToolAnswer, type ToolCall } from '../flow/call-tool.ts';
import { dryRun } from '../flow/dry-run.ts';
import { delivered } from '../flow/own-calls.ts';
import { Caller } from '../flow/patience.ts';
import { retell } from '../flow/retell.ts';
import { asItCame, readArguments } from './bodies.ts';
import { catalogue, toolNamed } from './catalogue.ts';
import { sendCall } from './encode.ts';
import { type CallHeaders, isDryRun, readCallHeaders } from './headers.ts';
import { identifyAgent } from './identify.ts';
import { whenOver } from './when-over.ts';

export function toolRoutes(app: FastifyInstance, flow: Flow): void {
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
    const again = retell(flow, { agent, tool, key, saga, trace, body });
    if (again !== undefined) return answer(request, reply, again);
    const asked = toolCall(agent, tool, readArguments(request), headers, hangUp(request, reply), body);
    return callTool(flow, asked).then((told) => answer(request, reply, told));
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
  caller?: Caller,
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
export function replying(flow: Flow, reply: FastifyReply, call: CallFace): void {
  flow.station.reach('replying');
  if (call.identity === 'repeat' && isFinal(call.state)) reply.raw.once('finish', () => delivered(flow, call));
}

/** Whoever asks, and may go away. That ends the waiting for an answer, never the call. */
export function hangUp(request: FastifyRequest, reply: FastifyReply): Caller {
  const caller = new Caller();
  whenOver(request, reply, () => caller.hangUp());
  return caller;
}
