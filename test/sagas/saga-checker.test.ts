import { describe, expect, it } from 'vitest';
import { checkSaga, type ExecutedStep, type ObservedSaga, type ObservedSagaEffect } from './saga-checker.ts';

const DO = 'POST /keyed/charge';
const UNDO = 'POST /keyed/refund';

const step = (id: string, on: string[] | null, more: Partial<ExecutedStep> = {}): ExecutedStep => ({
  id,
  txn: `txn-${id}`,
  forward: DO,
  undo: UNDO,
  on,
  ...more,
});
/** `+a` happened, `-a` was undone, in this order. */
const effects = (...told: string[]): ObservedSagaEffect[] =>
  told.map((what, i) => ({
    n: i + 1,
    request: i + 1,
    id: what.slice(1),
    route: what.startsWith('+') ? DO : UNDO,
    bodySha256: what,
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

// b and c rest on a, and not on each other.
const steps = [step('a', []), step('b', ['a']), step('c', ['a'])];
const allDone = { a: 'done', b: 'done', c: 'done' };

describe('the checker of sagas', () => {
  it.each([
    ['every step undone, the last first', ['+a', '+b', '+c', '-c', '-b', '-a']],
    ['every step undone, branches in any order', ['+a', '+b', '+c', '-b', '-c', '-a']],
  ])('passes %s', (_, told) => {
    expect(checkSaga(saga('rolled_back', allDone), steps, effects(...told))).toEqual([]);
  });

  it('passes what never happened and was not undone', () => {
    const seen = saga('rolled_back', { a: 'done', b: 'done', c: 'skipped' }, { c: 'failed' });
    expect(checkSaga(seen, steps, effects('+a', '+b', '-b', '-a'))).toEqual([]);
  });

  it('passes a parked saga whose stuck step holds up what it rests on, and nothing else', () => {
    const seen = saga('parked', { a: 'due', b: 'failed', c: 'done' });
    expect(checkSaga(seen, steps, effects('+a', '+b', '+c', '-c'))).toEqual([]);
  });

  it.each<[string, ObservedSaga, string[], RegExp]>([
    ['a step that happened twice', saga('open', { a: 'none' }), ['+a', '+a'], /happened 2 times/],
    ['an undo that happened twice', saga('rolled_back', { a: 'done' }), ['+a', '-a', '-a'], /undone 2 times/],
    ['an undo of what never happened', saga('parked', { a: 'running' }), ['-a'], /never happened/],
    ['a step that happened after its undo', saga('rolled_back', { a: 'done' }), ['-a', '+a'], /after it was undone/],
    ['done without an effect', saga('parked', { a: 'done' }), ['+a'], /nothing was undone/],
    ['an effect without done', saga('parked', { a: 'due' }), ['+a', '-a'], /its undo is due/],
    ['an effect of an undo that failed', saga('parked', { a: 'failed' }), ['+a', '-a'], /its undo is failed/],
    ['succeeded without an effect', saga('open', { a: 'none' }), [], /did not happen/],
    ['failed with an effect', saga('open', { a: 'none' }, { a: 'failed' }), ['+a'], /is failed and happened/],
    ['an effect of no step', saga('open', {}), ['+a'], /is unknown and happened/],
    ['rolled_back with an effect left', saga('rolled_back', { a: 'skipped' }), ['+a'], /was not undone/],
    [
      'rolled_back with an undo left',
      saga('rolled_back', { a: 'due' }, { a: 'failed' }),
      [],
      /undo of step a .* is due/,
    ],
  ])('finds %s', (_, seen, told, violation) => {
    expect(checkSaga(seen, [step('a', [])], effects(...told)).join('\n')).toMatch(violation);
  });

  it('finds an order that is not legal', () => {
    const told = effects('+a', '+b', '+c', '-b', '-a', '-c');
    expect(checkSaga(saga('rolled_back', allDone), steps, told).join('\n')).toMatch(
      /step a .* was undone before step c/,
    );
    const unsaid = [step('a', null), step('b', null), step('c', null)];
    const branches = effects('+a', '+b', '+c', '-b', '-c', '-a');
    expect(checkSaga(saga('rolled_back', allDone), unsaid, branches).join('\n')).toMatch(/step b .* before step c/);
  });

  it('finds an undo that was sent before what rests on it was undone, although its effect came later', () => {
    const told = effects('+a', '+b', '-b', '-a').map((effect) => ({
      ...effect,
      request: [1, 2, 4, 3][effect.n - 1] ?? 0,
    }));
    const two = steps.slice(0, 2);
    expect(checkSaga(saga('rolled_back', { a: 'done', b: 'done' }), two, told).join('\n')).toMatch(/before step b/);
  });

  it('finds an order that is not legal through a step that never happened', () => {
    const chain = [step('a', []), step('b', ['a']), step('c', ['b'])];
    const seen = saga('rolled_back', { a: 'done', b: 'skipped', c: 'done' }, { b: 'failed' });
    expect(checkSaga(seen, chain, effects('+a', '+c', '-a', '-c')).join('\n')).toMatch(/step a .* before step c/);
  });

  it('finds an undo although what rests on it was not undone, unless a person waived that', () => {
    const seen = saga('parked', { a: 'done', b: 'failed' });
    const told = effects('+a', '+b', '-a');
    expect(checkSaga(seen, steps.slice(0, 2), told).join('\n')).toMatch(/although step b .* was not/);
    expect(checkSaga(seen, [step('a', []), step('b', ['a'], { waived: true })], told)).toEqual([]);
  });

  it('counts the same bytes put twice once, and other bytes not', () => {
    const put = [step('a', [], { repeatable: true })];
    const seen = saga('rolled_back', { a: 'done' });
    expect(checkSaga(seen, put, effects('+a', '+a', '-a', '-a'))).toEqual([]);
    const other = effects('+a', '-a', '-a').map((effect) => ({ ...effect, bodySha256: String(effect.n) }));
    expect(checkSaga(seen, put, other).join('\n')).toMatch(/undone 2 times/);
    expect(checkSaga(seen, put, effects('+a', '-a', '+a', '-a')).join('\n')).toMatch(/after it was undone/);
  });
});
