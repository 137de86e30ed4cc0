import type { CallRecord, Evidence } from '../calls/call-record.ts';
import type { ErrorCode } from '../errors.ts';
import type { Outcome } from './adapter.ts';
import { describeLastAttempt, type LastAttempt } from './describe-outcome.ts';

/** How a call ends, and the evidence for it. The functions of this file are pure. */
export interface Settlement {
  readonly state: 'succeeded' | 'failed';
  readonly outcome: string;
  readonly evidence: Evidence;
  readonly problem?: ErrorCode;
  readonly detail?: string;
  /** The only evidence is an observation. Unlike an answer, it cannot settle a call that another process owns by now. */
  readonly isObservationOnly?: boolean;
}

/** An observation before the send found the requested state, so nothing is sent. */
export const ALREADY_SATISFIED: Settlement = {
  state: 'succeeded',
  outcome: 'already_satisfied',
  evidence: 'probe',
  isObservationOnly: true,
};

/** An observation, which the contract of the tool declares as proof, found the effect of an unknown attempt. */
export const OBSERVED: Settlement = {
  state: 'succeeded',
  outcome: 'observed',
  evidence: 'probe',
  isObservationOnly: true,
};

/** A probe found the effect of an attempt whose outcome was unknown. `detail`: why the result is not the usual one. */
export function buildProbedSettlement(detail?: string): Settlement {
  return withDetail({ state: 'succeeded', outcome: 'probed', evidence: 'probe' }, detail);
}

/** The settlement of a call whose attempt was conclusive. `unresolved` counts earlier attempts that may have had an effect. */
export function buildAnswerSettlement(state: 'succeeded' | 'failed', outcome: Outcome, unresolved: number): Settlement {
  if (state === 'failed') return { state, outcome: 'refused', evidence: 'answer', problem: 'tool_failed' };
  if (outcome.kind === 'ok' && outcome.wantsInput === true)
    return { state, outcome: 'input_required', evidence: 'answer' };
  const evidence = unresolved > 0 ? 'same_key' : 'answer';
  if (outcome.kind === 'accepted') return withDetail({ state, outcome: 'accepted', evidence }, outcome.detail);
  if (outcome.kind !== 'ok_body_lost') return { state, outcome: 'answered', evidence };
  return { state, outcome: 'body_unavailable', evidence, detail: outcome.detail };
}

function withDetail(settlement: Settlement, detail: string | undefined): Settlement {
  return detail === undefined ? settlement : { ...settlement, detail };
}

/** The settlement of a call that was never sent and may not be sent now. */
export function buildDeniedSettlement(detail: string): Settlement {
  return { state: 'failed', outcome: 'no_effect', evidence: 'gateway', problem: 'denied', detail };
}

/** A call that is known to have had no effect. */
export type FailedCall = LastAttempt & Pick<CallRecord, 'recalled' | 'fenced' | 'disprovedBy'>;

/** The settlement of a call that had no effect and has no attempt left. `outcome` is that of its last attempt, if known. */
export function buildFailedSettlement(call: FailedCall, outcome: Outcome | undefined): Settlement {
  const evidence = call.disprovedBy === null ? 'gateway' : 'probe';
  return { state: 'failed', outcome: 'no_effect', evidence, ...describeFailure(call, outcome) };
}

function describeFailure(
  call: FailedCall,
  outcome: Outcome | undefined,
): { readonly problem: ErrorCode; readonly detail: string } {
  if (call.recalled && call.fenced) return { problem: 'fenced', detail: 'its run was taken over before it was sent' };
  if (call.recalled) return { problem: 'saga_closed', detail: 'its saga was rolled back before it was sent' };
  const isUnsent = call.attempt === 0 || outcome?.kind === 'not_sent';
  return {
    problem: isUnsent ? 'unavailable' : 'tool_failed',
    detail:
      call.disprovedBy === null
        ? describeLastAttempt(call, outcome)
        : describeDisproof(call, call.disprovedBy, outcome),
  };
}

const DISPROOF_TEXTS = {
  probe: 'the probe found no effect',
  observation: 'a second observation found no effect',
} as const;

/** Names the evidence, after the result of the last attempt if that is known. */
function describeDisproof(call: FailedCall, by: keyof typeof DISPROOF_TEXTS, outcome: Outcome | undefined): string {
  const finding = `${DISPROOF_TEXTS[by]} after ${call.attempt === 1 ? '1 attempt' : `${call.attempt} attempts`}`;
  return outcome === undefined && call.attemptDetail === null
    ? finding
    : `${describeLastAttempt(call, outcome)}; ${finding}`;
}
