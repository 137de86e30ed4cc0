import { describe, expect, it } from 'vitest';
import { checkSaga, type ExecutedStep, type ObservedSaga, type ObservedSagaEffect } from './saga-checker.ts';

const DO = 'POST /keyed/charge';
const UNDO = 'POST /keyed/refund';

const step = (id: string, on: string[] | null, overrides: Partial<ExecutedStep> = {}): ExecutedStep => ({
  id,
  txn: `txn-${id}`,
  forward: DO,
  undo: UNDO,
  on,
  ...overrides,
});
/** `+a`: step a happened; `-a`: step a was undone. In this order. */
const effects = (...events: string[]): ObservedSagaEffect[] =>
  events.map((event, i) => ({
    n: i + 1,
    request: i + 1,
    id: event.slice(1),
    route: event.startsWith('+') ? DO : UNDO,
    bodySha256: event,
  }));
const saga = (state: string, undos: Record<string, string>, states: Record<string, string> = {}): ObservedSaga => ({
  saga: 'the-saga',
  state,
  steps: Object.entries(undos).map(([id, undo]) => ({
    txn: `txn-${id}`,
    state: states[id] ?? 'succeeded',
    undo: { state: undo, reason: null },
  })),
});

// b and c depend on a, but not on each other.
const steps = [step('a', []), step('b', ['a']), step('c', ['a'])];
const allDone = { a: 'done', b: 'done', c: 'done' };

describe('checkSaga', () => {
  it.each([
    ['every step undone, the last one first', ['+a', '+b', '+c', '-c', '-b', '-a']],
    ['every step undone, branches in any order', ['+a', '+b', '+c', '-b', '-c', '-a']],
  ])('accepts %s', (_, events) => {
    expect(checkSaga(saga('rolled_back', allDone), steps, effects(...events))).toEqual([]);
  });

  it('accepts a step that never happened and was not undone', () => {
    const observed = saga('rolled_back', { a: 'done', b: 'done', c: 'skipped' }, { c: 'failed' });
    expect(checkSaga(observed, steps, effects('+a', '+b', '-b', '-a'))).toEqual([]);
  });

  it('accepts a parked saga whose failed undo blocks only its dependencies', () => {
    const observed = saga('parked', { a: 'due', b: 'failed', c: 'done' });
    expect(checkSaga(observed, steps, effects('+a', '+b', '+c', '-c'))).toEqual([]);
  });

  it.each<[string, ObservedSaga, string[], RegExp]>([
    ['a step that happened twice', saga('open', { a: 'none' }), ['+a', '+a'], /happened 2 times/],
    ['an undo that happened twice', saga('rolled_back', { a: 'done' }), ['+a', '-a', '-a'], /undone 2 times/],
    ['an undo of a step that never happened', saga('parked', { a: 'running' }), ['-a'], /never happened/],
    ['a step that happened after its undo', saga('rolled_back', { a: 'done' }), ['-a', '+a'], /after it was undone/],
    ['an undo in state done without an effect', saga('parked', { a: 'done' }), ['+a'], /nothing was undone/],
    ['an undo effect in state due', saga('parked', { a: 'due' }), ['+a', '-a'], /its undo is due/],
    ['an effect of a failed undo', saga('parked', { a: 'failed' }), ['+a', '-a'], /its undo is failed/],
    ['a succeeded step without an effect', saga('open', { a: 'none' }), [], /did not happen/],
    ['a failed step with an effect', saga('open', { a: 'none' }, { a: 'failed' }), ['+a'], /is failed and happened/],
    ['an effect that belongs to no step', saga('open', {}), ['+a'], /is unknown and happened/],
    ['a rolled-back saga with an effect left', saga('rolled_back', { a: 'skipped' }), ['+a'], /was not undone/],
    [
      'a rolled-back saga with an undo left',
      saga('rolled_back', { a: 'due' }, { a: 'failed' }),
      [],
      /undo of step a .* is due/,
    ],
  ])('finds %s', (_, observed, events, violation) => {
    expect(checkSaga(observed, [step('a', [])], effects(...events)).join('\n')).toMatch(violation);
  });

  it('finds an undo order that breaks a dependency', () => {
    const effectsInOrder = effects('+a', '+b', '+c', '-b', '-a', '-c');
    expect(checkSaga(saga('rolled_back', allDone), steps, effectsInOrder).join('\n')).toMatch(
      /step a .* was undone before step c/,
    );
    const defaultDependencies = [step('a', null), step('b', null), step('c', null)];
    const branches = effects('+a', '+b', '+c', '-b', '-c', '-a');
    expect(checkSaga(saga('rolled_back', allDone), defaultDependencies, branches).join('\n')).toMatch(
      /step b .* before step c/,
    );
  });

  it('finds an undo that was sent before the undo of a dependent step, although its effect came later', () => {
    const effectsInOrder = effects('+a', '+b', '-b', '-a').map((effect) => ({
      ...effect,
      request: [1, 2, 4, 3][effect.n - 1] ?? 0,
    }));
    const two = steps.slice(0, 2);
    expect(checkSaga(saga('rolled_back', { a: 'done', b: 'done' }), two, effectsInOrder).join('\n')).toMatch(
      /before step b/,
    );
  });

  it('finds an undo order that breaks a dependency through a step that never happened', () => {
    const chain = [step('a', []), step('b', ['a']), step('c', ['b'])];
    const observed = saga('rolled_back', { a: 'done', b: 'skipped', c: 'done' }, { b: 'failed' });
    expect(checkSaga(observed, chain, effects('+a', '+c', '-a', '-c')).join('\n')).toMatch(/step a .* before step c/);
  });

  it('finds an undo although a dependent step was not undone, unless a person waived that step', () => {
    const observed = saga('parked', { a: 'done', b: 'failed' });
    const effectsInOrder = effects('+a', '+b', '-a');
    expect(checkSaga(observed, steps.slice(0, 2), effectsInOrder).join('\n')).toMatch(/although step b .* was not/);
    expect(checkSaga(observed, [step('a', []), step('b', ['a'], { waived: true })], effectsInOrder)).toEqual([]);
  });

  it('counts a repeated PUT once, and a PUT with other bytes again', () => {
    const put = [step('a', [], { repeatable: true })];
    const observed = saga('rolled_back', { a: 'done' });
    expect(checkSaga(observed, put, effects('+a', '+a', '-a', '-a'))).toEqual([]);
    const other = effects('+a', '-a', '-a').map((effect) => ({ ...effect, bodySha256: String(effect.n) }));
    expect(checkSaga(observed, put, other).join('\n')).toMatch(/undone 2 times/);
    expect(checkSaga(observed, put, effects('+a', '-a', '+a', '-a')).join('\n')).toMatch(/after it was undone/);
  });
});
