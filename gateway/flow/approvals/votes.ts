import { randomUUID } from 'node:crypto';
import { requestVote, type VoteResponse } from '../../../adapters/webhook-voter.ts';
import { countApprovals, hasQuorum, type Vote } from '../../domain/approvals/vote.ts';
import { sha256Hex } from '../../domain/audit/audit.ts';
import type { CallEvent } from '../../domain/calls/call.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import type { Policies, Rule, Tool, VoterPoll, WebhookVoter } from '../../domain/policy.ts';
import type { Span } from '../../domain/telemetry.ts';
import { canReachQuorum } from '../../policy/evaluate-voters.ts';
import { isParticipant } from '../calls/shared-keys.ts';
import type { Context } from '../context.ts';

/** What is voted on: a call under the policies that were in force when it was judged. */
export interface VoteSubject {
  readonly txn: string;
  readonly tool: Tool;
  readonly rule: Rule;
  readonly poll: VoterPoll;
  readonly policies: Policies;
  /** Everything a person would be shown of it, as canonical JSON. */
  readonly shown: () => string;
}

/** Too few voters approve. The agent learns who did not; what they said is for people. */
export class QuorumNotReachedError extends GatewayError {
  readonly votes: readonly Vote[];

  constructor({ tool, rule, poll }: VoteSubject, votes: readonly Vote[]) {
    const others = votes.filter(({ verdict }) => verdict !== 'approve').map(({ voter }) => voter);
    const detail = `${rule.id} allows ${tool.name} only if ${poll.quorum} of ${votes.length} voters approve; ${countApprovals(votes)} did. Not: ${others.join(', ')}.`;
    super('denied', detail, {
      members: { rule: rule.id, votes: votes.map(({ voter, verdict }) => ({ voter, verdict })) },
    });
    this.votes = votes;
  }
}

/** Of a call whose rule has no voters, or while they are asked. */
export const NO_VOTES: readonly Vote[] = Object.freeze([]);

/**
 * What the voters of its rule say of a call. Undefined: it was let through before, or is under way, and is not put to the vote
 * again.
 */
export async function collectRuleVotes(
  ctx: Context,
  motion: VoteSubject,
  { agent, stint }: { readonly agent: string; readonly stint: Span },
): Promise<readonly Vote[] | undefined> {
  const { txn, tool } = motion;
  const earlier = await ctx.calls.read(txn);
  // Of a shared wish the first one's voters were asked: whoever would join it has voters of its own.
  if (earlier !== undefined && (await isParticipant(ctx, earlier, agent))) return undefined;
  const voting = ctx.watch.begin('vote', { tool: tool.name, agent, txn }, stint);
  return askVoters(ctx, motion).finally(() => voting.end());
}

/**
 * Asks every voter at once, before anything is written: no transaction waits for them. A crash in here leaves nothing, and
 * whoever asks again with the same key has them asked again. Throws when the call is not carried, or when the policies
 * changed meanwhile: a vote is about what these would do.
 */
export async function askVoters(ctx: Context, motion: VoteSubject): Promise<readonly Vote[]> {
  const { poll, policies, tool } = motion;
  const ask = canReachQuorum(poll) ? (voter: WebhookVoter) => askOneVoter(ctx, motion, voter) : abstainUnasked;
  const votes = [...poll.votes, ...(await Promise.all(poll.open.map(ask)))];
  if (!hasQuorum(votes, poll.quorum)) throw new QuorumNotReachedError(motion, votes);
  const now = ctx.policies();
  if (now.version !== policies.version || now.tools.get(tool.name)?.digest !== tool.digest) {
    const detail = 'The policies changed while voters were asked, so nothing was sent. Ask again with the same key.';
    throw new GatewayError('unavailable', detail, { retryAfterSeconds: 1 });
  }
  return votes;
}

async function abstainUnasked({ name }: WebhookVoter): Promise<Vote> {
  return { voter: name, verdict: 'abstain', reason: 'it was not asked: too few approvals were left to be had' };
}

/** Questions of one rule that a voter has open here. A denial costs an agent nothing, so it must not bury whoever denies. */
const openQuestions = new WeakMap<WebhookVoter, number>();
const MAX_OPEN_QUESTIONS = 32;

async function askOneVoter(ctx: Context, motion: VoteSubject, voter: WebhookVoter): Promise<Vote> {
  const { vote, trouble } = await withQuestionLimit(voter, () =>
    requestVote(voter, buildVoteRequest(motion, voter.name)),
  );
  if (vote.verdict === 'abstain') {
    const about = { voter: voter.name, txn: motion.txn, tool: motion.tool.name, why: vote.reason, trouble };
    ctx.log.warn(about, 'a voter abstained');
  }
  return vote;
}

async function withQuestionLimit(voter: WebhookVoter, ask: () => Promise<VoteResponse>): Promise<VoteResponse> {
  const open = openQuestions.get(voter) ?? 0;
  if (open >= MAX_OPEN_QUESTIONS)
    return {
      vote: { voter: voter.name, verdict: 'abstain', reason: `${open} questions of this rule are open already` },
    };
  openQuestions.set(voter, open + 1);
  return ask().finally(() => openQuestions.set(voter, (openQuestions.get(voter) ?? 1) - 1));
}

/** As a person sees it; what stands for redacted values (the fingerprint) is not for others. */
function buildVoteRequest({ txn, policies, ...motion }: VoteSubject, voter: string) {
  const shown = motion.shown();
  const delivery = randomUUID();
  const asked = sha256Hex(`${delivery}\n${voter}\n${txn}\n${policies.version}\n${shown}`);
  const { fingerprint: _, contract: __, ...seen } = JSON.parse(shown) as JsonObject;
  const question = { ...seen, kind: 'vote', voter, delivery, txn, policyVersion: policies.version, digest: asked };
  return { digest: asked, body: JSON.stringify(question) };
}

/** The votes as the log and whoever is shown the call have them. */
export function renderVotes(votes: readonly Vote[]): JsonObject[] {
  return votes.map(({ voter, verdict, reason }) => ({ voter, verdict, reason }));
}

/** And as the call's timeline does. */
export function buildVoteEvents(votes: readonly Vote[]): CallEvent[] {
  const at = new Date().toISOString();
  return renderVotes(votes).map((vote) => ({ ...vote, what: 'vote', at }));
}
