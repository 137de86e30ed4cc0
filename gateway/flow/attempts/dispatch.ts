import { setTimeout as sleep } from 'node:timers/promises';
import { parseTraceContext, type Span } from '../../domain/telemetry.ts';
import { CancelToken } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { toSpanSubject } from './attempt-loop.ts';
import type { Job } from './job.ts';
import { runAttempts } from './run-attempts.ts';
import type { DispatchResult } from './update-call.ts';

/**
 * Starts the attempts of open calls, and knows the calls in flight. Fresh, approved, recovered and compensating calls all reach
 * an upstream only through here. Sending happens between two transactions. A crash there leaves `sending` or `in_doubt` with an open attempt: its
 * outcome is unknown, and recovery takes the call over.
 */
export class Dispatch {
  readonly #ctx: Context;
  readonly #inFlight = new Map<string, InFlightCall>();
  readonly #shutdownToken = new CancelToken();

  constructor(ctx: Context) {
    this.#ctx = ctx;
  }

  /**
   * Registers a call that this process owns. From now on repeats and the shutdown wait for its result, and nothing else in this
   * process claims or recovers it. The caller starts it next: nothing that waits or can fail may stand in between.
   */
  register(job: Job): InFlightCall {
    let finish = (_: DispatchResult) => {};
    const result = new Promise<DispatchResult>((resolve) => (finish = resolve));
    const inFlight = { job, result, finish };
    this.#inFlight.set(job.txn, inFlight);
    return inFlight;
  }

  /** Starts the attempts of a registered call. The promise never rejects. */
  start(inFlight: InFlightCall): Promise<DispatchResult> {
    void this.#runToEnd(inFlight);
    return inFlight.result;
  }

  async #runToEnd({ job, finish }: InFlightCall): Promise<void> {
    const span = job.span ?? this.#startRootSpan(job);
    let result = UNKNOWN_RESULT;
    try {
      result = await runAttempts({
        ctx: this.#ctx,
        job,
        span,
        shutdownToken: this.#shutdownToken,
        lastOutcome: undefined,
        failedObservations: 0,
      });
    } finally {
      if (job.span === undefined) span.end({ txn: job.txn, state: job.state });
      // Keep the entry if this process took the call again meanwhile, under another job.
      if (this.#inFlight.get(job.txn)?.job === job) this.#inFlight.delete(job.txn);
      finish(result);
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
}

/** A call that this process works on, and the promise of its result. The promise exists before the first attempt starts. */
export interface InFlightCall {
  readonly job: Job;
  readonly result: Promise<DispatchResult>;
  /** Resolves `result`. Only for `Dispatch`. */
  readonly finish: (result: DispatchResult) => void;
}

// A shared constant: every call replaces it.
const UNKNOWN_RESULT: DispatchResult = { kind: 'elsewhere' };
