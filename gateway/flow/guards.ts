import type { PreparedRequest } from '../domain/adapter.ts';
import type { Approve, Decision, Policies, Rule, Tool } from '../domain/policy.ts';
import type { Vote } from '../domain/vote.ts';
import type { ApprovalRequest } from '../ledger/approvals.ts';
import type { Guards } from '../ledger/calls.ts';
import { type CallScope, DEFAULT_HOLD } from '../policy/decide.ts';
import type { ToolCall } from './call-tool.ts';
import { exposureOf, isUntrusted } from './exposure.ts';
import { factsShown, historyGuard } from './facts.ts';
import { digestOf, whatIsShown } from './hold.ts';
import { lockOrderOf } from './locking.ts';
import { isMetered, spendsOf } from './spending.ts';
import type { Station } from './station.ts';
import { voteEvents } from './votes.ts';

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

/**
 * What else must hold in the transaction of the claim, given what the voters of its rule said; undefined for most calls, which
 * then share theirs with others.
 */
export function guardsOf(station: Station, guarded: Guarded, votes: readonly Vote[]): Guards | undefined {
  const { asked, tool, policies, rule, scope, decision, hold, identified } = guarded;
  const { txn, alias } = identified;
  const { args } = asked;
  const agent = asked.agent.name;
  const saga = asked.saga ?? null;
  const run = asked.fence?.run ?? null;
  const spends = isMetered(rule) ? spendsOf(rule, { args, agent, tool: tool.name, saga, run, now: Date.now() }) : [];
  // Made for a held call too: what cannot be locked is refused now, not after a person was asked.
  const order = tool.locks.length === 0 ? undefined : lockOrderOf(station, tool, { txn, agent, args, saga, run });
  const isHeld = hold !== undefined || rule.delayMs !== undefined;
  // But it locks nothing while it waits: it takes its locks when it is let go.
  const locks = isHeld ? undefined : order;
  const history =
    scope.history === undefined
      ? undefined
      : historyGuard({ policies, agent: asked.agent, tool: tool.name, scope, decision });
  const exposure = isUntrusted(policies, tool)
    ? exposureOf(station, { agent, saga, run }, { txn, tool: tool.name })
    : undefined;
  const isPlain = spends.length === 0 && !isHeld && locks === undefined && alias === undefined && votes.length === 0;
  if (isPlain && history === undefined && exposure === undefined) return undefined;
  const approval = isHeld ? approvalOf(station, guarded, votes) : undefined;
  const events = votes.length === 0 ? {} : { events: voteEvents(votes) };
  return { spends, locks, alias, approval, history, exposure, ...events };
}

/** What a person, a voter or nobody is shown before it is sent. */
export function shownOf(guarded: Guarded, votes: readonly Vote[]) {
  const { asked, tool, rule, policies, request, fingerprint, scope } = guarded;
  const { args, undo, saga, fence, continuation } = asked;
  const told = { fingerprint, rule: rule.id, ...factsShown(scope), votes };
  const call = { agent: asked.agent.name, args, undo, saga, run: fence?.run, continuation, ...told };
  return whatIsShown(call, tool, request, policies);
}

/** People decide first, and the delay begins when they have; without them it begins now, under today's policies. */
function approvalOf({ mostPending }: Station, guarded: Guarded, votes: readonly Vote[]): ApprovalRequest {
  const { rule, policies, hold } = guarded;
  const { delayMs = null } = rule;
  const shown = shownOf(guarded, votes);
  const { by: groups, quorum, withinMs } = hold ?? { ...DEFAULT_HOLD, withinMs: delayMs ?? 0 };
  const common = { shown, groups, quorum, withinMs, mostPending };
  return hold === undefined
    ? { ...common, delayMs: null, leavesAs: digestOf(shown, policies.version) }
    : { ...common, delayMs, leavesAs: null };
}
