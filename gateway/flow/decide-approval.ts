import { auditEntry } from '../domain/audit.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Approve, Person, Role, Tool } from '../domain/policy.ts';
import { type Approval, type ApprovalState, castVote, listApprovals, readApproval } from '../ledger/approvals.ts';
import { isCursor } from '../ledger/lists.ts';
import { decide } from '../policy/decide.ts';
import type { Flow } from './call-tool.ts';
import { factsOf } from './facts.ts';
import { digestOf, type Shown, targetOf } from './hold.ts';
import type { Payload } from './payload.ts';
import { logRefusal } from './refusal.ts';
import type { Station } from './station.ts';

/** An approval with the digest that a decision about it must name now. */
export interface ApprovalView {
  readonly approval: Approval;
  readonly shown: Shown | null;
  readonly policyVersion: string;
  readonly digest: string | null;
}

export async function findApprovals(
  station: Station,
  state: ApprovalState | undefined,
  cursor: string | undefined,
  limit: number,
) {
  if (cursor !== undefined && !isCursor(cursor))
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  const page = await listApprovals(station.db, state, cursor, limit);
  return { items: page.items.map((approval) => viewOf(station, approval)), cursor: page.cursor };
}

/** One approval, waiting or decided. */
export async function readOneApproval(station: Station, txn: string): Promise<ApprovalView> {
  return viewOf(station, await knownApproval(station, txn));
}

async function knownApproval({ db }: Station, txn: string): Promise<Approval> {
  const approval = await readApproval(db, txn);
  if (approval !== undefined) return approval;
  throw new GatewayError('not_found', `Nothing waits for a decision under ${txn.slice(0, 64)}.`);
}

export interface Decision {
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
export async function decideApproval(flow: Flow, wanted: Decision): Promise<ApprovalView> {
  const { station } = flow;
  const { txn, person, verdict } = wanted;
  const approval = await knownApproval(station, txn);
  await refuseOutsiders(station, approval, wanted);
  if (approval.state !== 'pending') return alreadyDecided(station, approval, verdict);

  const view = viewOf(station, approval);
  if (view.digest === null || wanted.digest !== view.digest) {
    throw new GatewayError(
      'conflict',
      'The digest is not that of what would run now: the policies changed, or it is of another call. Look again.',
      { txn },
    );
  }
  if (verdict === 'approve') await refuseWhatPolicyForbids(station, approval, view.shown);
  const entry = auditEntry('vote', {
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
  return decided.state === 'pending' ? viewOf(station, decided) : alreadyDecided(station, decided, verdict);
}

function alreadyDecided(station: Station, approval: Approval, verdict: Decision['verdict']): ApprovalView {
  const agrees =
    verdict === 'reject' ? approval.state === 'rejected' : ['approved', 'unopposed'].includes(approval.state);
  if (agrees) return viewOf(station, approval);
  throw new GatewayError('conflict', `It is decided already: ${approval.state}.`, { txn: approval.txn });
}

/** Who tried to decide what is not theirs to decide is worth an entry: it may be the agent itself. */
async function refuseOutsiders(station: Station, approval: Approval, { person, verdict }: Decision): Promise<void> {
  const why = whyNotTheirs(approval, person, verdict);
  if (why === undefined) return;
  const { txn, agent, tool } = approval;
  const error = new GatewayError('forbidden', why);
  await logRefusal(station, { txn, agent, tool, person: person.name, verdict }, error);
  throw error;
}

function whyNotTheirs(approval: Approval, person: Person, verdict: Decision['verdict']): string | undefined {
  // What leaves by itself may be stopped by whoever may stop anything: there is no time to look for the right person.
  const stops = verdict === 'reject' && approval.leavesAt !== null && has(person, 'operator', 'approver');
  if (stops) return undefined;
  if (!has(person, 'approver')) return `${person.name} has the roles ${person.roles.join(', ')}; this needs approver.`;
  if (person.name === approval.agent) return 'Whoever asks cannot approve.';
  if (approval.groups.length === 0 || approval.groups.some((group) => person.groups.includes(group))) return undefined;
  return `This needs somebody of ${approval.groups.join(' or ')}; ${person.name} is not.`;
}

function has(person: Person, ...roles: readonly Role[]): boolean {
  return person.roles.some((role) => role === 'admin' || roles.includes(role));
}

/** An approval adds to what policy allows; it never goes beyond. */
async function refuseWhatPolicyForbids(station: Station, approval: Approval, shown: Shown | null): Promise<void> {
  const why = await whyNotNow(station, approval, shown, undefined);
  if (why !== undefined)
    throw new GatewayError('conflict', `It cannot run any more: ${why}. The agent must ask anew.`, {
      txn: approval.txn,
    });
}

/** Why a call that was let go must not run under the policies in force; undefined when it may. */
export async function whyNotApproved(
  station: Station,
  call: { readonly txn: string; readonly agent: string; readonly tool: string },
  payload: Payload,
): Promise<string | undefined> {
  const approval = await readApproval(station.db, call.txn);
  const isLetGo = approval?.state === 'approved' || approval?.state === 'unopposed';
  if (approval?.shown == null || !isLetGo) return 'it was held, and never let go';
  const isAsAgreed = approval.approvedDigest === digestOf(approval.shown, station.policies().version);
  const why = isAsAgreed
    ? await whyNotNow(station, approval, JSON.parse(approval.shown) as Shown, payload)
    : `the policies changed after it was ${approval.state === 'approved' ? 'approved' : 'held'}`;
  if (why === undefined) return undefined;
  return approval.state === 'approved' ? `approved, but ${why}` : `its delay is over, but ${why}`;
}

/** Without the exact arguments, which a person may not see where they are redacted, the rules are asked when it runs. */
async function whyNotNow(
  station: Station,
  approval: Approval,
  shown: Shown | null,
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
  if (exact !== undefined && isElsewhere(station, tool, exact, shown)) return `${tool.upstream} is somewhere else now`;
  if (exact === undefined && tool.redact.length > 0) return undefined;
  const args = exact?.args ?? (shown.args as JsonObject);
  const place = { saga: shown.saga ?? null, run: shown.run ?? null };
  // What the agent did after it asked was judged with this call in mind, and not the other way round.
  const facts = await factsOf(station, agent, toolName, { ...place, txn: approval.txn, asOf: approval.requestedAt });
  const decision = decide(policies, agent, toolName, { args, ...place, now: Date.now(), ...facts });
  if (!decision.allowed) return decision.reason;
  // People do not stand in for voters, and voters said nothing of what other policies would do.
  const isVotedOn = shown.votedUnder === policies.version && shown.rule === decision.rule.id;
  if (decision.rule.voters !== undefined && !isVotedOn)
    return `the voters of ${decision.rule.id} were not asked under these policies`;
  // Nobody was asked about what only waited for its time: then its rule wanted nobody.
  const isAgreed = approval.state !== 'unopposed' || approval.delayMs !== null;
  return decision.hold === undefined || (isAgreed && suffices(approval, decision.hold))
    ? undefined
    : `${decision.rule.id} now asks for other people`;
}

/**
 * The version covers what is written in the policies, not what the environment fills in. Nor does what was shown cover all of
 * that: a credential in a URL chooses an account, and is shown to nobody.
 */
function isElsewhere(station: Station, tool: Tool, { request }: Payload, shown: Shown): boolean {
  const { url } = targetOf(tool, request, station.policies());
  return url !== shown.target.url || !station.adapters.for(tool).isAt(request.base);
}

/** Whether those who may decide about this approval are enough for what the policies ask for today. */
function suffices({ groups, quorum }: Approval, hold: Approve): boolean {
  if (quorum < hold.quorum) return false;
  return hold.by.length === 0 || (groups.length > 0 && groups.every((group) => hold.by.includes(group)));
}

function viewOf(station: Station, approval: Approval): ApprovalView {
  const policyVersion = station.policies().version;
  const shown = approval.shown === null ? null : (JSON.parse(approval.shown) as Shown);
  return {
    approval,
    shown,
    policyVersion,
    digest: approval.shown === null ? null : digestOf(approval.shown, policyVersion),
  };
}
