import { canonical } from './canonical.ts';
import { type Planned, planOf, type Saga, type Step } from './saga.ts';
import { sha256 } from './sha256.ts';

/**
 * Of what a rollback would do, in hex: which steps, in which order, each with which undo. Whoever confirms a plan sends it along,
 * and is refused if something else would be done by then. Not in it is what only explains, such as why something cannot be undone.
 */
export function planDigest({ id, state }: Saga, steps: readonly Step[], keep: number): string {
  const text = canonical({ saga: id, state, keep, plan: planOf(steps, keep).map(undone) });
  return sha256(text).toString('hex');
}

function undone({ step, does, wave, blockedBy }: Planned) {
  return { txn: step.txn, does, wave, blockedBy, tool: step.undo?.tool ?? null, args: step.undoArgs };
}
