import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  buildRollbackPlan,
  type CompensationStatus,
  planNextMoves,
  type SagaStep,
  type UndoTiming,
} from '../../gateway/domain/sagas/saga.ts';

const manner: UndoTiming = {
  retry: { attempts: 3, baseMs: 100, maxMs: 1_000, withinMs: 60_000 },
  quietMs: 5_000,
};

const step = (ordinal: number, more: Partial<SagaStep> = {}): SagaStep => ({
  txn: `t${ordinal}`,
  tool: 'do',
  kind: 'key',
  state: 'succeeded',
  outcome: 'answered',
  ordinal,
  dependsOn: null,
  pursued: false,
  msSinceUnknown: null,
  undo: { kind: 'compensable', tool: 'undo', template: {} },
  undoArgs: '{}',
  undoState: 'due',
  undoReason: null,
  undoTxn: null,
  undoTries: 0,
  undoFrom: 0,
  msSinceDue: 0,
  msToNextTry: 0,
  waived: false,
  compensation: null,
  ...more,
});

const compensation = (more: Partial<CompensationStatus>): CompensationStatus => ({
  state: 'sending',
  problem: null,
  detail: null,
  attempt: 1,
  pursued: true,
  msInDoubt: 0,
  ...more,
});

const look = (steps: readonly SagaStep[], keep = 0) => planNextMoves(steps, keep, () => manner);
const started = (steps: readonly SagaStep[], keep = 0) =>
  look(steps, keep).moves.flatMap((move) => (move.do === 'start' ? [move.step.txn] : []));
const marks = (steps: readonly SagaStep[]) =>
  look(steps).moves.flatMap((move) => (move.do === 'mark' ? [`${move.step.txn} ${move.to}`] : []));

describe('what is undone next', () => {
  it('the last step first, when each rests on all earlier ones', () => {
    expect(started([step(1), step(2), step(3)])).toEqual(['t3']);
    expect(started([step(1), step(2), step(3, { undoState: 'done', undoTxn: 'u' })])).toEqual(['t2']);
  });

  it('independent branches at once', () => {
    const two = [
      step(1, { dependsOn: [] }),
      step(2, { dependsOn: ['t1'] }),
      step(3, { dependsOn: [] }),
      step(4, { dependsOn: ['t3'] }),
    ];
    expect(started(two)).toEqual(['t4', 't2']);
  });

  it('not what a step without effect rests on, before what rests on that', () => {
    const steps = [
      step(1, { dependsOn: [] }),
      step(2, { dependsOn: ['t1'], state: 'failed', undoState: 'skipped' }),
      step(3, { dependsOn: ['t2'] }),
    ];
    expect(started(steps)).toEqual(['t3']);
  });

  it('only what came after the savepoint', () => {
    expect(started([step(1), step(2), step(3)], 2)).toEqual(['t3']);
    expect(look([step(1), step(2), step(3, { undoState: 'done' })], 2).undone).toBe(true);
  });

  it('nothing of a step that may still happen', () => {
    for (const state of ['held', 'ready', 'sending'] as const) {
      const outlook = look([step(1), step(2, { state, undoState: 'none', pursued: true })]);
      expect(outlook.moves).toEqual([]);
      expect(outlook.waitMs).not.toBeNull();
    }
    expect(look([step(1), step(2, { state: 'in_doubt', undoState: 'none', pursued: true })]).waitMs).not.toBeNull();
    const doubt = look([step(1), step(2, { state: 'in_doubt', undoState: 'none', pursued: false })]);
    expect(doubt).toMatchObject({ moves: [], waitMs: null, undone: false });
    expect(doubt.stuck[0]?.why).toContain('person');
    expect(doubt.blocked.get('t1')).toBe('t2');
  });

  it('nothing of a repeatable write before its lost attempt can no longer arrive', () => {
    const lost = { kind: 'idempotent', msSinceUnknown: 1_000 } as const;
    expect(look([step(1, lost)])).toMatchObject({ moves: [], waitMs: 4_000 });
    expect(started([step(1, { ...lost, msSinceUnknown: 6_000 })])).toEqual(['t1']);
    expect(started([step(1, { ...lost, kind: 'key' })])).toEqual(['t1']);
  });
});

describe('how a step is judged', () => {
  it.each<[string, Partial<SagaStep>, string]>([
    ['failed', { state: 'failed' }, 'skipped'],
    ['rejected', { state: 'rejected' }, 'skipped'],
    ['a read', { kind: 'read', undo: null }, 'skipped'],
    ['satisfied before', { outcome: 'already_satisfied' }, 'skipped'],
    ['nothing to undo, in writing', { undo: { kind: 'none' } }, 'skipped'],
    ['compensable', {}, 'due'],
    ['reversible', { undo: { kind: 'reversible', tool: 'x' } }, 'due'],
    ['irreversible', { undo: { kind: 'irreversible' } }, 'irreversible'],
    ['a write of which nobody said how to undo it', { undo: null }, 'irreversible'],
  ])('%s', (_, more, to) => {
    expect(marks([step(1, { undoState: 'none', ...more })])).toEqual([`t1 ${to}`]);
  });

  it.each<[string, Partial<SagaStep>, string[]]>([
    ['succeeded', { compensation: compensation({ state: 'succeeded' }) }, ['t1 done']],
    ['still under way', { compensation: compensation({}) }, []],
    ['in doubt a moment', { compensation: compensation({ state: 'in_doubt' }) }, []],
    ['in doubt, its attempts used up', { compensation: compensation({ state: 'in_doubt', attempt: 3 }) }, []],
    [
      'in doubt, its attempts used up long ago',
      { msSinceDue: 15_001, compensation: compensation({ state: 'in_doubt', attempt: 3 }) },
      ['t1 failed'],
    ],
    ['in doubt for long', { compensation: compensation({ state: 'in_doubt', msInDoubt: 60_001 }) }, ['t1 failed']],
    ['in doubt for a person', { compensation: compensation({ state: 'in_doubt', pursued: false }) }, ['t1 failed']],
    ['failed once', { undoTries: 1, compensation: compensation({ state: 'failed' }) }, ['t1 due']],
    ['failed too often', { undoTries: 3, compensation: compensation({ state: 'failed' }) }, ['t1 failed']],
    [
      'failed, in a new round',
      { undoTries: 5, undoFrom: 3, compensation: compensation({ state: 'failed' }) },
      ['t1 due'],
    ],
    [
      'never sent',
      { undoTries: 9, compensation: compensation({ state: 'failed', problem: 'unavailable' }) },
      ['t1 due'],
    ],
    [
      'for too long',
      { undoTries: 1, msSinceDue: 60_001, compensation: compensation({ state: 'failed' }) },
      ['t1 failed'],
    ],
  ])('an undo that %s', (_, more, expected) => {
    expect(marks([step(1, { undoState: 'running', undoTxn: 'u1', ...more })])).toEqual(expected);
  });

  it.each<[string, string, Partial<CompensationStatus>, string[]]>([
    [
      'for a doubt that a person ended: it did not happen',
      'in doubt, a person must resolve it: x',
      { state: 'failed' },
      ['t1 due'],
    ],
    [
      'for a doubt that the gateway ended',
      'in doubt, the gateway is finding out: x',
      { state: 'failed' },
      ['t1 running'],
    ],
    [
      'for a doubt, and sent again by a person',
      'in doubt, a person must resolve it: x',
      { state: 'in_doubt' },
      ['t1 running'],
    ],
    [
      'for a doubt that nobody ended',
      'in doubt, a person must resolve it: x',
      { state: 'in_doubt', pursued: false },
      [],
    ],
    ['while the gateway finds out', 'in doubt, the gateway is finding out: x', { state: 'in_doubt' }, []],
    ['because it failed too often', 'tried 3 times; x', { state: 'failed' }, []],
  ])('an undo that was parked %s', (_, undoReason, more, expected) => {
    const parked = step(1, { undoState: 'failed', undoTxn: 'u1', undoReason, compensation: compensation(more) });
    expect(marks([parked])).toEqual(expected);
  });

  it('parked, but a late success is a success', () => {
    const late = step(1, { undoState: 'failed', undoTxn: 'u', compensation: compensation({ state: 'succeeded' }) });
    expect(marks([late])).toEqual(['t1 done']);
  });

  it('waived: what it rests on is undone, and it is never said to be', () => {
    const steps = [step(1), step(2, { undoState: 'irreversible', waived: true })];
    expect(started(steps)).toEqual(['t1']);
    expect(look([step(1, { undoState: 'done' }), steps[1] as SagaStep])).toMatchObject({ undone: false, waitMs: null });
  });
});

/** A saga as the ledger could hold it: steps depend on earlier ones only. */
const anySaga = fc.integer({ min: 1, max: 9 }).chain((n) =>
  fc.tuple(
    ...Array.from({ length: n }, (_, i) =>
      fc.record({
        dependsOn: fc.option(fc.subarray(Array.from({ length: i }, (_, j) => `t${j + 1}`)), { nil: null }),
        fate: fc.constantFrom('undoable', 'undoable', 'undoable', 'failed', 'irreversible', 'flaky', 'hopeless'),
        waived: fc.boolean(),
      }),
    ),
  ),
);

type Drawn = { dependsOn: string[] | null; fate: string; waived: boolean };
const dependsOn = (drawn: readonly Drawn[], later: number, earlier: number): boolean => {
  const rests = drawn[later - 1]?.dependsOn ?? null;
  return later > earlier && (rests === null || rests.includes(`t${earlier}`));
};

/** Plays a whole rollback, with compensations that end in any order, and returns the order in which steps were undone. */
function play(drawn: readonly Drawn[], pick: (from: readonly number[]) => number) {
  const steps = drawn.map(({ dependsOn: rests, fate, waived }, i) =>
    step(i + 1, {
      dependsOn: rests,
      waived,
      undoState: 'none',
      ...(fate === 'failed' ? { state: 'failed' as const } : {}),
      ...(fate === 'irreversible' ? { undo: { kind: 'irreversible' as const } } : {}),
    }),
  );
  const undone: number[] = [];
  const begun: number[] = [];
  for (let round = 0; round < 500; round++) {
    const outlook = look(steps);
    for (const move of outlook.moves) {
      const at = move.step.ordinal - 1;
      const now = steps[at] as SagaStep;
      if (move.do === 'mark') {
        if (move.to === 'done') undone.push(move.step.ordinal);
        steps[at] = { ...now, undoState: move.to, undoReason: move.reason };
      } else {
        begun.push(move.step.ordinal);
        steps[at] = {
          ...now,
          undoState: 'running',
          undoTxn: 'u',
          undoTries: now.undoTries + 1,
          compensation: compensation({}),
        };
      }
    }
    if (outlook.moves.length > 0) continue;
    const running = steps.flatMap((each, i) => (each.compensation?.state === 'sending' ? [i] : []));
    if (running.length === 0) return { steps, undone, begun, outlook };
    const at = pick(running);
    const now = steps[at] as SagaStep;
    const fate = drawn[at]?.fate;
    const fails = fate === 'hopeless' || (fate === 'flaky' && now.undoTries < 3);
    steps[at] = { ...now, compensation: compensation({ state: fails ? 'failed' : 'succeeded' }) };
  }
  throw new Error('the rollback does not end');
}

describe('any rollback', () => {
  it('ends, in legal order, and holds up only what a stuck step rests on', () => {
    fc.assert(
      fc.property(anySaga, fc.infiniteStream(fc.nat()), (drawn, choices) => {
        const draw = choices[Symbol.iterator]();
        const { steps, undone, begun, outlook } = play(
          drawn,
          (from) => from[(draw.next().value ?? 0) % from.length] ?? 0,
        );
        expect(outlook.waitMs).toBeNull();
        for (const [place, a] of begun.entries()) {
          for (let b = a + 1; b <= drawn.length; b++) {
            if (!dependsOn(drawn, b, a)) continue;
            const isClear =
              ['done', 'skipped'].includes(steps[b - 1]?.undoState ?? '') || drawn[b - 1]?.waived === true;
            expect(isClear, `${a} was begun although ${b} rests on it`).toBe(true);
            if (steps[b - 1]?.undoState === 'done') expect(begun.slice(place)).not.toContain(b);
          }
        }
        // Everything that nothing stuck rests on, directly or not, is undone.
        const stuck = new Set<number>();
        for (let n = drawn.length; n >= 1; n--) {
          const fate = drawn[n - 1]?.fate ?? '';
          const isStuck = (fate === 'irreversible' || fate === 'hopeless') && drawn[n - 1]?.waived !== true;
          const above = [...stuck].some((b) => dependsOn(drawn, b, n));
          if (isStuck || above) stuck.add(n);
        }
        for (let n = 1; n <= drawn.length; n++) {
          const fate = drawn[n - 1]?.fate ?? '';
          if ((fate === 'undoable' || fate === 'flaky') && !stuck.has(n))
            expect(undone, `${n} of ${JSON.stringify(drawn)}`).toContain(n);
        }
        expect(outlook.undone).toBe(steps.every((each) => ['done', 'skipped'].includes(each.undoState)));
      }),
      { numRuns: 2_000 },
    );
  });

  it('goes as its plan said', () => {
    fc.assert(
      fc.property(anySaga, (drawn) => {
        const tame = drawn.map((each) =>
          each.fate === 'hopeless' || each.fate === 'flaky' ? { ...each, fate: 'undoable' } : each,
        );
        const before = tame.map(({ dependsOn: rests, fate, waived }, i) =>
          step(i + 1, {
            dependsOn: rests,
            waived,
            undoState: 'none',
            ...(fate === 'failed' ? { state: 'failed' as const } : {}),
            ...(fate === 'irreversible' ? { undo: { kind: 'irreversible' as const } } : {}),
          }),
        );
        const plan = buildRollbackPlan(before, 0);
        const { undone } = play(tame, (from) => from[0] ?? 0);
        const promised = plan.filter(({ wave }) => wave !== null).map((each) => each.step.ordinal);
        expect(undone.toSorted()).toEqual(promised.toSorted());
        for (const a of plan)
          for (const b of plan)
            if (a.wave !== null && b.wave !== null && dependsOn(tame, b.step.ordinal, a.step.ordinal))
              expect(a.wave).toBeGreaterThan(b.wave);
      }),
      { numRuns: 2_000 },
    );
  });
});
