/** The choice of a voter. Only approvals count; `abstain` means that the voter gave no usable answer. */
export type VoteChoice = 'approve' | 'deny' | 'abstain';

export interface Vote {
  readonly voter: string;
  readonly verdict: VoteChoice;
  /** For people only. An agent sees only which voters did not approve. */
  readonly reason: string;
}

/** Whether enough voters approve. No voter has a veto: a denial and an abstention count the same. */
export function hasQuorum(votes: readonly Vote[], quorum: number): boolean {
  return countApprovals(votes) >= quorum;
}

export function countApprovals(votes: readonly Vote[]): number {
  return votes.filter(({ verdict }) => verdict === 'approve').length;
}
