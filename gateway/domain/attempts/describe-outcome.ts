import type { CallRecord } from '../calls/call-record.ts';
import { sanitize } from '../sanitize.ts';
import type { Outcome, UpstreamAnswer } from './adapter.ts';

/** What the ledger knows about the newest attempt of a call. */
export type LastAttempt = Pick<CallRecord, 'attempt' | 'attemptDetail'>;

/** The outcome of an attempt in words. */
export function describeOutcome(outcome: Outcome): string {
  switch (outcome.kind) {
    case 'ok':
      return describeStatus(outcome.answer);
    case 'accepted':
    case 'refused':
      return outcome.detail === undefined ? describeStatus(outcome.answer) : sanitize(outcome.detail);
    default:
      return sanitize(outcome.detail);
  }
}

function describeStatus({ status }: UpstreamAnswer): string {
  return `the upstream answered ${status}`;
}

/**
 * The result of the newest attempt in words. `outcome` is its outcome if this process made the attempt; otherwise the ledger
 * has the words of an earlier owner. If there was no attempt, the words say why.
 */
export function describeLastAttempt({ attempt, attemptDetail }: LastAttempt, outcome: Outcome | undefined): string {
  if (outcome !== undefined) return describeOutcome(outcome);
  return attemptDetail ?? (attempt === 0 ? 'it could not be sent in time' : 'it could not be sent again in time');
}
