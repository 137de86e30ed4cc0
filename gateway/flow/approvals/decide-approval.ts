import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { ApprovalSpec, Person, Role, Tool } from '../../domain/policy.ts';
import { type Approval, type ApprovalState, listApprovals, readApproval } from '../../ledger/approvals/approvals.ts';
import { castVote } from '../../ledger/approvals/cast-vote.ts';
import { isCursor } from '../../ledger/calls/list-calls.ts';
import { decideCall } from '../../policy/decide.ts';
import { readDecisionFacts } from '../calls/decision-facts.ts';
import type { Services } from '../calls/execute-call.ts';
import type { Payload } from '../calls/payload.ts';
import { logRefusal } from '../calls/refusals.ts';
import type { Context } from '../context.ts';
import { computeApprovalDigest, resolveTarget, type ShownRequest } from './approval-request.ts';

/** An approval with the digest that a decision must name now. */
export interface ApprovalView {
  readonly approval: Approval;
  readonly shown: ShownRequest | null;
  readonly policyVersion: string;
  readonly digest: string | null;
}

export async function findApprovals(
  ctx: Context,
  state: ApprovalState | undefined,
  cursor: string | undefined,
  limit: number,
) {
  if (cursor !== undefined && !isCursor(cursor))
    throw new GatewayError('malformed', 'The cursor is invalid. Use the cursor of the previous page.');
  const page = await listApprovals(ctx.db, state, cursor, limit);
  return { items: page.items.map((approval) => toApprovalView(ctx, approval)), cursor: page.cursor };
}

/** Reads one approval, pending or decided. */
export async function readApprovalView(ctx: Context, txn: string): Promise<ApprovalView> {
  return toApprovalView(ctx, await requireApproval(ctx, txn));
}

async function requireApproval({ db }: Context, txn: string): Promise<Approval> {
  const approval = await readApproval(db, txn);
  if (approval !== undefined) return approval;
  throw new GatewayError('not_found', `There is no approval of call ${txn.slice(0, 64)}.`);
}

export interface ApprovalDecision {
  readonly txn: string;
  readonly verdict: 'approve' | 'reject';
  readonly digest: string;
  readonly reason: string;
  readonly person: Person;
}

/**
 * Records a person's decision about a held call. Repeating a decision is safe; the opposite decision is refused. A decision
 * whose digest differs from what would run now is refused. An approved call runs without its agent.
 */
export async function decideApproval(services: Services, decision: ApprovalDecision): Promise<ApprovalView> {
  const { ctx } = services;
  const { txn, person, verdict } = decision;
  const approval = await requireApproval(ctx, txn);
  await refuseUnauthorizedPerson(ctx, approval, decision);
  if (approval.state !== 'pending') return confirmEarlierDecision(ctx, approval, verdict);

  const view = toApprovalView(ctx, approval);
  if (view.digest === null || decision.digest !== view.digest) {
    throw new GatewayError(
      'conflict',
      'The digest does not match what would run now: the policies changed, or it belongs to another call. Read the approval again.',
      { txn },
    );
  }
  if (verdict === 'approve') await refuseIfPolicyForbids(ctx, approval, view.shown);
  const entry = buildAuditEntry('vote', {
    txn,
    agent: approval.agent,
    tool: approval.tool,
    person: person.name,
    verdict,
    digest: decision.digest,
    reason: decision.reason,
  });
  const decided = await castVote(ctx.db, { ...decision, person: person.name, entry });
  services.recovery.wake();
  return decided.state === 'pending' ? toApprovalView(ctx, decided) : confirmEarlierDecision(ctx, decided, verdict);
}

function confirmEarlierDecision(ctx: Context, approval: Approval, verdict: ApprovalDecision['verdict']): ApprovalView {
  const isSameDecision =
    verdict === 'reject' ? approval.state === 'rejected' : ['approved', 'unopposed'].includes(approval.state);
  if (isSameDecision) return toApprovalView(ctx, approval);
  throw new GatewayError('conflict', `The approval is already decided: ${approval.state}.`, { txn: approval.txn });
}

/** The audit log records each unauthorized decision, because the agent itself may have tried it. */
async function refuseUnauthorizedPerson(
  ctx: Context,
  approval: Approval,
  { person, verdict }: ApprovalDecision,
): Promise<void> {
  const fault = findAuthorizationFault(approval, person, verdict);
  if (fault === undefined) return;
  const { txn, agent, tool } = approval;
  const error = new GatewayError('forbidden', fault);
  await logRefusal(ctx, { txn, agent, tool, person: person.name, verdict }, error);
  throw error;
}

function findAuthorizationFault(
  approval: Approval,
  person: Person,
  verdict: ApprovalDecision['verdict'],
): string | undefined {
  // Any operator or approver may stop a delayed call, because there is no time to find a member of the right group.
  const canStop = verdict === 'reject' && approval.leavesAt !== null && hasAnyRole(person, 'operator', 'approver');
  if (canStop) return undefined;
  if (!hasAnyRole(person, 'approver'))
    return `${person.name} has the roles ${person.roles.join(', ')}; this decision needs the role approver.`;
  if (person.name === approval.agent) return 'An agent cannot approve its own call.';
  if (approval.groups.length === 0 || approval.groups.some((group) => person.groups.includes(group))) return undefined;
  return `This decision needs a member of ${approval.groups.join(' or ')}; ${person.name} is not one.`;
}

function hasAnyRole(person: Person, ...roles: readonly Role[]): boolean {
  return person.roles.some((role) => role === 'admin' || roles.includes(role));
}

/** A person cannot approve a call that the policies forbid. */
async function refuseIfPolicyForbids(ctx: Context, approval: Approval, shown: ShownRequest | null): Promise<void> {
  const blocker = await findPolicyBlocker(ctx, approval, shown, undefined);
  if (blocker !== undefined)
    throw new GatewayError('conflict', `The call can no longer run: ${blocker}. The agent must make a new call.`, {
      txn: approval.txn,
    });
}

/** Why an approved call, or one whose delay is over, must not run under the policies in force; undefined when it may. */
export async function findApprovalBlocker(
  ctx: Context,
  call: { readonly txn: string; readonly agent: string; readonly tool: string },
  payload: Payload,
): Promise<string | undefined> {
  const approval = await readApproval(ctx.db, call.txn);
  const isReleased = approval?.state === 'approved' || approval?.state === 'unopposed';
  if (approval?.shown == null || !isReleased) return 'the call was held and never released';
  const isUnchanged = approval.approvedDigest === computeApprovalDigest(approval.shown, ctx.policies().version);
  const blocker = isUnchanged
    ? await findPolicyBlocker(ctx, approval, JSON.parse(approval.shown) as ShownRequest, payload)
    : `the policies changed after the call was ${approval.state === 'approved' ? 'approved' : 'held'}`;
  if (blocker === undefined) return undefined;
  return approval.state === 'approved' ? `the call was approved, but ${blocker}` : `the delay is over, but ${blocker}`;
}

/**
 * Why the policies in force forbid a held call; undefined when they allow it. If the tool redacts and `exact` is undefined,
 * the rules are not evaluated here: they need the exact arguments, and are evaluated when the call runs.
 */
async function findPolicyBlocker(
  ctx: Context,
  approval: Approval,
  shown: ShownRequest | null,
  exact: Payload | undefined,
): Promise<string | undefined> {
  const policies = ctx.policies();
  const { agent: agentName, tool: toolName } = approval;
  const agent = policies.agents.get(agentName);
  const tool = policies.tools.get(toolName);
  if (agent === undefined) return `the agent ${agentName} is no longer in the policies`;
  if (tool === undefined) return `the tool ${toolName} is no longer in the policies`;
  if (tool.disabled !== undefined) return `${toolName} is disabled: ${tool.disabled}`;
  if (shown === null || shown.contract !== tool.digest) return `the contract of ${toolName} changed`;
  if (exact !== undefined && hasTargetMoved(ctx, tool, exact, shown)) return `the address of ${tool.upstream} changed`;
  if (exact === undefined && tool.redact.length > 0) return undefined;
  const args = exact?.args ?? (shown.args as JsonObject);
  const origin = { saga: shown.saga ?? null, run: shown.run ?? null };
  // The history ends at the time of the request, because later calls already have this call in their own history.
  const facts = await readDecisionFacts(ctx, agent, toolName, {
    ...origin,
    txn: approval.txn,
    asOf: approval.requestedAt,
  });
  const decision = decideCall(policies, agent, toolName, { args, ...origin, now: Date.now(), ...facts });
  if (!decision.allowed) return `the policies deny the call now ("${decision.reason}")`;
  // An approval of people does not replace the votes, and votes count only for the policies under which they were cast.
  const isVotedOn = shown.votedUnder === policies.version && shown.rule === decision.rule.id;
  if (decision.rule.voters !== undefined && !isVotedOn)
    return `the voters of ${decision.rule.id} were not asked under these policies`;
  // `delayMs` is the delay after an approval. An `unopposed` call without it never needed approvers.
  const hasApprovers = approval.state !== 'unopposed' || approval.delayMs !== null;
  return decision.hold === undefined || (hasApprovers && isApprovalSufficient(approval, decision.hold))
    ? undefined
    : `${decision.rule.id} now requires other approvers`;
}

/**
 * Whether the upstream has another address than the approver saw. A URL from the environment can change without a new policy
 * version. Credentials in a URL are not shown, but may select an account, so `isAt` compares them too.
 */
function hasTargetMoved(ctx: Context, tool: Tool, { request }: Payload, shown: ShownRequest): boolean {
  const { url } = resolveTarget(tool, request, ctx.policies());
  return url !== shown.target.url || !ctx.adapters.getAdapter(tool).isAt(request.base);
}

/** Whether the groups and the quorum of an approval satisfy what the policies require now. */
function isApprovalSufficient({ groups, quorum }: Approval, hold: ApprovalSpec): boolean {
  if (quorum < hold.quorum) return false;
  return hold.by.length === 0 || (groups.length > 0 && groups.every((group) => hold.by.includes(group)));
}

function toApprovalView(ctx: Context, approval: Approval): ApprovalView {
  const policyVersion = ctx.policies().version;
  const shown = approval.shown === null ? null : (JSON.parse(approval.shown) as ShownRequest);
  return {
    approval,
    shown,
    policyVersion,
    digest: approval.shown === null ? null : computeApprovalDigest(approval.shown, policyVersion),
  };
}
