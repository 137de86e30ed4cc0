import { setTimeout as sleep } from 'node:timers/promises';
import type { Outcome } from '../../domain/attempts/adapter.ts';
import { parseResult } from '../../domain/attempts/classify-answer.ts';
import {
  computeBackoffMs,
  concludeAttempt,
  decideNextAction,
  type NextAction,
} from '../../domain/attempts/next-action.ts';
import type { CallEvent } from '../../domain/calls/call.ts';
import { parseTraceContext, type Span } from '../../domain/telemetry.ts';
import { postponeCall } from '../../ledger/calls/call-ownership.ts';
import { findApprovalBlocker } from '../approvals/decide-approval.ts';
import { redactAnswer } from '../calls/payload.ts';
import { CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import { acquireMissingLocks, type LockBlocker, withLockToken } from '../controls/locks.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import { type Job, toCallProgress } from './job.ts';
import { observeBeforeSend, observeInDoubt, truncateForPerson } from './observe.ts';
import { runProbe } from './probe.ts';
import { buildCallEvent, type DispatchResult, describeOutcome, Recorder } from './record.ts';
import { settleAnswer, settleDenied, settleFailure, settleSatisfied } from './settle.ts';

/**
 * Runs the attempts of open calls. Fresh, approved, recovered and compensating calls all reach an upstream only through
 * here. Sending happens between two transactions. A crash there leaves `sending` or `in_doubt` with an open attempt: its
 * outcome is unknown, and recovery takes the call over.
 */
export class Dispatch {
  readonly #ctx: Context;
  readonly #inFlight = new Map<string, InFlightCall>();
  readonly #recorder: Recorder;
  readonly #shutdownToken = new CancelToken();

  constructor(ctx: Context) {
    this.#ctx = ctx;
    this.#recorder = new Recorder(ctx);
  }

  /** Starts the attempts of a call that this process owns. The promise never rejects. */
  start(job: Job): Promise<DispatchResult> {
    const result = this.#runToEnd(job, job.span ?? this.#startRootSpan(job));
    this.#inFlight.set(job.txn, { job, result });
    return result;
  }

  async #runToEnd(job: Job, span: Span): Promise<DispatchResult> {
    try {
      return await this.#runAttempts(job, span);
    } catch (error) {
      this.#ctx.log.error(
        { err: error, txn: job.txn },
        'An internal error interrupted a call. It is parked or handed back.',
      );
      return await this.#parkOrDrop(job);
    } finally {
      if (job.span === undefined) span.end({ txn: job.txn, state: job.state });
      // Keep the entry if this process took the call again meanwhile, under another job.
      if (this.#inFlight.get(job.txn)?.job === job) this.#inFlight.delete(job.txn);
    }
  }

  async #parkOrDrop(job: Job): Promise<DispatchResult> {
    try {
      return await this.#parkAfterInternalError(job);
    } catch (error) {
      this.#ctx.log.error({ err: error, txn: job.txn }, 'A call could not be parked. Recovery releases it later.');
      return { kind: 'elsewhere' };
    }
  }

  findInFlight(txn: string): InFlightCall | undefined {
    return this.#inFlight.get(txn);
  }

  /** Resolves when fewer than `limit` calls are in flight, or the process is shutting down. */
  async awaitCapacity(limit: number): Promise<void> {
    while (this.#inFlight.size >= limit && !this.#shutdownToken.isCancelled) await Promise.race(this.#listResults());
  }

  /** Cancelled when this process begins to shut down. */
  get shutdownToken(): CancelToken {
    return this.#shutdownToken;
  }

  /** Begins the shutdown: calls that wait for their next attempt are handed back at once. */
  beginShutdown(): void {
    this.#shutdownToken.cancel();
  }

  /** Begins the shutdown and waits for open attempts, at most `deadlineMs`. */
  async drain(deadlineMs: number): Promise<void> {
    this.beginShutdown();
    const all = Promise.all(this.#listResults());
    await Promise.race([all, sleep(deadlineMs, undefined, { ref: false })]);
  }

  #listResults(): Promise<DispatchResult>[] {
    return Array.from(this.#inFlight.values(), ({ result }) => result);
  }

  /** A recovered or compensating call has no caller's span. It continues the trace context of its stored request. */
  #startRootSpan(job: Job): Span {
    const name = job.undoOf === null ? 'recover' : 'undo';
    return this.#ctx.telemetry.begin(
      name,
      toSpanSubject(job),
      parseTraceContext((header) => job.request.headers[header]),
    );
  }

  async #runAttempts(job: Job, span: Span): Promise<DispatchResult> {
    let action: NextAction = job.attemptOpen
      ? { do: 'send', afterMs: 0 }
      : decideNextAction(toCallProgress(job), job.tool, job.isDue);
    let last: Outcome | undefined;
    let failedObservations = 0;
    for (;;) {
      switch (action.do) {
        case 'send': {
          if (action.afterMs > 0 && !(await this.#sleepUnlessShutdown(action.afterMs)))
            return this.#recorder.releaseOwnership(job);
          if (canBeRecalled(job) && (await this.#checkRecalled(job))) {
            action = decideNextAction(toCallProgress(job), job.tool, true);
            break;
          }
          const approval = job.isApproved && job.unresolved === 0 ? await this.#checkApproval(job) : NO_APPROVAL_NEEDED;
          if (approval.kind === 'blocked') return settleDenied(this.#recorder, job, approval.why);
          if (!job.attemptOpen) {
            const blocker = await this.#recorder.retryUntilWritten(job, () => acquireMissingLocks(this.#ctx, job));
            if (blocker !== undefined) return this.#handleLockBlocker(job, blocker);
          }
          if (job.tool.observe !== undefined && job.attempt === 0) {
            const observed = await observeBeforeSend(this.#ctx, job);
            this.#ctx.reachKillPoint('observed');
            if (observed.kind === 'failed') {
              failedObservations += 1;
              last = {
                kind: 'not_sent',
                detail: `the state before the call could not be observed: ${observed.detail}`,
              };
              action = decideAfterFailedObservation(job, failedObservations);
              break;
            }
            if (observed.satisfied) return settleSatisfied(this.#recorder, job, observed.answer);
          }
          if (!job.attemptOpen && !(await this.#openAttempt(job))) return { kind: 'elsewhere' };
          last = await this.#send(job, approval.policyVersion, span);
          if (last.kind === 'not_sent' && last.abandoned === true) return this.#handleAbandonedSend(job, last);
          this.#ctx.reachKillPoint('answered');
          const conclusion = concludeAttempt(job.kind, last, job.unresolved);
          if (conclusion.state !== 'open') return await this.#settleAnswer(job, conclusion.state, last, span);
          closeAttempt(job, conclusion.unknown);
          job.attemptDetail = describeOutcome(last);
          action = decideNextAction(toCallProgress(job), job.tool, false);
          if (action.do === 'send' && !(await this.#recorder.recordProgress(job, buildAttemptEvent(job, last))))
            return { kind: 'elsewhere' };
          break;
        }
        case 'probe': {
          const probed = await runProbe(this.#ctx, job);
          this.#ctx.reachKillPoint('probed');
          if (probed.kind === 'applied')
            return this.#recorder.settle(job, 'succeeded', probed.answer, {
              outcome: 'probed',
              evidence: 'probe',
              ...(probed.detail === undefined ? {} : { detail: probed.detail }),
            });
          if (probed.kind === 'failed') {
            action = {
              do: 'doubt',
              wakeMs: job.tool.retry.maxMs,
              why: `the probe gave no clear answer: ${probed.detail}`,
            };
            break;
          }
          markDisproved(job, 'probe');
          const event = buildCallEvent('probe_not_applied', { attempt: job.attempt });
          if (!(await this.#recorder.recordProgress(job, event))) return { kind: 'elsewhere' };
          action = decideNextAction(toCallProgress(job), job.tool, true);
          break;
        }
        case 'observe': {
          const reobserved = await this.#reobserve(job);
          if (reobserved.kind === 'done') return reobserved.result;
          action = reobserved.action;
          break;
        }
        case 'doubt':
          return this.#recorder.park(job, action.wakeMs, action.why, last);
        case 'release':
          return this.#recorder.release(job, last);
        case 'fail':
          return isUnsentRead(job, last) ? this.#recorder.release(job, last) : settleFailure(this.#recorder, job, last);
      }
    }
  }

  async #sleepUnlessShutdown(ms: number): Promise<boolean> {
    await sleepUnlessCancelled(ms, this.#shutdownToken);
    return !this.#shutdownToken.isCancelled;
  }

  /** Records the next attempt before its first byte leaves. A crash afterwards leaves an unknown attempt. */
  async #openAttempt(job: Job): Promise<boolean> {
    job.attempt += 1;
    job.attemptOpen = true;
    job.attemptDetail = null;
    job.firstSentAt ??= performance.now();
    if (job.state === 'ready') job.state = 'sending';
    return this.#recorder.recordProgress(job, null);
  }

  /**
   * Checks that the approval of a call still covers it. Runs before each attempt until something was sent. `policyVersion` is
   * the version of this check; `#send` sends nothing under another version.
   */
  async #checkApproval(job: Job): Promise<ApprovalCheck> {
    const policyVersion = this.#ctx.policies().version;
    const call = { txn: job.txn, agent: job.agent, tool: job.tool.name };
    const why = await this.#recorder.retryUntilWritten(job, () => findApprovalBlocker(this.#ctx, call, job));
    return why === undefined ? { kind: 'valid', policyVersion } : { kind: 'blocked', why };
  }

  async #send(job: Job, policyVersion: string | undefined, span: Span): Promise<Outcome> {
    const sendSpan = this.#ctx.telemetry.begin('send', toSpanSubject(job), span);
    const { controlFlags, adapters, policies, reachKillPoint } = this.#ctx;
    const outcome = await adapters.getAdapter(job.tool).send(job.tool, withLockToken(job), {
      timeoutMs: job.tool.timeoutMs,
      freshConnection: job.kind === 'probe' || job.kind === 'none',
      listener: job.progressListener,
      discreet: job.secrets.length > 0,
      maySend: () => {
        reachKillPoint('sending');
        if (policyVersion !== undefined && policies().version !== policyVersion) return false;
        // The lifetime of the key may have ended while the request queued and connected.
        if (job.unknownSince !== null && toCallProgress(job).msToResend <= 0) return false;
        if (job.unresolved === 0 && controlFlags.isRecalled(job.txn)) return false;
        return controlFlags.canSend(job.owner) && findSendBlock(this.#ctx, job) === undefined;
      },
    });
    sendSpan.end({ outcome: outcome.kind, attempt: job.attempt });
    if (hasEffect(outcome)) job.undoArguments = prepareUndoArguments(this.#ctx, job, () => parseResult(outcome.answer));
    if (!('answer' in outcome) || outcome.answer === undefined) return outcome;
    const answer = redactAnswer(job.tool, outcome.answer, job.args, job.secrets);
    return answer === outcome.answer ? outcome : { ...outcome, answer };
  }

  async #settleAnswer(job: Job, state: 'succeeded' | 'failed', outcome: Outcome, span: Span): Promise<DispatchResult> {
    const settleSpan = this.#ctx.telemetry.begin('settle', toSpanSubject(job), span);
    try {
      return await settleAnswer(this.#recorder, job, state, outcome);
    } finally {
      settleSpan.end();
    }
  }

  /** Ends or postpones a call that cannot get its locks. */
  async #handleLockBlocker(job: Job, blocker: LockBlocker): Promise<DispatchResult> {
    switch (blocker.kind) {
      case 'call_lost':
        return { kind: 'elsewhere' };
      case 'invalid_locks':
        if (job.unresolved > 0) return this.#recorder.park(job, null, blocker.why, undefined);
        return settleDenied(this.#recorder, job, blocker.why);
      case 'lock_conflict': {
        const { db } = this.#ctx;
        await this.#recorder.retryUntilWritten(job, () => postponeCall(db, job.txn, job.owner, LOCKED_RECHECK_MS));
        return { kind: 'elsewhere' };
      }
    }
  }

  /**
   * Observes the target of a call in doubt. The observation is proof only if the tool declares `settles`. Otherwise, or if
   * the observation fails, a person decides. A crash here leaves a call in doubt, which is observed again.
   */
  async #reobserve(job: Job): Promise<ReobserveResult> {
    const observed = await observeInDoubt(this.#ctx, job);
    this.#ctx.reachKillPoint('probed');
    const isProof = job.tool.observe?.settlesMs !== undefined;
    if (observed.kind === 'failed') {
      const isInTime = toCallProgress(job).msInRound <= job.tool.retry.withinMs;
      const wakeMs = isProof && isInTime ? job.tool.retry.maxMs : null;
      const why = `its effect could not be observed: ${observed.detail}`;
      return { kind: 'next', action: { do: 'doubt', wakeMs, why } };
    }
    if (!isProof) {
      job.undoArguments = null;
      const finding = observed.satisfied ? 'found the requested state' : 'did not find the requested state';
      const why = `a second observation ${finding}, which proves nothing by itself`;
      const shown = { satisfied: observed.satisfied, observed: truncateForPerson(observed.answer) };
      return { kind: 'done', result: await this.#recorder.park(job, null, why, undefined, shown) };
    }
    if (observed.satisfied) {
      const settlement = { outcome: 'observed', evidence: 'probe', isObservationOnly: true } as const;
      return { kind: 'done', result: await this.#recorder.settle(job, 'succeeded', observed.answer, settlement) };
    }
    markDisproved(job, 'observation');
    const event = buildCallEvent('observed_not_satisfied', { attempt: job.attempt });
    if (!(await this.#recorder.recordProgress(job, event))) return { kind: 'done', result: { kind: 'elsewhere' } };
    return { kind: 'next', action: decideNextAction(toCallProgress(job), job.tool, true) };
  }

  /**
   * Reads whether the saga of a call is rolled back or its run was taken over since the last attempt. Returns true if the next
   * attempt is therefore not allowed. The ledger would refuse that attempt too.
   */
  async #checkRecalled(job: Job): Promise<boolean> {
    const call = await this.#recorder.retryUntilWritten(job, () => this.#ctx.calls.read(job.txn));
    job.recalled ||= call?.recalled === true;
    job.fenced ||= call?.fenced === true;
    return job.unresolved === 0 ? job.recalled : job.fenced;
  }

  /**
   * Gives up a call after an internal error, or after its upstream vanished from the policies. Other processes ignore a call
   * while its owner lives, so this process must not keep it. An open attempt is unknown, and recovery tries again later.
   */
  #parkAfterInternalError(job: Job): Promise<DispatchResult> {
    const why = 'an internal error of the gateway interrupted this call';
    if (job.kind === 'read') return settleFailure(this.#recorder, job, { kind: 'ambiguous', detail: why });
    if (job.attempt === 0) return this.#recorder.releaseOwnership(job, INTERNAL_ERROR_RECHECK_MS);
    closeAttempt(job, job.attemptOpen);
    return this.#recorder.park(job, job.tool.retry.maxMs, why, undefined);
  }

  /** Handles a send that a freeze, a recall or a lost lease stopped before its first byte. */
  async #handleAbandonedSend(job: Job, last: Outcome): Promise<DispatchResult> {
    closeAttempt(job, false);
    if (job.unresolved === 0 && this.#ctx.controlFlags.isRecalled(job.txn)) {
      // The recall may concern an earlier, released claim of the same txn. Only the ledger knows.
      job.recalled =
        (await this.#recorder.retryUntilWritten(job, () => this.#ctx.calls.read(job.txn)))?.recalled === true;
      return job.recalled
        ? settleFailure(this.#recorder, job, last)
        : this.#recorder.releaseOwnership(job, FROZEN_RECHECK_MS);
    }
    const block = findSendBlock(this.#ctx, job);
    if (block === undefined) return this.#recorder.releaseOwnership(job);
    const blocked: Outcome = { ...last, kind: 'not_sent', detail: block.detail };
    return job.unresolved === 0 && !toCallProgress(job).shouldFailIfUnsent && job.unknownSince === null
      ? this.#recorder.release(job, blocked, block.code)
      : this.#recorder.releaseOwnership(job, FROZEN_RECHECK_MS);
  }
}

/** A call that this process works on, and the promise of its result. */
export interface InFlightCall {
  readonly job: Job;
  readonly result: Promise<DispatchResult>;
}

type ApprovalCheck =
  | { readonly kind: 'valid'; readonly policyVersion: string | undefined }
  | { readonly kind: 'blocked'; readonly why: string };

// One shared object: most sends need no approval.
const NO_APPROVAL_NEEDED: ApprovalCheck = { kind: 'valid', policyVersion: undefined };

type ReobserveResult =
  | { readonly kind: 'next'; readonly action: NextAction }
  | { readonly kind: 'done'; readonly result: DispatchResult };

/** Whether there may be something to undo. A tool that only asked for input did nothing. */
function hasEffect(outcome: Outcome): outcome is Extract<Outcome, { kind: 'ok' | 'ok_body_lost' | 'accepted' }> {
  if (outcome.kind === 'ok') return outcome.wantsInput !== true;
  return outcome.kind === 'ok_body_lost' || outcome.kind === 'accepted';
}

/** Whether a read was never sent. Its key is released, because a read has no effect that a key must protect. */
function isUnsentRead(job: Job, last: Outcome | undefined): boolean {
  return job.kind === 'read' && last?.kind === 'not_sent' && !job.recalled && !toCallProgress(job).shouldFailIfUnsent;
}

/** Whether a call may have been recalled since its last attempt. Only a call of a saga or run, between two attempts, can be. */
function canBeRecalled(job: Job): boolean {
  if ((job.saga === null && job.run === null) || job.undoOf !== null) return false;
  if (job.attempt === 0 || job.attemptOpen) return false;
  return job.unresolved === 0 || (job.kind === 'idempotent' && job.run !== null);
}

/** How soon an approved or delayed call that found a lock taken is tried again. */
const LOCKED_RECHECK_MS = 300;
/** How soon a call is tried again after an internal error, which will most likely occur again. */
const INTERNAL_ERROR_RECHECK_MS = 5_000;
/** How soon a frozen call is tried again. */
const FROZEN_RECHECK_MS = 1_000;

/** Nothing is sent without an observation. The observation is retried a few times before the call is given up. */
function decideAfterFailedObservation(job: Job, times: number): NextAction {
  if (times < job.tool.retry.attempts) return { do: 'send', afterMs: computeBackoffMs(job.tool.retry, times) };
  return toCallProgress(job).shouldFailIfUnsent ? { do: 'fail' } : { do: 'release' };
}

function closeAttempt(job: Job, isUnknown: boolean): void {
  job.attemptOpen = false;
  if (!isUnknown) return;
  job.unresolved += 1;
  job.unknownSince = performance.now();
}

/** Evidence shows that no attempt so far had an effect. */
function markDisproved(job: Job, by: 'probe' | 'observation'): void {
  job.unresolved = 0;
  job.disprovedBy = by;
}

function toSpanSubject({ tool, agent, txn }: Job) {
  return { tool: tool.name, agent, txn };
}

function buildAttemptEvent(job: Job, outcome: Outcome): CallEvent {
  return buildCallEvent('attempt_ended', { attempt: job.attempt, as: outcome.kind, detail: describeOutcome(outcome) });
}
