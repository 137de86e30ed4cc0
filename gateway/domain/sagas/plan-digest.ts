import { canonicalize } from '../canonical.ts';
import { sha256 } from '../sha256.ts';
import { buildRollbackPlan, type PlannedStep, type Saga, type SagaStep } from './saga.ts';

/**
 * The hex digest of a rollback plan: its steps, their order, and the undo of each. A client that confirms a plan sends the
 * digest, and is refused if the plan has changed. Explanations, such as why a step cannot be undone, are not part of the digest.
 */
export function computePlanDigest({ id, state }: Saga, steps: readonly SagaStep[], keep: number): string {
  const text = canonicalize({ saga: id, state, keep, plan: buildRollbackPlan(steps, keep).map(toDigestInput) });
  return sha256(text).toString('hex');
}

function toDigestInput({ step, does, wave, blockedBy }: PlannedStep) {
  return { txn: step.txn, does, wave, blockedBy, tool: step.undo?.tool ?? null, args: step.undoArgs };
}
