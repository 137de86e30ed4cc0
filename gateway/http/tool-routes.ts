import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { isFinal } from '../domain/states.ts';
import { callTool, type Flow, type ToolAnswer, type ToolCall } from '../flow/call-tool.ts';
import { dryRun } from '../flow/dry-run.ts';
import { delivered } from '../flow/own-calls.ts';
import { Caller } from '../flow/patience.ts';
import { readArguments } from './bodies.ts';
import { catalogue, toolNamed } from './catalogue.ts';
import { sendCall } from './encode.ts';
import { readCallHeaders } from './headers.ts';
import { identifyAgent } from './identify.ts';

export function toolRoutes(app: FastifyInstance, flow: Flow): void {
  const { station } = flow;

  app.get('/v1/tools', (request) => {
    const agent = identifyAgent(request, station.policies());
    return catalogue(station.policies(), agent, (request.query as { format?: string }).format);
  });

  app.post('/v1/tools/:tool', async (request, reply) => {
    const policies = station.policies();
    const agent = identifyAgent(request, policies);
    const headers = readCallHeaders(request);
    const tool = toolNamed(policies, (request.params as { tool: string }).tool);
    const ask = (): ToolCall => ({ agent, tool, args: readArguments(request), ...headers });
    if (headers.dryRun) return dryRun(station, ask);
    const answer = await callTool(flow, { ...ask(), caller: hangUp(request, reply) });
    return answered(flow, reply, answer, () => sendCall(reply, answer.call, answer.repeat, request.url));
  });
}

/** Sends an answer and, once it was handed to the connection, remembers that it was. */
export function answered(
  flow: Flow,
  reply: FastifyReply,
  { call }: ToolAnswer,
  send: () => FastifyReply,
): FastifyReply {
  flow.station.reach('replying');
  if (call.identity === 'repeat' && isFinal(call.state)) reply.raw.once('finish', () => delivered(flow, call));
  return send();
}

/** Whoever asks, and may go away. That ends the waiting for an answer, never the call. Asked before anything is awaited. */
export function hangUp(request: FastifyRequest, reply: FastifyReply): Caller {
  const caller = new Caller();
  reply.raw.once('close', () => caller.hangUp());
  if (request.raw.destroyed) caller.hangUp();
  return caller;
}
