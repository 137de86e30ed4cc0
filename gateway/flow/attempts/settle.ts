import type { Outcome, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { Job } from './job.ts';
import { type DispatchResult, describeLastAttempt, type Recorder } from './record.ts';

/** How a call ends, by what is known of its last attempt. Each is one settlement, T2; what a crash leaves is told there. */

/** What was sent was answered, and the answer leaves no doubt. */
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
    // The tool has done nothing yet but ask: there is nothing to undo.
    job.undoArguments = null;
    return recorder.settle(job, 'succeeded', answer, { outcome: 'input_required', evidence: 'answer' });
  }
  const evidence = job.unresolved > 0 ? 'same_key' : 'answer';
  if (outcome.kind !== 'ok_body_lost')
    return recorder.settle(job, 'succeeded', answer, { outcome: 'answered', evidence });
  const { detail } = outcome;
  return recorder.settle(job, 'succeeded', answer, { outcome: 'body_unavailable', evidence, detail });
}

/** The world is as asked already: nothing is sent, and there is nothing to undo. */
export function settleSatisfied(recorder: Recorder, job: Job, answer: UpstreamAnswer): Promise<DispatchResult> {
  job.undoArguments = null;
  const end = { outcome: 'already_satisfied', evidence: 'probe', seenOnly: true } as const;
  return recorder.settle(job, 'succeeded', answer, end);
}

/** Nothing of it was sent, and nothing may be. */
export function settleDenied(recorder: Recorder, job: Job, detail: string): Promise<DispatchResult> {
  const end = { outcome: 'no_effect', evidence: 'gateway', problem: 'denied', detail } as const;
  return recorder.settle(job, 'failed', undefined, end);
}

/** Known not to have happened, and no attempt left. */
export function settleFailure(recorder: Recorder, job: Job, last: Outcome | undefined): Promise<DispatchResult> {
  const answer = last !== undefined && 'answer' in last ? last.answer : undefined;
  job.unresolved = 0;
  const evidence = job.disprovedBy === undefined ? 'gateway' : 'probe';
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
    detail:
      job.disprovedBy === undefined ? describeLastAttempt(job, last) : describeDisproof(job, job.disprovedBy, last),
  } as const;
}

/** A finding stands by itself where nobody knows what the attempt was told. */
function describeDisproof(job: Job, by: keyof typeof DISPROOF_TEXTS, last: Outcome | undefined): string {
  const found = `${DISPROOF_TEXTS[by]}, after ${job.attempt === 1 ? '1 attempt' : `${job.attempt} attempts`}`;
  return last === undefined && job.told === undefined ? found : `${describeLastAttempt(job, last)}; ${found}`;
}

const DISPROOF_TEXTS = { probe: 'not applied, says the probe', look: 'not as asked, says a second look' } as const;
