import { auditEntry } from '../domain/audit.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent } from '../domain/policy.ts';
import { logEntry } from '../ledger/audit-queue.ts';
import { BUILT_IN } from '../policy/built-in.ts';
import { decideBuiltIn } from '../policy/decide.ts';
import { factsOf, factsShown } from './facts.ts';
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
  const place = { saga: null, run };
  const facts = await factsOf(station, agent, tool, place);
  const decision = decideBuiltIn(agent, tool, { args, ...place, now: Date.now(), ...facts });
  if (decision.allowed) return;
  const { reason, rule } = decision;
  const said = { agent: agent.name, tool, policy: station.policies().version, reason, ...factsShown(facts) };
  const entry = auditEntry('denied', said);
  await logEntry(station.db, entry);
  throw new GatewayError('denied', reason, rule === undefined ? {} : { members: { rule: rule.id } });
}
