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
import { logRefusal } from '../calls/refusal.ts';
import type { Context } from '../context.ts';
import { computeApprovalDigest, resolveTarget, type ShownRequest } from './approval-request.ts';

/** An approval with the digest that a decision about it must name now. */
export interface ApprovalView {
  readonly approval: Approval;
  readonly shown: ShownRequest | null;
  readonly policyVersion: string;
  readonly digest: string | null;
}

export async function findApprovals(
  station: Context,
  state: ApprovalState | undefined,
  cursor: string | undefined,
  limit: number,
) {
  if (cursor !== undefined && !isCursor(cursor))
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  const page = await listApprovals(station.db, state, cursor, limit);
  return { items: page.items.map((approval) => toApprovalView(station, approval)), cursor: page.cursor };
}

/** One approval, waiting or decided. */
export async function readApprovalView(station: Context, txn: string): Promise<ApprovalView> {
  return toApprovalView(station, await requireApproval(station, txn));
}

async function requireApproval({ db }: Context, txn: string): Promise<Approval> {
  const approval = await readApproval(db, txn);
  if (approval !== undefined) return approval;
  throw new GatewayError('not_found', `Nothing waits for a decision under ${txn.slice(0, 64)}.`);
}

export interface ApprovalDecision {
  readonly txn: string;
  readonly verdict: 'approve' | 'reject';
  readonly digest: string;
  readonly reason: string;
  readonly person: Person;
}

/**
 * A person decides about a held call. The same decision again is fine, the opposite one is refused; and so is any decision
 * about something else than what would run now. An approved call runs by itself, without its agent.
 */
export async function decideApproval(flow: Services, wanted: ApprovalDecision): Promise<ApprovalView> {
  const { station } = flow;
  const { txn, person, verdict } = wanted;
  const approval = await requireApproval(station, txn);
  await refuseUnauthorizedPerson(station, approval, wanted);
  if (approval.state !== 'pending') return confirmEarlierDecision(station, approval, verdict);

  const view = toApprovalView(station, approval);
  if (view.digest === null || wanted.digest !== view.digest) {
    throw new GatewayError(
      'conflict',
      'The digest is not that of what would run now: the policies changed, or it is of another call. Look again.',
      { txn },
    );
  }
  if (verdict === 'approve') await refuseIfPolicyForbids(station, approval, view.shown);
  const entry = buildAuditEntry('vote', {
    txn,
    agent: approval.agent,
    tool: approval.tool,
    person: person.name,
    verdict,
    digest: wanted.digest,
    reason: wanted.reason,
  });
  const decided = await castVote(station.db, { ...wanted, person: person.name, entry });
  flow.recovery.wake();
  return decided.state === 'pending'
    ? toApprovalView(station, decided)
    : confirmEarlierDecision(station, decided, verdict);
}

function confirmEarlierDecision(
  station: Context,
  approval: Approval,
  verdict: ApprovalDecision['verdict'],
): ApprovalView {
  const agrees =
    verdict === 'reject' ? approval.state === 'rejected' : ['approved', 'unopposed'].includes(approval.state);
  if (agrees) return toApprovalView(station, approval);
  throw new GatewayError('conflict', `It is decided already: ${approval.state}.`, { txn: approval.txn });
}

/** Who tried to decide what is not theirs to decide is worth an entry: it may be the agent itself. */
async function refuseUnauthorizedPerson(
  station: Context,
  approval: Approval,
  { person, verdict }: ApprovalDecision,
): Promise<void> {
  const why = findAuthorizationFault(approval, person, verdict);
  if (why === undefined) return;
  const { txn, agent, tool } = approval;
  const error = new GatewayError('forbidden', why);
  await logRefusal(station, { txn, agent, tool, person: person.name, verdict }, error);
  throw error;
}

function findAuthorizationFault(
  approval: Approval,
  person: Person,
  verdict: ApprovalDecision['verdict'],
): string | undefined {
  // What leaves by itself may be stopped by whoever may stop anything: there is no time to look for the right person.
  const stops = verdict === 'reject' && approval.leavesAt !== null && hasAnyRole(person, 'operator', 'approver');
  if (stops) return undefined;
  if (!hasAnyRole(person, 'approver'))
    return `${person.name} has the roles ${person.roles.join(', ')}; this needs approver.`;
  if (person.name === approval.agent) return 'Whoever asks cannot approve.';
  if (approval.groups.length === 0 || approval.groups.some((group) => person.groups.includes(group))) return undefined;
  return `This needs somebody of ${approval.groups.join(' or ')}; ${person.name} is not.`;
}

function hasAnyRole(person: Person, ...roles: readonly Role[]): boolean {
  return person.roles.some((role) => role === 'admin' || roles.includes(role));
}

/** An approval adds to what policy allows; it never goes beyond. */
async function refuseIfPolicyForbids(station: Context, approval: Approval, shown: ShownRequest | null): Promise<void> {
  const why = await findPolicyBlocker(station, approval, shown, undefined);
  if (why !== undefined)
    throw new GatewayError('conflict', `It cannot run any more: ${why}. The agent must ask anew.`, {
      txn: approval.txn,
    });
}

/** Why a call that was let go must not run under the policies in force; undefined when it may. */
export async function findApprovalBlocker(
  station: Context,
  call: { readonly txn: string; readonly agent: string; readonly tool: string },
  payload: Payload,
): Promise<string | undefined> {
  const approval = await readApproval(station.db, call.txn);
  const isLetGo = approval?.state === 'approved' || approval?.state === 'unopposed';
  if (approval?.shown == null || !isLetGo) return 'it was held, and never let go';
  const isAsAgreed = approval.approvedDigest === computeApprovalDigest(approval.shown, station.policies().version);
  const why = isAsAgreed
    ? await findPolicyBlocker(station, approval, JSON.parse(approval.shown) as ShownRequest, payload)
    : `the policies changed after it was ${approval.state === 'approved' ? 'approved' : 'held'}`;
  if (why === undefined) return undefined;
  return approval.state === 'approved' ? `approved, but ${why}` : `its delay is over, but ${why}`;
}

/** Without the exact arguments, which a person may not see where they are redacted, the rules are asked when it runs. */
async function findPolicyBlocker(
  station: Context,
  approval: Approval,
  shown: ShownRequest | null,
  exact: Payload | undefined,
): Promise<string | undefined> {
  const policies = station.policies();
  const { agent: agentName, tool: toolName } = approval;
  const agent = policies.agents.get(agentName);
  const tool = policies.tools.get(toolName);
  if (agent === undefined) return `there is no agent ${agentName} any more`;
  if (tool === undefined) return `there is no tool ${toolName} any more`;
  if (tool.disabled !== undefined) return `${toolName} is disabled: ${tool.disabled}`;
  if (shown === null || shown.contract !== tool.digest) return `the contract of ${toolName} changed`;
  if (exact !== undefined && hasTargetMoved(station, tool, exact, shown))
    return `${tool.upstream} is somewhere else now`;
  if (exact === undefined && tool.redact.length > 0) return undefined;
  const args = exact?.args ?? (shown.args as JsonObject);
  const place = { saga: shown.saga ?? null, run: shown.run ?? null };
  // What the agent did after it asked was judged with this call in mind, and not the other way round.
  const facts = await readDecisionFacts(station, agent, toolName, {
    ...place,
    txn: approval.txn,
    asOf: approval.requestedAt,
  });
  const decision = decideCall(policies, agent, toolName, { args, ...place, now: Date.now(), ...facts });
  if (!decision.allowed) return `the policies deny it now ("${decision.reason}")`;
  // People do not stand in for voters, and voters said nothing of what other policies would do.
  const isVotedOn = shown.votedUnder === policies.version && shown.rule === decision.rule.id;
  if (decision.rule.voters !== undefined && !isVotedOn)
    return `the voters of ${decision.rule.id} were not asked under these policies`;
  // Nobody was asked about what only waited for its time: then its rule wanted nobody.
  const isAgreed = approval.state !== 'unopposed' || approval.delayMs !== null;
  return decision.hold === undefined || (isAgreed && isApprovalSufficient(approval, decision.hold))
    ? undefined
    : `${decision.rule.id} now asks for other people`;
}

/**
 * The version covers what is written in the policies, not what the environment fills in. Nor does what was shown cover all of
 * that: a credential in a URL chooses an account, and is shown to nobody.
 */
function hasTargetMoved(station: Context, tool: Tool, { request }: Payload, shown: ShownRequest): boolean {
  const { url } = resolveTarget(tool, request, station.policies());
  return url !== shown.target.url || !station.adapters.getAdapter(tool).isAt(request.base);
}

/** Whether those who may decide about this approval are enough for what the policies ask for today. */
function isApprovalSufficient({ groups, quorum }: Approval, hold: ApprovalSpec): boolean {
  if (quorum < hold.quorum) return false;
  return hold.by.length === 0 || (groups.length > 0 && groups.every((group) => hold.by.includes(group)));
}

function toApprovalView(station: Context, approval: Approval): ApprovalView {
  const policyVersion = station.policies().version;
  const shown = approval.shown === null ? null : (JSON.parse(approval.shown) as ShownRequest);
  return {
    approval,
    shown,
    policyVersion,
    digest: approval.shown === null ? null : computeApprovalDigest(approval.shown, policyVersion),
  };
}
