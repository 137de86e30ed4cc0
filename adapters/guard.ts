import CircuitBreaker from 'opossum';
import type { Adapter, Outcome, PreparedRequest, SendOptions, Wish } from '../gateway/domain/adapter.ts';
import type { Tool, Upstream } from '../gateway/domain/policy.ts';
import { Turnstile } from './turnstile.ts';

export type BreakerState = 'closed' | 'open' | 'half_open';

type Breaker = CircuitBreaker<[Tool, PreparedRequest, SendOptions], Outcome>;

/** Thrown inside the breaker so that it counts; unwrapped again right outside. */
class SickUpstream extends Error {
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
export class Guard implements Adapter {
  readonly #adapter: Adapter;
  readonly #upstream: Upstream;
  readonly #turnstile: Turnstile;
  readonly #openedByHand: () => boolean;
  #breaker: Breaker;
  #openedAt = 0;

  constructor(upstream: Upstream, adapter: Adapter, openedByHand: () => boolean) {
    this.#adapter = adapter;
    this.#upstream = upstream;
    this.#openedByHand = openedByHand;
    this.#turnstile = new Turnstile(upstream.concurrency);
    this.#breaker = this.#newBreaker();
  }

  #newBreaker(): Breaker {
    const { threshold, minimum, windowMs, cooldownMs } = this.#upstream.breaker;
    const breaker: Breaker = new CircuitBreaker(
      (tool, request, options) => this.#sendUnlessOpened(tool, request, options, breaker.halfOpen),
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
    if (this.#openedByHand() || this.#breaker.opened) return 'open';
    return this.#breaker.halfOpen ? 'half_open' : 'closed';
  }

  /** How long a call of this tool must wait before it may be sent; zero: it may be now. */
  heldBackMs(tool: Tool): number {
    const state = this.state;
    if (state === 'closed' || (state === 'half_open' && mayTry(tool))) return 0;
    const left = this.#upstream.breaker.cooldownMs - (performance.now() - this.#openedAt);
    return Math.max(left, 1_000);
  }

  /** By hand: whatever was counted is forgotten. */
  reset(): void {
    const old = this.#breaker;
    this.#breaker = this.#newBreaker();
    // What it has in flight still ends as it ends; it only no longer counts.
    old.shutdown();
  }

  prepare(tool: Tool, wish: Wish, txn: string): PreparedRequest {
    return this.#adapter.prepare(tool, wish, txn);
  }

  isAt(base: string | undefined): boolean {
    return this.#adapter.isAt(base);
  }

  async send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    if (this.heldBackMs(tool) > 0) return this.#heldBack();
    const entering = this.#turnstile.enter(options.timeoutMs);
    const leave = entering instanceof Promise ? await entering : entering;
    if (leave === undefined)
      return { kind: 'not_sent', detail: `${this.#upstream.name} is busy with ${this.#upstream.concurrency} requests` };
    try {
      // Asked again: the breaker may have opened while this one queued. The time it queued is not the upstream's.
      if (this.heldBackMs(tool) > 0) return this.#heldBack();
      return await this.#breaker.fire(tool, request, options);
    } catch (error) {
      if (error instanceof SickUpstream) return error.outcome;
      if ((error as NodeJS.ErrnoException).code === 'EOPENBREAKER') return this.#heldBack();
      throw error;
    } finally {
      leave();
    }
  }

  /**
   * What the breaker runs, and counts when it throws. Connecting takes time too: the breaker has its word until right before the
   * first byte.
   */
  async #sendUnlessOpened(
    tool: Tool,
    request: PreparedRequest,
    options: SendOptions,
    isTrial: boolean,
  ): Promise<Outcome> {
    let opened = false;
    const maySend = () => {
      opened = isTrial ? this.#openedByHand() : this.state !== 'closed';
      return !opened && options.maySend();
    };
    const { timeoutMs, freshConnection, follower, discreet } = options;
    const sent = await this.#adapter.send(tool, request, { timeoutMs, freshConnection, follower, discreet, maySend });
    const outcome = opened && sent.kind === 'not_sent' ? this.#heldBack() : sent;
    // A trial that never left has shown nothing: it must not close the breaker.
    if (isSick(outcome) || (isTrial && outcome.kind === 'not_sent')) throw new SickUpstream(outcome);
    return outcome;
  }

  async close(): Promise<void> {
    this.#breaker.shutdown();
    await this.#adapter.close();
  }

  #heldBack(): Outcome {
    return { kind: 'not_sent', detail: `the breaker of ${this.#upstream.name} is open`, heldBack: true };
  }
}

/** A trial may end without an answer, so it must be one that can be repeated. */
function mayTry(tool: Tool): boolean {
  return tool.effect === 'read' || tool.once.by === 'key' || tool.once.by === 'nature';
}

function isSick(outcome: Outcome): boolean {
  if (outcome.kind === 'not_sent')
    return outcome.abandoned !== true && outcome.refusedHere !== true && outcome.heldBack !== true;
  if (outcome.kind !== 'ambiguous') return false;
  return outcome.answer === undefined || outcome.answer.status >= 500;
}
