import { setTimeout as sleep } from 'node:timers/promises';
import { parseTraceContext, type Span } from '../../domain/telemetry.ts';
import { CancelToken } from '../cancel-token.ts';
import type { Context } from '../context.ts';
import { toSpanSubject } from './attempt-loop.ts';
import type { DispatchResult, InFlightCall } from './in-flight-call.ts';
import { runAttempts } from './run-attempts.ts';

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
  register(call: InFlightCall): InFlightCall {
    this.#inFlight.set(call.record.txn, call);
    return call;
  }

  /** Starts the attempts of a registered call. The promise never rejects. */
  start(call: InFlightCall): Promise<DispatchResult> {
    void this.#runToEnd(call);
    return call.result;
  }

  async #runToEnd(call: InFlightCall): Promise<void> {
    const { txn } = call.record;
    const span = call.span ?? this.#startRootSpan(call);
    let result = UNKNOWN_RESULT;
    try {
      result = await runAttempts({
        ctx: this.#ctx,
        call,
        span,
        shutdownToken: this.#shutdownToken,
        lastOutcome: undefined,
        failedObservations: 0,
      });
    } finally {
      if (call.span === undefined) span.end({ txn, state: call.record.state });
      // Keep the entry if this process took the call again meanwhile.
      if (this.#inFlight.get(txn) === call) this.#inFlight.delete(txn);
      call.finish(result);
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
  #startRootSpan(call: InFlightCall): Span {
    const name = call.record.undoOf === null ? 'recover' : 'undo';
    return this.#ctx.telemetry.begin(
      name,
      toSpanSubject(call),
      parseTraceContext((header) => call.payload.request.headers[header]),
    );
  }
}

// A shared constant: every call replaces it.
const UNKNOWN_RESULT: DispatchResult = { kind: 'elsewhere' };
