import { auditEntry } from '../domain/audit.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent } from '../domain/policy.ts';
import { logEntry } from '../ledger/audit-queue.ts';
import { BUILT_IN } from '../policy/built-in.ts';
import { decideBuiltIn } from '../policy/decide.ts';
import type { Station } from './station.ts';

export { BUILT_IN };

/** Judged by the agent's rules like any tool, and its denial logged like any denial. */
export async function admitBuiltIn(
  station: Station,
  agent: Agent,
  tool: string,
  args: JsonObject,
  run: string | null,
): Promise<void> {
  const decision = decideBuiltIn(agent, tool, { args, saga: null, run, now: Date.now() });
  if (decision.allowed) return;
  const { reason, rule } = decision;
  const entry = auditEntry('denied', { agent: agent.name, tool, policy: station.policies().version, reason });
  await logEntry(station.db, entry);
  throw new GatewayError('denied', reason, rule === undefined ? {} : { members: { rule: rule.id } });
}
