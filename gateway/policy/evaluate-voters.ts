import { countApprovals, type Vote } from '../domain/approvals/vote.ts';
import {
  ExpressionError,
  type ExpressionScope,
  type Rule,
  type VoterPoll,
  type WebhookVoter,
} from '../domain/policy.ts';

/**
 * What the voters of a rule say as far as it can be known without asking anybody. An expression that cannot be evaluated
 * abstains: it said neither yes nor no, and only a yes counts.
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

function evaluateVoter(voter: string, asks: () => boolean): Vote {
  try {
    return asks()
      ? { voter, verdict: 'approve', reason: 'its condition is true' }
      : { voter, verdict: 'deny', reason: 'its condition is false' };
  } catch (error) {
    const why = error instanceof ExpressionError ? error.message : 'unexpected error';
    return { voter, verdict: 'abstain', reason: `its condition cannot be evaluated: ${why}` };
  }
}

/** Whether those who are still to be asked can make it a yes. If not, they need not be troubled. */
export function canReachQuorum({ quorum, votes, open }: VoterPoll): boolean {
  return countApprovals(votes) + open.length >= quorum;
}
