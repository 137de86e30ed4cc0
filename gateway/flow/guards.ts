import type { PreparedRequest } from '../domain/adapter.ts';
import type { Approve, Decision, Policies, Rule, Tool } from '../domain/policy.ts';
import type { ApprovalRequest } from '../ledger/approvals.ts';
import type { Guards } from '../ledger/calls.ts';
import type { CallScope } from '../policy/decide.ts';
import type { ToolCall } from './call-tool.ts';
import { exposureOf, isUntrusted } from './exposure.ts';
import { factsShown, historyGuard } from './facts.ts';
import { whatIsShown } from './hold.ts';
import { lockOrderOf } from './locking.ts';
import { spendsOf } from './spending.ts';
import type { Station } from './station.ts';

/** A call that passed judgement, as far as it tells what else must hold. */
interface Guarded {
  readonly asked: ToolCall;
  readonly tool: Tool;
  readonly policies: Policies;
  readonly rule: Rule;
  /** What was decided, and what about. */
  readonly decision: Decision;
  readonly scope: CallScope;
  readonly hold: Approve | undefined;
  readonly fingerprint: Buffer;
  readonly request: PreparedRequest;
  readonly identified: { readonly txn: string; readonly alias?: string };
}

/** What else must hold in the transaction of the claim; undefined for most calls, which then share theirs with others. */
export function guardsOf(station: Station, guarded: Guarded): Guards | undefined {
  const { asked, tool, rule, hold, identified } = guarded;
  const { args } = asked;
  const agent = asked.agent.name;
  const saga = asked.saga ?? null;
  const run = asked.fence?.run ?? null;
  const spends = spendsOf(rule, { args, agent, tool: tool.name, saga, run, now: Date.now() });
  // Made for a held call too: what cannot be locked is refused now, not after a person was asked.
  const order = lockOrderOf(station, tool, { txn: identified.txn, agent, args, saga, run });
  // But it locks nothing while it waits: it takes its locks when it is let go.
  const locks = hold === undefined ? order : undefined;
  const history = historyGuard({ ...guarded, agent: asked.agent, tool: tool.name });
  const told = { txn: identified.txn, tool: tool.name };
  const exposure = isUntrusted(guarded.policies, tool) ? exposureOf(station, { agent, saga, run }, told) : undefined;
  const { alias } = identified;
  const plain = spends.length === 0 && hold === undefined && locks === undefined && alias === undefined;
  if (plain && history === undefined && exposure === undefined) return undefined;
  const approval = hold === undefined ? undefined : approvalOf(station, guarded, hold);
  return { spends, locks, alias, approval, history, exposure };
}

function approvalOf({ mostPending }: Station, guarded: Guarded, hold: Approve): ApprovalRequest {
  const { asked, tool, rule, policies, request, fingerprint, scope } = guarded;
  const { args, undo, saga, fence, continuation } = asked;
  const told = { fingerprint, rule: rule.id, ...factsShown(scope) };
  const call = { agent: asked.agent.name, args, undo, saga, run: fence?.run, continuation, ...told };
  return {
    shown: whatIsShown(call, tool, request, policies),
    groups: hold.by,
    quorum: hold.quorum,
    withinMs: hold.withinMs,
    mostPending,
  };
}
