import { setTimeout as sleep } from 'node:timers/promises';
import type { Answer, Outcome } from '../domain/adapter.ts';
import { auditEntry, digest, leafHash } from '../domain/audit.ts';
import type { CallEvent, CallFace, Evidence } from '../domain/call.ts';
import { type ErrorCode, LedgerError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import { legible } from '../domain/legible.ts';
import type { CallState } from '../domain/states.ts';
import type { Advance } from '../ledger/calls.ts';
import { noteContradiction, release } from '../ledger/custody.ts';
import type { Job } from './job.ts';
import type { Station } from './station.ts';

/** How this process let go of a call. */
export type Ending =
  /** Final, or in doubt and parked. */
  | { readonly as: 'told'; readonly face: CallFace }
  /** Nothing was sent and the key is free again. */
  | { readonly as: 'released'; readonly code: ErrorCode; readonly detail: string }
  /** Another process has it now, or the ledger must be asked. */
  | { readonly as: 'elsewhere' };

/** What stands behind the end of a call. */
export interface End {
  readonly outcome: string;
  readonly evidence: Evidence;
  readonly problem?: ErrorCode;
  readonly detail?: string;
  /** It proves nothing about the world but what was seen of it: whoever holds the call by now knows better. */
  readonly seenOnly?: boolean;
}

/** What a job and a call just read have in common; the latter's `unknownSince` is in the ledger already. */
type Standing = Pick<Job, 'txn' | 'fence' | 'step' | 'state' | 'attempt' | 'attemptOpen' | 'unresolved'> & {
  readonly unknownSince: number | Date | null;
};

/** Writes where the calls stand that this process carries. What it cannot write it tries again for as long as it lives. */
export class Recorder {
  readonly #station: Station;

  constructor(station: Station) {
    this.#station = station;
  }

  /**
   * T2. Told to nobody before it committed; tried again for as long as this process lives. A crash before it leaves an
   * unknown attempt although the answer was here: recovery finds out again.
   */
  async settle(job: Job, state: 'succeeded' | 'failed', answer: Answer | undefined, end: End): Promise<Ending> {
    const { outcome, evidence, problem = null } = end;
    const detail = end.detail === undefined ? null : legible(end.detail);
    const entry = auditEntry(state === 'succeeded' ? 'call_succeeded' : 'call_failed', {
      txn: job.txn,
      agent: job.agent,
      tool: job.tool.name,
      attempt: job.attempt,
      outcome,
      evidence,
      answer: answer?.body == null ? undefined : digest(answer.body),
    });
    const leaf = job.recorded ? leafHash(entry) : null;
    const asOf = this.#station.finals.asOf();
    const settled = await this.#advance(job, closed(job, state, answer, end, { detail, leaf, entry }));
    this.#station.reach('settled');
    if (!settled) return this.#contradict(job, state);
    const face = faceOf(job, state, { answer: answer ?? null, outcome, problem, detail, leaf }, false);
    this.#station.finals.keep(face, job.fingerprint, 0, asOf);
    return { as: 'told', face };
  }

  /** The call is final already. If it says otherwise, somebody was wrong and must see it. */
  async #contradict(job: Job, learned: CallState): Promise<Ending> {
    const call = await this.insist(job, () => this.#station.calls.read(job.txn));
    if (call !== undefined && call.settledAt !== null && call.state !== learned) {
      const text = `recorded as ${call.state}, but attempt ${job.attempt} ${learned}`;
      const entry = auditEntry('contradiction', { ...subject(job), detail: text });
      await this.insist(job, () => noteContradiction(this.#station.db, job.txn, text, entry));
      this.#station.log.error({ txn: job.txn, tool: job.tool.name, agent: job.agent }, `contradiction: ${text}`);
    }
    return { as: 'elsewhere' };
  }

  /** Writes where the call stands between attempts. False: it is final or in other hands. */
  async record(job: Job, happened: CallEvent | null): Promise<boolean> {
    const entry = auditEntry(job.attemptOpen ? 'attempt_opened' : 'attempt_closed', {
      ...subject(job),
      unresolved: job.unresolved,
    });
    // What was observed is kept with the first attempt, before its first byte leaves.
    const undo = job.attemptOpen ? job.undoArguments : null;
    return this.#advance(job, { ...unchanged(job), event: happened, undo, entry });
  }

  /**
   * Says `in_doubt`, with what was seen of the world if somebody looked, and lets go. A crash before it leaves a call of a dead
   * owner, which recovery parks again.
   */
  async park(
    job: Job,
    wakeMs: number | null,
    why: string,
    last: Outcome | undefined,
    seen: JsonObject = {},
  ): Promise<Ending> {
    this.#station.reach('parking');
    const heard = last === undefined ? {} : { told: describe(last) };
    const detail = legible(last === undefined ? why : `${describe(last)}; ${why}`);
    const entry = auditEntry('call_in_doubt', { ...subject(job), unresolved: job.unresolved });
    const change: Advance = {
      ...unchanged(job),
      state: 'in_doubt',
      custody: 'park',
      dueInMs: wakeMs,
      detail,
      event: event('in_doubt', { attempt: job.attempt, ...heard, why, ...seen }),
      entry,
    };
    const parked = await this.#advance(job, change);
    this.#station.reach('parked');
    if (!parked) return { as: 'elsewhere' };
    const told = { answer: null, outcome: null, problem: null, detail, leaf: null };
    return { as: 'told', face: faceOf(job, 'in_doubt', told, wakeMs !== null) };
  }

  async release(job: Job, last: Outcome | undefined, code: ErrorCode = 'unavailable'): Promise<Ending> {
    const heldBack = last?.kind === 'not_sent' && last.heldBack === true;
    const problem = heldBack ? 'breaker_open' : code;
    // Not the detail: it may be in the words of a stranger, and what is in the log stays there.
    const entry = auditEntry('call_released', { ...subject(job), problem });
    const gone = !job.recorded || (await this.insist(job, () => release(this.#station.db, job, entry)));
    return gone ? { as: 'released', code: problem, detail: lastWords(job, last) } : { as: 'elsewhere' };
  }

  /** The process is ending, or lost its right to send: the next attempt is somebody else's. */
  async handBack(job: Job, dueInMs = 0): Promise<Ending> {
    const entry = auditEntry('call_handed_back', subject(job));
    await this.#advance(job, { ...unchanged(job), custody: 'park', dueInMs, entry });
    return { as: 'elsewhere' };
  }

  /** One change, made once however often it has to be tried: its number tells a repeat from the next. */
  async #advance(job: Job, change: Advance): Promise<boolean> {
    const moved = !job.recorded || (await this.insist(job, () => this.#station.calls.advance(change)));
    job.step = change.step;
    return moved;
  }

  /** A ledger write that is not given up while this process lives, unless it can never be. */
  async insist<T>(job: Job, write: () => Promise<T>): Promise<T> {
    for (let delay = 50; ; delay = Math.min(delay * 2, 1_000)) {
      try {
        return await write();
      } catch (error) {
        if (!(error instanceof LedgerError) || error.hopeless) throw error;
        job.ledger.hangUp();
        this.#station.log.warn({ txn: job.txn, err: error.message }, 'the ledger cannot be written; trying again');
        await sleep(delay);
      }
    }
  }
}

/** The change that ends a call. Written out, though it is much of `unchanged`: every call makes one. */
function closed(
  job: Job,
  state: 'succeeded' | 'failed',
  answer: Answer | undefined,
  end: End,
  { detail, leaf, entry }: Pick<Advance, 'detail' | 'leaf' | 'entry'>,
): Advance {
  return {
    txn: job.txn,
    fence: job.fence,
    step: job.step + 1,
    evident: state === 'succeeded' && end.seenOnly !== true,
    state,
    attempt: job.attempt,
    attemptOpen: false,
    unresolved: 0,
    unknownSinceMs: msSinceUnknown(job),
    custody: 'close',
    dueInMs: null,
    outcome: end.outcome,
    problem: end.problem ?? null,
    detail,
    answer: answer === undefined ? null : JSON.stringify(answer),
    evidence: end.evidence,
    resolvedBy: null,
    leaf,
    event: null,
    undo: state === 'succeeded' ? job.undoArguments : null,
    entry,
  };
}

/** A change that changes nothing yet: everything as the holder of the fence knows it. */
export function unchanged(call: Standing): Omit<Advance, 'entry'> {
  return {
    txn: call.txn,
    fence: call.fence,
    step: call.step + 1,
    evident: false,
    state: call.state,
    attempt: call.attempt,
    attemptOpen: call.attemptOpen,
    unresolved: call.unresolved,
    unknownSinceMs: msSinceUnknown(call),
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
    undo: null,
  };
}

function msSinceUnknown({ unknownSince }: Standing): number | null {
  return typeof unknownSince === 'number' ? performance.now() - unknownSince : null;
}

type Told = Pick<CallFace, 'answer' | 'outcome' | 'problem' | 'detail' | 'leaf'>;

/** A call as it is told when this process lets go of it: member by member as `face` makes them of one that was read. */
function faceOf(job: Job, state: CallState, told: Told, pursued: boolean): CallFace {
  return {
    txn: job.txn,
    agent: job.agent,
    tool: job.tool.name,
    identity: job.identity,
    attempt: job.attempt,
    saga: job.saga,
    state,
    answer: told.answer,
    outcome: told.outcome,
    problem: told.problem,
    detail: told.detail,
    leaf: told.leaf,
    pursued,
    hold: null,
  };
}

function subject(job: Job): JsonObject {
  return { txn: job.txn, agent: job.agent, tool: job.tool.name, attempt: job.attempt };
}

export function event(what: string, detail: JsonObject): CallEvent {
  const said = Object.entries(detail).map(([name, value]) => [
    name,
    typeof value === 'string' ? legible(value) : value,
  ]);
  return { ...Object.fromEntries(said), what, at: new Date().toISOString() };
}

/** What the newest attempt told this process, or who had the call before it; or why there was none. */
export function lastWords(job: Job, last: Outcome | undefined): string {
  if (last !== undefined) return describe(last);
  return job.told ?? (job.attempt === 0 ? 'it could not be sent in time' : 'it could not be sent again in time');
}

/** What an attempt told, in words. */
export function describe(outcome: Outcome): string {
  if ('detail' in outcome) return legible(outcome.detail);
  return `the upstream answered ${outcome.answer.status}`;
}
