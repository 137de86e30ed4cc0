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

/** Thrown inside the breaker so that it counts; unwrapped again right outside. */
class UpstreamFailure extends Error {
  readonly outcome: Outcome;

  constructor(outcome: Outcome) {
    super('the upstream failed');
    this.outcome = outcome;
  }
}

/**
 * Stands before an upstream: so many requests at once, and none while it is sick. Only what the upstream itself did wrong
 * counts (no answer, a 5xx, garbage), so that one agent's bad arguments cannot shut a tool for all. An open breaker sends
 * nothing; its trials are only ever calls that may be repeated. It says "not sent" of what it holds back, and nothing of
 * what is already on its way: opening never turns unknown into failed.
 */
export class CircuitBreakerAdapter implements Adapter {
  readonly #adapter: Adapter;
  readonly #upstream: Upstream;
  readonly #semaphore: Semaphore;
  readonly #isManuallyOpen: () => boolean;
  #breaker: OpossumBreaker;
  #openedAt = 0;

  constructor(upstream: Upstream, adapter: Adapter, openedByHand: () => boolean) {
    this.#adapter = adapter;
    this.#upstream = upstream;
    this.#isManuallyOpen = openedByHand;
    this.#semaphore = new Semaphore(upstream.concurrency);
    this.#breaker = this.#createBreaker();
  }

  #createBreaker(): OpossumBreaker {
    const { threshold, minimum, windowMs, cooldownMs } = this.#upstream.breaker;
    const breaker: OpossumBreaker = new CircuitBreaker(
      (tool, request, options) => this.#sendUnlessOpen(tool, request, options, breaker.halfOpen),
      {
        // Its own timeout aborts every call in flight; ours are per call, in the adapter.
        timeout: false,
        errorThresholdPercentage: threshold * 100,
        volumeThreshold: minimum,
        rollingCountTimeout: windowMs,
        rollingCountBuckets: 10,
        resetTimeout: cooldownMs,
        enableSnapshots: false,
        // Nobody reads them, and every failure would sort the latencies of the whole window.
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

  /** How long a call of this tool must wait before it may be sent; zero: it may be now. */
  getCooldownMs(tool: Tool): number {
    const state = this.state;
    if (state === 'closed' || (state === 'half_open' && canBeTrial(tool))) return 0;
    const left = this.#upstream.breaker.cooldownMs - (performance.now() - this.#openedAt);
    return Math.max(left, 1_000);
  }

  /** By hand: whatever was counted is forgotten. */
  reset(): void {
    const old = this.#breaker;
    this.#breaker = this.#createBreaker();
    // What it has in flight still ends as it ends; it only no longer counts.
    old.shutdown();
  }

  prepare(tool: Tool, wish: RequestInput, txn: string): PreparedRequest {
    return this.#adapter.prepare(tool, wish, txn);
  }

  isAt(base: string | undefined): boolean {
    return this.#adapter.isAt(base);
  }

  async send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    if (this.getCooldownMs(tool) > 0) return this.#buildOpenOutcome();
    const entering = this.#semaphore.acquire(options.timeoutMs);
    const leave = entering instanceof Promise ? await entering : entering;
    if (leave === undefined)
      return { kind: 'not_sent', detail: `${this.#upstream.name} is busy with ${this.#upstream.concurrency} requests` };
    try {
      // Asked again: the breaker may have opened while this one queued. The time it queued is not the upstream's.
      if (this.getCooldownMs(tool) > 0) return this.#buildOpenOutcome();
      return await this.#breaker.fire(tool, request, options);
    } catch (error) {
      if (error instanceof UpstreamFailure) return error.outcome;
      if ((error as NodeJS.ErrnoException).code === 'EOPENBREAKER') return this.#buildOpenOutcome();
      throw error;
    } finally {
      leave();
    }
  }

  /**
   * What the breaker runs, and counts when it throws. Connecting takes time too: the breaker has its word until right before the
   * first byte.
   */
  async #sendUnlessOpen(
    tool: Tool,
    request: PreparedRequest,
    options: SendOptions,
    isTrial: boolean,
  ): Promise<Outcome> {
    let opened = false;
    const maySend = () => {
      opened = isTrial ? this.#isManuallyOpen() : this.state !== 'closed';
      return !opened && options.maySend();
    };
    const { timeoutMs, freshConnection, follower, discreet } = options;
    const sent = await this.#adapter.send(tool, request, { timeoutMs, freshConnection, follower, discreet, maySend });
    const outcome = opened && sent.kind === 'not_sent' ? this.#buildOpenOutcome() : sent;
    // A trial that never left has shown nothing: it must not close the breaker.
    if (isUpstreamFailure(outcome) || (isTrial && outcome.kind === 'not_sent')) throw new UpstreamFailure(outcome);
    return outcome;
  }

  async close(): Promise<void> {
    this.#breaker.shutdown();
    await this.#adapter.close();
  }

  #buildOpenOutcome(): Outcome {
    return { kind: 'not_sent', detail: `the breaker of ${this.#upstream.name} is open`, heldBack: true };
  }
}

/** A trial may end without an answer, so it must be one that can be repeated. */
function canBeTrial(tool: Tool): boolean {
  return tool.effect === 'read' || tool.once.by === 'key' || tool.once.by === 'idempotent';
}

function isUpstreamFailure(outcome: Outcome): boolean {
  if (outcome.kind === 'not_sent')
    return outcome.abandoned !== true && outcome.refusedHere !== true && outcome.heldBack !== true;
  if (outcome.kind !== 'ambiguous') return false;
  return outcome.answer === undefined || outcome.answer.status >= 500;
}
