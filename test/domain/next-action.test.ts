import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Outcome, UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import {
  type CallProgress,
  canReleaseBlocked,
  computeBackoffMs,
  concludeAttempt,
  decideAfterFailedObservation,
  decideAfterFailedProbe,
  decideAfterFailedReobservation,
  decideNextAction,
  isUnsentRead,
  MAX_OWNER_DEATHS,
  type NextAction,
} from '../../gateway/domain/attempts/next-action.ts';
import type { CallKind } from '../../gateway/domain/calls/call-record.ts';
import type { RetryPolicy, Tool } from '../../gateway/domain/policy.ts';

const KINDS: readonly CallKind[] = ['read', 'key', 'idempotent', 'probe', 'none'];
const RETRY: RetryPolicy = { attempts: 3, baseMs: 100, maxMs: 1_000, withinMs: 60_000 };
const SETTLES = 5_000;

const onceOf = (kind: CallKind): Tool['once'] => {
  if (kind === 'key') return { by: 'key', header: 'k', lifetimeMs: 1_000 };
  if (kind === 'probe') return { by: 'probe', tool: 'p', args: () => ({}), applied: () => true, settlesMs: SETTLES };
  return kind === 'idempotent' ? { by: 'idempotent' } : { by: 'none' };
};
const toolOf = (kind: CallKind, retry = RETRY) => ({ retry, once: onceOf(kind) });
const observeSpec = (settlesMs?: number): NonNullable<Tool['observe']> => ({
  tool: 'o',
  args: () => ({}),
  satisfied: () => true,
  ...(settlesMs !== undefined && { settlesMs }),
});

const progressOf = (more: Partial<CallProgress> & Pick<CallProgress, 'kind'>): CallProgress => ({
  shouldFailIfUnsent: false,
  recalled: false,
  fenced: false,
  isRecordedInDoubt: true,
  wasObserved: false,
  attempt: 1,
  roundFrom: 0,
  unresolved: 0,
  ownerDeaths: 0,
  wasUnknown: (more.unresolved ?? 0) > 0,
  msInRound: 0,
  msSinceUnknown: 0,
  msToResend: Number.POSITIVE_INFINITY,
  ...more,
});
const decide = (more: Partial<CallProgress> & Pick<CallProgress, 'kind'>, woken = false): NextAction =>
  decideNextAction(progressOf(more), toolOf(more.kind), woken);

/** The next action of a tool that observed before its first send. */
const decideObserved = (more: Partial<CallProgress> & Pick<CallProgress, 'kind'>, settlesMs?: number): NextAction =>
  decideNextAction(
    progressOf({ wasObserved: true, unresolved: 1, ...more }),
    { ...toolOf(more.kind), observe: observeSpec(settlesMs) },
    true,
  );

const answerOf = (status: number): UpstreamAnswer => ({ status, contentType: null, body: null, encoding: 'utf8' });
const OUTCOMES: readonly Outcome[] = [
  { kind: 'ok', answer: answerOf(200) },
  { kind: 'ok_body_lost', answer: answerOf(200), detail: 'cut' },
  { kind: 'accepted', answer: answerOf(202) },
  { kind: 'refused', answer: answerOf(404) },
  { kind: 'refused', answer: answerOf(429) },
  { kind: 'not_sent', detail: 'down' },
  { kind: 'not_sent', detail: 'lease', abandoned: true },
  { kind: 'ambiguous', detail: 'reset' },
  { kind: 'ambiguous', detail: '500', answer: answerOf(500) },
];

describe('the conclusion of an outcome', () => {
  it.each<[CallKind, Outcome['kind'], number, string]>([
    ['none', 'ok', 0, 'succeeded'],
    ['none', 'ok_body_lost', 0, 'succeeded'],
    ['none', 'accepted', 0, 'succeeded'],
    ['none', 'refused', 0, 'failed'],
    ['none', 'not_sent', 0, 'open'],
    ['none', 'ambiguous', 0, 'open, unknown'],
    ['key', 'ok', 1, 'succeeded'],
    ['key', 'refused', 1, 'open'],
    ['idempotent', 'refused', 2, 'open'],
    ['probe', 'not_sent', 1, 'open'],
    ['read', 'ambiguous', 0, 'open'],
    ['read', 'refused', 0, 'failed'],
  ])('%s, %s, %i unresolved: %s', (kind, outcome, unresolved, expected) => {
    const [state, unknown] = expected.split(', ');
    const found = OUTCOMES.find((each) => each.kind === outcome) as Outcome;
    expect(concludeAttempt(kind, found, unresolved)).toEqual(
      state === 'open' ? { state, unknown: unknown === 'unknown' } : { state },
    );
  });

  it('lets only a read retry after a 429', () => {
    const slow: Outcome = { kind: 'refused', answer: answerOf(429) };
    expect(concludeAttempt('read', slow, 0)).toEqual({ state: 'open', unknown: false });
    for (const kind of KINDS.filter((each) => each !== 'read'))
      expect(concludeAttempt(kind, slow, 0).state).toBe('failed');
  });

  it('never fails while an earlier attempt may have had an effect', () => {
    fc.assert(
      fc.property(
        fc.constantFrom(...KINDS),
        fc.constantFrom(...OUTCOMES),
        fc.integer({ min: 1 }),
        (kind, outcome, n) => {
          expect(concludeAttempt(kind, outcome, n).state).not.toBe('failed');
        },
      ),
    );
  });

  it('is succeeded only for a success, failed only for a refusal, and unknown only for an ambiguous outcome', () => {
    fc.assert(
      fc.property(fc.constantFrom(...KINDS), fc.constantFrom(...OUTCOMES), fc.nat(), (kind, outcome, n) => {
        const conclusion = concludeAttempt(kind, outcome, n);
        expect(conclusion.state === 'succeeded').toBe(['ok', 'ok_body_lost', 'accepted'].includes(outcome.kind));
        if (conclusion.state === 'failed') expect(outcome.kind).toBe('refused');
        if (conclusion.state === 'open')
          expect(conclusion.unknown).toBe(outcome.kind === 'ambiguous' && kind !== 'read');
      }),
    );
  });
});

describe('the next action', () => {
  it.each<[string, NextAction['do'], NextAction]>([
    ['not sent: send again after a pause', 'send', decide({ kind: 'none' })],
    ['not sent, attempts used up: release the key', 'release', decide({ kind: 'none', attempt: 3 })],
    ['not sent, time used up: release the key', 'release', decide({ kind: 'key', msInRound: 60_001 })],
    ['read, attempts used up: fail', 'fail', decide({ kind: 'read', attempt: 3 })],
    ['probed "not applied", attempts left: send again', 'send', decide({ kind: 'probe', wasUnknown: true })],
    ['probed "not applied", none left: fail', 'fail', decide({ kind: 'probe', wasUnknown: true, attempt: 3 })],
    ['none in doubt: a person', 'doubt', decide({ kind: 'none', unresolved: 1 })],
    ['probe not settled: doubt', 'doubt', decide({ kind: 'probe', unresolved: 1, msSinceUnknown: SETTLES - 1 })],
    ['probe settled: probe', 'probe', decide({ kind: 'probe', unresolved: 1, msSinceUnknown: SETTLES })],
    [
      'probe out of time: a person',
      'doubt',
      decide({ kind: 'probe', unresolved: 1, msSinceUnknown: 70_000, msInRound: 60_001 }),
    ],
    ['key in doubt: send again', 'send', decide({ kind: 'key', unresolved: 1 })],
    ['key in doubt, lifetime over: a person', 'doubt', decide({ kind: 'key', unresolved: 1, msToResend: 0 })],
    [
      'key in doubt, lifetime over before the pause ends: a person',
      'doubt',
      decide({ kind: 'key', unresolved: 1, msToResend: 100 }),
    ],
    ['idempotent in doubt: send again', 'send', decide({ kind: 'idempotent', unresolved: 1 })],
    ['key in doubt, attempts used up: later', 'doubt', decide({ kind: 'key', unresolved: 1, attempt: 3 })],
    [
      'idempotent in doubt, attempts used up: a person',
      'doubt',
      decide({ kind: 'idempotent', unresolved: 1, attempt: 3 }),
    ],
    ['key in doubt, woken: send again', 'send', decide({ kind: 'key', unresolved: 1, attempt: 9 }, true)],
    [
      'idempotent in doubt, woken too late: a person',
      'doubt',
      decide({ kind: 'idempotent', unresolved: 1, attempt: 9 }, true),
    ],
    ['a new round has new attempts', 'send', decide({ kind: 'none', attempt: 9, roundFrom: 9 })],
    ['owners keep dying: a person', 'doubt', decide({ kind: 'key', ownerDeaths: MAX_OWNER_DEATHS + 1 })],
    [
      'owners keep dying, nothing sent: release the key',
      'release',
      decide({ kind: 'key', attempt: 0, ownerDeaths: 9 }),
    ],
  ])('%s', (_name, expected, actual) => {
    expect(actual.do).toBe(expected);
  });

  it('wakes by itself only if that can end the doubt', () => {
    expect(decide({ kind: 'none', unresolved: 1 })).toMatchObject({ wakeMs: null });
    expect(decide({ kind: 'key', unresolved: 1, msToResend: -1 })).toMatchObject({ wakeMs: null });
    expect(decide({ kind: 'probe', unresolved: 1, msSinceUnknown: 1_000 })).toMatchObject({ wakeMs: SETTLES - 1_000 });
    expect(decide({ kind: 'key', unresolved: 1, attempt: 3 })).toMatchObject({ wakeMs: 400 });
    expect(decide({ kind: 'key', unresolved: 1, attempt: 3, msInRound: 60_001 })).toMatchObject({ wakeMs: null });
    // A later repeat could overwrite newer data.
    expect(decide({ kind: 'idempotent', unresolved: 1, attempt: 3 })).toMatchObject({ wakeMs: null });
  });
});

describe('the next action of a tool with observe', () => {
  const settled = { msSinceUnknown: SETTLES };
  const usedUp = { attempt: 9 };

  it.each<[string, NextAction['do'], NextAction]>([
    ['none, settled: observe', 'observe', decideObserved({ kind: 'none', ...settled }, SETTLES)],
    ['none, not settled: wait', 'doubt', decideObserved({ kind: 'none', msSinceUnknown: SETTLES - 1 }, SETTLES)],
    [
      'none, settled, doubt not recorded: record it first',
      'doubt',
      decideObserved({ kind: 'none', isRecordedInDoubt: false, ...settled }, SETTLES),
    ],
    ['none, settles at once: observe', 'observe', decideObserved({ kind: 'none' }, 0)],
    ['none, without settles: observe, to inform a person', 'observe', decideObserved({ kind: 'none' })],
    [
      'none, never observed before: a person',
      'doubt',
      decideObserved({ kind: 'none', wasObserved: false, ...settled }, SETTLES),
    ],
    ['idempotent, attempts left: the same bytes', 'send', decideObserved({ kind: 'idempotent', ...settled }, SETTLES)],
    [
      'idempotent, attempts used up: observe',
      'observe',
      decideObserved({ kind: 'idempotent', ...usedUp, ...settled }, SETTLES),
    ],
    [
      'idempotent, taken over: observe',
      'observe',
      decideObserved({ kind: 'idempotent', fenced: true, ...settled }, SETTLES),
    ],
    ['key, in its lifetime: the same key', 'send', decideObserved({ kind: 'key', ...settled }, SETTLES)],
    ['key, lifetime over: observe', 'observe', decideObserved({ kind: 'key', msToResend: 0, ...settled }, SETTLES)],
    [
      'key, time for retries over: observe',
      'observe',
      decideObserved({ kind: 'key', msInRound: 60_001, ...settled }, SETTLES),
    ],
    ['probe: probe instead', 'probe', decideObserved({ kind: 'probe', ...settled }, SETTLES)],
    ['owners keep dying: a person', 'doubt', decideObserved({ kind: 'none', ownerDeaths: 9, ...settled }, SETTLES)],
  ])('%s', (_name, expected, actual) => {
    expect(actual.do).toBe(expected);
  });

  it('waits exactly until the upstream has settled, and records the doubt before it observes', () => {
    expect(decideObserved({ kind: 'none', msSinceUnknown: 1_000 }, SETTLES)).toMatchObject({ wakeMs: SETTLES - 1_000 });
    expect(decideObserved({ kind: 'none', isRecordedInDoubt: false, ...settled }, SETTLES)).toMatchObject({
      wakeMs: 1,
    });
    expect(decideObserved({ kind: 'none', wasObserved: false, ...settled }, SETTLES)).toMatchObject({ wakeMs: null });
  });

  it('sends again after an observation without effect, but no key after its lifetime', () => {
    const withoutEffect = { unresolved: 0, wasUnknown: true };
    expect(decideObserved({ kind: 'none', ...withoutEffect }, SETTLES).do).toBe('send');
    expect(decideObserved({ kind: 'key', ...withoutEffect }, SETTLES).do).toBe('send');
    expect(decideObserved({ kind: 'key', msToResend: 0, ...withoutEffect }, SETTLES).do).toBe('fail');
    expect(decideObserved({ kind: 'none', recalled: true, ...withoutEffect }, SETTLES).do).toBe('fail');
  });
});

const anyRetry = fc.record({
  attempts: fc.integer({ min: 1, max: 20 }),
  baseMs: fc.integer({ min: 1, max: 10_000 }),
  maxMs: fc.integer({ min: 1, max: 600_000 }),
  withinMs: fc.integer({ min: 1, max: 86_400_000 }),
});
const ms = fc.oneof(fc.integer({ min: 0, max: 100_000_000 }), fc.constant(0));
const anyProgress = (kind: fc.Arbitrary<CallKind> = fc.constantFrom(...KINDS)): fc.Arbitrary<CallProgress> =>
  fc
    .record({
      kind,
      attempt: fc.nat({ max: 30 }),
      roundFrom: fc.nat({ max: 30 }),
      unresolved: fc.nat({ max: 30 }),
      ownerDeaths: fc.nat({ max: 8 }),
      shouldFailIfUnsent: fc.boolean(),
      recalled: fc.boolean(),
      fenced: fc.boolean(),
      isRecordedInDoubt: fc.boolean(),
      wasObserved: fc.boolean(),
      wasUnknown: fc.boolean(),
      msInRound: ms,
      msSinceUnknown: ms,
      msToResend: fc.oneof(fc.integer({ min: -100_000, max: 100_000 }), fc.constant(Number.POSITIVE_INFINITY)),
    })
    // The constraints of the ledger guarantee these.
    .map((each) => {
      const unresolved = Math.min(each.unresolved, each.attempt);
      return {
        ...each,
        roundFrom: Math.min(each.roundFrom, each.attempt),
        unresolved,
        wasUnknown: each.wasUnknown || unresolved > 0,
      };
    });
const anyCase = (kind?: fc.Arbitrary<CallKind>) => fc.tuple(anyProgress(kind), anyRetry, fc.boolean());

describe('for any progress', () => {
  const always = (
    kind: fc.Arbitrary<CallKind> | undefined,
    check: (progress: CallProgress, next: NextAction, retry: RetryPolicy) => void,
  ) =>
    fc.assert(
      fc.property(anyCase(kind), ([given, retry, woken]) =>
        check(given, decideNextAction(given, toolOf(given.kind, retry), woken), retry),
      ),
      { numRuns: 2_000 },
    );

  it('a probe or none tool is never sent again while an attempt is unresolved', () => {
    always(fc.constantFrom<CallKind>('probe', 'none'), (given, next) => {
      if (given.unresolved > 0) expect(next.do).not.toBe('send');
    });
  });

  it('a key tool with an unresolved attempt is never sent after the lifetime of its key, nor after a pause that exceeds it', () => {
    always(fc.constant<CallKind>('key'), (given, next) => {
      if (given.unresolved > 0 && next.do === 'send') expect(given.msToResend).toBeGreaterThan(next.afterMs);
      if (given.unresolved > 0 && given.msToResend <= 0) expect(next).toMatchObject({ do: 'doubt', wakeMs: null });
    });
  });

  it('an idempotent tool whose run was taken over is not sent again while an attempt is unresolved', () => {
    always(fc.constant<CallKind>('idempotent'), (given, next) => {
      if (given.fenced && given.unresolved > 0) expect(next).toMatchObject({ do: 'doubt', wakeMs: null });
    });
  });

  it('an unresolved call is never failed or released, except a read', () => {
    always(fc.constantFrom<CallKind>('key', 'idempotent', 'probe', 'none'), (given, next) => {
      if (given.unresolved > 0) expect(['send', 'probe', 'doubt']).toContain(next.do);
    });
  });

  it('a call that was ever unknown is not released if anything was sent', () => {
    always(undefined, (given, next) => {
      if (given.wasUnknown && given.attempt > 0) expect(next.do).not.toBe('release');
    });
  });

  it('only a tool with a probe is probed, and only after it has settled', () => {
    always(undefined, (given, next) => {
      if (next.do !== 'probe') return;
      expect(given.kind).toBe('probe');
      expect(given.unresolved).toBeGreaterThan(0);
      expect(given.msSinceUnknown).toBeGreaterThanOrEqual(SETTLES);
    });
  });

  it('a call is observed again only if it was observed before, is recorded in doubt, has settled and has no better evidence', () => {
    const settles = fc.option(fc.integer({ min: 0, max: 100_000 }), { nil: undefined });
    fc.assert(
      fc.property(anyCase(), settles, ([given, retry, woken], settlesMs) => {
        const plain = decideNextAction(given, toolOf(given.kind, retry), woken);
        const next = decideNextAction(given, { ...toolOf(given.kind, retry), observe: observeSpec(settlesMs) }, woken);
        // An observation replaces the question to a person, and nothing else.
        if (!(plain.do === 'doubt' && plain.wakeMs === null)) expect(next).toEqual(plain);
        if (next.do !== 'observe') return;
        expect(given).toMatchObject({ wasObserved: true, isRecordedInDoubt: true });
        expect(given.unresolved).toBeGreaterThan(0);
        expect(given.msSinceUnknown).toBeGreaterThanOrEqual(settlesMs ?? 0);
        expect(['key', 'idempotent', 'none']).toContain(given.kind);
      }),
      { numRuns: 5_000 },
    );
  });

  it('a read is never in doubt, unless its owners keep dying', () => {
    always(fc.constant<CallKind>('read'), (given, next) => {
      if (given.ownerDeaths <= MAX_OWNER_DEATHS) expect(['send', 'fail']).toContain(next.do);
    });
  });

  it('a pause is at least 0 and at most maxMs of the tool', () => {
    always(undefined, (_given, next, retry) => {
      if (next.do === 'send') {
        expect(next.afterMs).toBeGreaterThanOrEqual(0);
        expect(next.afterMs).toBeLessThanOrEqual(retry.maxMs);
      }
      if (next.do === 'doubt' && next.wakeMs !== null) expect(next.wakeMs).toBeGreaterThan(0);
    });
  });

  it('after withinMs nothing is sent and nothing wakes, except a probe that has not settled', () => {
    always(undefined, (given, next, retry) => {
      if (given.msInRound <= retry.withinMs) return;
      expect(['send', 'probe']).not.toContain(next.do);
      if (next.do === 'doubt' && given.kind !== 'probe') expect(next.wakeMs).toBeNull();
    });
  });

  it('too many dead owners end the retries', () => {
    always(undefined, (given, next) => {
      if (given.ownerDeaths > MAX_OWNER_DEATHS)
        expect(next).toMatchObject(
          given.attempt > 0 ? { do: 'doubt', wakeMs: null } : { do: given.shouldFailIfUnsent ? 'fail' : 'release' },
        );
    });
  });
});

describe('the next action after a read without a result', () => {
  it.each<[string, NextAction, NextAction]>([
    [
      'first observation failed',
      decideAfterFailedObservation(progressOf({ kind: 'none' }), RETRY, 1),
      { do: 'send', afterMs: 100 },
    ],
    [
      'second observation failed',
      decideAfterFailedObservation(progressOf({ kind: 'none' }), RETRY, 2),
      { do: 'send', afterMs: 200 },
    ],
    [
      'last observation failed',
      decideAfterFailedObservation(progressOf({ kind: 'none' }), RETRY, 3),
      { do: 'release' },
    ],
    [
      'last observation of an approved call failed',
      decideAfterFailedObservation(progressOf({ kind: 'none', shouldFailIfUnsent: true }), RETRY, 3),
      { do: 'fail' },
    ],
    [
      'probe failed',
      decideAfterFailedProbe(RETRY, '503'),
      { do: 'doubt', wakeMs: 1_000, why: 'the probe gave no clear answer: 503' },
    ],
  ])('%s', (_, actual, expected) => {
    expect(actual).toEqual(expected);
  });

  it.each<[isProof: boolean, msInRound: number, wakeMs: number | null]>([
    [true, 60_000, 1_000],
    [true, 60_001, null],
    [false, 0, null],
  ])('an observation in doubt failed; proof %s, after %i ms: wakes after %s', (isProof, msInRound, wakeMs) => {
    const action = decideAfterFailedReobservation(progressOf({ kind: 'none', msInRound }), RETRY, isProof, '503');
    expect(action).toEqual({ do: 'doubt', wakeMs, why: 'its effect could not be observed: 503' });
  });
});

describe('a key is released', () => {
  const unsent: Outcome = { kind: 'not_sent', detail: 'down' };

  it.each<[string, boolean, Partial<CallProgress>, Outcome | undefined]>([
    ['of a read that was not sent', true, {}, unsent],
    ['of a read without an attempt', false, {}, undefined],
    ['of a read that was sent', false, {}, { kind: 'ambiguous', detail: 'reset' }],
    ['of a read whose saga is rolled back', false, { recalled: true }, unsent],
    ['of an approved read', false, { shouldFailIfUnsent: true }, unsent],
    ['of a write', false, { kind: 'key' }, unsent],
  ])('when it fails, %s: %s', (_, expected, progress, last) => {
    expect(isUnsentRead(progressOf({ kind: 'read', ...progress }), last)).toBe(expected);
  });

  it.each<[string, boolean, Partial<CallProgress>]>([
    ['of a call that was not sent', true, {}],
    ['of a call with an unknown attempt', false, { unresolved: 1 }],
    ['of a call whose unknown attempt was disproved', false, { wasUnknown: true }],
    ['of an approved call', false, { shouldFailIfUnsent: true }],
  ])('when it is blocked, %s: %s', (_, expected, progress) => {
    expect(canReleaseBlocked(progressOf({ kind: 'key', ...progress }))).toBe(expected);
  });
});

describe('the pause between attempts', () => {
  it('doubles from baseMs to maxMs', () => {
    expect([0, 1, 2, 3, 4, 5, 6].map((tries) => computeBackoffMs(RETRY, tries))).toEqual([
      0, 100, 200, 400, 800, 1_000, 1_000,
    ]);
    expect(computeBackoffMs(RETRY, 5_000)).toBe(1_000);
  });
});
