import { countApprovals, type Vote } from '../domain/approvals/vote.ts';
import {
  ExpressionError,
  type ExpressionScope,
  type Rule,
  type VoterPoll,
  type WebhookVoter,
} from '../domain/policy.ts';

/**
 * Evaluates the voters of a rule that are expressions and lists the webhooks that are still to be asked. An expression that cannot
 * be evaluated abstains, because only an approval counts.
 */
export function evaluateVoters({ voters }: Rule, scope: ExpressionScope): VoterPoll | undefined {
  if (voters === undefined) return undefined;
  const votes: Vote[] = [];
  const open: WebhookVoter[] = [];
  for (const voter of voters.of) {
    if ('when' in voter) votes.push(evaluateVoter(voter.name, () => voter.when(scope)));
    else open.push(voter);
  }
  return { quorum: voters.quorum, votes, open };
}

function evaluateVoter(voter: string, evaluate: () => boolean): Vote {
  try {
    return evaluate()
      ? { voter, verdict: 'approve', reason: 'the condition is true' }
      : { voter, verdict: 'deny', reason: 'the condition is false' };
  } catch (error) {
    const cause = error instanceof ExpressionError ? error.message : 'unexpected error';
    return { voter, verdict: 'abstain', reason: `the condition cannot be evaluated: ${cause}` };
  }
}

/** Whether the open webhooks could still complete the quorum. If not, there is no need to ask them. */
export function canReachQuorum({ quorum, votes, open }: VoterPoll): boolean {
  return countApprovals(votes) + open.length >= quorum;
}
