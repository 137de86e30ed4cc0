import type { JsonObject } from '../domain/json.ts';
import type { Asks, Past } from '../domain/past.ts';
import type { Agent, Decision, Policies } from '../domain/policy.ts';
import { taintedBy } from '../domain/taint.ts';
import type { Guards } from '../ledger/calls.ts';
import { isTainted } from '../ledger/taints.ts';
import { asksOf } from '../policy/asks.ts';
import { type CallScope, decide, isSameDecision } from '../policy/decide.ts';
import type { Station } from './station.ts';

/** What the rules about a tool ask beside the call itself; empty for most. */
export interface Facts {
  readonly history?: Past | undefined;
  readonly tainted?: boolean | undefined;
}

/** Where a call is made; of one that was claimed before also which it is, and when that was. */
interface Place {
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
export function factsOf(station: Station, agent: Agent, tool: string, place: Place): Facts | Promise<Facts> {
  const asks = asksOf(agent, tool);
  return asks === undefined ? NO_FACTS : readFacts(station, agent, asks, place);
}

const NO_FACTS: Facts = {};

async function readFacts({ db, pasts }: Station, agent: Agent, asks: Asks, place: Place): Promise<Facts> {
  const { saga, run, txn, asOf } = place;
  const looking = { agent: agent.name, questions: asks.history, besides: txn ?? null, asOf };
  const [history, tainted] = await Promise.all([
    asks.history.length === 0 ? undefined : pasts.read(looking),
    asks.taint ? isTainted(db, taintedBy({ agent: agent.name, saga, run }), asOf) : undefined,
  ]);
  return {
    ...(history === undefined ? {} : { history }),
    ...(tainted === undefined ? {} : { tainted }),
  };
}

/** As decisions, their log and their explanations show them. */
export function factsShown({ history, tainted }: Facts): { readonly facts?: JsonObject } {
  if (history === undefined && tainted === undefined) return {};
  return {
    facts: {
      ...(history === undefined ? {} : { history: history.shown() }),
      ...(tainted === undefined ? {} : { tainted }),
    },
  };
}

/** Who was allowed what, and what was known then. */
interface Judged {
  readonly policies: Policies;
  readonly agent: Agent;
  readonly tool: string;
  readonly scope: CallScope;
  readonly decision: Decision;
}

/** The claim counts anew, and is good only while the rules come to the same decision. */
export function historyGuard({ policies, agent, tool, scope, decision }: Judged): Guards['history'] {
  if (scope.history === undefined) return undefined;
  const questions = asksOf(agent, tool)?.history ?? [];
  return {
    questions,
    stands: (history) => isSameDecision(decide(policies, agent, tool, { ...scope, history }), decision),
  };
}
