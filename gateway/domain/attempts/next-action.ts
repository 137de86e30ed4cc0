import type { CallKind } from '../calls/call-record.ts';
import type { RetryPolicy, Tool } from '../policy.ts';
import type { Outcome } from './adapter.ts';

/**
 * This file decides what the outcome of an attempt means for its call, and what happens next. Its functions are pure. No other
 * code decides whether a request may be sent again: fresh calls, recovered calls and calls in doubt all come here.
 */

export type AttemptConclusion =
  | { readonly state: 'succeeded' }
  | { readonly state: 'failed' }
  /** The call goes on. `unknown`: this attempt may have had an effect. */
  | { readonly state: 'open'; readonly unknown: boolean };

/**
 * Decides whether the outcome of an attempt ends the call. `unresolved` counts earlier attempts that may have had an effect. If
 * there is one, a refusal of this attempt proves nothing about it: a DELETE that worked answers 404 the second time.
 */
export function concludeAttempt(kind: CallKind, outcome: Outcome, unresolved: number): AttemptConclusion {
  switch (outcome.kind) {
    case 'ok':
    case 'ok_body_lost':
    case 'accepted':
      return { state: 'succeeded' };
    case 'refused':
      if (kind === 'read' && outcome.answer.status === 429) return { state: 'open', unknown: false };
      return unresolved === 0 ? { state: 'failed' } : { state: 'open', unknown: false };
    case 'not_sent':
      return { state: 'open', unknown: false };
    case 'ambiguous':
      return { state: 'open', unknown: kind !== 'read' };
  }
}

export interface CallProgress {
  readonly kind: CallKind;
  /** The number of attempts so far. */
  readonly attempt: number;
  /** The number of attempts before the current round. A person's verdict `retry` starts a new round. */
  readonly roundFrom: number;
  /** Closed attempts that may have had an effect. */
  readonly unresolved: number;
  readonly ownerDeaths: number;
  /** An approved call or a compensation. If nothing could be sent, the call fails, and its key is not released. */
  readonly shouldFailIfUnsent: boolean;
  /** The saga is being rolled back or the run was taken over: only requests that resolve an unknown attempt are sent. */
  readonly recalled: boolean;
  /** The run was taken over: a repeat could overwrite data of the successor. */
  readonly fenced: boolean;
  /** The ledger already shows the call as `in_doubt`. */
  readonly isRecordedInDoubt: boolean;
  /** The target was observed before the first attempt, and was not yet as requested. */
  readonly wasObserved: boolean;
  /** Whether the outcome of any attempt was ever unknown. */
  readonly wasUnknown: boolean;
  readonly msInRound: number;
  readonly msSinceUnknown: number;
  /** Time until the upstream forgets the key; Infinity for kinds without a key. */
  readonly msToResend: number;
}

export type NextAction =
  | { readonly do: 'send'; readonly afterMs: number }
  | { readonly do: 'probe' }
  /** Read whether the target is as requested now. */
  | { readonly do: 'observe' }
  /** Record `in_doubt`. Decide again after `wakeMs`; null: only a person can end the doubt. */
  | { readonly do: 'doubt'; readonly wakeMs: number | null; readonly why: string }
  /** Nothing was ever sent, and the attempts are used up: the key can be used again. */
  | { readonly do: 'release' }
  /** Nothing happened, and the attempts are used up. */
  | { readonly do: 'fail' };

const FENCED_REASON = 'the run was taken over, and a repeat could overwrite data of the successor';

/** A call whose owners die more often than this may be what kills them. */
export const MAX_OWNER_DEATHS = 5;

/** `isWoken`: the due time of the call has passed, or new evidence arrived, so the next request needs no pause. */
export function decideNextAction(
  progress: CallProgress,
  tool: Pick<Tool, 'retry' | 'once' | 'observe'>,
  isWoken: boolean,
): NextAction {
  const action = decideByKind(progress, tool, isWoken);
  const isPersonNeeded = action.do === 'doubt' && action.wakeMs === null && progress.ownerDeaths <= MAX_OWNER_DEATHS;
  return isPersonNeeded && progress.kind !== 'probe' ? observeBeforeDoubt(progress, tool.observe, action) : action;
}

/**
 * Observes the target before a person is asked, once the upstream has settled. The contract says what an observation proves.
 * The doubt is recorded first, because an observation may take long.
 */
function observeBeforeDoubt(progress: CallProgress, observe: Tool['observe'], doubt: NextAction): NextAction {
  if (observe === undefined || !progress.wasObserved) return doubt;
  const leftMs = (observe.settlesMs ?? 0) - progress.msSinceUnknown;
  if (progress.isRecordedInDoubt && leftMs <= 0) return { do: 'observe' };
  return {
    do: 'doubt',
    wakeMs: Math.max(leftMs, 1),
    why: 'the gateway waits for the upstream to settle, then observes it',
  };
}

function decideByKind(progress: CallProgress, tool: Pick<Tool, 'retry' | 'once'>, isWoken: boolean): NextAction {
  const tries = progress.attempt - progress.roundFrom;
  const isInTime = progress.msInRound <= tool.retry.withinMs;
  const isExhausted = tries >= tool.retry.attempts || !isInTime;
  const backoffMs = computeBackoffMs(tool.retry, tries);

  if (progress.ownerDeaths > MAX_OWNER_DEATHS) {
    const why = `the gateway died ${progress.ownerDeaths} times while it owned this call`;
    if (progress.attempt > 0) return { do: 'doubt', wakeMs: null, why };
    return progress.shouldFailIfUnsent ? { do: 'fail' } : { do: 'release' };
  }
  if (progress.unresolved === 0) {
    // A key that was sent once must not be sent after its lifetime, although the earlier attempt had no effect.
    const isTooLate = progress.kind === 'key' && progress.wasUnknown && progress.msToResend <= backoffMs;
    if (progress.recalled || isTooLate) return { do: 'fail' };
    if (!isExhausted) return { do: 'send', afterMs: isWoken ? 0 : backoffMs };
    return progress.wasUnknown || progress.shouldFailIfUnsent || progress.kind === 'read'
      ? { do: 'fail' }
      : { do: 'release' };
  }
  switch (progress.kind) {
    case 'read':
      return isExhausted ? { do: 'fail' } : { do: 'send', afterMs: backoffMs };
    case 'key':
      if (progress.msToResend <= backoffMs) {
        return {
          do: 'doubt',
          wakeMs: null,
          why: 'the lifetime of the key at the upstream is over: a re-send could have a second effect',
        };
      }
      return decideResend(isExhausted, isInTime, backoffMs, isWoken);
    case 'idempotent':
      if (progress.fenced) return { do: 'doubt', wakeMs: null, why: FENCED_REASON };
      // Re-send only within the time for retries: a later repeat could overwrite newer data.
      if (!isExhausted) return { do: 'send', afterMs: backoffMs };
      return { do: 'doubt', wakeMs: null, why: 'no clear answer, and the attempts are used up' };
    case 'probe': {
      const settlesMs = tool.once.by === 'probe' ? tool.once.settlesMs : 0;
      const leftMs = settlesMs - progress.msSinceUnknown;
      if (leftMs > 0)
        return { do: 'doubt', wakeMs: leftMs, why: 'the gateway waits for the upstream to settle, then probes it' };
      if (!isInTime)
        return { do: 'doubt', wakeMs: null, why: 'no probe gave a clear answer within the time for retries' };
      return { do: 'probe' };
    }
    case 'none':
      return {
        do: 'doubt',
        wakeMs: null,
        why: 'the contract of the tool allows neither a repeat nor a probe',
      };
  }
}

function decideResend(isExhausted: boolean, isInTime: boolean, backoffMs: number, isWoken: boolean): NextAction {
  if (isWoken && isInTime) return { do: 'send', afterMs: 0 };
  if (!isExhausted) return { do: 'send', afterMs: backoffMs };
  if (isInTime)
    return {
      do: 'doubt',
      wakeMs: backoffMs,
      why: 'no clear answer yet: the gateway sends the same request again later',
    };
  return { do: 'doubt', wakeMs: null, why: 'no clear answer within the time for retries' };
}

/**
 * Decides after the target could not be observed before the first attempt. Nothing is sent without that observation. It is
 * retried a few times before the call is given up. `failures` counts the failed observations.
 */
export function decideAfterFailedObservation(
  progress: Pick<CallProgress, 'shouldFailIfUnsent'>,
  retry: RetryPolicy,
  failures: number,
): NextAction {
  if (failures < retry.attempts) return { do: 'send', afterMs: computeBackoffMs(retry, failures) };
  return progress.shouldFailIfUnsent ? { do: 'fail' } : { do: 'release' };
}

/** Decides after a probe gave no clear answer: the tool is probed again later. */
export function decideAfterFailedProbe(retry: RetryPolicy, detail: string): NextAction {
  return { do: 'doubt', wakeMs: retry.maxMs, why: `the probe gave no clear answer: ${detail}` };
}

/**
 * Decides after the target of a call in doubt could not be observed. The observation is repeated only if it would be proof,
 * and only within the time for retries. Otherwise a person decides.
 */
export function decideAfterFailedReobservation(
  progress: Pick<CallProgress, 'msInRound'>,
  retry: RetryPolicy,
  isProof: boolean,
  detail: string,
): NextAction {
  const isInTime = progress.msInRound <= retry.withinMs;
  return {
    do: 'doubt',
    wakeMs: isProof && isInTime ? retry.maxMs : null,
    why: `its effect could not be observed: ${detail}`,
  };
}

/** Whether a failing read releases its key: it was never sent, and a read has no effect that a key must protect. */
export function isUnsentRead(
  progress: Pick<CallProgress, 'kind' | 'recalled' | 'shouldFailIfUnsent'>,
  lastOutcome: Outcome | undefined,
): boolean {
  return (
    progress.kind === 'read' && lastOutcome?.kind === 'not_sent' && !progress.recalled && !progress.shouldFailIfUnsent
  );
}

/** Whether a call that is blocked before its send releases its key: no attempt of it was ever unknown. */
export function canReleaseBlocked(
  progress: Pick<CallProgress, 'unresolved' | 'shouldFailIfUnsent' | 'wasUnknown'>,
): boolean {
  return progress.unresolved === 0 && !progress.shouldFailIfUnsent && !progress.wasUnknown;
}

export function computeBackoffMs(retry: RetryPolicy, tries: number): number {
  if (tries <= 0) return 0;
  return Math.min(retry.maxMs, retry.baseMs * 2 ** Math.min(tries - 1, 30));
}
