import {
  decideAfterFailedProbe,
  decideAfterFailedReobservation,
  decideNextAction,
} from '../../domain/attempts/next-action.ts';
import { buildProbedSettlement, OBSERVED } from '../../domain/attempts/settlement.ts';
import type { Context } from '../context.ts';
import type { ActionResult } from './attempt-loop.ts';
import { buildCallEvent } from './build-patches.ts';
import { type DispatchResult, type InFlightCall, patchCall, toCallProgress } from './in-flight-call.ts';
import { type ObservedState, observeInDoubt, truncateForPerson } from './observe.ts';
import { runProbe } from './probe.ts';
import { parkCall, recordProgress, settleCall } from './update-call.ts';

// The actions that read whether an attempt whose outcome is unknown had its effect.

/** Probes the effect of a call in doubt. A crash here leaves a call in doubt, which is probed again. */
export async function probeEffect(ctx: Context, call: InFlightCall): Promise<ActionResult> {
  const probed = await runProbe(ctx, call);
  ctx.reachKillPoint('probed');
  switch (probed.kind) {
    case 'applied':
      return settleCall(ctx, call, buildProbedSettlement(probed.detail), probed.answer);
    case 'not_applied':
      return continueDisproved(ctx, call, 'probe');
    case 'failed':
      return decideAfterFailedProbe(call.tool.retry, probed.detail);
  }
}

/**
 * Observes the target of a call in doubt. The observation is proof only if the tool declares `settles`. Otherwise, or if
 * the observation fails, a person decides. A crash here leaves a call in doubt, which is observed again.
 */
export async function observeEffect(ctx: Context, call: InFlightCall): Promise<ActionResult> {
  const observed = await observeInDoubt(ctx, call);
  ctx.reachKillPoint('probed');
  const isProof = call.tool.observe?.settlesMs !== undefined;
  if (observed.kind === 'failed')
    return decideAfterFailedReobservation(toCallProgress(call), call.tool.retry, isProof, observed.detail);
  if (!isProof) return parkForPerson(ctx, call, observed);
  return observed.satisfied
    ? settleCall(ctx, call, OBSERVED, observed.answer)
    : continueDisproved(ctx, call, 'observation');
}

/** Parks a call with an observation that proves nothing, for the person who resolves the doubt. */
function parkForPerson(
  ctx: Context,
  call: InFlightCall,
  { satisfied, answer }: ObservedState,
): Promise<DispatchResult> {
  call.undoArguments = null;
  const finding = satisfied ? 'found the requested state' : 'did not find the requested state';
  const why = `a second observation ${finding}, which proves nothing by itself`;
  return parkCall(ctx, call, null, why, undefined, { satisfied, observed: truncateForPerson(answer) });
}

const DISPROOF_EVENTS = { probe: 'probe_not_applied', observation: 'observed_not_satisfied' } as const;

/** Continues a call after evidence showed that no attempt so far had an effect. */
async function continueDisproved(
  ctx: Context,
  call: InFlightCall,
  by: keyof typeof DISPROOF_EVENTS,
): Promise<ActionResult> {
  patchCall(call, { unresolved: 0, disprovedBy: by });
  const event = buildCallEvent(DISPROOF_EVENTS[by], { attempt: call.record.attempt });
  if (!(await recordProgress(ctx, call, event))) return { kind: 'elsewhere' };
  return decideNextAction(toCallProgress(call), call.tool, true);
}
