import type { Vote } from '../../domain/approvals/vote.ts';
import type { PreparedRequest } from '../../domain/attempts/adapter.ts';
import type { ApprovalSpec, Policies, PolicyDecision, Rule, Tool } from '../../domain/policy.ts';
import type { ApprovalRequest } from '../../ledger/approvals/approvals.ts';
import type { ClaimGuards } from '../../ledger/calls/calls.ts';
import { DEFAULT_APPROVAL, type DecisionInput } from '../../policy/decide.ts';
import { buildShownRequest, computeApprovalDigest } from '../approvals/approval-request.ts';
import { buildVoteEvents } from '../approvals/votes.ts';
import type { Context } from '../context.ts';
import { buildLockRequest } from '../controls/locks.ts';
import { findExposure, isUntrusted } from '../controls/taint.ts';
import { buildHistoryGuard, describeDecisionFacts } from './decision-facts.ts';
import type { ToolCall } from './execute-call.ts';
import { computeSpends, hasLimits } from './limits.ts';

/** A call that passed judgement, as far as it tells what else must hold. */
interface GuardedCall {
  readonly asked: ToolCall;
  readonly tool: Tool;
  readonly policies: Policies;
  readonly rule: Rule;
  /** What was decided, and what about. */
  readonly decision: PolicyDecision;
  readonly scope: DecisionInput;
  readonly hold: ApprovalSpec | undefined;
  readonly fingerprint: Buffer;
  readonly request: PreparedRequest;
  readonly identified: { readonly txn: string; readonly alias?: string };
}

/**
 * What else must hold in the transaction of the claim, given what the voters of its rule said; undefined for most calls, which
 * then share theirs with others.
 */
export function buildClaimGuards(
  station: Context,
  guarded: GuardedCall,
  votes: readonly Vote[],
): ClaimGuards | undefined {
  const { asked, tool, policies, rule, scope, decision, hold, identified } = guarded;
  const { txn, alias } = identified;
  const { args } = asked;
  const agent = asked.agent.name;
  const saga = asked.saga ?? null;
  const run = asked.fence?.run ?? null;
  const spends = hasLimits(rule)
    ? computeSpends(rule, { args, agent, tool: tool.name, saga, run, now: Date.now() })
    : [];
  // Made for a held call too: what cannot be locked is refused now, not after a person was asked.
  const order = tool.locks.length === 0 ? undefined : buildLockRequest(station, tool, { txn, agent, args, saga, run });
  const isHeld = hold !== undefined || rule.delayMs !== undefined;
  // But it locks nothing while it waits: it takes its locks when it is let go.
  const locks = isHeld ? undefined : order;
  const history =
    scope.history === undefined
      ? undefined
      : buildHistoryGuard({ policies, agent: asked.agent, tool: tool.name, scope, decision });
  const exposure = isUntrusted(policies, tool)
    ? findExposure(station, { agent, saga, run }, { txn, tool: tool.name })
    : undefined;
  const isPlain = spends.length === 0 && !isHeld && locks === undefined && alias === undefined && votes.length === 0;
  if (isPlain && history === undefined && exposure === undefined) return undefined;
  const approval = isHeld ? buildApprovalRequest(station, guarded, votes) : undefined;
  const events = votes.length === 0 ? {} : { events: buildVoteEvents(votes) };
  return { charges: spends, locks, alias, approval, history, exposure, ...events };
}

/** What a person, a voter or nobody is shown before it is sent. */
export function describeForApproval(guarded: GuardedCall, votes: readonly Vote[]) {
  const { asked, tool, rule, policies, request, fingerprint, scope } = guarded;
  const { args, undo, saga, fence, continuation } = asked;
  const told = { fingerprint, rule: rule.id, ...describeDecisionFacts(scope), votes };
  const call = { agent: asked.agent.name, args, undo, saga, run: fence?.run, continuation, ...told };
  return buildShownRequest(call, tool, request, policies);
}

/** People decide first, and the delay begins when they have; without them it begins now, under today's policies. */
function buildApprovalRequest({ mostPending }: Context, guarded: GuardedCall, votes: readonly Vote[]): ApprovalRequest {
  const { rule, policies, hold } = guarded;
  const { delayMs = null } = rule;
  const shown = describeForApproval(guarded, votes);
  const { by: groups, quorum, withinMs } = hold ?? { ...DEFAULT_APPROVAL, withinMs: delayMs ?? 0 };
  const common = { shown, groups, quorum, withinMs, maxPending: mostPending };
  return hold === undefined
    ? { ...common, delayMs: null, releaseDigest: computeApprovalDigest(shown, policies.version) }
    : { ...common, delayMs, releaseDigest: null };
}
