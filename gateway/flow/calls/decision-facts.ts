import type { History, RuleInputs } from '../../domain/calls/history.ts';
import { listTaintSources } from '../../domain/controls/taint.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Agent, Policies, PolicyDecision } from '../../domain/policy.ts';
import type { ClaimGuards } from '../../ledger/calls/calls.ts';
import { isTainted } from '../../ledger/controls/taints.ts';
import { type DecisionInput, decideCall, isSameDecision } from '../../policy/decide.ts';
import { findRequiredFacts } from '../../policy/expressions/required-facts.ts';
import type { Context } from '../context.ts';

/** What the rules about a tool ask beside the call itself; empty for most. */
export interface DecisionFacts {
  readonly history?: History | undefined;
  readonly tainted?: boolean | undefined;
}

/** Where a call is made; of one that was claimed before also which it is, and when that was. */
interface FactsOrigin {
  readonly saga: string | null;
  readonly run: string | null;
  readonly txn?: string;
  readonly asOf?: Date;
}

/**
 * Reads what the rules ask, before they are asked: nothing at all unless one that covers the tool does. For `tainted` that is
 * enough. Whatever an agent asks for because of a stranger's words it asks after it was told them, which is after the taint
 * was committed. What `history` counted may be overtaken by another call of the same agent; see `historyGuard`.
 */
export function readDecisionFacts(
  station: Context,
  agent: Agent,
  tool: string,
  place: FactsOrigin,
): DecisionFacts | Promise<DecisionFacts> {
  const asks = findRequiredFacts(agent, tool);
  return asks === undefined ? NO_POLICY_FACTS : queryPolicyFacts(station, agent, asks, place);
}

const NO_POLICY_FACTS: DecisionFacts = {};

async function queryPolicyFacts(
  { db, pasts }: Context,
  agent: Agent,
  asks: RuleInputs,
  place: FactsOrigin,
): Promise<DecisionFacts> {
  const { saga, run, txn, asOf } = place;
  const looking = { agent: agent.name, queries: asks.history, exceptTxn: txn ?? null, asOf };
  const [history, tainted] = await Promise.all([
    asks.history.length === 0 ? undefined : pasts.read(looking),
    asks.taint ? isTainted(db, listTaintSources({ agent: agent.name, saga, run }), asOf) : undefined,
  ]);
  return {
    ...(history === undefined ? {} : { history }),
    ...(tainted === undefined ? {} : { tainted }),
  };
}

/** As decisions, their log and their explanations show them. */
export function describeDecisionFacts({ history, tainted }: DecisionFacts): { readonly facts?: JsonObject } {
  if (history === undefined && tainted === undefined) return {};
  return {
    facts: {
      ...(history === undefined ? {} : { history: history.toJson() }),
      ...(tainted === undefined ? {} : { tainted }),
    },
  };
}

/** Who was allowed what, and what was known then. */
interface DecidedCall {
  readonly policies: Policies;
  readonly agent: Agent;
  readonly tool: string;
  readonly scope: DecisionInput;
  readonly decision: PolicyDecision;
}

/** The claim counts anew, and is good only while the rules come to the same decision. */
export function buildHistoryGuard({ policies, agent, tool, scope, decision }: DecidedCall): ClaimGuards['history'] {
  if (scope.history === undefined) return undefined;
  const questions = findRequiredFacts(agent, tool)?.history ?? [];
  return {
    queries: questions,
    isDecisionUnchanged: (history) =>
      isSameDecision(decideCall(policies, agent, tool, { ...scope, history }), decision),
  };
}
