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
import { computeCharges, hasLimits } from './limits.ts';

/** The part of an allowed call that its claim guards depend on. */
interface GuardedCall {
  readonly toolCall: ToolCall;
  readonly tool: Tool;
  readonly policies: Policies;
  readonly rule: Rule;
  /** The decision, and the input that it was made from. */
  readonly decision: PolicyDecision;
  readonly scope: DecisionInput;
  readonly hold: ApprovalSpec | undefined;
  readonly fingerprint: Buffer;
  readonly request: PreparedRequest;
  readonly identified: { readonly txn: string; readonly alias?: string };
}

/**
 * Builds the conditions that the claim checks in its transaction. Returns undefined for most calls, which can then share
 * a transaction with others.
 */
export function buildClaimGuards(ctx: Context, guarded: GuardedCall, votes: readonly Vote[]): ClaimGuards | undefined {
  const { toolCall, tool, policies, rule, scope, decision, hold, identified } = guarded;
  const { txn, alias } = identified;
  const { args } = toolCall;
  const agent = toolCall.agent.name;
  const saga = toolCall.saga ?? null;
  const run = toolCall.runEpoch?.run ?? null;
  const charges = hasLimits(rule)
    ? computeCharges(rule, { args, agent, tool: tool.name, saga, run, now: Date.now() })
    : [];
  // Built for a held call too, so that invalid locks are refused now and not after a person approved.
  const lockRequest =
    tool.locks.length === 0 ? undefined : buildLockRequest(ctx, tool, { txn, agent, args, saga, run });
  const isHeld = hold !== undefined || rule.delayMs !== undefined;
  // A held call locks nothing while it waits. Dispatch takes its locks before the first send.
  const locks = isHeld ? undefined : lockRequest;
  const history =
    scope.history === undefined
      ? undefined
      : buildHistoryGuard({ policies, agent: toolCall.agent, tool: tool.name, scope, decision });
  const exposure = isUntrusted(policies, tool)
    ? findExposure(ctx, { agent, saga, run }, { txn, tool: tool.name })
    : undefined;
  const isPlain = charges.length === 0 && !isHeld && locks === undefined && alias === undefined && votes.length === 0;
  if (isPlain && history === undefined && exposure === undefined) return undefined;
  const approval = isHeld ? buildApprovalRequest(ctx, guarded, votes) : undefined;
  const events = votes.length === 0 ? {} : { events: buildVoteEvents(votes) };
  return { charges, locks, alias, approval, history, exposure, ...events };
}

/** The call as a person or a voter is shown it. */
export function describeForApproval(guarded: GuardedCall, votes: readonly Vote[]) {
  const { toolCall, tool, rule, policies, request, fingerprint, scope } = guarded;
  const { args, undo, saga, runEpoch, continuation } = toolCall;
  const decided = { fingerprint, rule: rule.id, ...describeDecisionFacts(scope), votes };
  const call = { agent: toolCall.agent.name, args, undo, saga, run: runEpoch?.run, continuation, ...decided };
  return buildShownRequest(call, tool, request, policies);
}

/**
 * Builds the approval row of a held call. If people must approve, the delay of the rule begins after their approval. Otherwise
 * the call waits only for its delay (`withinMs`), and `releaseDigest` binds the release to the current policies.
 */
function buildApprovalRequest(
  { maxPendingApprovals }: Context,
  guarded: GuardedCall,
  votes: readonly Vote[],
): ApprovalRequest {
  const { rule, policies, hold } = guarded;
  const { delayMs = null } = rule;
  const shown = describeForApproval(guarded, votes);
  const { by: groups, quorum, withinMs } = hold ?? { ...DEFAULT_APPROVAL, withinMs: delayMs ?? 0 };
  const common = { shown, groups, quorum, withinMs, maxPending: maxPendingApprovals };
  return hold === undefined
    ? { ...common, delayMs: null, releaseDigest: computeApprovalDigest(shown, policies.version) }
    : { ...common, delayMs, releaseDigest: null };
}
