import type { FastifyRateLimitStore } from '@fastify/rate-limit';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import type { Rate } from '../../domain/policy.ts';

/** How often one agent or one address may come. The plugin decides; `admits` spares it those who are far from their limit. */
export class Limiter {
  readonly #rate: Rate;
  readonly #windows: Windows;
  readonly #check: ReturnType<FastifyInstance['createRateLimit']>;

  /** Of more callers than `most` at a time, whoever has not come for longest is forgotten. */
  constructor(app: FastifyInstance, rate: Rate, most: number, keyGenerator?: (request: FastifyRequest) => string) {
    this.#rate = rate;
    this.#windows = new Windows(most);
    const options = { max: rate.limit, timeWindow: rate.perMs, windows: this.#windows };
    this.#check = app.createRateLimit(keyGenerator === undefined ? options : { ...options, keyGenerator });
  }

  /** Whether a request is within the limit beyond doubt: then it is counted. Of any other nothing is known before `ask`. */
  admits(key: string): boolean {
    return this.#windows.countWithin(key, this.#rate);
  }

  /** Counts a request, or only looks, and throws if it is too much. */
  async ask(request: FastifyRequest, count: boolean): Promise<void> {
    const found = await this.#check(request, { increment: count });
    if (found.isAllowed) return;
    // Looked at without counting, a limit that is just used up is already too much.
    if (!found.isExceeded && (count || found.remaining > 0)) return;
    const { limit, perMs } = this.#rate;
    throw new GatewayError('rate_limited', `More than ${limit} requests in ${perMs / 1000} s.`, {
      retryAfterSeconds: Math.max(1, found.ttlInSeconds),
    });
  }
}

/** What the plugin takes for a store: it asks this one for another for each limiter, and every limiter brings its own. */
export class Stores implements FastifyRateLimitStore {
  incr(): never {
    throw new Error('A limiter counts in its own windows.');
  }

  child(options: object): Windows {
    return (options as { windows: Windows }).windows;
  }
}

interface Window {
  current: number;
  beganMs: number;
}

type Tell = (error: Error | null, counted: { current: number; ttl: number }) => void;

/** Fixed windows: each begins with the first request after the last one is over. */
class Windows implements FastifyRateLimitStore {
  readonly #most: number;
  /** Whoever came last is last. */
  readonly #windows = new Map<string, Window>();

  constructor(most: number) {
    this.#most = most;
  }

  countWithin(key: string, { limit, perMs }: Rate): boolean {
    const window = this.#windows.get(key);
    if (window === undefined || window.current >= limit || window.beganMs + perMs <= Date.now()) return false;
    window.current += 1;
    return true;
  }

  incr(key: string, tell: Tell, perMs: number): void {
    const nowMs = Date.now();
    const window = this.#visited(key, perMs, nowMs) ?? this.#begin(key, nowMs);
    window.current += 1;
    tell(null, { current: window.current, ttl: window.beganMs + perMs - nowMs });
  }

  read(key: string, tell: Tell, perMs: number): void {
    const nowMs = Date.now();
    const window = this.#visited(key, perMs, nowMs);
    if (window === undefined) tell(null, { current: 0, ttl: 0 });
    else tell(null, { current: window.current, ttl: window.beganMs + perMs - nowMs });
  }

  child(): Windows {
    return this;
  }

  #visited(key: string, perMs: number, nowMs: number): Window | undefined {
    const window = this.#windows.get(key);
    if (window === undefined) return undefined;
    this.#windows.delete(key);
    this.#windows.set(key, window);
    return window.beganMs + perMs > nowMs ? window : undefined;
  }

  #begin(key: string, nowMs: number): Window {
    this.#windows.delete(key);
    const longestAway = this.#windows.size >= this.#most ? this.#windows.keys().next() : undefined;
    if (longestAway?.done === false) this.#windows.delete(longestAway.value);
    const window = { current: 0, beganMs: nowMs };
    this.#windows.set(key, window);
    return window;
  }
}
