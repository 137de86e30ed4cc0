import type { UpstreamEffect } from '../faults/upstream.ts';

/** A step as the test took it: what tells its effects and those of its undo from others at the upstream. */
export interface ExecutedStep {
  readonly id: string;
  /** Undefined: the caller never learned it. */
  readonly txn: string | undefined;
  /** `POST /keyed/charge` and the like. */
  readonly forward: string;
  /** Null: there is nothing to undo about it, or no way to. */
  readonly undo: string | null;
  /** Where the undo names another id at the upstream. */
  readonly undoId?: string;
  /** Ids of the steps it rests on; null: all that were taken earlier. */
  readonly on: readonly string[] | null;
  /** A PUT: the same bytes once more change nothing, so that they count once. */
  readonly repeatable?: boolean;
  /** A person said that what it rests on need not wait for it. */
  readonly waived?: boolean;
}

export interface ObservedSaga {
  readonly saga: string;
  readonly state: string;
  readonly steps: readonly {
    readonly txn: string;
    readonly state: string;
    readonly undo: { readonly state: string; readonly reason: string | null };
  }[];
}

export type ObservedSagaEffect = Pick<UpstreamEffect, 'n' | 'id' | 'route' | 'request' | 'bodySha256'>;

interface StepObservation {
  readonly step: ExecutedStep;
  readonly name: string;
  readonly seen: ObservedSaga['steps'][number] | undefined;
  readonly forward: readonly ObservedSagaEffect[];
  readonly undo: readonly ObservedSagaEffect[];
}

const NO_EFFECT_STATES = new Set(['failed', 'rejected', 'expired', 'cancelled']);

/** Every promise about a rollback that did not hold, as a sentence; an empty list is a pass. Steps in the order taken. */
export function checkSaga(
  saga: ObservedSaga,
  steps: readonly ExecutedStep[],
  effects: readonly ObservedSagaEffect[],
): readonly string[] {
  const cases = steps.map((step): StepObservation => {
    const happened = (route: string | null, id: string) =>
      effects.filter((effect) => effect.route === route && effect.id === id);
    return {
      step,
      name: `step ${step.id} (${step.txn ?? 'txn unknown'})`,
      seen: saga.steps.find(({ txn }) => txn === step.txn),
      forward: happened(step.forward, step.id),
      undo: happened(step.undo, step.undoId ?? step.id),
    };
  });
  return [
    ...cases.flatMap((one) => [...checkAtMostOnce(one), ...checkUndoHadEffect(one), ...checkNotAfterUndo(one)]),
    ...cases.flatMap((one) => [...checkUndoState(one), ...checkStepState(one)]),
    ...checkUndoOrder(cases),
    ...(saga.state === 'rolled_back' ? cases.flatMap(checkFullyUndone) : []),
  ].map((violation) => `saga ${saga.saga}: ${violation}`);
}

function checkAtMostOnce({ step, name, forward, undo }: StepObservation): string[] {
  const count = (found: readonly ObservedSagaEffect[]) =>
    step.repeatable === true ? new Set(found.map(({ bodySha256 }) => bodySha256)).size : found.length;
  return [
    ...(count(forward) > 1 ? [`${name} happened ${count(forward)} times`] : []),
    ...(count(undo) > 1 ? [`${name} was undone ${count(undo)} times (I16)`] : []),
  ];
}

function checkUndoHadEffect({ name, forward, undo }: StepObservation): string[] {
  return undo.length > 0 && forward.length === 0 ? [`${name} was undone and never happened (I20)`] : [];
}

function checkNotAfterUndo({ name, forward, undo }: StepObservation): string[] {
  return maxPosition(forward) > minPosition(undo) ? [`${name} happened after it was undone (I19)`] : [];
}

function checkUndoState({ name, seen, undo }: StepObservation): string[] {
  if (seen === undefined) return undo.length > 0 ? [`${name} was undone and is no step of the saga`] : [];
  const { state, reason } = seen.undo;
  if (state === 'done' && undo.length === 0) return [`${name}: its undo is done, and nothing was undone`];
  // What is in doubt may have happened: that it says so is the promise.
  const mayHave = state === 'done' || state === 'running' || (state === 'failed' && /in doubt/.test(reason ?? ''));
  return undo.length > 0 && !mayHave ? [`${name} was undone, and its undo is ${state}`] : [];
}

function checkStepState({ name, seen, forward }: StepObservation): string[] {
  if (seen?.state === 'succeeded' && forward.length === 0) return [`${name} succeeded and did not happen (I5)`];
  const isOver = seen === undefined || NO_EFFECT_STATES.has(seen.state);
  return isOver && forward.length > 0 ? [`${name} is ${seen?.state ?? 'unknown'} and happened (I5)`] : [];
}

/** Whatever rests on a step, directly or not, is undone before it: in the order of effects and of requests. */
function checkUndoOrder(cases: readonly StepObservation[]): string[] {
  const found: string[] = [];
  const rests = collectDependencies(cases.map(({ step }) => step));
  for (const below of cases) {
    if (below.undo.length === 0) continue;
    for (const above of cases) {
      if (rests.get(above.step.id)?.has(below.step.id) !== true) continue;
      const isFirst =
        maxPosition(above.undo) < minPosition(below.undo) &&
        maxPosition(above.undo, 'request') < minPosition(below.undo, 'request');
      if (above.undo.length > 0 && !isFirst)
        found.push(`${below.name} was undone before ${above.name}, which rests on it (I17)`);
      const isLeft = above.undo.length === 0 && above.forward.length > 0 && above.step.undo !== null;
      if (isLeft && above.step.waived !== true)
        found.push(`${below.name} was undone although ${above.name}, which rests on it, was not (I17)`);
    }
  }
  return found;
}

/** By id: all steps that it rests on, directly or through others. */
function collectDependencies(steps: readonly ExecutedStep[]): ReadonlyMap<string, ReadonlySet<string>> {
  const rests = new Map<string, Set<string>>();
  steps.forEach(({ id, on }, i) => {
    const direct = on ?? steps.slice(0, i).map((step) => step.id);
    rests.set(id, new Set(direct.flatMap((below) => [below, ...(rests.get(below) ?? [])])));
  });
  return rests;
}

/** After a whole rollback the world is as it was at the start. */
function checkFullyUndone({ step, name, forward, undo, seen }: StepObservation): string[] {
  if (forward.length > 0 && undo.length === 0 && step.undo !== null)
    return [`it is rolled_back, and ${name} was not undone`];
  const state = seen?.undo.state ?? 'skipped';
  return state === 'done' || state === 'skipped' ? [] : [`it is rolled_back, and the undo of ${name} is ${state}`];
}

function minPosition(effects: readonly ObservedSagaEffect[], by: 'n' | 'request' = 'n'): number {
  return Math.min(...effects.map((effect) => effect[by]));
}

function maxPosition(effects: readonly ObservedSagaEffect[], by: 'n' | 'request' = 'n'): number {
  return Math.max(...effects.map((effect) => effect[by]));
}
