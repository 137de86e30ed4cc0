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
/** The minimum time between two checkpoints. */
const MIN_SEAL_INTERVAL_MS = 800;
/** How often a witness that contradicts the log is asked again. Its operator may have repaired it. */
const WITNESS_RETRY_MS = 5_000;
/** A failure shorter than this causes no warning, because every restart of PostgreSQL causes a short failure. */
const WARN_AFTER_MS = 10_000;

type SequencerContext = Pick<Context, 'db' | 'log' | 'reachKillPoint'>;

/**
 * Appends waiting entries to the Merkle tree and signs a checkpoint, about once a second while entries wait. Every replica has
 * a sequencer, and one at a time works. A log in doubt is not signed, because the gateway must never sign two checkpoints
 * that contradict each other.
 */
export class Sequencer {
  readonly #ctx: SequencerContext;
  readonly #key: NoteSigner;
  readonly #logMonitor: LogMonitor;
  readonly #poller: Poller;
  #lastWitnessRetryAt = performance.now();
  #batchSize = MAX_LEAVES_PER_BATCH;
  #failure: { readonly since: number; readonly why: string } | undefined;

  constructor(ctx: SequencerContext, key: NoteSigner, logMonitor: LogMonitor) {
    this.#ctx = ctx;
    this.#key = key;
    this.#logMonitor = logMonitor;
    this.#poller = new Poller('the sequencer', POLL_INTERVAL_MS, () => this.#poll(), ctx.log);
  }

  get key(): NoteSigner {
    return this.#key;
  }

  start(): void {
    this.#poller.start();
  }

  /** Stops polling, and seals the entries that still wait if the log is good. */
  async stop(): Promise<void> {
    await this.#poller.stop();
    if (this.#logMonitor.findFault() === undefined)
      await this.seal(0).catch((error: unknown) => this.#poller.logRetry(error));
  }

  async #poll(): Promise<void> {
    await this.#logMonitor.verify();
    if (this.#logMonitor.findFault() !== undefined) return this.#retryWitnesses();
    if (!(await this.seal(MIN_SEAL_INTERVAL_MS))) return;
    this.#ctx.reachKillPoint('sealed');
    await this.#logMonitor.verify();
    this.#ctx.reachKillPoint('anchored');
    // Not awaited, because a slow witness must not delay the log.
    this.#logMonitor.requestCosignatures().catch((error: unknown) => this.#poller.logRetry(error));
  }

  /**
   * Seals the waiting leaves. Returns whether this replica sealed any. A crash here leaves the leaves waiting.
   *
   * A tip is signed only if it extends the signed log, because a writer of the database must not get a signature for another
   * history. `acceptsTip` skips that check after a person accepted the log.
   */
  async seal(minIntervalMs: number, acceptsTip = false): Promise<boolean> {
    let hasSealed = false;
    for (let intervalMs = minIntervalMs; await hasWaitingLeaves(this.#ctx.db, intervalMs); intervalMs = 0) {
      const sealed = await this.#sealBatch(acceptsTip);
      if (sealed === undefined) break;
      hasSealed = true;
      // A stopping replica leaves a long backlog to the other replicas.
      if (!sealed.isFull || this.#poller.isStopped) break;
    }
    if (this.#failure !== undefined) await this.#clearFailureIfSealed();
    return hasSealed;
  }

  /** Clears the failure when another replica sealed the leaves. With interval 0, the age of the checkpoint does not matter. */
  async #clearFailureIfSealed(): Promise<void> {
    if (!(await hasWaitingLeaves(this.#ctx.db, 0))) this.#failure = undefined;
  }

  /** Seals one batch. A batch of long entries may exceed the statement timeout, so each failure shrinks the next batch. */
  async #sealBatch(acceptsTip: boolean): Promise<SealedBatch | undefined> {
    const sign: SignCheckpoint = async (tip, size, root) => {
      if (!acceptsTip) await this.#logMonitor.requireSignedTip(tip);
      this.#ctx.reachKillPoint('sealing');
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

  /** Warns people while sealing fails. The waiting entries are safe in the ledger, but cannot be proved yet. */
  warnings(): string[] {
    if (this.#failure === undefined) return [];
    const seconds = Math.round((performance.now() - this.#failure.since) / 1000);
    if (seconds * 1000 < WARN_AFTER_MS) return [];
    return [`The audit log could not be sealed for ${seconds} s: ${this.#failure.why}`];
  }

  async #retryWitnesses(): Promise<void> {
    if (performance.now() - this.#lastWitnessRetryAt < WITNESS_RETRY_MS) return;
    this.#lastWitnessRetryAt = performance.now();
    await this.#logMonitor.requestCosignatures();
  }
}
