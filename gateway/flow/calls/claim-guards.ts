import type { ApprovalRequest } from '../../ledger/approvals/approvals.ts';
import type { ClaimGuards } from '../../ledger/calls/claim.ts';
import { DEFAULT_APPROVAL } from '../../policy/decide.ts';
import { buildShownRequest, computeApprovalDigest } from '../approvals/approval-request.ts';
import { buildVoteEvents } from '../approvals/votes.ts';
import type { Context } from '../context.ts';
import { buildLockRequest } from '../controls/locks.ts';
import { findExposure, isUntrusted } from '../controls/taint.ts';
import type { PreparedCall } from './admit-call.ts';
import { buildHistoryGuard, describeDecisionFacts } from './decision-facts.ts';
import { computeCharges, hasLimits } from './limits.ts';

/**
 * Builds the conditions that the claim checks in its transaction. Returns undefined for most calls, which can then share
 * a transaction with others.
 */
export function buildClaimGuards(ctx: Context, prepared: PreparedCall): ClaimGuards | undefined {
  const { allowed, identified, votes } = prepared;
  const { call, policies, scope, decision } = allowed;
  const { tool, rule } = decision;
  const { args } = call.toolCall;
  const { saga, run } = scope;
  const { txn, alias } = identified;
  const agent = call.toolCall.agent.name;
  const charges = hasLimits(rule)
    ? computeCharges(rule, { args, agent, tool: tool.name, saga, run, now: Date.now() })
    : [];
  // Built for a held call too, so that invalid locks are refused now and not after a person approved.
  const lockRequest =
    tool.locks.length === 0 ? undefined : buildLockRequest(ctx, tool, { txn, agent, args, saga, run });
  const isHeld = prepared.heldMs !== undefined;
  // A held call locks nothing while it waits. Dispatch takes its locks before the first send.
  const locks = isHeld ? undefined : lockRequest;
  const history = scope.history === undefined ? undefined : buildHistoryGuard(allowed);
  const exposure = isUntrusted(policies, tool)
    ? findExposure(ctx, { agent, saga, run }, { txn, tool: tool.name })
    : undefined;
  const isPlain = charges.length === 0 && !isHeld && locks === undefined && alias === undefined && votes.length === 0;
  if (isPlain && history === undefined && exposure === undefined) return undefined;
  const approval = isHeld ? buildApprovalRequest(ctx, prepared) : undefined;
  const events = votes.length === 0 ? {} : { events: buildVoteEvents(votes) };
  return { charges, locks, alias, approval, history, exposure, ...events };
}

/** The call as a person or a voter is shown it. */
export function describeForApproval({ allowed, request, votes }: PreparedCall) {
  const { call, policies, scope, decision } = allowed;
  const { agent, args, undo, saga, runEpoch, continuation } = call.toolCall;
  const decided = { fingerprint: call.fingerprint, rule: decision.rule.id, ...describeDecisionFacts(scope), votes };
  const shown = { agent: agent.name, args, undo, saga, run: runEpoch?.run, continuation, ...decided };
  return buildShownRequest(shown, decision.tool, request, policies);
}

/**
 * Builds the approval row of a held call. If people must approve, the delay of the rule begins after their approval. Otherwise
 * the call waits only for its delay (`withinMs`), and `releaseDigest` binds the release to the current policies.
 */
function buildApprovalRequest({ maxPendingApprovals }: Context, prepared: PreparedCall): ApprovalRequest {
  const { allowed, hold } = prepared;
  const { policies, decision } = allowed;
  const { delayMs = null } = decision.rule;
  const shown = describeForApproval(prepared);
  const { by: groups, quorum, withinMs } = hold ?? { ...DEFAULT_APPROVAL, withinMs: delayMs ?? 0 };
  const common = { shown, groups, quorum, withinMs, maxPending: maxPendingApprovals };
  return hold === undefined
    ? { ...common, delayMs: null, releaseDigest: computeApprovalDigest(shown, policies.version) }
    : { ...common, delayMs, releaseDigest: null };
}
