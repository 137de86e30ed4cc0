import type { NoteKey } from '../domain/signed-note.ts';
import { leavesWait, sealLeaves } from '../ledger/audit-log.ts';
import type { LogWatch } from './log-watch.ts';
import { Lookout } from './lookout.ts';
import type { Station } from './station.ts';

const LOOK_EVERY_MS = 400;
/** Less than this after the last checkpoint there is no hurry with the next. */
const REST_MS = 800;
/** A witness that contradicts is asked again: its operator may have seen to it. */
const ASK_AGAIN_MS = 5_000;

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
      const sealed = await sealLeaves(this.#station.db, async (before, size, root) => {
        if (!accepts) await this.#watch.vouchFor(before);
        this.#station.reach('sealing');
        return this.#key.sign(size, root);
      });
      if (sealed === undefined) break;
      isAny = true;
      // Whoever waits for the end of this process does not wait for a long backlog: another goes on with it.
      if (!sealed.isFull || this.#lookout.stopped) break;
    }
    return isAny;
  }

  async #askWitnessesAgain(): Promise<void> {
    if (performance.now() - this.#askedAt < ASK_AGAIN_MS) return;
    this.#askedAt = performance.now();
    await this.#watch.show();
  }
}
