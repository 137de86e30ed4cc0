import { expect, it } from 'vitest';
import type { Saga, SagaStep } from '../../gateway/domain/sagas/saga.ts';
import { sagaView } from '../../gateway/http/saga-view.ts';

function step(ordinal: number, dependsOn: readonly string[] | null): SagaStep {
  const withoutUndo = { undo: null, undoArgs: null, undoState: 'none', undoReason: null, undoTxn: null };
  return {
    txn: `t${ordinal}`,
    tool: 't',
    state: 'succeeded',
    ordinal,
    dependsOn,
    ...withoutUndo,
  } as unknown as SagaStep;
}

function viewOf(steps: readonly SagaStep[]): { txn: string; dependsOn: string[] }[] {
  const saga = {
    id: 's',
    state: 'open',
    createdAt: new Date(0),
    expiresAt: null,
    endedAt: null,
    tainted: null,
    savepoints: [],
  };
  const view = sagaView({ saga: saga as unknown as Saga, steps }, false);
  return view['steps'] as unknown as { txn: string; dependsOn: string[] }[];
}

// Regression: `sagaView` copied the independent steps for every step, which blocked the process for a minute.
it('a saga of 100,000 independent steps is rendered quickly', { timeout: 20_000 }, () => {
  const count = 100_000;
  const independent = Array.from({ length: count }, (_, i) => step(i + 1, []));
  const shown = viewOf([...independent, step(count + 1, null), step(count + 2, ['t7']), step(count + 3, null)]);
  expect(shown[count - 1]?.dependsOn).toEqual([]);
  expect(shown[count]?.dependsOn).toHaveLength(count);
  expect(shown[count + 2]?.dependsOn).toEqual([`t${count + 1}`, `t${count + 2}`]);
});

it('each step of a saga lists all steps that it depends on', () => {
  const shown = viewOf([step(1, []), step(2, null), step(3, ['t1']), step(4, null)]);
  expect(shown.map(({ dependsOn }) => dependsOn)).toEqual([[], ['t1'], ['t1'], ['t1', 't2', 't3']]);
});
