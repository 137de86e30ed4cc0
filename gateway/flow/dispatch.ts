import { setTimeout as sleep } from 'node:timers/promises';
import type { Answer, Outcome } from '../domain/adapter.ts';
import { auditEntry, digest, leafHash } from '../domain/audit.ts';
import type { CallEvent, CallFace, Evidence } from '../domain/call.ts';
import { type ErrorCode, LedgerError } from '../domain/errors.ts';
import { isObject, type JsonObject } from '../domain/json.ts';
import { conclude, nextStep, type Step } from '../domain/next-step.ts';
import { ExpressionError } from '../domain/policy.ts';
import type { CallState } from '../domain/states.ts';
import type { Advance } from '../ledger/calls.ts';
import { noteContradiction, release } from '../ledger/custody.ts';
import { whyNotApproved } from './decide-approval.ts';
import { factsOf, type Job } from './job.ts';
import { redactAnswer, resultOf } from './payload.ts';
import type { Station } from './station.ts';

/** How this process let go of a call. */
export type Ending =
  /** Final, or in doubt and parked. */
  | { readonly as: 'told'; readonly face: CallFace }
  /** Nothing was sent and the key is free again. */
  | { readonly as: 'released'; readonly code: ErrorCode; readonly detail: string }
  /** Another process has it now, or the ledger must be asked. */
  | { readonly as: 'elsewhere' };

/**
 * Carries open calls, each as far as it gets: the one way to an upstream for fresh, approved, recovered and compensating
 * calls alike. Sending happens between two transactions; a crash there leaves `sending` or `in_doubt` with an open
 * attempt, which means unknown and is found by recovery.
 */
export class Dispatch {
  readonly #station: Station;
  readonly #carried = new Map<string, Promise<Ending>>();
  readonly #unrecorded = new Map<string, Trouble>();
  readonly #stopping = new AbortController();

  constructor(station: Station) {
    this.#station = station;
  }

  /** Starts to carry a call that this process holds. Never rejects. */
  carry(job: Job): Promise<Ending> {
    const ending = this.#walk(job)
      .catch((error: unknown) => {
        this.#station.log.error({ err: error, txn: job.txn }, 'a call could not be carried on');
        return this.#stumble(job);
      })
      .catch((error: unknown): Ending => {
        this.#station.log.error({ err: error, txn: job.txn }, 'a call was dropped; it is found when this process ends');
        return { as: 'elsewhere' };
      })
      .finally(() => {
        this.#carried.delete(job.txn);
        this.#unrecorded.delete(job.txn);
      });
    this.#carried.set(job.txn, ending);
    return ending;
  }

  carried(txn: string): Promise<Ending> | undefined {
    return this.#carried.get(txn);
  }

  /** Resolves when the ledger cannot be told where a call stands: its caller is owed an answer all the same. */
  trouble(txn: string): Promise<'unrecorded'> {
    return this.#troubleOf(txn).promise;
  }

  #troubleOf(txn: string): Trouble {
    let trouble = this.#unrecorded.get(txn);
    if (trouble === undefined) {
      let resolve = (_: 'unrecorded') => {};
      const promise = new Promise<'unrecorded'>((done) => {
        resolve = done;
      });
      trouble = { promise, raise: () => resolve('unrecorded') };
      this.#unrecorded.set(txn, trouble);
    }
    return trouble;
  }

  /** Resolves when fewer than `most` calls are carried, or the process is about to end. */
  async roomFor(most: number): Promise<void> {
    while (this.#carried.size >= most && !this.#stopping.signal.aborted) await Promise.race(this.#carried.values());
  }

  /** Aborted when this process is about to end. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  /** Whatever waits for its next attempt is handed back at once. */
  letGo(): void {
    this.#stopping.abort();
  }

  /** Waits for what is on the wire. */
  async drain(deadlineMs: number): Promise<void> {
    this.letGo();
    const all = Promise.all(this.#carried.values());
    await Promise.race([all, sleep(deadlineMs, undefined, { ref: false })]);
  }

  async #walk(job: Job): Promise<Ending> {
    let step: Step = job.attemptOpen ? { do: 'send', afterMs: 0 } : nextStep(factsOf(job), job.tool, job.woken);
    let last: Outcome | undefined;
    for (;;) {
      switch (step.do) {
        case 'send': {
          if (step.afterMs > 0 && !(await this.#pause(step.afterMs))) return this.#handBack(job);
          const approved = job.bound && job.unresolved === 0 ? await this.#askApproval(job) : {};
          if (approved.why !== undefined) return this.#deny(job, `approved, but ${approved.why}`);
          if (!job.attemptOpen && !(await this.#openAttempt(job))) return { as: 'elsewhere' };
          last = await this.#send(job, approved.under);
          if (last.kind === 'not_sent' && last.abandoned === true) return this.#abandon(job, last);
          this.#station.reach('answered');
          const conclusion = conclude(job.kind, last, job.unresolved);
          if (conclusion.state !== 'open') return this.#settleAnswer(job, conclusion.state, last);
          closeAttempt(job, conclusion.unknown);
          step = nextStep(factsOf(job), job.tool, false);
          if (step.do === 'send' && !(await this.#record(job, attemptEvent(job, last)))) return { as: 'elsewhere' };
          break;
        }
        case 'probe': {
          const probed = await this.#probe(job);
          this.#station.reach('probed');
          if (probed.applied === true)
            return this.#settle(job, 'succeeded', probed.answer, { outcome: 'probed', evidence: 'probe' });
          if (probed.applied === undefined) {
            step = { do: 'doubt', wakeMs: job.tool.retry.maxMs, why: `the probe could not tell: ${probed.detail}` };
            break;
          }
          job.unresolved = 0;
          if (!(await this.#record(job, event('probe_not_applied', { attempt: job.attempt }))))
            return { as: 'elsewhere' };
          step = nextStep(factsOf(job), job.tool, true);
          break;
        }
        case 'doubt':
          return this.#park(job, step.wakeMs, step.why, last);
        case 'release':
          return this.#release(job, last);
        case 'fail':
          return this.#settleFailure(job, last);
      }
    }
  }

  async #pause(ms: number): Promise<boolean> {
    try {
      await sleep(ms, undefined, { signal: this.#stopping.signal });
      return true;
    } catch {
      return false;
    }
  }

  /** T1 of a further attempt: its number is durable before its first byte. A crash after it leaves an unknown attempt. */
  async #openAttempt(job: Job): Promise<boolean> {
    job.attempt += 1;
    job.attemptOpen = true;
    job.firstSentAt ??= performance.now();
    if (job.state === 'ready') job.state = 'sending';
    return this.#record(job, null);
  }

  /**
   * Nothing of an approved call has left so far: before each attempt it is made sure that what was approved is still what
   * would run. The policies it was asked under must then stand until the first byte.
   */
  async #askApproval(job: Job): Promise<{ why?: string; under?: string }> {
    const under = this.#station.policies().version;
    const asked = { txn: job.txn, agent: job.agent, tool: job.tool.name };
    const why = await this.#insist(job, () => whyNotApproved(this.#station, asked, job));
    return why === undefined ? { under } : { why };
  }

  async #send(job: Job, under: string | undefined): Promise<Outcome> {
    const { switches, adapters, policies, reach } = this.#station;
    const outcome = await adapters.for(job.tool).send(job.tool, job.request, {
      timeoutMs: job.tool.timeoutMs,
      freshConnection: job.kind === 'probe' || job.kind === 'none',
      maySend: () => {
        reach('sending');
        if (under !== undefined && policies().version !== under) return false;
        return switches.inForce(job.owner) && switches.frozen(job.agent, job.tool.name) === undefined;
      },
    });
    return 'answer' in outcome && outcome.answer !== undefined
      ? { ...outcome, answer: redactAnswer(job.tool, outcome.answer, job.args) }
      : outcome;
  }

  #settleAnswer(job: Job, state: 'succeeded' | 'failed', outcome: Outcome): Promise<Ending> {
    const answer = 'answer' in outcome ? outcome.answer : undefined;
    if (state === 'failed')
      return this.#settle(job, 'failed', answer, { outcome: 'refused', evidence: 'answer', problem: 'tool_failed' });
    return this.#settle(job, 'succeeded', answer, {
      outcome: outcome.kind === 'ok_body_lost' ? 'body_unavailable' : 'answered',
      evidence: job.unresolved > 0 ? 'same_key' : 'answer',
      ...(outcome.kind === 'ok_body_lost' ? { detail: outcome.detail } : {}),
    });
  }

  #deny(job: Job, detail: string): Promise<Ending> {
    const end = { outcome: 'no_effect', evidence: 'gateway', problem: 'denied', detail } as const;
    return this.#settle(job, 'failed', undefined, end);
  }

  /** Known not to have happened, and no attempt left. */
  #settleFailure(job: Job, last: Outcome | undefined): Promise<Ending> {
    const answer = last !== undefined && 'answer' in last ? last.answer : undefined;
    job.unresolved = 0;
    return this.#settle(job, 'failed', answer, {
      outcome: 'no_effect',
      evidence: 'gateway',
      problem: job.attempt === 0 || last?.kind === 'not_sent' ? 'unavailable' : 'tool_failed',
      detail: job.attempt === 0 ? 'it could not be sent in time' : describe(last),
    });
  }

  /**
   * T2. Told to nobody before it committed; tried again for as long as this process lives. A crash before it leaves an
   * unknown attempt although the answer was here: recovery finds out again.
   */
  async #settle(job: Job, state: 'succeeded' | 'failed', answer: Answer | undefined, end: End): Promise<Ending> {
    const entry = auditEntry(`call_${state}`, {
      ...subject(job),
      outcome: end.outcome,
      evidence: end.evidence,
      ...(answer?.body == null ? {} : { answer: digest(answer.body) }),
    });
    const leaf = leafHash(entry);
    const change: Advance = {
      ...unchanged(job),
      evident: state === 'succeeded',
      state,
      attemptOpen: false,
      unresolved: 0,
      custody: 'close',
      outcome: end.outcome,
      problem: end.problem ?? null,
      detail: end.detail ?? null,
      answer: answer === undefined ? null : JSON.stringify(answer),
      evidence: end.evidence,
      leaf,
      entry,
    };
    const settled = await this.#insist(job, () => this.#station.calls.advance(change));
    this.#station.reach('settled');
    if (!settled) return this.#contradict(job, state);
    const told = {
      state,
      answer: answer ?? null,
      outcome: end.outcome,
      problem: end.problem ?? null,
      detail: end.detail ?? null,
      leaf,
    };
    return { as: 'told', face: { ...identityOf(job), ...told, pursued: false } };
  }

  /** The call is final already. If it says otherwise, somebody was wrong and must see it. */
  async #contradict(job: Job, learned: CallState): Promise<Ending> {
    const call = await this.#insist(job, () => this.#station.calls.read(job.txn));
    if (call !== undefined && call.settledAt !== null && call.state !== learned) {
      const text = `recorded as ${call.state}, but attempt ${job.attempt} ${learned}`;
      const entry = auditEntry('contradiction', { ...subject(job), detail: text });
      await this.#insist(job, () => noteContradiction(this.#station.db, job.txn, text, entry));
      this.#station.log.error({ txn: job.txn, tool: job.tool.name, agent: job.agent }, `contradiction: ${text}`);
    }
    return { as: 'elsewhere' };
  }

  /** Writes where the call stands between attempts. False: it is final or in other hands. */
  async #record(job: Job, happened: CallEvent | null): Promise<boolean> {
    const entry = auditEntry(job.attemptOpen ? 'attempt_opened' : 'attempt_closed', {
      ...subject(job),
      unresolved: job.unresolved,
    });
    const moved = await this.#insist(job, () =>
      this.#station.calls.advance({ ...unchanged(job), event: happened, entry }),
    );
    return moved;
  }

  /** Says `in_doubt` and lets go. A crash before it leaves a call of a dead owner, which recovery parks again. */
  async #park(job: Job, wakeMs: number | null, why: string, last: Outcome | undefined): Promise<Ending> {
    this.#station.reach('parking');
    const detail = last === undefined ? why : `${describe(last)}; ${why}`;
    const entry = auditEntry('call_in_doubt', { ...subject(job), unresolved: job.unresolved });
    const change: Advance = {
      ...unchanged(job),
      state: 'in_doubt',
      custody: 'park',
      dueInMs: wakeMs,
      detail,
      event: event('in_doubt', { attempt: job.attempt, why: detail }),
      entry,
    };
    const parked = await this.#insist(job, () => this.#station.calls.advance(change));
    this.#station.reach('parked');
    if (!parked) return { as: 'elsewhere' };
    const told = { state: 'in_doubt' as const, answer: null, outcome: null, problem: null, detail, leaf: null };
    return { as: 'told', face: { ...identityOf(job), ...told, pursued: wakeMs !== null } };
  }

  /**
   * A fault of ours in the middle of a call, or its upstream vanished from the policies. While this process lives nobody
   * else looks at its calls, so it must not keep this one: what was open is unknown, and recovery looks again later.
   */
  #stumble(job: Job): Promise<Ending> {
    const why = 'the gateway itself failed while it carried this call';
    if (job.kind === 'read') return this.#settleFailure(job, { kind: 'ambiguous', detail: why });
    if (job.attempt === 0) return this.#handBack(job);
    closeAttempt(job, job.attemptOpen);
    return this.#park(job, job.tool.retry.maxMs, why, undefined);
  }

  async #release(job: Job, last: Outcome | undefined, code: ErrorCode = 'unavailable'): Promise<Ending> {
    const entry = auditEntry('call_released', { ...subject(job), detail: describe(last) });
    const gone = await this.#insist(job, () => release(this.#station.db, job.txn, job.owner, entry));
    const heldBack = last?.kind === 'not_sent' && last.heldBack === true;
    return gone
      ? { as: 'released', code: heldBack ? 'breaker_open' : code, detail: describe(last) }
      : { as: 'elsewhere' };
  }

  /** It was about to leave when it was frozen, or this process lost its right to send. Nothing did leave. */
  #abandon(job: Job, last: Outcome): Promise<Ending> {
    closeAttempt(job, false);
    const frozen = this.#station.switches.frozen(job.agent, job.tool.name);
    if (frozen === undefined) return this.#handBack(job);
    const why: Outcome = { ...last, kind: 'not_sent', detail: `${frozen.by} froze ${frozen.scope}` };
    return job.unresolved === 0 && !job.bound
      ? this.#release(job, why, 'frozen')
      : this.#handBack(job, FROZEN_RECHECK_MS);
  }

  /** The process is ending, or lost its right to send: the next attempt is somebody else's. */
  async #handBack(job: Job, dueInMs = 0): Promise<Ending> {
    const entry = auditEntry('call_handed_back', subject(job));
    await this.#insist(job, () => this.#station.calls.advance({ ...unchanged(job), custody: 'park', dueInMs, entry }));
    return { as: 'elsewhere' };
  }

  async #probe(job: Job): Promise<Probed> {
    const once = job.tool.once;
    if (once.by !== 'probe') return { applied: undefined, detail: 'the tool no longer has a probe' };
    const probe = this.#station.policies().tools.get(once.tool);
    if (probe === undefined) return { applied: undefined, detail: `the probe ${once.tool} no longer exists` };
    try {
      const args = once.args({ args: job.args, agent: job.agent });
      if (!isObject(args))
        return { applied: undefined, detail: `the arguments of the probe ${probe.name} are no object` };
      const adapter = this.#station.adapters.for(probe);
      const { switches } = this.#station;
      const isFrozen = () => [job.tool, probe].some(({ name }) => switches.frozen(job.agent, name) !== undefined);
      const maySend = () => switches.inForce(job.owner) && !isFrozen();
      const options = { timeoutMs: probe.timeoutMs, freshConnection: false, maySend };
      const outcome = await adapter.send(probe, adapter.prepare(probe, { args, agent: job.agent }, job.txn), options);
      if (outcome.kind !== 'ok') return { applied: undefined, detail: describe(outcome) };
      return {
        applied: once.applied({ args: job.args, result: resultOf(outcome.answer) }),
        answer: redactAnswer(job.tool, redactAnswer(probe, outcome.answer, args), job.args),
      };
    } catch (error) {
      if (error instanceof ExpressionError) return { applied: undefined, detail: error.message };
      throw error;
    }
  }

  /** A ledger write that must not be given up while this process lives. */
  async #insist<T>(job: Job, write: () => Promise<T>): Promise<T> {
    for (let delay = 50; ; delay = Math.min(delay * 2, 1_000)) {
      try {
        return await write();
      } catch (error) {
        if (!(error instanceof LedgerError)) throw error;
        this.#troubleOf(job.txn).raise();
        this.#station.log.warn({ txn: job.txn, err: error.message }, 'the ledger cannot be written; trying again');
        await sleep(delay);
      }
    }
  }
}

/** How often a call that may not be sent because it is frozen is looked at again. */
const FROZEN_RECHECK_MS = 1_000;

interface Trouble {
  readonly promise: Promise<'unrecorded'>;
  readonly raise: () => void;
}

interface End {
  readonly outcome: string;
  readonly evidence: Evidence;
  readonly problem?: ErrorCode;
  readonly detail?: string;
}

type Probed =
  | { readonly applied: boolean; readonly answer: Answer }
  | { readonly applied: undefined; readonly detail: string };

function closeAttempt(job: Job, unknown: boolean): void {
  job.attemptOpen = false;
  if (!unknown) return;
  job.unresolved += 1;
  job.unknownSince = performance.now();
}

function unchanged(job: Job): Omit<Advance, 'entry'> {
  return {
    txn: job.txn,
    fence: job.fence,
    evident: false,
    state: job.state,
    attempt: job.attempt,
    attemptOpen: job.attemptOpen,
    unresolved: job.unresolved,
    unknownSinceMs: job.unknownSince === null ? null : performance.now() - job.unknownSince,
    custody: 'keep',
    dueInMs: null,
    outcome: null,
    problem: null,
    detail: null,
    answer: null,
    evidence: null,
    resolvedBy: null,
    leaf: null,
    event: null,
  };
}

function identityOf(job: Job) {
  return { txn: job.txn, agent: job.agent, tool: job.tool.name, identity: job.identity, attempt: job.attempt };
}

function subject(job: Job): JsonObject {
  return { txn: job.txn, agent: job.agent, tool: job.tool.name, attempt: job.attempt };
}

function event(what: string, detail: JsonObject): CallEvent {
  return { ...detail, what, at: new Date().toISOString() };
}

function attemptEvent(job: Job, outcome: Outcome): CallEvent {
  return event('attempt_ended', { attempt: job.attempt, as: outcome.kind, detail: describe(outcome) });
}

function describe(outcome: Outcome | undefined): string {
  if (outcome === undefined) return 'its sender is gone';
  if ('detail' in outcome) return outcome.detail;
  return `the upstream answered ${outcome.answer.status}`;
}
