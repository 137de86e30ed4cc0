import { LedgerError } from '../domain/errors.ts';
import type { NoteKey } from '../domain/signed-note.ts';
import { LEAVES_AT_ONCE, leavesWait, type Sealed, type Sign, sealLeaves } from '../ledger/audit-log.ts';
import type { LogWatch } from './log-watch.ts';
import { Lookout } from './lookout.ts';
import type { Station } from './station.ts';

const LOOK_EVERY_MS = 400;
/** Less than this after the last checkpoint there is no hurry with the next. */
const REST_MS = 800;
/** A witness that contradicts is asked again: its operator may have seen to it. */
const ASK_AGAIN_MS = 5_000;
/** It may stumble, as a ledger does that is restarted. */
const WARN_AFTER_MS = 10_000;

/**
 * Puts what was logged into the tree and signs it, about once a second while there is news. A worker in every process, of
 * which one at a time is at it. Where the log is in doubt nothing is signed: two checkpoints that exclude one another must
 * never bear our name.
 */
export class Sequencer {
  readonly #station: Station;
  readonly #key: NoteKey;
  readonly #watch: LogWatch;
  readonly #lookout: Lookout;
  #askedAt = performance.now();
  #atOnce = LEAVES_AT_ONCE;
  #failing: { readonly since: number; readonly why: string } | undefined;

  constructor(station: Station, key: NoteKey, watch: LogWatch) {
    this.#station = station;
    this.#key = key;
    this.#watch = watch;
    this.#lookout = new Lookout('the log', LOOK_EVERY_MS, () => this.#look(), station.log);
  }

  get key(): NoteKey {
    return this.#key;
  }

  start(): void {
    this.#lookout.start();
  }

  /** What is still waiting is sealed, if that can be. */
  async stop(): Promise<void> {
    await this.#lookout.stop();
    if (this.#watch.doubt() === undefined) await this.seal(0).catch((error: unknown) => this.#lookout.complain(error));
  }

  async #look(): Promise<void> {
    await this.#watch.look();
    if (this.#watch.doubt() !== undefined) return this.#askWitnessesAgain();
    if (!(await this.seal(REST_MS))) return;
    this.#station.reach('sealed');
    await this.#watch.look();
    this.#station.reach('anchored');
    // Not waited for: a slow witness must not hold the log up.
    this.#watch.show().catch((error: unknown) => this.#lookout.complain(error));
  }

  /**
   * Whether anything was sealed, by this process. A crash in here leaves the leaves where they were. What the database shows
   * is signed only if it goes on from what was signed before: whoever can write to the database must not get a signature for
   * another past. Unless a person `accepts` it.
   */
  async seal(restMs: number, accepts = false): Promise<boolean> {
    let isAny = false;
    for (let rest = restMs; await leavesWait(this.#station.db, rest); rest = 0) {
      const sealed = await this.#sealSome(accepts);
      if (sealed === undefined) break;
      isAny = true;
      // Whoever waits for the end of this process does not wait for a long backlog: another goes on with it.
      if (!sealed.isFull || this.#lookout.stopped) break;
    }
    if (this.#failing !== undefined) await this.#forgetFailing();
    return isAny;
  }

  /** Another process sealed what this one could not. Looked for without a rest: with one, nothing may only mean not yet. */
  async #forgetFailing(): Promise<void> {
    if (!(await leavesWait(this.#station.db, 0))) this.#failing = undefined;
  }

  /** Entries are of any length: what is too much for the time that a statement has is tried with fewer, down to one. */
  async #sealSome(accepts: boolean): Promise<Sealed | undefined> {
    const sign: Sign = async (before, size, root) => {
      if (!accepts) await this.#watch.vouchFor(before);
      this.#station.reach('sealing');
      return this.#key.sign(size, root);
    };
    try {
      const sealed = await sealLeaves(this.#station.db, sign, this.#atOnce);
      this.#failing = undefined;
      if (sealed?.isFull === true) this.#atOnce = Math.min(this.#atOnce * 2, LEAVES_AT_ONCE);
      return sealed;
    } catch (error) {
      this.#failing ??= { since: performance.now(), why: error instanceof Error ? error.message : String(error) };
      if (error instanceof LedgerError) this.#atOnce = Math.max(1, Math.floor(this.#atOnce / 4));
      throw error;
    }
  }

  /** What people must know of: what is logged is safe, but nobody could prove it yet. */
  warnings(): string[] {
    if (this.#failing === undefined) return [];
    const seconds = Math.round((performance.now() - this.#failing.since) / 1000);
    if (seconds * 1000 < WARN_AFTER_MS) return [];
    return [`the log could not be sealed for ${seconds} s: ${this.#failing.why}`];
  }

  async #askWitnessesAgain(): Promise<void> {
    if (performance.now() - this.#askedAt < ASK_AGAIN_MS) return;
    this.#askedAt = performance.now();
    await this.#watch.show();
  }
}
