import type { CallEvent, CallRecord } from '../../domain/calls/call-record.ts';
import type { History, HistoryQuery } from '../../domain/calls/history.ts';
import type { ApprovalRequest } from '../approvals/approvals.ts';
import type { LockConflict, LockRequest } from '../controls/locks.ts';
import type { TaintExposure } from '../controls/taints.ts';
import type { LimitCharge, LimitExceeded } from './limits.ts';

/** What a claim writes: the record of a new call, and what its tables do not keep. */
export interface NewCall {
  readonly record: CallRecord;
  /** How long a held call waits for a person or for its delay. */
  readonly dueInMs: number | null;
  /** For a compensation: the claim wins only while the undo is due and has had exactly this many tries. */
  readonly undoTries: number | null;
  /** The audit entry, written in the same statement. */
  readonly entry: string;
}

/** The claim guards: conditions that must hold in the transaction of the claim. */
export interface ClaimGuards {
  readonly charges: readonly LimitCharge[];
  readonly approval: ApprovalRequest | undefined;
  readonly locks: LockRequest | undefined;
  /** The txn of the caller's own key beside a shared key. The key must be bound to no other call. */
  readonly alias?: string | undefined;
  /** The history queries of the rules, and whether the decision would be the same with newer answers. */
  readonly history?:
    | { readonly queries: readonly HistoryQuery[]; readonly isDecisionUnchanged: (history: History) => boolean }
    | undefined;
  /** The scopes that this call taints. */
  readonly exposure?: TaintExposure | undefined;
  /** Votes that were cast before the claim, as events for the timeline of the call. */
  readonly events?: readonly CallEvent[];
}

/** The agent's history changed after the decision, and its rules now decide differently. */
export interface StaleDecision {
  readonly kind: 'stale_decision';
  readonly history: History;
}

/** This claim wrote the intent. `lockToken` is null when the call locks nothing. */
export interface ClaimWon {
  readonly kind: 'won';
  readonly lockToken: number | null;
}

/** The txn exists already, or its run, saga or undone step refuses the claim. Nothing was written. */
export interface ClaimTaken {
  readonly kind: 'taken';
}

/** What became of a claim. Only `won` wrote something. */
export type ClaimResult = ClaimWon | ClaimTaken | LimitExceeded | LockConflict | StaleDecision;

// Shared constants: a claim without locks allocates no result.
export const CLAIM_WON: ClaimWon = { kind: 'won', lockToken: null };
export const CLAIM_TAKEN: ClaimTaken = { kind: 'taken' };
