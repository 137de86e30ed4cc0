import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Outcome, UpstreamAnswer } from '../../gateway/domain/attempts/adapter.ts';
import {
  type CallProgress,
  computeBackoffMs,
  concludeAttempt,
  decideNextAction,
  MAX_OWNER_DEATHS,
  type NextAction,
} from '../../gateway/domain/attempts/next-action.ts';
import type { CallKind } from '../../gateway/domain/calls/call.ts';
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
const observing = (settlesMs?: number): NonNullable<Tool['observe']> => ({
  tool: 'o',
  args: () => ({}),
  satisfied: () => true,
  ...(settlesMs !== undefined && { settlesMs }),
});

const facts = (more: Partial<CallProgress> & Pick<CallProgress, 'kind'>): CallProgress => ({
  bound: false,
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
const step = (more: Partial<CallProgress> & Pick<CallProgress, 'kind'>, woken = false): NextAction =>
  decideNextAction(facts(more), toolOf(more.kind), woken);

/** Of a tool that looked before it sent, and may look again. */
const watched = (more: Partial<CallProgress> & Pick<CallProgress, 'kind'>, settlesMs?: number): NextAction =>
  decideNextAction(
    facts({ wasObserved: true, unresolved: 1, ...more }),
    { ...toolOf(more.kind), observe: observing(settlesMs) },
    true,
  );

const answerOf = (status: number): UpstreamAnswer => ({ status, contentType: null, body: null, encoding: 'utf8' });
const OUTCOMES: readonly Outcome[] = [
  { kind: 'ok', answer: answerOf(200) },
  { kind: 'ok_body_lost', answer: answerOf(200), detail: 'cut' },
  { kind: 'refused', answer: answerOf(404) },
  { kind: 'refused', answer: answerOf(429) },
  { kind: 'not_sent', detail: 'down' },
  { kind: 'not_sent', detail: 'lease', abandoned: true },
  { kind: 'ambiguous', detail: 'reset' },
  { kind: 'ambiguous', detail: '500', answer: answerOf(500) },
];

describe('what an outcome concludes', () => {
  it.each<[CallKind, Outcome['kind'], number, string]>([
    ['none', 'ok', 0, 'succeeded'],
    ['none', 'ok_body_lost', 0, 'succeeded'],
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

  it('lets a read try again when it is told to slow down, and nothing else', () => {
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

  it('succeeds only on a success, fails only on a refusal, and is unknown only when it is', () => {
    fc.assert(
      fc.property(fc.constantFrom(...KINDS), fc.constantFrom(...OUTCOMES), fc.nat(), (kind, outcome, n) => {
        const conclusion = concludeAttempt(kind, outcome, n);
        expect(conclusion.state === 'succeeded').toBe(outcome.kind === 'ok' || outcome.kind === 'ok_body_lost');
        if (conclusion.state === 'failed') expect(outcome.kind).toBe('refused');
        if (conclusion.state === 'open')
          expect(conclusion.unknown).toBe(outcome.kind === 'ambiguous' && kind !== 'read');
      }),
    );
  });
});

describe('what comes next', () => {
  it.each<[string, NextAction['do'], NextAction]>([
    ['first not sent: again after a pause', 'send', step({ kind: 'none' })],
    ['not sent, attempts used up: the key is free', 'release', step({ kind: 'none', attempt: 3 })],
    ['not sent, time used up: the key is free', 'release', step({ kind: 'key', msInRound: 60_001 })],
    ['read, attempts used up: it failed', 'fail', step({ kind: 'read', attempt: 3 })],
    ['probed "not applied", attempts left: again', 'send', step({ kind: 'probe', wasUnknown: true })],
    ['probed "not applied", none left: it failed', 'fail', step({ kind: 'probe', wasUnknown: true, attempt: 3 })],
    ['none in doubt: a person', 'doubt', step({ kind: 'none', unresolved: 1 })],
    ['probe not settled: doubt', 'doubt', step({ kind: 'probe', unresolved: 1, msSinceUnknown: SETTLES - 1 })],
    ['probe settled: probe', 'probe', step({ kind: 'probe', unresolved: 1, msSinceUnknown: SETTLES })],
    [
      'probe out of time: a person',
      'doubt',
      step({ kind: 'probe', unresolved: 1, msSinceUnknown: 70_000, msInRound: 60_001 }),
    ],
    ['key in doubt: again', 'send', step({ kind: 'key', unresolved: 1 })],
    ['key in doubt, lifetime over: a person', 'doubt', step({ kind: 'key', unresolved: 1, msToResend: 0 })],
    [
      'key in doubt, lifetime over when the pause is: a person',
      'doubt',
      step({ kind: 'key', unresolved: 1, msToResend: 100 }),
    ],
    ['idempotent in doubt: again', 'send', step({ kind: 'idempotent', unresolved: 1 })],
    ['key in doubt, attempts used up: later', 'doubt', step({ kind: 'key', unresolved: 1, attempt: 3 })],
    [
      'idempotent in doubt, attempts used up: a person',
      'doubt',
      step({ kind: 'idempotent', unresolved: 1, attempt: 3 }),
    ],
    ['key in doubt, woken: again', 'send', step({ kind: 'key', unresolved: 1, attempt: 9 }, true)],
    [
      'idempotent in doubt, woken too late: a person',
      'doubt',
      step({ kind: 'idempotent', unresolved: 1, attempt: 9 }, true),
    ],
    ['a new round has new attempts', 'send', step({ kind: 'none', attempt: 9, roundFrom: 9 })],
    ['owners keep dying: a person', 'doubt', step({ kind: 'key', ownerDeaths: MAX_OWNER_DEATHS + 1 })],
    ['owners keep dying, nothing sent: the key is free', 'release', step({ kind: 'key', attempt: 0, ownerDeaths: 9 })],
  ])('%s', (_name, expected, actual) => {
    expect(actual.do).toBe(expected);
  });

  it('looks again by itself exactly where looking can help', () => {
    expect(step({ kind: 'none', unresolved: 1 })).toMatchObject({ wakeMs: null });
    expect(step({ kind: 'key', unresolved: 1, msToResend: -1 })).toMatchObject({ wakeMs: null });
    expect(step({ kind: 'probe', unresolved: 1, msSinceUnknown: 1_000 })).toMatchObject({ wakeMs: SETTLES - 1_000 });
    expect(step({ kind: 'key', unresolved: 1, attempt: 3 })).toMatchObject({ wakeMs: 400 });
    expect(step({ kind: 'key', unresolved: 1, attempt: 3, msInRound: 60_001 })).toMatchObject({ wakeMs: null });
    // Later somebody may have written something newer that a repeat would overwrite.
    expect(step({ kind: 'idempotent', unresolved: 1, attempt: 3 })).toMatchObject({ wakeMs: null });
  });
});

describe('a tool that can look at what it would change', () => {
  const settled = { msSinceUnknown: SETTLES };
  const usedUp = { attempt: 9 };

  it.each<[string, NextAction['do'], NextAction]>([
    ['none, settled: look', 'observe', watched({ kind: 'none', ...settled }, SETTLES)],
    ['none, not settled: wait', 'doubt', watched({ kind: 'none', msSinceUnknown: SETTLES - 1 }, SETTLES)],
    [
      'none, settled, not yet said: say it first',
      'doubt',
      watched({ kind: 'none', isRecordedInDoubt: false, ...settled }, SETTLES),
    ],
    ['none, settles at once: look', 'observe', watched({ kind: 'none' }, 0)],
    ['none, says nothing about settling: look, to tell a person', 'observe', watched({ kind: 'none' })],
    [
      'none, never observed before: a person',
      'doubt',
      watched({ kind: 'none', wasObserved: false, ...settled }, SETTLES),
    ],
    ['idempotent, attempts left: the same bytes', 'send', watched({ kind: 'idempotent', ...settled }, SETTLES)],
    ['idempotent, attempts used up: look', 'observe', watched({ kind: 'idempotent', ...usedUp, ...settled }, SETTLES)],
    ['idempotent, taken over: look', 'observe', watched({ kind: 'idempotent', fenced: true, ...settled }, SETTLES)],
    ['key, in its lifetime: the same key', 'send', watched({ kind: 'key', ...settled }, SETTLES)],
    ['key, lifetime over: look', 'observe', watched({ kind: 'key', msToResend: 0, ...settled }, SETTLES)],
    ['key, no time for retries: look', 'observe', watched({ kind: 'key', msInRound: 60_001, ...settled }, SETTLES)],
    ['probe: the probe knows better', 'probe', watched({ kind: 'probe', ...settled }, SETTLES)],
    ['owners keep dying: a person', 'doubt', watched({ kind: 'none', ownerDeaths: 9, ...settled }, SETTLES)],
  ])('%s', (_name, expected, actual) => {
    expect(actual.do).toBe(expected);
  });

  it('waits exactly until the upstream has settled, and says the doubt before it looks', () => {
    expect(watched({ kind: 'none', msSinceUnknown: 1_000 }, SETTLES)).toMatchObject({ wakeMs: SETTLES - 1_000 });
    expect(watched({ kind: 'none', isRecordedInDoubt: false, ...settled }, SETTLES)).toMatchObject({ wakeMs: 1 });
    expect(watched({ kind: 'none', wasObserved: false, ...settled }, SETTLES)).toMatchObject({ wakeMs: null });
  });

  it('seen not to have happened it is sent again, but no key after its lifetime (I2)', () => {
    const seen = { unresolved: 0, wasUnknown: true };
    expect(watched({ kind: 'none', ...seen }, SETTLES).do).toBe('send');
    expect(watched({ kind: 'key', ...seen }, SETTLES).do).toBe('send');
    expect(watched({ kind: 'key', msToResend: 0, ...seen }, SETTLES).do).toBe('fail');
    expect(watched({ kind: 'none', recalled: true, ...seen }, SETTLES).do).toBe('fail');
  });
});

const anyRetry = fc.record({
  attempts: fc.integer({ min: 1, max: 20 }),
  baseMs: fc.integer({ min: 1, max: 10_000 }),
  maxMs: fc.integer({ min: 1, max: 600_000 }),
  withinMs: fc.integer({ min: 1, max: 86_400_000 }),
});
const ms = fc.oneof(fc.integer({ min: 0, max: 100_000_000 }), fc.constant(0));
const anyFacts = (kind: fc.Arbitrary<CallKind> = fc.constantFrom(...KINDS)): fc.Arbitrary<CallProgress> =>
  fc
    .record({
      kind,
      attempt: fc.nat({ max: 30 }),
      roundFrom: fc.nat({ max: 30 }),
      unresolved: fc.nat({ max: 30 }),
      ownerDeaths: fc.nat({ max: 8 }),
      bound: fc.boolean(),
      recalled: fc.boolean(),
      fenced: fc.boolean(),
      isSaid: fc.boolean(),
      wasObserved: fc.boolean(),
      wasUnknown: fc.boolean(),
      msInRound: ms,
      msSinceUnknown: ms,
      msToResend: fc.oneof(fc.integer({ min: -100_000, max: 100_000 }), fc.constant(Number.POSITIVE_INFINITY)),
    })
    // What the ledger's own constraints guarantee.
    .map((each) => {
      const unresolved = Math.min(each.unresolved, each.attempt);
      return {
        ...each,
        roundFrom: Math.min(each.roundFrom, each.attempt),
        unresolved,
        wasUnknown: each.wasUnknown || unresolved > 0,
      };
    });
const anyCase = (kind?: fc.Arbitrary<CallKind>) => fc.tuple(anyFacts(kind), anyRetry, fc.boolean());

describe('whatever the facts', () => {
  const always = (
    kind: fc.Arbitrary<CallKind> | undefined,
    check: (facts: CallProgress, step: NextAction, retry: RetryPolicy) => void,
  ) =>
    fc.assert(
      fc.property(anyCase(kind), ([given, retry, woken]) =>
        check(given, decideNextAction(given, toolOf(given.kind, retry), woken), retry),
      ),
      { numRuns: 2_000 },
    );

  it('a probe or none tool is never sent again while an attempt is unresolved (I1)', () => {
    always(fc.constantFrom<CallKind>('probe', 'none'), (given, next) => {
      if (given.unresolved > 0) expect(next.do).not.toBe('send');
    });
  });

  it('a key tool with an unresolved attempt is never sent when the key’s time is over, nor after a pause that ends it (I2)', () => {
    always(fc.constant<CallKind>('key'), (given, next) => {
      if (given.unresolved > 0 && next.do === 'send') expect(given.msToResend).toBeGreaterThan(next.afterMs);
      if (given.unresolved > 0 && given.msToResend <= 0) expect(next).toMatchObject({ do: 'doubt', wakeMs: null });
    });
  });

  it('an idempotent tool whose run was taken over is not sent again while an attempt is unresolved (I21)', () => {
    always(fc.constant<CallKind>('idempotent'), (given, next) => {
      if (given.fenced && given.unresolved > 0) expect(next).toMatchObject({ do: 'doubt', wakeMs: null });
    });
  });

  it('nothing unresolved is failed or released, but a read (I5)', () => {
    always(fc.constantFrom<CallKind>('key', 'idempotent', 'probe', 'none'), (given, next) => {
      if (given.unresolved > 0) expect(['send', 'probe', 'doubt']).toContain(next.do);
    });
  });

  it('a call that was ever unknown is not released, unless nothing was ever sent', () => {
    always(undefined, (given, next) => {
      if (given.wasUnknown && given.attempt > 0) expect(next.do).not.toBe('release');
    });
  });

  it('only what has a probe is probed, and not before it has settled', () => {
    always(undefined, (given, next) => {
      if (next.do !== 'probe') return;
      expect(given.kind).toBe('probe');
      expect(given.unresolved).toBeGreaterThan(0);
      expect(given.msSinceUnknown).toBeGreaterThanOrEqual(SETTLES);
    });
  });

  it('only what was observed before and may settle is looked at again, said, settled, and with no better evidence left', () => {
    const settles = fc.option(fc.integer({ min: 0, max: 100_000 }), { nil: undefined });
    fc.assert(
      fc.property(anyCase(), settles, ([given, retry, woken], settlesMs) => {
        const plain = decideNextAction(given, toolOf(given.kind, retry), woken);
        const next = decideNextAction(given, { ...toolOf(given.kind, retry), observe: observing(settlesMs) }, woken);
        // A look takes the place of a person's, and of nothing else.
        if (!(plain.do === 'doubt' && plain.wakeMs === null)) expect(next).toEqual(plain);
        if (next.do !== 'observe') return;
        expect(given).toMatchObject({ wasObserved: true, isSaid: true });
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

  it('a pause is between nothing and the longest that the tool allows', () => {
    always(undefined, (_given, next, retry) => {
      if (next.do === 'send') {
        expect(next.afterMs).toBeGreaterThanOrEqual(0);
        expect(next.afterMs).toBeLessThanOrEqual(retry.maxMs);
      }
      if (next.do === 'doubt' && next.wakeMs !== null) expect(next.wakeMs).toBeGreaterThan(0);
    });
  });

  it('it ends: past its time nothing is sent and nothing wakes, but a probe that has yet to settle', () => {
    always(undefined, (given, next, retry) => {
      if (given.msInRound <= retry.withinMs) return;
      expect(['send', 'probe']).not.toContain(next.do);
      if (next.do === 'doubt' && given.kind !== 'probe') expect(next.wakeMs).toBeNull();
    });
  });

  it('owners that keep dying end it', () => {
    always(undefined, (given, next) => {
      if (given.ownerDeaths > MAX_OWNER_DEATHS)
        expect(next).toMatchObject(
          given.attempt > 0 ? { do: 'doubt', wakeMs: null } : { do: given.bound ? 'fail' : 'release' },
        );
    });
  });
});

describe('the pause between attempts', () => {
  it('doubles from the base to the longest', () => {
    expect([0, 1, 2, 3, 4, 5, 6].map((tries) => computeBackoffMs(RETRY, tries))).toEqual([
      0, 100, 200, 400, 800, 1_000, 1_000,
    ]);
    expect(computeBackoffMs(RETRY, 5_000)).toBe(1_000);
  });
});
