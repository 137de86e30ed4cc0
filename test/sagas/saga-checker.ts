import type { UpstreamEffect } from '../faults/upstream.ts';

/** A step as the test executed it. Its id and routes identify its effects and those of its undo at the upstream. */
export interface ExecutedStep {
  readonly id: string;
  /** Undefined if the caller never learned it. */
  readonly txn: string | undefined;
  /** The route of the step, such as `POST /keyed/charge`. */
  readonly forward: string;
  /** The route of the undo. Null if the step has no undo. */
  readonly undo: string | null;
  /** The id of the undo at the upstream, if it differs. */
  readonly undoId?: string;
  /** Ids of the steps that this step depends on. Null: all earlier steps. */
  readonly on: readonly string[] | null;
  /** True for a PUT: a repeat with the same bytes changes nothing and is not counted. */
  readonly repeatable?: boolean;
  /** True if a person decided that the dependencies of this step need not wait for it. */
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
  readonly observed: ObservedSaga['steps'][number] | undefined;
  readonly forward: readonly ObservedSagaEffect[];
  readonly undo: readonly ObservedSagaEffect[];
}

const NO_EFFECT_STATES = new Set(['failed', 'rejected', 'expired', 'cancelled']);

/** Returns one message per broken promise of a rollback. `steps` are in the order of execution. */
export function checkSaga(
  saga: ObservedSaga,
  steps: readonly ExecutedStep[],
  effects: readonly ObservedSagaEffect[],
): readonly string[] {
  const observations = steps.map((step): StepObservation => {
    const findEffects = (route: string | null, id: string) =>
      effects.filter((effect) => effect.route === route && effect.id === id);
    return {
      step,
      name: `step ${step.id} (${step.txn ?? 'txn unknown'})`,
      observed: saga.steps.find(({ txn }) => txn === step.txn),
      forward: findEffects(step.forward, step.id),
      undo: findEffects(step.undo, step.undoId ?? step.id),
    };
  });
  return [
    ...observations.flatMap((step) => [
      ...checkAtMostOnce(step),
      ...checkUndoHadEffect(step),
      ...checkNotAfterUndo(step),
    ]),
    ...observations.flatMap((step) => [...checkUndoState(step), ...checkStepState(step)]),
    ...checkUndoOrder(observations),
    ...(saga.state === 'rolled_back' ? observations.flatMap(checkFullyUndone) : []),
  ].map((violation) => `saga ${saga.saga}: ${violation}`);
}

function checkAtMostOnce({ step, name, forward, undo }: StepObservation): string[] {
  const count = (effects: readonly ObservedSagaEffect[]) =>
    step.repeatable === true ? new Set(effects.map(({ bodySha256 }) => bodySha256)).size : effects.length;
  return [
    ...(count(forward) > 1 ? [`${name} happened ${count(forward)} times`] : []),
    ...(count(undo) > 1 ? [`${name} was undone ${count(undo)} times`] : []),
  ];
}

function checkUndoHadEffect({ name, forward, undo }: StepObservation): string[] {
  return undo.length > 0 && forward.length === 0 ? [`${name} was undone and never happened`] : [];
}

function checkNotAfterUndo({ name, forward, undo }: StepObservation): string[] {
  return maxPosition(forward) > minPosition(undo) ? [`${name} happened after it was undone`] : [];
}

function checkUndoState({ name, observed, undo }: StepObservation): string[] {
  if (observed === undefined) return undo.length > 0 ? [`${name} was undone and is no step of the saga`] : [];
  const { state, reason } = observed.undo;
  if (state === 'done' && undo.length === 0) return [`${name}: its undo is done, and nothing was undone`];
  // An undo in doubt may have had its effect. The promise is that its reason says so.
  const mayHaveEffect =
    state === 'done' || state === 'running' || (state === 'failed' && /in doubt/.test(reason ?? ''));
  return undo.length > 0 && !mayHaveEffect ? [`${name} was undone, and its undo is ${state}`] : [];
}

function checkStepState({ name, observed, forward }: StepObservation): string[] {
  if (observed?.state === 'succeeded' && forward.length === 0) return [`${name} succeeded and did not happen`];
  const shouldHaveNoEffect = observed === undefined || NO_EFFECT_STATES.has(observed.state);
  return shouldHaveNoEffect && forward.length > 0 ? [`${name} is ${observed?.state ?? 'unknown'} and happened`] : [];
}

/** Every direct or indirect dependent of a step must be undone before it, by the order of effects and of requests. */
function checkUndoOrder(observations: readonly StepObservation[]): string[] {
  const violations: string[] = [];
  const dependencies = collectDependencies(observations.map(({ step }) => step));
  for (const step of observations) {
    if (step.undo.length === 0) continue;
    for (const dependent of observations) {
      if (dependencies.get(dependent.step.id)?.has(step.step.id) !== true) continue;
      const isFirst =
        maxPosition(dependent.undo) < minPosition(step.undo) &&
        maxPosition(dependent.undo, 'request') < minPosition(step.undo, 'request');
      if (dependent.undo.length > 0 && !isFirst)
        violations.push(`${step.name} was undone before ${dependent.name}, which depends on it`);
      const isLeft = dependent.undo.length === 0 && dependent.forward.length > 0 && dependent.step.undo !== null;
      if (isLeft && dependent.step.waived !== true)
        violations.push(`${step.name} was undone although ${dependent.name}, which depends on it, was not`);
    }
  }
  return violations;
}

/** Maps the id of each step to the ids of all its direct and indirect dependencies. */
function collectDependencies(steps: readonly ExecutedStep[]): ReadonlyMap<string, ReadonlySet<string>> {
  const dependencies = new Map<string, Set<string>>();
  steps.forEach(({ id, on }, i) => {
    const direct = on ?? steps.slice(0, i).map((step) => step.id);
    dependencies.set(id, new Set(direct.flatMap((other) => [other, ...(dependencies.get(other) ?? [])])));
  });
  return dependencies;
}

/** A complete rollback leaves no effect. */
function checkFullyUndone({ step, name, forward, undo, observed }: StepObservation): string[] {
  if (forward.length > 0 && undo.length === 0 && step.undo !== null)
    return [`it is rolled_back, and ${name} was not undone`];
  const state = observed?.undo.state ?? 'skipped';
  return state === 'done' || state === 'skipped' ? [] : [`it is rolled_back, and the undo of ${name} is ${state}`];
}

function minPosition(effects: readonly ObservedSagaEffect[], by: 'n' | 'request' = 'n'): number {
  return Math.min(...effects.map((effect) => effect[by]));
}

function maxPosition(effects: readonly ObservedSagaEffect[], by: 'n' | 'request' = 'n'): number {
  return Math.max(...effects.map((effect) => effect[by]));
}
