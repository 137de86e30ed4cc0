import type { NoteSigner } from '../../domain/audit/signed-note.ts';
import { LedgerError } from '../../domain/errors.ts';
import {
  hasWaitingLeaves,
  MAX_LEAVES_PER_BATCH,
  type SealedBatch,
  type SignCheckpoint,
  sealLeaves,
} from '../../ledger/audit/audit-log.ts';
import type { Context } from '../context.ts';
import { Poller } from '../poller.ts';
import type { LogMonitor } from './log-monitor.ts';

const POLL_INTERVAL_MS = 400;
/** Less than this after the last checkpoint there is no hurry with the next. */
const MIN_SEAL_INTERVAL_MS = 800;
/** A witness that contradicts is asked again: its operator may have seen to it. */
const WITNESS_RETRY_MS = 5_000;
/** It may stumble, as a ledger does that is restarted. */
const WARN_AFTER_MS = 10_000;

/**
 * Puts what was logged into the tree and signs it, about once a second while there is news. A worker in every process, of
 * which one at a time is at it. Where the log is in doubt nothing is signed: two checkpoints that exclude one another must
 * never bear our name.
 */
export class Sequencer {
  readonly #ctx: Context;
  readonly #key: NoteSigner;
  readonly #logMonitor: LogMonitor;
  readonly #poller: Poller;
  #witnessesAskedAt = performance.now();
  #batchSize = MAX_LEAVES_PER_BATCH;
  #failure: { readonly since: number; readonly why: string } | undefined;

  constructor(ctx: Context, key: NoteSigner, watch: LogMonitor) {
    this.#ctx = ctx;
    this.#key = key;
    this.#logMonitor = watch;
    this.#poller = new Poller('the log', POLL_INTERVAL_MS, () => this.#poll(), ctx.log);
  }

  get key(): NoteSigner {
    return this.#key;
  }

  start(): void {
    this.#poller.start();
  }

  /** What is still waiting is sealed, if that can be. */
  async stop(): Promise<void> {
    await this.#poller.stop();
    if (this.#logMonitor.findFault() === undefined)
      await this.seal(0).catch((error: unknown) => this.#poller.complain(error));
  }

  async #poll(): Promise<void> {
    await this.#logMonitor.verify();
    if (this.#logMonitor.findFault() !== undefined) return this.#retryWitnesses();
    if (!(await this.seal(MIN_SEAL_INTERVAL_MS))) return;
    this.#ctx.reach('sealed');
    await this.#logMonitor.verify();
    this.#ctx.reach('anchored');
    // Not waited for: a slow witness must not hold the log up.
    this.#logMonitor.requestCosignatures().catch((error: unknown) => this.#poller.complain(error));
  }

  /**
   * Whether anything was sealed, by this process. A crash in here leaves the leaves where they were. What the database shows
   * is signed only if it goes on from what was signed before: whoever can write to the database must not get a signature for
   * another past. Unless a person `accepts` it.
   */
  async seal(restMs: number, accepts = false): Promise<boolean> {
    let isAny = false;
    for (let rest = restMs; await hasWaitingLeaves(this.#ctx.db, rest); rest = 0) {
      const sealed = await this.#sealBatch(accepts);
      if (sealed === undefined) break;
      isAny = true;
      // Whoever waits for the end of this process does not wait for a long backlog: another goes on with it.
      if (!sealed.isFull || this.#poller.stopped) break;
    }
    if (this.#failure !== undefined) await this.#clearFailureIfSealed();
    return isAny;
  }

  /** Another process sealed what this one could not. Looked for without a rest: with one, nothing may only mean not yet. */
  async #clearFailureIfSealed(): Promise<void> {
    if (!(await hasWaitingLeaves(this.#ctx.db, 0))) this.#failure = undefined;
  }

  /** Entries are of any length: what is too much for the time that a statement has is tried with fewer, down to one. */
  async #sealBatch(accepts: boolean): Promise<SealedBatch | undefined> {
    const sign: SignCheckpoint = async (before, size, root) => {
      if (!accepts) await this.#logMonitor.requireSignedTip(before);
      this.#ctx.reach('sealing');
      return this.#key.sign(size, root);
    };
    try {
      const sealed = await sealLeaves(this.#ctx.db, sign, this.#batchSize);
      this.#failure = undefined;
      if (sealed?.isFull === true) this.#batchSize = Math.min(this.#batchSize * 2, MAX_LEAVES_PER_BATCH);
      return sealed;
    } catch (error) {
      this.#failure ??= { since: performance.now(), why: error instanceof Error ? error.message : String(error) };
      if (error instanceof LedgerError) this.#batchSize = Math.max(1, Math.floor(this.#batchSize / 4));
      throw error;
    }
  }

  /** What people must know of: what is logged is safe, but nobody could prove it yet. */
  warnings(): string[] {
    if (this.#failure === undefined) return [];
    const seconds = Math.round((performance.now() - this.#failure.since) / 1000);
    if (seconds * 1000 < WARN_AFTER_MS) return [];
    return [`the log could not be sealed for ${seconds} s: ${this.#failure.why}`];
  }

  async #retryWitnesses(): Promise<void> {
    if (performance.now() - this.#witnessesAskedAt < WITNESS_RETRY_MS) return;
    this.#witnessesAskedAt = performance.now();
    await this.#logMonitor.requestCosignatures();
  }
}
