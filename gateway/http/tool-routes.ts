import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { CallRecord } from '../domain/calls/call-record.ts';
import { isFinalState } from '../domain/calls/call-state.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent } from '../domain/policy.ts';
import { dryRun } from '../flow/calls/dry-run.ts';
import { executeCall, type Services, type ToolAnswer, type ToolCall } from '../flow/calls/execute-call.ts';
import { findReplayByBody } from '../flow/calls/find-replay.ts';
import { markDelivered } from '../flow/calls/own-calls.ts';
import { CancelToken } from '../flow/cancel-token.ts';
import { listTools, resolveToolName } from './catalogue.ts';
import { sendCall } from './encode.ts';
import { rawBodyText, readArguments } from './transport/bodies.ts';
import { type CallHeaders, isDryRun, readCallHeaders } from './transport/headers.ts';
import { identifyAgent } from './transport/identify.ts';
import { onRequestEnd } from './transport/on-request-end.ts';

export function toolRoutes(app: FastifyInstance, services: Services): void {
  const context = services.ctx;

  app.get('/v1/tools', (request) => {
    const agent = identifyAgent(request, context.policies());
    return listTools(context.policies(), agent, (request.query as { format?: string }).format);
  });

  app.post('/v1/tools/:tool', (request, reply) => {
    const policies = context.policies();
    const agent = identifyAgent(request, policies);
    const tool = resolveToolName(policies, (request.params as { tool: string }).tool);
    if (isDryRun(request))
      return dryRun(context, () => buildToolCall(agent, tool, readArguments(request), readCallHeaders(request)));
    const headers = readCallHeaders(request);
    const { key, saga, trace } = headers;
    const body = key === undefined ? undefined : rawBodyText(request);
    const replay = findReplayByBody(services, { agent, tool, key, saga, trace, body });
    if (replay !== undefined) return answer(request, reply, replay);
    const toolCall = buildToolCall(agent, tool, readArguments(request), headers, cancelTokenFor(request, reply), body);
    return executeCall(services, toolCall).then((toolAnswer) => answer(request, reply, toolAnswer));
  });

  function answer(request: FastifyRequest, reply: FastifyReply, { call, repeat }: ToolAnswer): FastifyReply {
    markDeliveredOnFinish(services, reply, call);
    return sendCall(reply, call, repeat, request.url);
  }
}

/** Builds the call of a request. One object literal keeps the V8 shape monomorphic. */
export function buildToolCall(
  agent: Agent,
  tool: string,
  args: JsonObject,
  headers: CallHeaders,
  cancelToken?: CancelToken,
  body?: string,
): ToolCall {
  return {
    agent,
    tool,
    args,
    key: headers.key,
    saga: headers.saga,
    dependsOn: headers.dependsOn,
    runEpoch: headers.runEpoch,
    undo: headers.undo,
    continuation: undefined,
    progressListener: undefined,
    trace: headers.trace,
    patienceMs: headers.patienceMs,
    cancelToken,
    body,
  };
}

/** Call right before sending the answer. Records the delivery once the whole answer is handed to the connection. */
export function markDeliveredOnFinish(services: Services, reply: FastifyReply, call: CallRecord): void {
  services.ctx.reachKillPoint('replying');
  if (call.identity === 'repeat' && isFinalState(call.state))
    reply.raw.once('finish', () => markDelivered(services, call));
}

/** A token that is cancelled when the client disconnects. Cancelling ends the wait for an answer, never the call. */
export function cancelTokenFor(request: FastifyRequest, reply: FastifyReply): CancelToken {
  const cancelToken = new CancelToken();
  onRequestEnd(request, reply, () => cancelToken.cancel());
  return cancelToken;
}
