import { setTimeout as sleep } from 'node:timers/promises';
import type { Outcome } from '../domain/adapter.ts';
import type { CallEvent } from '../domain/call.ts';
import { backoff, conclude, nextStep, type Step } from '../domain/next-step.ts';
import { readTrace, type Stint } from '../domain/watch.ts';
import { postpone } from '../ledger/custody.ts';
import { whyNotApproved } from './decide-approval.ts';
import { factsOf, type Job } from './job.ts';
import { type Bar, isLocked, lockLate, withToken } from './locking.ts';
import { observe, observeAgain, shownToPerson } from './observe.ts';
import { Caller, pause } from './patience.ts';
import { redactAnswer, resultOf } from './payload.ts';
import { probe } from './probe.ts';
import { describe, type Ending, event, Recorder } from './record.ts';
import { deny, settleAnswer, settleFailure, settleSatisfied } from './settle.ts';
import type { Station } from './station.ts';
import { frozenFor } from './switching.ts';
import { undoOf } from './undo.ts';

/**
 * Carries open calls, each as far as it gets: the one way to an upstream for fresh, approved, recovered and compensating
 * calls alike. Sending happens between two transactions; a crash there leaves `sending` or `in_doubt` with an open
 * attempt, which means unknown and is found by recovery.
 */
export class Dispatch {
  readonly #station: Station;
  readonly #carried = new Map<string, Carried>();
  readonly #recorder: Recorder;
  readonly #stopping = new Caller();

  constructor(station: Station) {
    this.#station = station;
    this.#recorder = new Recorder(station);
  }

  /** Starts to carry a call that this process holds. Never rejects. */
  carry(job: Job): Promise<Ending> {
    const ending = this.#carryToItsEnd(job, job.stint ?? this.#watch(job));
    this.#carried.set(job.txn, { job, ending });
    return ending;
  }

  async #carryToItsEnd(job: Job, watched: Stint): Promise<Ending> {
    try {
      return await this.#walk(job, watched);
    } catch (error) {
      this.#station.log.error({ err: error, txn: job.txn }, 'a call could not be carried on');
      return await this.#stumbleOrDrop(job);
    } finally {
      if (job.stint === undefined) watched.end({ txn: job.txn, state: job.state });
      // Not if the call came back to this process meanwhile and another job carries it.
      if (this.#carried.get(job.txn)?.job === job) this.#carried.delete(job.txn);
    }
  }

  async #stumbleOrDrop(job: Job): Promise<Ending> {
    try {
      return await this.#stumble(job);
    } catch (error) {
      this.#station.log.error({ err: error, txn: job.txn }, 'a call was dropped; it is found when this process ends');
      return { as: 'elsewhere' };
    }
  }

  carried(txn: string): Carried | undefined {
    return this.#carried.get(txn);
  }

  /** Resolves when fewer than `most` calls are carried, or the process is about to end. */
  async roomFor(most: number): Promise<void> {
    while (this.#carried.size >= most && !this.#stopping.gone) await Promise.race(this.#endings());
  }

  /** Gone when this process is about to end. */
  get stopping(): Caller {
    return this.#stopping;
  }

  /** Whatever waits for its next attempt is handed back at once. */
  letGo(): void {
    this.#stopping.hangUp();
  }

  /** Waits for what is on the wire. */
  async drain(deadlineMs: number): Promise<void> {
    this.letGo();
    const all = Promise.all(this.#endings());
    await Promise.race([all, sleep(deadlineMs, undefined, { ref: false })]);
  }

  #endings(): Promise<Ending>[] {
    return Array.from(this.#carried.values(), ({ ending }) => ending);
  }

  /** A call without a caller continues what is written in its request. */
  #watch(job: Job): Stint {
    const name = job.undoOf === null ? 'recover' : 'undo';
    return this.#station.watch.begin(
      name,
      about(job),
      readTrace((header) => job.request.headers[header]),
    );
  }

  async #walk(job: Job, stint: Stint): Promise<Ending> {
    let step: Step = job.attemptOpen ? { do: 'send', afterMs: 0 } : nextStep(factsOf(job), job.tool, job.woken);
    let last: Outcome | undefined;
    let blind = 0;
    for (;;) {
      switch (step.do) {
        case 'send': {
          if (step.afterMs > 0 && !(await this.#pause(step.afterMs))) return this.#recorder.handBack(job);
          if (mayBeRecalled(job) && (await this.#isRecalled(job))) {
            step = nextStep(factsOf(job), job.tool, true);
            break;
          }
          const approved = job.approved && job.unresolved === 0 ? await this.#askApproval(job) : NOT_ASKED;
          if (approved.why !== undefined) return deny(this.#recorder, job, approved.why);
          if (!job.attemptOpen) {
            const bar = await this.#recorder.insist(job, () => lockLate(this.#station, job));
            if (bar !== undefined) return this.#barred(job, bar);
          }
          if (job.tool.observe !== undefined && job.attempt === 0) {
            const observed = await observe(this.#station, job);
            this.#station.reach('observed');
            if (observed.satisfied === true) return settleSatisfied(this.#recorder, job, observed.answer);
            if (observed.satisfied === undefined) {
              blind += 1;
              last = { kind: 'not_sent', detail: `what it would change could not be observed: ${observed.detail}` };
              step = afterBlindLook(job, blind);
              break;
            }
          }
          if (!job.attemptOpen && !(await this.#openAttempt(job))) return { as: 'elsewhere' };
          last = await this.#send(job, approved.under, stint);
          if (last.kind === 'not_sent' && last.abandoned === true) return this.#abandon(job, last);
          this.#station.reach('answered');
          const conclusion = conclude(job.kind, last, job.unresolved);
          if (conclusion.state !== 'open') return await this.#settleAnswer(job, conclusion.state, last, stint);
          closeAttempt(job, conclusion.unknown);
          step = nextStep(factsOf(job), job.tool, false);
          if (step.do === 'send' && !(await this.#recorder.record(job, attemptEvent(job, last))))
            return { as: 'elsewhere' };
          break;
        }
        case 'probe': {
          const probed = await probe(this.#station, job);
          this.#station.reach('probed');
          if (probed.applied === true)
            return this.#recorder.settle(job, 'succeeded', probed.answer, { outcome: 'probed', evidence: 'probe' });
          if (probed.applied === undefined) {
            step = { do: 'doubt', wakeMs: job.tool.retry.maxMs, why: `the probe could not tell: ${probed.detail}` };
            break;
          }
          disprove(job, 'probe');
          if (!(await this.#recorder.record(job, event('probe_not_applied', { attempt: job.attempt }))))
            return { as: 'elsewhere' };
          step = nextStep(factsOf(job), job.tool, true);
          break;
        }
        case 'observe': {
          const seen = await this.#lookAgain(job);
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

  async #pause(ms: number): Promise<boolean> {
    await pause(ms, this.#stopping);
    return !this.#stopping.gone;
  }

  /** T1 of a further attempt: its number is durable before its first byte. A crash after it leaves an unknown attempt. */
  async #openAttempt(job: Job): Promise<boolean> {
    job.attempt += 1;
    job.attemptOpen = true;
    job.firstSentAt ??= performance.now();
    if (job.state === 'ready') job.state = 'sending';
    return this.#recorder.record(job, null);
  }

  /**
   * Nothing of an approved call has left so far: before each attempt it is made sure that what was approved is still what
   * would run. The policies it was asked under must then stand until the first byte.
   */
  async #askApproval(job: Job): Promise<{ why?: string; under?: string }> {
    const under = this.#station.policies().version;
    const asked = { txn: job.txn, agent: job.agent, tool: job.tool.name };
    const why = await this.#recorder.insist(job, () => whyNotApproved(this.#station, asked, job));
    return why === undefined ? { under } : { why };
  }

  async #send(job: Job, under: string | undefined, stint: Stint): Promise<Outcome> {
    const sending = this.#station.watch.begin('send', about(job), stint);
    const { switches, adapters, policies, reach } = this.#station;
    const outcome = await adapters.for(job.tool).send(job.tool, withToken(job), {
      timeoutMs: job.tool.timeoutMs,
      freshConnection: job.kind === 'probe' || job.kind === 'none',
      follower: job.follower,
      discreet: job.secrets.length > 0,
      maySend: () => {
        reach('sending');
        if (under !== undefined && policies().version !== under) return false;
        // The time for a re-send may have run out while it queued and connected.
        if (job.unknownSince !== null && factsOf(job).msToResend <= 0) return false;
        if (job.unresolved === 0 && switches.recalls(job.txn)) return false;
        return switches.inForce(job.owner) && frozenFor(this.#station, job) === undefined;
      },
    });
    sending.end({ outcome: outcome.kind, attempt: job.attempt });
    if ((outcome.kind === 'ok' && outcome.wantsInput !== true) || outcome.kind === 'ok_body_lost')
      job.undoArguments = undoOf(this.#station, job, () => resultOf(outcome.answer));
    if (!('answer' in outcome) || outcome.answer === undefined) return outcome;
    const answer = redactAnswer(job.tool, outcome.answer, job.args, job.secrets);
    return answer === outcome.answer ? outcome : { ...outcome, answer };
  }

  async #settleAnswer(job: Job, state: 'succeeded' | 'failed', outcome: Outcome, stint: Stint): Promise<Ending> {
    const settling = this.#station.watch.begin('settle', about(job), stint);
    try {
      return await settleAnswer(this.#recorder, job, state, outcome);
    } finally {
      settling.end();
    }
  }

  /** It cannot be sent because of what it must lock: not now, or not at all. */
  async #barred(job: Job, bar: Bar): Promise<Ending> {
    if (bar === 'elsewhere') return { as: 'elsewhere' };
    if (!isLocked(bar)) {
      if (job.unresolved > 0) return this.#recorder.park(job, null, bar.why, undefined);
      return deny(this.#recorder, job, bar.why);
    }
    const { db } = this.#station;
    await this.#recorder.insist(job, () => postpone(db, job.txn, job.owner, LOCKED_RECHECK_MS));
    return { as: 'elsewhere' };
  }

  /**
   * Nothing but a look is left to end a doubt. What it proves is for the tool to say; where it says nothing, or nothing can be
   * seen, a person is told. A crash in here leaves a call in doubt, and somebody looks again.
   */
  async #lookAgain(job: Job): Promise<Step | Ending> {
    const seen = await observeAgain(this.#station, job);
    this.#station.reach('probed');
    const isProof = job.tool.observe?.settlesMs !== undefined;
    if (seen.satisfied === undefined) {
      const inTime = factsOf(job).msInRound <= job.tool.retry.withinMs;
      const wakeMs = isProof && inTime ? job.tool.retry.maxMs : null;
      return { do: 'doubt', wakeMs, why: `what it would have changed could not be observed: ${seen.detail}` };
    }
    if (!isProof) {
      job.undoArguments = null;
      const why = `looked at again, the world is ${seen.satisfied ? '' : 'not '}as asked, which proves nothing by itself`;
      const shown = { satisfied: seen.satisfied, observed: shownToPerson(seen.answer) };
      return this.#recorder.park(job, null, why, undefined, shown);
    }
    if (seen.satisfied) {
      const end = { outcome: 'observed', evidence: 'probe', seenOnly: true } as const;
      return this.#recorder.settle(job, 'succeeded', seen.answer, end);
    }
    disprove(job, 'look');
    const finding = event('observed_not_satisfied', { attempt: job.attempt });
    if (!(await this.#recorder.record(job, finding))) return { as: 'elsewhere' };
    return nextStep(factsOf(job), job.tool, true);
  }

  /**
   * A step that was on the wire when its saga was rolled back, and was not sent after all, learns it here; and so does a call
   * whose run was taken over. The ledger would refuse its next attempt in any case.
   */
  async #isRecalled(job: Job): Promise<boolean> {
    const call = await this.#recorder.insist(job, () => this.#station.calls.read(job.txn));
    job.recalled ||= call?.recalled === true;
    job.fenced ||= call?.fenced === true;
    return job.unresolved === 0 ? job.recalled : job.fenced;
  }

  /**
   * A fault of ours in the middle of a call, or its upstream vanished from the policies. While this process lives nobody
   * else looks at its calls, so it must not keep this one: what was open is unknown, and recovery looks again later.
   */
  #stumble(job: Job): Promise<Ending> {
    const why = 'the gateway itself failed while it carried this call';
    if (job.kind === 'read') return settleFailure(this.#recorder, job, { kind: 'ambiguous', detail: why });
    if (job.attempt === 0) return this.#recorder.handBack(job, STUMBLED_RECHECK_MS);
    closeAttempt(job, job.attemptOpen);
    return this.#recorder.park(job, job.tool.retry.maxMs, why, undefined);
  }

  /** It was about to leave when it was frozen, or this process lost its right to send. Nothing did leave. */
  async #abandon(job: Job, last: Outcome): Promise<Ending> {
    closeAttempt(job, false);
    if (job.unresolved === 0 && this.#station.switches.recalls(job.txn)) {
      // The ledger knows whether this claim is meant, or an earlier one of the same txn that was given up.
      job.recalled = (await this.#recorder.insist(job, () => this.#station.calls.read(job.txn)))?.recalled === true;
      return job.recalled ? settleFailure(this.#recorder, job, last) : this.#recorder.handBack(job, FROZEN_RECHECK_MS);
    }
    const frozen = frozenFor(this.#station, job);
    if (frozen === undefined) return this.#recorder.handBack(job);
    const why: Outcome = { ...last, kind: 'not_sent', detail: frozen.detail };
    return job.unresolved === 0 && !factsOf(job).bound && job.unknownSince === null
      ? this.#recorder.release(job, why, frozen.code)
      : this.#recorder.handBack(job, FROZEN_RECHECK_MS);
  }
}

/** A call in the hands of this process, and the promise of how it lets go of it. */
export interface Carried {
  readonly job: Job;
  readonly ending: Promise<Ending>;
}

const NOT_ASKED: { readonly why?: string; readonly under?: string } = {};

/** A read has nothing that a key must be bound to; where its upstream could not be reached, the same one may ask again. */
function isUnsentRead(job: Job, last: Outcome | undefined): boolean {
  return job.kind === 'read' && last?.kind === 'not_sent' && !job.recalled && !factsOf(job).bound;
}

/** Whether the ledger must be asked if a call was recalled: only a step, or a call of a run, between two attempts. */
function mayBeRecalled(job: Job): boolean {
  if ((job.saga === null && job.run === null) || job.undoOf !== null) return false;
  if (job.attempt === 0 || job.attemptOpen) return false;
  return job.unresolved === 0 || (job.kind === 'nature' && job.run !== null);
}

/** A call that was let go, and finds locked what it needs, is looked at again this much later. */
const LOCKED_RECHECK_MS = 300;
/** What failed by a fault of ours will most likely fail again. */
const STUMBLED_RECHECK_MS = 5_000;
/** How often a call that may not be sent because it is frozen is looked at again. */
const FROZEN_RECHECK_MS = 1_000;

/** Without having seen what it would change, nothing is sent: it is tried again a few times, then given up. */
function afterBlindLook(job: Job, times: number): Step {
  if (times < job.tool.retry.attempts) return { do: 'send', afterMs: backoff(job.tool.retry, times) };
  return factsOf(job).bound ? { do: 'fail' } : { do: 'release' };
}

function closeAttempt(job: Job, unknown: boolean): void {
  job.attemptOpen = false;
  if (!unknown) return;
  job.unresolved += 1;
  job.unknownSince = performance.now();
}

/** Nothing came of what was sent so far. */
function disprove(job: Job, by: 'probe' | 'look'): void {
  job.unresolved = 0;
  job.disprovedBy = by;
}

function about({ tool, agent, txn }: Job) {
  return { tool: tool.name, agent, txn };
}

function attemptEvent(job: Job, outcome: Outcome): CallEvent {
  return event('attempt_ended', { attempt: job.attempt, as: outcome.kind, detail: describe(outcome) });
}
