import { decideAfterFailedObservation, decideNextAction } from '../../domain/attempts/next-action.ts';
import { postponeCall } from '../../ledger/calls/call-ownership.ts';
import { findApprovalBlocker } from '../approvals/decide-approval.ts';
import { sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { acquireMissingLocks, type LockBlocker } from '../controls/locks.ts';
import type { ActionResult, AttemptLoop } from './attempt-loop.ts';
import { type Job, toCallProgress } from './job.ts';
import { observeBeforeSend } from './observe.ts';
import { sendRequest } from './send-request.ts';
import {
  type DispatchResult,
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
  const { ctx, job } = loop;
  if (afterMs > 0 && !(await sleepUnlessShutdown(loop, afterMs))) return handBackCall(ctx, job);
  if (canBeRecalled(job) && (await checkRecalled(ctx, job)))
    return decideNextAction(toCallProgress(job), job.tool, true);
  const approval = isApprovalNeeded(job) ? await checkApproval(ctx, job) : NO_APPROVAL_NEEDED;
  if (approval.kind === 'blocked') return settleDenied(ctx, job, approval.why);
  const lockBlocker = job.attemptOpen ? undefined : await acquireLocks(ctx, job);
  if (lockBlocker !== undefined) return handleLockBlocker(ctx, job, lockBlocker);
  const observed = isObservationNeeded(job) ? await observeTarget(loop) : undefined;
  if (observed !== undefined) return observed;
  if (!job.attemptOpen && !(await openAttempt(ctx, job))) return { kind: 'elsewhere' };
  return await sendRequest(loop, approval.policyVersion);
}

/** Returns false if the shutdown of this process began meanwhile. */
async function sleepUnlessShutdown({ shutdownToken }: AttemptLoop, ms: number): Promise<boolean> {
  await sleepUnlessCancelled(ms, shutdownToken);
  return !shutdownToken.isCancelled;
}

/** Whether a call may have been recalled since its last attempt. Only a call of a saga or run, between two attempts, can be. */
function canBeRecalled(job: Job): boolean {
  if ((job.saga === null && job.run === null) || job.undoOf !== null) return false;
  if (job.attempt === 0 || job.attemptOpen) return false;
  return job.unresolved === 0 || (job.kind === 'idempotent' && job.run !== null);
}

/**
 * Reads whether the saga of a call is rolled back or its run was taken over since the last attempt. Returns true if the next
 * attempt is therefore not allowed. The ledger would refuse that attempt too.
 */
async function checkRecalled(ctx: Context, job: Job): Promise<boolean> {
  const call = await retryUntilWritten(ctx, job, () => ctx.calls.read(job.txn));
  job.recalled ||= call?.recalled === true;
  job.fenced ||= call?.fenced === true;
  return job.unresolved === 0 ? job.recalled : job.fenced;
}

type ApprovalCheck =
  | { readonly kind: 'valid'; readonly policyVersion: string | undefined }
  | { readonly kind: 'blocked'; readonly why: string };

// One shared object: most sends need no approval.
const NO_APPROVAL_NEEDED: ApprovalCheck = { kind: 'valid', policyVersion: undefined };

/** The approval is checked before each attempt, until an attempt may have had an effect. */
function isApprovalNeeded(job: Job): boolean {
  return job.isApproved && job.unresolved === 0;
}

/**
 * Checks that the approval of a call still covers it. `policyVersion` is the version of this check; nothing is sent under
 * another version.
 */
async function checkApproval(ctx: Context, job: Job): Promise<ApprovalCheck> {
  const policyVersion = ctx.policies().version;
  const call = { txn: job.txn, agent: job.agent, tool: job.tool.name };
  const why = await retryUntilWritten(ctx, job, () => findApprovalBlocker(ctx, call, job));
  return why === undefined ? { kind: 'valid', policyVersion } : { kind: 'blocked', why };
}

function acquireLocks(ctx: Context, job: Job): Promise<LockBlocker | undefined> {
  return retryUntilWritten(ctx, job, () => acquireMissingLocks(ctx, job));
}

/** Ends or postpones a call that cannot get its locks. */
async function handleLockBlocker(ctx: Context, job: Job, blocker: LockBlocker): Promise<DispatchResult> {
  switch (blocker.kind) {
    case 'call_lost':
      return { kind: 'elsewhere' };
    case 'invalid_locks':
      if (job.unresolved > 0) return parkCall(ctx, job, null, blocker.why, undefined);
      return settleDenied(ctx, job, blocker.why);
    case 'lock_conflict':
      await retryUntilWritten(ctx, job, () => postponeCall(ctx.db, job.txn, job.owner, LOCKED_RECHECK_MS));
      return { kind: 'elsewhere' };
  }
}

function isObservationNeeded(job: Job): boolean {
  return job.tool.observe !== undefined && job.attempt === 0;
}

/** Observes the target before the first attempt. Returns undefined if the call must be sent. A crash here leaves an unsent call. */
async function observeTarget(loop: AttemptLoop): Promise<ActionResult | undefined> {
  const { ctx, job } = loop;
  const observed = await observeBeforeSend(ctx, job);
  ctx.reachKillPoint('observed');
  if (observed.kind === 'observed') return observed.satisfied ? settleSatisfied(ctx, job, observed.answer) : undefined;
  loop.failedObservations += 1;
  loop.lastOutcome = {
    kind: 'not_sent',
    detail: `the state before the call could not be observed: ${observed.detail}`,
  };
  return decideAfterFailedObservation(toCallProgress(job), job.tool.retry, loop.failedObservations);
}

/**
 * Records the next attempt before its first byte leaves. Returns false if another process owns the call. A crash afterwards
 * leaves an unknown attempt.
 */
async function openAttempt(ctx: Context, job: Job): Promise<boolean> {
  job.attempt += 1;
  job.attemptOpen = true;
  job.attemptDetail = null;
  job.firstSentAt ??= performance.now();
  if (job.state === 'ready') job.state = 'sending';
  return recordProgress(ctx, job, null);
}
