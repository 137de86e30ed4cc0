import type { History, RuleInputs } from '../../domain/calls/history.ts';
import { listTaintSources } from '../../domain/controls/taint.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Agent } from '../../domain/policy.ts';
import type { ClaimGuards } from '../../ledger/calls/claim.ts';
import { isTainted } from '../../ledger/controls/taints.ts';
import { decideCall, isSameDecision } from '../../policy/decide.ts';
import { findRequiredFacts } from '../../policy/expressions/required-facts.ts';
import type { Context } from '../context.ts';
import type { AllowedCall } from './admit-call.ts';

/** Facts beyond the call itself that the rules of a tool use. Empty for most tools. */
export interface DecisionFacts {
  readonly history?: History | undefined;
  readonly tainted?: boolean | undefined;
}

/** The saga and run of a call. For a call that was claimed before, also its txn and the time of the claim. */
interface FactsOrigin {
  readonly saga: string | null;
  readonly run: string | null;
  readonly txn?: string;
  readonly asOf?: Date;
}

/**
 * Reads the facts that the rules of a tool use, before the decision; no query unless a rule needs one. For `tainted` this
 * read is enough: an agent can act on untrusted text only after it received it, and the taint is committed before that.
 * Another call of the same agent may change `history` meanwhile; `buildHistoryGuard` checks it again in the claim.
 */
export function readDecisionFacts(
  ctx: Context,
  agent: Agent,
  tool: string,
  origin: FactsOrigin,
): DecisionFacts | Promise<DecisionFacts> {
  const inputs = findRequiredFacts(agent, tool);
  return inputs === undefined ? NO_FACTS : queryDecisionFacts(ctx, agent, inputs, origin);
}

const NO_FACTS: DecisionFacts = {};

async function queryDecisionFacts(
  { db, historyReader }: Context,
  agent: Agent,
  inputs: RuleInputs,
  origin: FactsOrigin,
): Promise<DecisionFacts> {
  const { saga, run, txn, asOf } = origin;
  const query = { agent: agent.name, queries: inputs.history, exceptTxn: txn ?? null, asOf };
  const [history, tainted] = await Promise.all([
    inputs.history.length === 0 ? undefined : historyReader.read(query),
    inputs.taint ? isTainted(db, listTaintSources({ agent: agent.name, saga, run }), asOf) : undefined,
  ]);
  return {
    ...(history === undefined ? {} : { history }),
    ...(tainted === undefined ? {} : { tainted }),
  };
}

/** The facts as answers, the audit log and explanations show them. */
export function describeDecisionFacts({ history, tainted }: DecisionFacts): { readonly facts?: JsonObject } {
  if (history === undefined && tainted === undefined) return {};
  return {
    facts: {
      ...(history === undefined ? {} : { history: history.toJson() }),
      ...(tainted === undefined ? {} : { tainted }),
    },
  };
}

/** The claim reads the history again, and succeeds only if the rules come to the same decision. */
export function buildHistoryGuard({ call, policies, scope, decision }: AllowedCall): ClaimGuards['history'] {
  const { agent, tool } = call.toolCall;
  return {
    queries: findRequiredFacts(agent, tool)?.history ?? [],
    isDecisionUnchanged: (history) =>
      isSameDecision(decideCall(policies, agent, tool, { ...scope, history }), decision),
  };
}
