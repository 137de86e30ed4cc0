import { decideAfterFailedObservation, decideNextAction } from '../../domain/attempts/next-action.ts';
import { postponeCall } from '../../ledger/calls/call-ownership.ts';
import { findApprovalBlocker } from '../approvals/decide-approval.ts';
import { sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { acquireMissingLocks, type LockBlocker } from '../controls/locks.ts';
import type { ActionResult, AttemptLoop } from './attempt-loop.ts';
import { type DispatchResult, type InFlightCall, patchCall, toCallProgress } from './in-flight-call.ts';
import { observeBeforeSend } from './observe.ts';
import { sendRequest } from './send-request.ts';
import {
  handBackCall,
  parkCall,
  recordProgress,
  retryUntilWritten,
  settleDenied,
  settleSatisfied,
} from './update-call.ts';

/** How soon an approved or delayed call that found a lock taken is tried again. */
const LOCKED_RECHECK_MS = 300;

/**
 * Checks, in this order, whether the next attempt may be sent, and sends it. A check that stops the attempt ends the work on
 * the call or leads to another action. The ordinary first attempt of a call awaits none of the checks.
 */
export async function sendAttempt(loop: AttemptLoop, afterMs: number): Promise<ActionResult> {
  const { ctx, call } = loop;
  if (afterMs > 0 && !(await sleepUnlessShutdown(loop, afterMs))) return handBackCall(ctx, call);
  if (canBeRecalled(call) && (await checkRecalled(ctx, call)))
    return decideNextAction(toCallProgress(call), call.tool, true);
  const approval = isApprovalNeeded(call) ? await checkApproval(ctx, call) : NO_APPROVAL_NEEDED;
  if (approval.kind === 'blocked') return settleDenied(ctx, call, approval.why);
  const lockBlocker = call.record.attemptOpen ? undefined : await acquireLocks(ctx, call);
  if (lockBlocker !== undefined) return handleLockBlocker(ctx, call, lockBlocker);
  const observed = isObservationNeeded(call) ? await observeTarget(loop) : undefined;
  if (observed !== undefined) return observed;
  if (!call.record.attemptOpen && !(await openAttempt(ctx, call))) return { kind: 'elsewhere' };
  return await sendRequest(loop, approval.policyVersion);
}

/** Returns false if the shutdown of this process began meanwhile. */
async function sleepUnlessShutdown({ shutdownToken }: AttemptLoop, ms: number): Promise<boolean> {
  await sleepUnlessCancelled(ms, shutdownToken);
  return !shutdownToken.isCancelled;
}

/** Whether a call may have been recalled since its last attempt. Only a call of a saga or run, between two attempts, can be. */
function canBeRecalled({ record }: InFlightCall): boolean {
  if ((record.saga === null && record.run === null) || record.undoOf !== null) return false;
  if (record.attempt === 0 || record.attemptOpen) return false;
  return record.unresolved === 0 || (record.kind === 'idempotent' && record.run !== null);
}

/**
 * Reads whether the saga of a call is rolled back or its run was taken over since the last attempt. Returns true if the next
 * attempt is therefore not allowed. The ledger would refuse that attempt too.
 */
async function checkRecalled(ctx: Context, call: InFlightCall): Promise<boolean> {
  const { record } = call;
  const stored = await retryUntilWritten(ctx, call, () => ctx.calls.read(record.txn));
  patchCall(call, {
    recalled: record.recalled || stored?.recalled === true,
    fenced: record.fenced || stored?.fenced === true,
  });
  return record.unresolved === 0 ? record.recalled : record.fenced;
}

type ApprovalCheck =
  | { readonly kind: 'valid'; readonly policyVersion: string | undefined }
  | { readonly kind: 'blocked'; readonly why: string };

// One shared object: most sends need no approval.
const NO_APPROVAL_NEEDED: ApprovalCheck = { kind: 'valid', policyVersion: undefined };

/** The approval is checked before each attempt, until an attempt may have had an effect. */
function isApprovalNeeded(call: InFlightCall): boolean {
  return call.record.isApproved && call.record.unresolved === 0;
}

/**
 * Checks that the approval of a call still covers it. `policyVersion` is the version of this check; nothing is sent under
 * another version.
 */
async function checkApproval(ctx: Context, call: InFlightCall): Promise<ApprovalCheck> {
  const policyVersion = ctx.policies().version;
  const why = await retryUntilWritten(ctx, call, () => findApprovalBlocker(ctx, call.record, call.payload));
  return why === undefined ? { kind: 'valid', policyVersion } : { kind: 'blocked', why };
}

function acquireLocks(ctx: Context, call: InFlightCall): Promise<LockBlocker | undefined> {
  return retryUntilWritten(ctx, call, () => acquireMissingLocks(ctx, call));
}

/** Ends or postpones a call that cannot get its locks. */
async function handleLockBlocker(ctx: Context, call: InFlightCall, blocker: LockBlocker): Promise<DispatchResult> {
  switch (blocker.kind) {
    case 'call_lost':
      return { kind: 'elsewhere' };
    case 'invalid_locks':
      if (call.record.unresolved > 0) return parkCall(ctx, call, null, blocker.why, undefined);
      return settleDenied(ctx, call, blocker.why);
    case 'lock_conflict':
      await retryUntilWritten(ctx, call, () => postponeCall(ctx.db, call.record.txn, call.owner, LOCKED_RECHECK_MS));
      return { kind: 'elsewhere' };
  }
}

function isObservationNeeded(call: InFlightCall): boolean {
  return call.tool.observe !== undefined && call.record.attempt === 0;
}

/** Observes the target before the first attempt. Returns undefined if the call must be sent. A crash here leaves an unsent call. */
async function observeTarget(loop: AttemptLoop): Promise<ActionResult | undefined> {
  const { ctx, call } = loop;
  const observed = await observeBeforeSend(ctx, call);
  ctx.reachKillPoint('observed');
  if (observed.kind === 'observed') return observed.satisfied ? settleSatisfied(ctx, call, observed.answer) : undefined;
  loop.failedObservations += 1;
  loop.lastOutcome = {
    kind: 'not_sent',
    detail: `the state before the call could not be observed: ${observed.detail}`,
  };
  return decideAfterFailedObservation(toCallProgress(call), call.tool.retry, loop.failedObservations);
}

/**
 * Records the next attempt before its first byte leaves. Returns false if another process owns the call. A crash afterwards
 * leaves an unknown attempt.
 */
async function openAttempt(ctx: Context, call: InFlightCall): Promise<boolean> {
  const { attempt, state } = call.record;
  patchCall(call, {
    attempt: attempt + 1,
    attemptOpen: true,
    attemptDetail: null,
    state: state === 'ready' ? 'sending' : state,
  });
  call.times.firstSentAt ??= performance.now();
  return recordProgress(ctx, call, null);
}
