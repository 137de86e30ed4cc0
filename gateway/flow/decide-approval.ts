import { auditEntry } from '../domain/audit.ts';
import type { Call } from '../domain/call.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Person } from '../domain/policy.ts';
import { type Approval, type ApprovalState, castVote, listApprovals, readApproval } from '../ledger/approvals.ts';
import { isCursor } from '../ledger/lists.ts';
import { decide } from '../policy/decide.ts';
import type { Flow } from './call-tool.ts';
import { digestOf, type Shown } from './hold.ts';
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
  const approval = await readApproval(station.db, txn);
  if (approval === undefined)
    throw new GatewayError('not_found', `Nothing waits for a decision under ${txn.slice(0, 64)}.`);
  refuseOutsiders(approval, person);
  if (approval.state !== 'pending') return alreadyDecided(station, approval, verdict);

  const view = viewOf(station, approval);
  if (view.digest === null || wanted.digest !== view.digest) {
    throw new GatewayError(
      'conflict',
      'The digest is not that of what would run now: the policies changed, or it is of another call. Look again.',
      { txn },
    );
  }
  if (verdict === 'approve') refuseWhatPolicyForbids(station, approval, view.shown);
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
    (verdict === 'approve' && approval.state === 'approved') || (verdict === 'reject' && approval.state === 'rejected');
  if (agrees) return viewOf(station, approval);
  throw new GatewayError('conflict', `It is decided already: ${approval.state}.`, { txn: approval.txn });
}

function refuseOutsiders(approval: Approval, person: Person): void {
  if (person.name === approval.agent) throw new GatewayError('forbidden', 'Whoever asks cannot approve.');
  if (approval.groups.length === 0 || approval.groups.some((group) => person.groups.includes(group))) return;
  throw new GatewayError('forbidden', `This needs somebody of ${approval.groups.join(' or ')}; ${person.name} is not.`);
}

/** An approval adds to what policy allows; it never goes beyond. */
function refuseWhatPolicyForbids(station: Station, approval: Approval, shown: Shown | null): void {
  const why = whyNotNow(station, approval.agent, approval.tool, shown, undefined);
  if (why !== undefined)
    throw new GatewayError('conflict', `It cannot run any more: ${why}. The agent must ask anew.`, {
      txn: approval.txn,
    });
}

/** Why an approved call must not run under the policies in force; undefined when it may. */
export async function whyNotApproved(station: Station, call: Call, args: JsonObject): Promise<string | undefined> {
  const approval = await readApproval(station.db, call.txn);
  if (approval?.shown == null || approval.state !== 'approved') return 'it was not approved';
  if (approval.approvedDigest !== digestOf(approval.shown, station.policies().version))
    return 'the policies changed after it was approved';
  return whyNotNow(station, call.agent, call.tool, JSON.parse(approval.shown) as Shown, args);
}

/** Without the exact arguments, which a person may not see where they are redacted, the rules are asked when it runs. */
function whyNotNow(
  station: Station,
  agentName: string,
  toolName: string,
  shown: Shown | null,
  exact: JsonObject | undefined,
): string | undefined {
  const policies = station.policies();
  const agent = policies.agents.get(agentName);
  const tool = policies.tools.get(toolName);
  if (agent === undefined) return `there is no agent ${agentName} any more`;
  if (tool === undefined) return `there is no tool ${toolName} any more`;
  if (shown === null || shown.contract !== tool.digest) return `the contract of ${toolName} changed`;
  if (exact === undefined && tool.redact.length > 0) return undefined;
  const args = exact ?? (shown.args as JsonObject);
  const decision = decide(policies, agent, toolName, { args, saga: null, run: null, now: Date.now() });
  return decision.allowed ? undefined : decision.reason;
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
