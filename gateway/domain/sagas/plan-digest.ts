import { canonicalize } from '../canonical.ts';
import { sha256 } from '../sha256.ts';
import { buildRollbackPlan, type PlannedStep, type Saga, type SagaStep } from './saga.ts';

/**
 * Of what a rollback would do, in hex: which steps, in which order, each with which undo. Whoever confirms a plan sends it along,
 * and is refused if something else would be done by then. Not in it is what only explains, such as why something cannot be undone.
 */
export function computePlanDigest({ id, state }: Saga, steps: readonly SagaStep[], keep: number): string {
  const text = canonicalize({ saga: id, state, keep, plan: buildRollbackPlan(steps, keep).map(toDigestInput) });
  return sha256(text).toString('hex');
}

function toDigestInput({ step, does, wave, blockedBy }: PlannedStep) {
  return { txn: step.txn, does, wave, blockedBy, tool: step.undo?.tool ?? null, args: step.undoArgs };
}
