import type { CallKind } from '../calls/call.ts';
import type { RetryPolicy, Tool } from '../policy.ts';
import type { Outcome } from './adapter.ts';

/**
 * What an attempt's outcome does to its call, and what may be done next. Pure, and the only place where it is decided
 * whether something may be sent again: a fresh call, a recovered one and one in doubt all ask here.
 */

export type AttemptConclusion =
  | { readonly state: 'succeeded' }
  | { readonly state: 'failed' }
  /** Not the end. `unknown`: this attempt may have had an effect. */
  | { readonly state: 'open'; readonly unknown: boolean };

/**
 * `unresolved` counts earlier attempts that may have had an effect. While there is one, a refusal of a later attempt
 * proves nothing about the earlier: a DELETE that happened answers 404 the second time.
 */
export function concludeAttempt(kind: CallKind, outcome: Outcome, unresolved: number): AttemptConclusion {
  switch (outcome.kind) {
    case 'ok':
    case 'ok_body_lost':
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
  readonly attempt: number;
  readonly roundFrom: number;
  readonly unresolved: number;
  readonly ownerDeaths: number;
  /** A person approved it, or it undoes something: when nothing could be sent it fails, and the key stays bound. */
  readonly bound: boolean;
  /** Its saga is rolled back: nothing more is sent, except to find out about what was. */
  readonly recalled: boolean;
  /** Its run was taken over: what it would overwrite may be its successor's by now. */
  readonly fenced: boolean;
  /** It is recorded as `in_doubt`, so whoever asks sees it. */
  readonly isSaid: boolean;
  /** What it would change was seen before its first attempt, and was not as asked. */
  readonly wasObserved: boolean;
  /** Whether some attempt's outcome was ever unknown. */
  readonly wasUnknown: boolean;
  readonly msInRound: number;
  readonly msSinceUnknown: number;
  /** Time left in which the upstream still knows the key; Infinity for kinds without one. */
  readonly msToResend: number;
}

export type NextAction =
  | { readonly do: 'send'; readonly afterMs: number }
  | { readonly do: 'probe' }
  /** See whether the world is as asked now. */
  | { readonly do: 'observe' }
  /** Say `in_doubt`; look again after `wakeMs`, or never (null): only a person can tell. */
  | { readonly do: 'doubt'; readonly wakeMs: number | null; readonly why: string }
  /** Nothing was ever sent and the attempts are used up: unbind the key. */
  | { readonly do: 'release' }
  /** It is known that nothing happened, and the attempts are used up. */
  | { readonly do: 'fail' };

const FENCED_REASON =
  'its run was taken over, and a repeat could overwrite what the successor wrote: a person must look';

/** A call whose owners keep dying under it may be what kills them. */
export const MAX_OWNER_DEATHS = 5;

export function decideNextAction(
  facts: CallProgress,
  tool: Pick<Tool, 'retry' | 'once' | 'observe'>,
  woken: boolean,
): NextAction {
  const step = decideByKind(facts, tool, woken);
  const isForPerson = step.do === 'doubt' && step.wakeMs === null && facts.ownerDeaths <= MAX_OWNER_DEATHS;
  return isForPerson && facts.kind !== 'probe' ? observeBeforeDoubt(facts, tool.observe, step) : step;
}

/**
 * Where only a person could tell: a look, once the upstream has settled. What it proves is for the tool to say. The doubt is
 * said first, because a look may take long.
 */
function observeBeforeDoubt(facts: CallProgress, observe: Tool['observe'], doubt: NextAction): NextAction {
  if (observe === undefined || !facts.wasObserved) return doubt;
  const left = (observe.settlesMs ?? 0) - facts.msSinceUnknown;
  if (facts.isSaid && left <= 0) return { do: 'observe' };
  return { do: 'doubt', wakeMs: Math.max(left, 1), why: 'waiting for the upstream to settle before looking at it' };
}

function decideByKind(facts: CallProgress, tool: Pick<Tool, 'retry' | 'once'>, woken: boolean): NextAction {
  const tries = facts.attempt - facts.roundFrom;
  const inTime = facts.msInRound <= tool.retry.withinMs;
  const exhausted = tries >= tool.retry.attempts || !inTime;
  const wait = computeBackoffMs(tool.retry, tries);

  if (facts.ownerDeaths > MAX_OWNER_DEATHS) {
    const why = `the gateway died ${facts.ownerDeaths} times while it held this call`;
    if (facts.attempt > 0) return { do: 'doubt', wakeMs: null, why };
    return facts.bound ? { do: 'fail' } : { do: 'release' };
  }
  if (facts.unresolved === 0) {
    // A key that was sent once must not be sent after its lifetime, although nothing came of it.
    const isTooLate = facts.kind === 'key' && facts.wasUnknown && facts.msToResend <= wait;
    if (facts.recalled || isTooLate) return { do: 'fail' };
    if (!exhausted) return { do: 'send', afterMs: woken ? 0 : wait };
    return facts.wasUnknown || facts.bound || facts.kind === 'read' ? { do: 'fail' } : { do: 'release' };
  }
  switch (facts.kind) {
    case 'read':
      return exhausted ? { do: 'fail' } : { do: 'send', afterMs: wait };
    case 'key':
      if (facts.msToResend <= wait) {
        return {
          do: 'doubt',
          wakeMs: null,
          why: "the key's lifetime at the upstream is over: a re-send could act twice",
        };
      }
      return decideResend(exhausted, inTime, wait, woken);
    case 'idempotent':
      if (facts.fenced) return { do: 'doubt', wakeMs: null, why: FENCED_REASON };
      // Not later: by then somebody may have written something newer that a repeat would overwrite.
      if (!exhausted) return { do: 'send', afterMs: wait };
      return { do: 'doubt', wakeMs: null, why: 'no clear answer, and the attempts are used up' };
    case 'probe': {
      const settlesMs = tool.once.by === 'probe' ? tool.once.settlesMs : 0;
      const left = settlesMs - facts.msSinceUnknown;
      if (left > 0) return { do: 'doubt', wakeMs: left, why: 'waiting for the upstream to settle before probing' };
      if (!inTime) return { do: 'doubt', wakeMs: null, why: 'the probe could not tell in time' };
      return { do: 'probe' };
    }
    case 'none':
      return { do: 'doubt', wakeMs: null, why: 'the tool has no way to repeat or to probe: a person must look' };
  }
}

function decideResend(exhausted: boolean, inTime: boolean, wait: number, woken: boolean): NextAction {
  if (woken && inTime) return { do: 'send', afterMs: 0 };
  if (!exhausted) return { do: 'send', afterMs: wait };
  if (inTime) return { do: 'doubt', wakeMs: wait, why: 'no clear answer yet: the same request is sent again later' };
  return { do: 'doubt', wakeMs: null, why: 'no clear answer within the time for retries' };
}

export function computeBackoffMs(retry: RetryPolicy, tries: number): number {
  if (tries <= 0) return 0;
  return Math.min(retry.maxMs, retry.baseMs * 2 ** Math.min(tries - 1, 30));
}
