import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  buildRollbackPlan,
  type CompensationStatus,
  planNextMoves,
  type SagaStep,
  type UndoTiming,
} from '../../gateway/domain/sagas/saga.ts';

const timing: UndoTiming = {
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
  undoDoubt: null,
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

const plan = (steps: readonly SagaStep[], keep = 0) => planNextMoves(steps, keep, () => timing);
const listStarted = (steps: readonly SagaStep[], keep = 0) =>
  plan(steps, keep).moves.flatMap((move) => (move.do === 'start' ? [move.step.txn] : []));
const listMarks = (steps: readonly SagaStep[]) =>
  plan(steps).moves.flatMap((move) => (move.do === 'mark' ? [`${move.step.txn} ${move.to}`] : []));

describe('the steps that are undone next', () => {
  it('the last step first, if each depends on all earlier ones', () => {
    expect(listStarted([step(1), step(2), step(3)])).toEqual(['t3']);
    expect(listStarted([step(1), step(2), step(3, { undoState: 'done', undoTxn: 'u' })])).toEqual(['t2']);
  });

  it('independent branches at once', () => {
    const two = [
      step(1, { dependsOn: [] }),
      step(2, { dependsOn: ['t1'] }),
      step(3, { dependsOn: [] }),
      step(4, { dependsOn: ['t3'] }),
    ];
    expect(listStarted(two)).toEqual(['t4', 't2']);
  });

  it('a dependency through a step without effect still counts', () => {
    const steps = [
      step(1, { dependsOn: [] }),
      step(2, { dependsOn: ['t1'], state: 'failed', undoState: 'skipped' }),
      step(3, { dependsOn: ['t2'] }),
    ];
    expect(listStarted(steps)).toEqual(['t3']);
  });

  it('only steps after the savepoint', () => {
    expect(listStarted([step(1), step(2), step(3)], 2)).toEqual(['t3']);
    expect(plan([step(1), step(2), step(3, { undoState: 'done' })], 2).undone).toBe(true);
  });

  it('no step that an open step depends on', () => {
    for (const state of ['held', 'ready', 'sending'] as const) {
      const next = plan([step(1), step(2, { state, undoState: 'none', pursued: true })]);
      expect(next.moves).toEqual([]);
      expect(next.waitMs).not.toBeNull();
    }
    expect(plan([step(1), step(2, { state: 'in_doubt', undoState: 'none', pursued: true })]).waitMs).not.toBeNull();
    const doubt = plan([step(1), step(2, { state: 'in_doubt', undoState: 'none', pursued: false })]);
    expect(doubt).toMatchObject({ moves: [], waitMs: null, undone: false });
    expect(doubt.stuck[0]?.why).toContain('person');
    expect(doubt.blocked.get('t1')).toBe('t2');
  });

  it('no idempotent write whose lost attempt may still arrive', () => {
    const lost = { kind: 'idempotent', msSinceUnknown: 1_000 } as const;
    expect(plan([step(1, lost)])).toMatchObject({ moves: [], waitMs: 4_000 });
    expect(listStarted([step(1, { ...lost, msSinceUnknown: 6_000 })])).toEqual(['t1']);
    expect(listStarted([step(1, { ...lost, kind: 'key' })])).toEqual(['t1']);
  });
});

describe('the evaluation of a step', () => {
  it.each<[string, Partial<SagaStep>, string]>([
    ['failed', { state: 'failed' }, 'skipped'],
    ['rejected', { state: 'rejected' }, 'skipped'],
    ['a read', { kind: 'read', undo: null }, 'skipped'],
    ['already satisfied', { outcome: 'already_satisfied' }, 'skipped'],
    ['with a contract that says none', { undo: { kind: 'none' } }, 'skipped'],
    ['compensable', {}, 'due'],
    ['reversible', { undo: { kind: 'reversible', tool: 'x' } }, 'due'],
    ['irreversible', { undo: { kind: 'irreversible' } }, 'irreversible'],
    ['a write without a declared undo', { undo: null }, 'irreversible'],
  ])('%s', (_, more, to) => {
    expect(listMarks([step(1, { undoState: 'none', ...more })])).toEqual([`t1 ${to}`]);
  });

  it.each<[string, Partial<SagaStep>, string[]]>([
    ['succeeded', { compensation: compensation({ state: 'succeeded' }) }, ['t1 done']],
    ['is still in flight', { compensation: compensation({}) }, []],
    ['has been in doubt for a moment', { compensation: compensation({ state: 'in_doubt' }) }, []],
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
    expect(listMarks([step(1, { undoState: 'running', undoTxn: 'u1', ...more })])).toEqual(expected);
  });

  it.each<[string, SagaStep['undoDoubt'], Partial<CompensationStatus>, string[]]>([
    ['for a doubt that a person ended: it did not happen', 'person', { state: 'failed' }, ['t1 due']],
    ['for a doubt that the gateway ended', 'gateway', { state: 'failed' }, ['t1 running']],
    ['for a doubt, and sent again by a person', 'person', { state: 'in_doubt' }, ['t1 running']],
    ['for a doubt that nobody ended', 'person', { state: 'in_doubt', pursued: false }, []],
    ['while the gateway finds out', 'gateway', { state: 'in_doubt' }, []],
    ['because it failed too often', null, { state: 'failed' }, []],
  ])('an undo that was parked %s', (_, undoDoubt, more, expected) => {
    const parked = step(1, { undoState: 'failed', undoTxn: 'u1', undoDoubt, compensation: compensation(more) });
    expect(listMarks([parked])).toEqual(expected);
  });

  it('a late success of a failed undo counts as done', () => {
    const late = step(1, { undoState: 'failed', undoTxn: 'u', compensation: compensation({ state: 'succeeded' }) });
    expect(listMarks([late])).toEqual(['t1 done']);
  });

  it('a waived step does not block others, and never counts as undone', () => {
    const steps = [step(1), step(2, { undoState: 'irreversible', waived: true })];
    expect(listStarted(steps)).toEqual(['t1']);
    expect(plan([step(1, { undoState: 'done' }), steps[1] as SagaStep])).toMatchObject({ undone: false, waitMs: null });
  });
});

/** Any saga that the ledger can hold: steps depend only on earlier ones. */
const anySaga = fc.integer({ min: 1, max: 9 }).chain((n) =>
  fc.tuple(
    ...Array.from({ length: n }, (_, i) =>
      fc.record({
        dependsOn: fc.option(fc.subarray(Array.from({ length: i }, (_, j) => `t${j + 1}`)), { nil: null }),
        fate: fc.constantFrom('undoable', 'undoable', 'undoable', 'failed', 'irreversible', 'flaky', 'failing'),
        waived: fc.boolean(),
      }),
    ),
  ),
);

type GeneratedStep = { dependsOn: string[] | null; fate: string; waived: boolean };
const dependsOn = (generated: readonly GeneratedStep[], later: number, earlier: number): boolean => {
  const dependencies = generated[later - 1]?.dependsOn ?? null;
  return later > earlier && (dependencies === null || dependencies.includes(`t${earlier}`));
};

/** Simulates a rollback whose compensations end in any order. Returns the order in which steps were started and undone. */
function simulateRollback(generated: readonly GeneratedStep[], pick: (from: readonly number[]) => number) {
  const steps = generated.map(({ dependsOn: dependencies, fate, waived }, i) =>
    step(i + 1, {
      dependsOn: dependencies,
      waived,
      undoState: 'none',
      ...(fate === 'failed' ? { state: 'failed' as const } : {}),
      ...(fate === 'irreversible' ? { undo: { kind: 'irreversible' as const } } : {}),
    }),
  );
  const undone: number[] = [];
  const startedSteps: number[] = [];
  for (let round = 0; round < 500; round++) {
    const next = plan(steps);
    for (const move of next.moves) {
      const at = move.step.ordinal - 1;
      const now = steps[at] as SagaStep;
      if (move.do === 'mark') {
        if (move.to === 'done') undone.push(move.step.ordinal);
        steps[at] = { ...now, undoState: move.to, undoReason: move.reason, undoDoubt: move.doubt ?? null };
      } else {
        startedSteps.push(move.step.ordinal);
        steps[at] = {
          ...now,
          undoState: 'running',
          undoTxn: 'u',
          undoTries: now.undoTries + 1,
          compensation: compensation({}),
        };
      }
    }
    if (next.moves.length > 0) continue;
    const running = steps.flatMap((each, i) => (each.compensation?.state === 'sending' ? [i] : []));
    if (running.length === 0) return { steps, undone, startedSteps, next };
    const at = pick(running);
    const now = steps[at] as SagaStep;
    const fate = generated[at]?.fate;
    const fails = fate === 'failing' || (fate === 'flaky' && now.undoTries < 3);
    steps[at] = { ...now, compensation: compensation({ state: fails ? 'failed' : 'succeeded' }) };
  }
  throw new Error('The rollback does not end.');
}

describe('any rollback', () => {
  it('ends, in dependency order, and a stuck step blocks only its dependencies', () => {
    fc.assert(
      fc.property(anySaga, fc.infiniteStream(fc.nat()), (generated, choices) => {
        const draw = choices[Symbol.iterator]();
        const { steps, undone, startedSteps, next } = simulateRollback(
          generated,
          (from) => from[(draw.next().value ?? 0) % from.length] ?? 0,
        );
        expect(next.waitMs).toBeNull();
        for (const [place, a] of startedSteps.entries()) {
          for (let b = a + 1; b <= generated.length; b++) {
            if (!dependsOn(generated, b, a)) continue;
            const isClear =
              ['done', 'skipped'].includes(steps[b - 1]?.undoState ?? '') || generated[b - 1]?.waived === true;
            expect(isClear, `${a} was started although ${b} depends on it`).toBe(true);
            if (steps[b - 1]?.undoState === 'done') expect(startedSteps.slice(place)).not.toContain(b);
          }
        }
        // Every step that no stuck step depends on, directly or not, is undone.
        const stuck = new Set<number>();
        for (let n = generated.length; n >= 1; n--) {
          const fate = generated[n - 1]?.fate ?? '';
          const isStuck = (fate === 'irreversible' || fate === 'failing') && generated[n - 1]?.waived !== true;
          const above = [...stuck].some((b) => dependsOn(generated, b, n));
          if (isStuck || above) stuck.add(n);
        }
        for (let n = 1; n <= generated.length; n++) {
          const fate = generated[n - 1]?.fate ?? '';
          if ((fate === 'undoable' || fate === 'flaky') && !stuck.has(n))
            expect(undone, `${n} of ${JSON.stringify(generated)}`).toContain(n);
        }
        expect(next.undone).toBe(steps.every((each) => ['done', 'skipped'].includes(each.undoState)));
      }),
      { numRuns: 2_000 },
    );
  });

  it('follows its plan', () => {
    fc.assert(
      fc.property(anySaga, (generated) => {
        const withoutFailures = generated.map((each) =>
          each.fate === 'failing' || each.fate === 'flaky' ? { ...each, fate: 'undoable' } : each,
        );
        const before = withoutFailures.map(({ dependsOn: dependencies, fate, waived }, i) =>
          step(i + 1, {
            dependsOn: dependencies,
            waived,
            undoState: 'none',
            ...(fate === 'failed' ? { state: 'failed' as const } : {}),
            ...(fate === 'irreversible' ? { undo: { kind: 'irreversible' as const } } : {}),
          }),
        );
        const rollbackPlan = buildRollbackPlan(before, 0);
        const { undone } = simulateRollback(withoutFailures, (from) => from[0] ?? 0);
        const planned = rollbackPlan.filter(({ wave }) => wave !== null).map((each) => each.step.ordinal);
        expect(undone.toSorted()).toEqual(planned.toSorted());
        for (const a of rollbackPlan)
          for (const b of rollbackPlan)
            if (a.wave !== null && b.wave !== null && dependsOn(withoutFailures, b.step.ordinal, a.step.ordinal))
              expect(a.wave).toBeGreaterThan(b.wave);
      }),
      { numRuns: 2_000 },
    );
  });
});
