import { randomUUID } from 'node:crypto';
import { requestVote, type VoteResponse } from '../../../adapters/webhook-voter.ts';
import { countApprovals, hasQuorum, type Vote } from '../../domain/approvals/vote.ts';
import { sha256Hex } from '../../domain/audit/audit.ts';
import type { CallEvent } from '../../domain/calls/call-record.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Policies, Rule, Tool, VoterPoll, WebhookVoter } from '../../domain/policy.ts';
import { canReachQuorum } from '../../policy/evaluate-voters.ts';
import type { Context } from '../context.ts';

/** A call that voters vote on, with the policies under which it was decided. */
export interface VoteSubject {
  readonly txn: string;
  readonly tool: Tool;
  readonly rule: Rule;
  readonly poll: VoterPoll;
  readonly policies: Policies;
  /** The shown request, as canonical JSON. */
  readonly shown: () => string;
}

/** Too few voters approve. The agent sees which voters did not approve; their reasons are for people only. */
export class QuorumNotReachedError extends GatewayError {
  readonly votes: readonly Vote[];

  constructor({ tool, rule, poll }: VoteSubject, votes: readonly Vote[]) {
    const missing = votes.filter(({ verdict }) => verdict !== 'approve').map(({ voter }) => voter);
    const detail = `${rule.id} allows ${tool.name} only if ${poll.quorum} of ${votes.length} voters approve; ${countApprovals(votes)} did. Not approved by: ${missing.join(', ')}.`;
    super('denied', detail, {
      members: { rule: rule.id, votes: votes.map(({ voter, verdict }) => ({ voter, verdict })) },
    });
    this.votes = votes;
  }
}

/** The votes of a call whose rule has no voters, or whose voters have not answered yet. */
export const NO_VOTES: readonly Vote[] = Object.freeze([]);

/**
 * Asks all voters at once, before the claim, so no transaction waits for them. A crash here leaves nothing; a repeat with the
 * same key asks the voters again. Throws when the quorum is not reached, and when the policies changed meanwhile: a vote
 * counts only for the policies under which it was cast.
 */
export async function askVoters(ctx: Context, subject: VoteSubject): Promise<readonly Vote[]> {
  const { poll, policies, tool } = subject;
  const ask = canReachQuorum(poll) ? (voter: WebhookVoter) => askOneVoter(ctx, subject, voter) : abstainUnasked;
  const votes = [...poll.votes, ...(await Promise.all(poll.open.map(ask)))];
  if (!hasQuorum(votes, poll.quorum)) throw new QuorumNotReachedError(subject, votes);
  const now = ctx.policies();
  if (now.version !== policies.version || now.tools.get(tool.name)?.digest !== tool.digest) {
    const detail =
      'The policies changed while the voters were asked, so nothing was sent. Repeat the request with the same key.';
    throw new GatewayError('unavailable', detail, { retryAfterSeconds: 1 });
  }
  return votes;
}

async function abstainUnasked({ name }: WebhookVoter): Promise<Vote> {
  return { voter: name, verdict: 'abstain', reason: 'the voter was not asked: the quorum cannot be reached' };
}

/** Open requests per voter of a rule. Denied calls cost an agent nothing, so without a limit it could flood a voter. */
const openRequests = new WeakMap<WebhookVoter, number>();
const MAX_OPEN_REQUESTS = 32;

async function askOneVoter(ctx: Context, subject: VoteSubject, voter: WebhookVoter): Promise<Vote> {
  const { vote, transportError } = await withRequestLimit(voter, () =>
    requestVote(voter, buildVoteRequest(subject, voter.name)),
  );
  if (vote.verdict === 'abstain') {
    const about = { voter: voter.name, txn: subject.txn, tool: subject.tool.name, why: vote.reason, transportError };
    ctx.log.warn(about, 'A voter abstained.');
  }
  return vote;
}

async function withRequestLimit(voter: WebhookVoter, ask: () => Promise<VoteResponse>): Promise<VoteResponse> {
  const open = openRequests.get(voter) ?? 0;
  if (open >= MAX_OPEN_REQUESTS)
    return {
      vote: {
        voter: voter.name,
        verdict: 'abstain',
        reason: `the voter already has ${open} open requests of this rule`,
      },
    };
  openRequests.set(voter, open + 1);
  return ask().finally(() => openRequests.set(voter, (openRequests.get(voter) ?? 1) - 1));
}

/** The shown request without its fingerprint, which would let a voter guess the redacted values. */
function buildVoteRequest({ txn, policies, shown: renderShown }: VoteSubject, voter: string) {
  const shown = renderShown();
  const delivery = randomUUID();
  const digest = sha256Hex(`${delivery}\n${voter}\n${txn}\n${policies.version}\n${shown}`);
  const { fingerprint: _, contract: __, ...visible } = JSON.parse(shown) as JsonObject;
  const body = { ...visible, kind: 'vote', voter, delivery, txn, policyVersion: policies.version, digest };
  return { digest, body: JSON.stringify(body) };
}

/** The votes as the audit log and the shown request hold them. */
export function renderVotes(votes: readonly Vote[]): JsonObject[] {
  return votes.map(({ voter, verdict, reason }) => ({ voter, verdict, reason }));
}

/** The votes as events of the timeline of the call. */
export function buildVoteEvents(votes: readonly Vote[]): CallEvent[] {
  const at = new Date().toISOString();
  return renderVotes(votes).map((vote) => ({ ...vote, what: 'vote', at }));
}
