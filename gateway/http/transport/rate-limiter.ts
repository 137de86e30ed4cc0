import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import type { Rate } from '../../domain/policy.ts';

interface RateLimiterOptions {
  /** Beyond this many keys, the least recently used is forgotten; 0 for no bound. */
  readonly maxKeys: number;
  /** Default: the address of the client. */
  readonly keyGenerator?: (request: FastifyRequest) => string;
}

/** Limits the requests per key. `@fastify/rate-limit` counts them in memory, in fixed windows. */
export class RateLimiter {
  readonly #rate: Rate;
  readonly #check: ReturnType<FastifyInstance['createRateLimit']>;

  constructor(app: FastifyInstance, rate: Rate, { maxKeys, ...options }: RateLimiterOptions) {
    this.#rate = rate;
    const settings = { max: rate.limit, timeWindow: rate.perMs, cache: maxKeys, ...options };
    this.#check = app.createRateLimit(settings);
  }

  /** Counts a request and throws if it exceeds the limit. */
  async count(request: FastifyRequest): Promise<void> {
    const state = await this.#check(request);
    if (!state.isAllowed && state.isExceeded) throw this.#refusal(state.ttlInSeconds);
  }

  /** Throws if one more request would exceed the limit. Counts nothing. */
  async peek(request: FastifyRequest): Promise<void> {
    const state = await this.#check(request, { increment: false });
    if (!state.isAllowed && state.remaining === 0) throw this.#refusal(state.ttlInSeconds);
  }

  #refusal(ttlInSeconds: number): GatewayError {
    const { limit, perMs } = this.#rate;
    return new GatewayError('rate_limited', `The limit is ${limit} requests in ${perMs / 1000} s.`, {
      retryAfterSeconds: Math.max(1, ttlInSeconds),
    });
  }
}
