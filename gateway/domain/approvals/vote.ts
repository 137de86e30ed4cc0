/** What a voter says of a call. Only approvals count; the other two tell a no from a voter that said nothing of use. */
export type VoteChoice = 'approve' | 'deny' | 'abstain';

export interface Vote {
  readonly voter: string;
  readonly verdict: VoteChoice;
  /** For people: an agent is told only who did not approve. */
  readonly reason: string;
}

/** Whether enough voters approve. Nobody has a veto: a deny is an approval less, as an abstention is. */
export function hasQuorum(votes: readonly Vote[], quorum: number): boolean {
  return countApprovals(votes) >= quorum;
}

export function countApprovals(votes: readonly Vote[]): number {
  return votes.filter(({ verdict }) => verdict === 'approve').length;
}
