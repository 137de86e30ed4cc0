import { setTimeout as sleep } from 'node:timers/promises';
import type { Outcome } from '../../domain/attempts/adapter.ts';
import {
  computeBackoffMs,
  concludeAttempt,
  decideNextAction,
  type NextAction,
} from '../../domain/attempts/next-step.ts';
import type { CallEvent } from '../../domain/calls/call.ts';
import { parseTraceContext, type Span } from '../../domain/telemetry.ts';
import { postponeCall } from '../../ledger/calls/call-ownership.ts';
import { findApprovalBlocker } from '../approvals/decide-approval.ts';
import { parseResult, redactAnswer } from '../calls/payload.ts';
import { CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { findSendBlock } from '../controls/freezes-and-breakers.ts';
import { acquireMissingLocks, type LockBlocker, withLockToken } from '../controls/locks.ts';
import { prepareUndoArguments } from '../sagas/undo.ts';
import { type Job, readAttemptFacts } from './job.ts';
import { observeBeforeSend, observeInDoubt, truncateForPerson } from './observe.ts';
import { runProbe } from './probe.ts';
import { buildCallEvent, type DispatchResult, describeOutcome, Recorder } from './record.ts';
import { settleAnswer, settleDenied, settleFailure, settleSatisfied } from './settle.ts';

/**
 * Carries open calls, each as far as it gets: the one way to an upstream for fresh, approved, recovered and compensating
 * calls alike. Sending happens between two transactions; a crash there leaves `sending` or `in_doubt` with an open
 * attempt, which means unknown and is found by recovery.
 */
export class Dispatch {
  readonly #ctx: Context;
  readonly #inFlight = new Map<string, InFlightCall>();
  readonly #recorder: Recorder;
  readonly #shutdownToken = new CancelToken();

  constructor(station: Context) {
    this.#ctx = station;
    this.#recorder = new Recorder(station);
  }

  /** Starts to carry a call that this process holds. Never rejects. */
  start(job: Job): Promise<DispatchResult> {
    const ending = this.#runToEnd(job, job.stint ?? this.#startRootSpan(job));
    this.#inFlight.set(job.txn, { job, ending });
    return ending;
  }

  async #runToEnd(job: Job, watched: Span): Promise<DispatchResult> {
    try {
      return await this.#runAttempts(job, watched);
    } catch (error) {
      this.#ctx.log.error({ err: error, txn: job.txn }, 'a call could not be carried on');
      return await this.#parkOrDrop(job);
    } finally {
      if (job.stint === undefined) watched.end({ txn: job.txn, state: job.state });
      // Not if the call came back to this process meanwhile and another job carries it.
      if (this.#inFlight.get(job.txn)?.job === job) this.#inFlight.delete(job.txn);
    }
  }

  async #parkOrDrop(job: Job): Promise<DispatchResult> {
    try {
      return await this.#parkAfterInternalError(job);
    } catch (error) {
      this.#ctx.log.error({ err: error, txn: job.txn }, 'a call was dropped; it is found when this process ends');
      return { as: 'elsewhere' };
    }
  }

  inFlight(txn: string): InFlightCall | undefined {
    return this.#inFlight.get(txn);
  }

  /** Resolves when fewer than `most` calls are carried, or the process is about to end. */
  async awaitCapacity(most: number): Promise<void> {
    while (this.#inFlight.size >= most && !this.#shutdownToken.gone) await Promise.race(this.#listResults());
  }

  /** Gone when this process is about to end. */
  get shutdownToken(): CancelToken {
    return this.#shutdownToken;
  }

  /** Whatever waits for its next attempt is handed back at once. */
  beginShutdown(): void {
    this.#shutdownToken.hangUp();
  }

  /** Waits for what is on the wire. */
  async drain(deadlineMs: number): Promise<void> {
    this.beginShutdown();
    const all = Promise.all(this.#listResults());
    await Promise.race([all, sleep(deadlineMs, undefined, { ref: false })]);
  }

  #listResults(): Promise<DispatchResult>[] {
    return Array.from(this.#inFlight.values(), ({ ending }) => ending);
  }

  /** A call without a caller continues what is written in its request. */
  #startRootSpan(job: Job): Span {
    const name = job.undoOf === null ? 'recover' : 'undo';
    return this.#ctx.watch.begin(
      name,
      toSpanSubject(job),
      parseTraceContext((header) => job.request.headers[header]),
    );
  }

  async #runAttempts(job: Job, stint: Span): Promise<DispatchResult> {
    let step: NextAction = job.attemptOpen
      ? { do: 'send', afterMs: 0 }
      : decideNextAction(readAttemptFacts(job), job.tool, job.woken);
    let last: Outcome | undefined;
    let blind = 0;
    for (;;) {
      switch (step.do) {
        case 'send': {
          if (step.afterMs > 0 && !(await this.#sleepUnlessShutdown(step.afterMs)))
            return this.#recorder.releaseOwnership(job);
          if (canBeRecalled(job) && (await this.#checkRecalled(job))) {
            step = decideNextAction(readAttemptFacts(job), job.tool, true);
            break;
          }
          const approved = job.approved && job.unresolved === 0 ? await this.#checkApproval(job) : NO_APPROVAL_NEEDED;
          if (approved.why !== undefined) return settleDenied(this.#recorder, job, approved.why);
          if (!job.attemptOpen) {
            const bar = await this.#recorder.retryUntilWritten(job, () => acquireMissingLocks(this.#ctx, job));
            if (bar !== undefined) return this.#handleLockBlocker(job, bar);
          }
          if (job.tool.observe !== undefined && job.attempt === 0) {
            const observed = await observeBeforeSend(this.#ctx, job);
            this.#ctx.reach('observed');
            if (observed.satisfied === true) return settleSatisfied(this.#recorder, job, observed.answer);
            if (observed.satisfied === undefined) {
              blind += 1;
              last = { kind: 'not_sent', detail: `what it would change could not be observed: ${observed.detail}` };
              step = afterFailedObservation(job, blind);
              break;
            }
          }
          if (!job.attemptOpen && !(await this.#openAttempt(job))) return { as: 'elsewhere' };
          last = await this.#send(job, approved.under, stint);
          if (last.kind === 'not_sent' && last.abandoned === true) return this.#handleAbandonedSend(job, last);
          this.#ctx.reach('answered');
          const conclusion = concludeAttempt(job.kind, last, job.unresolved);
          if (conclusion.state !== 'open') return await this.#settleAnswer(job, conclusion.state, last, stint);
          closeAttempt(job, conclusion.unknown);
          step = decideNextAction(readAttemptFacts(job), job.tool, false);
          if (step.do === 'send' && !(await this.#recorder.recordProgress(job, buildAttemptEvent(job, last))))
            return { as: 'elsewhere' };
          break;
        }
        case 'probe': {
          const probed = await runProbe(this.#ctx, job);
          this.#ctx.reach('probed');
          if (probed.applied === true)
            return this.#recorder.settle(job, 'succeeded', probed.answer, { outcome: 'probed', evidence: 'probe' });
          if (probed.applied === undefined) {
            step = { do: 'doubt', wakeMs: job.tool.retry.maxMs, why: `the probe could not tell: ${probed.detail}` };
            break;
          }
          markDisproved(job, 'probe');
          if (
            !(await this.#recorder.recordProgress(job, buildCallEvent('probe_not_applied', { attempt: job.attempt })))
          )
            return { as: 'elsewhere' };
          step = decideNextAction(readAttemptFacts(job), job.tool, true);
          break;
        }
        case 'observe': {
          const seen = await this.#reobserve(job);
          if (!('do' in seen)) return seen;
          step = seen;
          break;
        }
        case 'doubt':
          return this.#recorder.park(job, step.wakeMs, step.why, last);
        case 'release':
          return this.#recorder.release(job, last);
        case 'fail':
          return isUnsentRead(job, last) ? this.#recorder.release(job, last) : settleFailure(this.#recorder, job, last);
      }
    }
  }

  async #sleepUnlessShutdown(ms: number): Promise<boolean> {
    await sleepUnlessCancelled(ms, this.#shutdownToken);
    return !this.#shutdownToken.gone;
  }

  /** T1 of a further attempt: its number is durable before its first byte. A crash after it leaves an unknown attempt. */
  async #openAttempt(job: Job): Promise<boolean> {
    job.attempt += 1;
    job.attemptOpen = true;
    job.firstSentAt ??= performance.now();
    if (job.state === 'ready') job.state = 'sending';
    return this.#recorder.recordProgress(job, null);
  }

  /**
   * Nothing of an approved call has left so far: before each attempt it is made sure that what was approved is still what
   * would run. The policies it was asked under must then stand until the first byte.
   */
  async #checkApproval(job: Job): Promise<{ why?: string; under?: string }> {
    const under = this.#ctx.policies().version;
    const asked = { txn: job.txn, agent: job.agent, tool: job.tool.name };
    const why = await this.#recorder.retryUntilWritten(job, () => findApprovalBlocker(this.#ctx, asked, job));
    return why === undefined ? { under } : { why };
  }

  async #send(job: Job, under: string | undefined, stint: Span): Promise<Outcome> {
    const sending = this.#ctx.watch.begin('send', toSpanSubject(job), stint);
    const { switches, adapters, policies, reach } = this.#ctx;
    const outcome = await adapters.getAdapter(job.tool).send(job.tool, withLockToken(job), {
      timeoutMs: job.tool.timeoutMs,
      freshConnection: job.kind === 'probe' || job.kind === 'none',
      listener: job.follower,
      discreet: job.secrets.length > 0,
      maySend: () => {
        reach('sending');
        if (under !== undefined && policies().version !== under) return false;
        // The time for a re-send may have run out while it queued and connected.
        if (job.unknownSince !== null && readAttemptFacts(job).msToResend <= 0) return false;
        if (job.unresolved === 0 && switches.isRecalled(job.txn)) return false;
        return switches.canSend(job.owner) && findSendBlock(this.#ctx, job) === undefined;
      },
    });
    sending.end({ outcome: outcome.kind, attempt: job.attempt });
    if ((outcome.kind === 'ok' && outcome.wantsInput !== true) || outcome.kind === 'ok_body_lost')
      job.undoArguments = prepareUndoArguments(this.#ctx, job, () => parseResult(outcome.answer));
    if (!('answer' in outcome) || outcome.answer === undefined) return outcome;
    const answer = redactAnswer(job.tool, outcome.answer, job.args, job.secrets);
    return answer === outcome.answer ? outcome : { ...outcome, answer };
  }

  async #settleAnswer(job: Job, state: 'succeeded' | 'failed', outcome: Outcome, stint: Span): Promise<DispatchResult> {
    const settling = this.#ctx.watch.begin('settle', toSpanSubject(job), stint);
    try {
      return await settleAnswer(this.#recorder, job, state, outcome);
    } finally {
      settling.end();
    }
  }

  /** It cannot be sent because of what it must lock: not now, or not at all. */
  async #handleLockBlocker(job: Job, bar: LockBlocker): Promise<DispatchResult> {
    switch (bar.kind) {
      case 'call_lost':
        return { as: 'elsewhere' };
      case 'invalid_locks':
        if (job.unresolved > 0) return this.#recorder.park(job, null, bar.why, undefined);
        return settleDenied(this.#recorder, job, bar.why);
      case 'lock_conflict': {
        const { db } = this.#ctx;
        await this.#recorder.retryUntilWritten(job, () => postponeCall(db, job.txn, job.owner, LOCKED_RECHECK_MS));
        return { as: 'elsewhere' };
      }
    }
  }

  /**
   * Nothing but a look is left to end a doubt. What it proves is for the tool to say; where it says nothing, or nothing can be
   * seen, a person is told. A crash in here leaves a call in doubt, and somebody looks again.
   */
  async #reobserve(job: Job): Promise<NextAction | DispatchResult> {
    const seen = await observeInDoubt(this.#ctx, job);
    this.#ctx.reach('probed');
    const isProof = job.tool.observe?.settlesMs !== undefined;
    if (seen.satisfied === undefined) {
      const inTime = readAttemptFacts(job).msInRound <= job.tool.retry.withinMs;
      const wakeMs = isProof && inTime ? job.tool.retry.maxMs : null;
      return { do: 'doubt', wakeMs, why: `what it would have changed could not be observed: ${seen.detail}` };
    }
    if (!isProof) {
      job.undoArguments = null;
      const why = `looked at again, the world is ${seen.satisfied ? '' : 'not '}as asked, which proves nothing by itself`;
      const shown = { satisfied: seen.satisfied, observed: truncateForPerson(seen.answer) };
      return this.#recorder.park(job, null, why, undefined, shown);
    }
    if (seen.satisfied) {
      const end = { outcome: 'observed', evidence: 'probe', seenOnly: true } as const;
      return this.#recorder.settle(job, 'succeeded', seen.answer, end);
    }
    markDisproved(job, 'look');
    const finding = buildCallEvent('observed_not_satisfied', { attempt: job.attempt });
    if (!(await this.#recorder.recordProgress(job, finding))) return { as: 'elsewhere' };
    return decideNextAction(readAttemptFacts(job), job.tool, true);
  }

  /**
   * A step that was on the wire when its saga was rolled back, and was not sent after all, learns it here; and so does a call
   * whose run was taken over. The ledger would refuse its next attempt in any case.
   */
  async #checkRecalled(job: Job): Promise<boolean> {
    const call = await this.#recorder.retryUntilWritten(job, () => this.#ctx.calls.read(job.txn));
    job.recalled ||= call?.recalled === true;
    job.fenced ||= call?.fenced === true;
    return job.unresolved === 0 ? job.recalled : job.fenced;
  }

  /**
   * A fault of ours in the middle of a call, or its upstream vanished from the policies. While this process lives nobody
   * else looks at its calls, so it must not keep this one: what was open is unknown, and recovery looks again later.
   */
  #parkAfterInternalError(job: Job): Promise<DispatchResult> {
    const why = 'the gateway itself failed while it carried this call';
    if (job.kind === 'read') return settleFailure(this.#recorder, job, { kind: 'ambiguous', detail: why });
    if (job.attempt === 0) return this.#recorder.releaseOwnership(job, INTERNAL_ERROR_RECHECK_MS);
    closeAttempt(job, job.attemptOpen);
    return this.#recorder.park(job, job.tool.retry.maxMs, why, undefined);
  }

  /** It was about to leave when it was frozen, or this process lost its right to send. Nothing did leave. */
  async #handleAbandonedSend(job: Job, last: Outcome): Promise<DispatchResult> {
    closeAttempt(job, false);
    if (job.unresolved === 0 && this.#ctx.switches.isRecalled(job.txn)) {
      // The ledger knows whether this claim is meant, or an earlier one of the same txn that was given up.
      job.recalled =
        (await this.#recorder.retryUntilWritten(job, () => this.#ctx.calls.read(job.txn)))?.recalled === true;
      return job.recalled
        ? settleFailure(this.#recorder, job, last)
        : this.#recorder.releaseOwnership(job, FROZEN_RECHECK_MS);
    }
    const frozen = findSendBlock(this.#ctx, job);
    if (frozen === undefined) return this.#recorder.releaseOwnership(job);
    const why: Outcome = { ...last, kind: 'not_sent', detail: frozen.detail };
    return job.unresolved === 0 && !readAttemptFacts(job).bound && job.unknownSince === null
      ? this.#recorder.release(job, why, frozen.code)
      : this.#recorder.releaseOwnership(job, FROZEN_RECHECK_MS);
  }
}

/** A call in the hands of this process, and the promise of how it lets go of it. */
export interface InFlightCall {
  readonly job: Job;
  readonly ending: Promise<DispatchResult>;
}

const NO_APPROVAL_NEEDED: { readonly why?: string; readonly under?: string } = {};

/** A read has nothing that a key must be bound to; where its upstream could not be reached, the same one may ask again. */
function isUnsentRead(job: Job, last: Outcome | undefined): boolean {
  return job.kind === 'read' && last?.kind === 'not_sent' && !job.recalled && !readAttemptFacts(job).bound;
}

/** Whether the ledger must be asked if a call was recalled: only a step, or a call of a run, between two attempts. */
function canBeRecalled(job: Job): boolean {
  if ((job.saga === null && job.run === null) || job.undoOf !== null) return false;
  if (job.attempt === 0 || job.attemptOpen) return false;
  return job.unresolved === 0 || (job.kind === 'idempotent' && job.run !== null);
}

/** A call that was let go, and finds locked what it needs, is looked at again this much later. */
const LOCKED_RECHECK_MS = 300;
/** What failed by a fault of ours will most likely fail again. */
const INTERNAL_ERROR_RECHECK_MS = 5_000;
/** How often a call that may not be sent because it is frozen is looked at again. */
const FROZEN_RECHECK_MS = 1_000;

/** Without having seen what it would change, nothing is sent: it is tried again a few times, then given up. */
function afterFailedObservation(job: Job, times: number): NextAction {
  if (times < job.tool.retry.attempts) return { do: 'send', afterMs: computeBackoffMs(job.tool.retry, times) };
  return readAttemptFacts(job).bound ? { do: 'fail' } : { do: 'release' };
}

function closeAttempt(job: Job, unknown: boolean): void {
  job.attemptOpen = false;
  if (!unknown) return;
  job.unresolved += 1;
  job.unknownSince = performance.now();
}

/** Nothing came of what was sent so far. */
function markDisproved(job: Job, by: 'probe' | 'look'): void {
  job.unresolved = 0;
  job.disprovedBy = by;
}

function toSpanSubject({ tool, agent, txn }: Job) {
  return { tool: tool.name, agent, txn };
}

function buildAttemptEvent(job: Job, outcome: Outcome): CallEvent {
  return buildCallEvent('attempt_ended', { attempt: job.attempt, as: outcome.kind, detail: describeOutcome(outcome) });
}
