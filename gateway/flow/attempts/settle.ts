import type { Outcome, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { Job } from './job.ts';
import { type DispatchResult, describeLastAttempt, type Recorder } from './record.ts';

// The ways in which a call ends, by the outcome of its last attempt. Each calls `Recorder.settle` once.

/** The upstream answered, and the answer is conclusive. */
export function settleAnswer(
  recorder: Recorder,
  job: Job,
  state: 'succeeded' | 'failed',
  outcome: Outcome,
): Promise<DispatchResult> {
  const answer = 'answer' in outcome ? outcome.answer : undefined;
  if (state === 'failed')
    return recorder.settle(job, 'failed', answer, { outcome: 'refused', evidence: 'answer', problem: 'tool_failed' });
  if (outcome.kind === 'ok' && outcome.wantsInput === true) {
    // The tool only asked for input, so there is nothing to undo.
    job.undoArguments = null;
    return recorder.settle(job, 'succeeded', answer, { outcome: 'input_required', evidence: 'answer' });
  }
  const evidence = job.unresolved > 0 ? 'same_key' : 'answer';
  if (outcome.kind === 'accepted') {
    const cut = outcome.detail === undefined ? {} : { detail: outcome.detail };
    return recorder.settle(job, 'succeeded', answer, { outcome: 'accepted', evidence, ...cut });
  }
  if (outcome.kind !== 'ok_body_lost')
    return recorder.settle(job, 'succeeded', answer, { outcome: 'answered', evidence });
  const { detail } = outcome;
  return recorder.settle(job, 'succeeded', answer, { outcome: 'body_unavailable', evidence, detail });
}

/** The requested state exists already: nothing is sent, and there is nothing to undo. */
export function settleSatisfied(recorder: Recorder, job: Job, answer: UpstreamAnswer): Promise<DispatchResult> {
  job.undoArguments = null;
  const settlement = { outcome: 'already_satisfied', evidence: 'probe', isObservationOnly: true } as const;
  return recorder.settle(job, 'succeeded', answer, settlement);
}

/** Nothing was sent, and nothing may be sent. */
export function settleDenied(recorder: Recorder, job: Job, detail: string): Promise<DispatchResult> {
  const settlement = { outcome: 'no_effect', evidence: 'gateway', problem: 'denied', detail } as const;
  return recorder.settle(job, 'failed', undefined, settlement);
}

/** The call had no effect, and no attempt is left. */
export function settleFailure(recorder: Recorder, job: Job, last: Outcome | undefined): Promise<DispatchResult> {
  const answer = last !== undefined && 'answer' in last ? last.answer : undefined;
  job.unresolved = 0;
  const evidence = job.disprovedBy === null ? 'gateway' : 'probe';
  return recorder.settle(job, 'failed', answer, { outcome: 'no_effect', evidence, ...describeFailure(job, last) });
}

function describeFailure(job: Job, last: Outcome | undefined) {
  if (job.recalled)
    return job.fenced
      ? ({ problem: 'fenced', detail: 'its run was taken over before it was sent' } as const)
      : ({ problem: 'saga_closed', detail: 'its saga was rolled back before it was sent' } as const);
  const isUnsent = job.attempt === 0 || last?.kind === 'not_sent';
  return {
    problem: isUnsent ? 'unavailable' : 'tool_failed',
    detail: job.disprovedBy === null ? describeLastAttempt(job, last) : describeDisproof(job, job.disprovedBy, last),
  } as const;
}

/** Names the evidence, after the result of the last attempt if that is known. */
function describeDisproof(job: Job, by: keyof typeof DISPROOF_TEXTS, last: Outcome | undefined): string {
  const finding = `${DISPROOF_TEXTS[by]} after ${job.attempt === 1 ? '1 attempt' : `${job.attempt} attempts`}`;
  return last === undefined && job.attemptDetail === null ? finding : `${describeLastAttempt(job, last)}; ${finding}`;
}

const DISPROOF_TEXTS = {
  probe: 'the probe found no effect',
  observation: 'a second observation found no effect',
} as const;
