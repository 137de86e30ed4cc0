import type { Agent } from '../../domain/policy.ts';
import type { TraceContext } from '../../domain/telemetry.ts';
import { isUntrusted } from '../controls/taint.ts';
import { type Services, type ToolAnswer, toSpanResult } from './execute-call.ts';

/** A call before its arguments are parsed. */
interface UnparsedCall {
  readonly agent: Agent;
  readonly tool: string;
  readonly key: string | undefined;
  readonly saga: string | undefined;
  readonly trace: TraceContext;
  /** The request body, one character per byte. */
  readonly body: string | undefined;
}

/**
 * Finds a cached answer to a byte-identical request with the same key, without parsing its arguments. Returns undefined if
 * the call must be executed normally.
 */
export function replayFromCache(
  { ctx }: Services,
  { agent, tool, key, saga, trace, body }: UnparsedCall,
): ToolAnswer | undefined {
  if (key === undefined || body === undefined) return undefined;
  const cached = ctx.replayCache.getByBody(body, agent.name, key, tool);
  if (cached === undefined || (saga !== undefined && cached.call.saga !== saga)) return undefined;
  const policies = ctx.policies();
  const declared = policies.tools.get(tool);
  // An agent is tainted before it gets untrusted text, and the ledger must record that first.
  if (declared !== undefined && isUntrusted(policies, declared)) return undefined;
  const subject = { tool: declared === undefined ? 'unknown' : tool, agent: agent.name };
  const answer = { call: cached.call, repeat: true };
  ctx.telemetry.begin('call', subject, trace).end(toSpanResult(answer));
  return answer;
}
