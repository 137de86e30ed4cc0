import type { Agent } from '../../domain/policy.ts';
import type { TraceContext } from '../../domain/telemetry.ts';
import { isUntrusted } from '../controls/taint.ts';
import { type Services, type ToolAnswer, toSpanResult } from './execute-call.ts';

/** A call before its arguments are read. */
interface UnparsedCall {
  readonly agent: Agent;
  readonly tool: string;
  readonly key: string | undefined;
  readonly saga: string | undefined;
  readonly trace: TraceContext;
  /** Its body, a character a byte. */
  readonly body: string | undefined;
}

/**
 * What this process answered a moment ago to the same bytes under the same key: they need not be read to know that the same is
 * asked for. Undefined: they must be, for whatever more there is to find out about the call.
 */
export function replayFromCache(
  { station }: Services,
  { agent, tool, key, saga, trace, body }: UnparsedCall,
): ToolAnswer | undefined {
  if (key === undefined || body === undefined) return undefined;
  const final = station.finals.askedWith(body, agent.name, key, tool);
  if (final === undefined || (saga !== undefined && final.face.saga !== saga)) return undefined;
  const policies = station.policies();
  const declared = policies.tools.get(tool);
  // Whoever is told what strangers wrote is tainted first, which the ledger must know.
  if (declared !== undefined && isUntrusted(policies, declared)) return undefined;
  const about = { tool: declared === undefined ? 'unknown' : tool, agent: agent.name };
  const answer = { call: final.face, repeat: true };
  station.watch.begin('call', about, trace).end(toSpanResult(answer));
  return answer;
}
