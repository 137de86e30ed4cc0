import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Agent } from '../../domain/policy.ts';
import { BUILT_IN_TOOL_EFFECTS } from '../../policy/built-in-tools.ts';
import { decideBuiltIn } from '../../policy/decide.ts';
import { describeDecisionFacts, readDecisionFacts } from '../calls/decision-facts.ts';
import { logRefusal, Refusal } from '../calls/refusals.ts';
import type { Context } from '../context.ts';

export { BUILT_IN_TOOL_EFFECTS as BUILT_IN };

/** Decides by the agent's rules whether it may use a built-in tool. Logs a denial and throws it, as for any tool. */
export async function authorizeBuiltIn(
  ctx: Context,
  agent: Agent,
  tool: string,
  args: JsonObject,
  run: string | null,
): Promise<void> {
  const origin = { saga: null, run };
  const facts = await readDecisionFacts(ctx, agent, tool, origin);
  const decision = decideBuiltIn(agent, tool, { args, ...origin, now: Date.now(), ...facts });
  if (decision.allowed) return;
  const { reason, rule } = decision;
  const denied = new GatewayError('denied', reason, rule === undefined ? {} : { members: { rule: rule.id } });
  await logRefusal(ctx, { agent: agent.name, tool }, new Refusal(denied, { reason, ...describeDecisionFacts(facts) }));
  throw denied;
}
