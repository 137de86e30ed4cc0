import CircuitBreaker from 'opossum';
import type {
  Adapter,
  Outcome,
  PreparedRequest,
  RequestInput,
  SendOptions,
} from '../gateway/domain/attempts/adapter.ts';
import type { Tool, Upstream } from '../gateway/domain/policy.ts';
import { Semaphore } from './semaphore.ts';

export type BreakerState = 'closed' | 'open' | 'half_open';

type OpossumBreaker = CircuitBreaker<[Tool, PreparedRequest, SendOptions], Outcome>;

/** Thrown inside the breaker, so that the breaker counts the failure. `send` unwraps the outcome. */
class UpstreamFailure extends Error {
  readonly outcome: Outcome;

  constructor(outcome: Outcome) {
    super('The upstream failed.');
    this.outcome = outcome;
  }
}

/**
 * Limits the concurrent requests to an upstream, and stops requests while the upstream fails. Only failures of the upstream
 * count (no answer, a 5xx, garbage), so that bad arguments of one agent cannot block a tool for all agents.
 *
 * An open breaker sends nothing, and its trials are only calls that may be repeated. A request that it stops is `not_sent`.
 * Requests in flight are not affected, so opening the breaker never turns an unknown outcome into a failure.
 */
export class CircuitBreakerAdapter implements Adapter {
  readonly #adapter: Adapter;
  readonly #upstream: Upstream;
  readonly #semaphore: Semaphore;
  readonly #isManuallyOpen: () => boolean;
  #breaker: OpossumBreaker;
  #openedAt = 0;

  constructor(upstream: Upstream, adapter: Adapter, isManuallyOpen: () => boolean) {
    this.#adapter = adapter;
    this.#upstream = upstream;
    this.#isManuallyOpen = isManuallyOpen;
    this.#semaphore = new Semaphore(upstream.concurrency);
    this.#breaker = this.#createBreaker();
  }

  #createBreaker(): OpossumBreaker {
    const { threshold, minimum, windowMs, cooldownMs } = this.#upstream.breaker;
    const breaker: OpossumBreaker = new CircuitBreaker(
      (tool, request, options) => this.#sendUnlessOpen(tool, request, options, breaker.halfOpen),
      {
        // The timeout of opossum would abort every call in flight. The adapter has a timeout per call.
        timeout: false,
        errorThresholdPercentage: threshold * 100,
        volumeThreshold: minimum,
        rollingCountTimeout: windowMs,
        rollingCountBuckets: 10,
        resetTimeout: cooldownMs,
        enableSnapshots: false,
        // The percentiles are not used, and each failure would sort the latencies of the whole window.
        rollingPercentilesEnabled: false,
      },
    );
    breaker.on('open', () => {
      this.#openedAt = performance.now();
    });
    return breaker;
  }

  get state(): BreakerState {
    if (this.#isManuallyOpen() || this.#breaker.opened) return 'open';
    return this.#breaker.halfOpen ? 'half_open' : 'closed';
  }

  /** How long a call of this tool must wait before it may be sent; 0 if it may be sent now. */
  getCooldownMs(tool: Tool): number {
    const state = this.state;
    if (state === 'closed' || (state === 'half_open' && canBeTrial(tool))) return 0;
    const left = this.#upstream.breaker.cooldownMs - (performance.now() - this.#openedAt);
    return Math.max(left, 1_000);
  }

  /** Forgets all counted failures, because a person closed the breaker. */
  reset(): void {
    const old = this.#breaker;
    this.#breaker = this.#createBreaker();
    // Calls in flight end normally, but no longer count.
    old.shutdown();
  }

  prepare(tool: Tool, input: RequestInput, txn: string): PreparedRequest {
    return this.#adapter.prepare(tool, input, txn);
  }

  isAt(base: string | undefined): boolean {
    return this.#adapter.isAt(base);
  }

  async send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    if (this.getCooldownMs(tool) > 0) return this.#buildOpenOutcome();
    const acquired = this.#semaphore.acquire(options.timeoutMs);
    const release = acquired instanceof Promise ? await acquired : acquired;
    if (release === undefined)
      return { kind: 'not_sent', detail: `${this.#upstream.name} is busy with ${this.#upstream.concurrency} requests` };
    try {
      // Check again: the breaker may have opened while this call waited. `fire` starts after the wait, so it does not measure it.
      if (this.getCooldownMs(tool) > 0) return this.#buildOpenOutcome();
      return await this.#breaker.fire(tool, request, options);
    } catch (error) {
      if (error instanceof UpstreamFailure) return error.outcome;
      if ((error as NodeJS.ErrnoException).code === 'EOPENBREAKER') return this.#buildOpenOutcome();
      throw error;
    } finally {
      release();
    }
  }

  /**
   * Sends a request inside the breaker, which counts a failure when this throws. Connecting takes time, so the state of the
   * breaker is checked once more right before the first byte.
   */
  async #sendUnlessOpen(
    tool: Tool,
    request: PreparedRequest,
    options: SendOptions,
    isTrial: boolean,
  ): Promise<Outcome> {
    let isOpen = false;
    const maySend = () => {
      isOpen = isTrial ? this.#isManuallyOpen() : this.state !== 'closed';
      return !isOpen && options.maySend();
    };
    const { timeoutMs, freshConnection, listener, discreet } = options;
    const sent = await this.#adapter.send(tool, request, { timeoutMs, freshConnection, listener, discreet, maySend });
    const outcome = isOpen && sent.kind === 'not_sent' ? this.#buildOpenOutcome() : sent;
    // A trial that was not sent proves nothing, so it must not close the breaker.
    if (isUpstreamFailure(outcome) || (isTrial && outcome.kind === 'not_sent')) throw new UpstreamFailure(outcome);
    return outcome;
  }

  async close(): Promise<void> {
    this.#breaker.shutdown();
    await this.#adapter.close();
  }

  #buildOpenOutcome(): Outcome {
    return { kind: 'not_sent', detail: `the circuit breaker of ${this.#upstream.name} is open`, heldBack: true };
  }
}

/** A trial may end without an answer, so only a call that can be repeated may be a trial. */
function canBeTrial(tool: Tool): boolean {
  return tool.effect === 'read' || tool.once.by === 'key' || tool.once.by === 'idempotent';
}

function isUpstreamFailure(outcome: Outcome): boolean {
  if (outcome.kind === 'not_sent')
    return outcome.abandoned !== true && outcome.refusedHere !== true && outcome.heldBack !== true;
  if (outcome.kind !== 'ambiguous') return false;
  return outcome.answer === undefined || outcome.answer.status >= 500;
}
