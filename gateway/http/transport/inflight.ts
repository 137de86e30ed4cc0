import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import { EVENTS } from '../event-routes.ts';
import { onRequestEnd } from './on-request-end.ts';

/** Agents' own work. The route, not the URL as it was sent: that may be absolute, or written with escapes. */
const CALLS = /^\/(?:v1\/|mcp)/;

/**
 * Memory stays bounded whatever comes: beyond this many requests at once the next one is told to come back. Whoever asks, of several
 * agents, has no more than half of them at once, so that one who hoards its waiting does not keep the others out.
 */
export class Inflight {
  readonly #most: number;
  readonly #agents: () => number;
  readonly #byName = new Map<string, number>();
  #all = 0;

  constructor(most: number, agents: () => number) {
    this.#most = most;
    this.#agents = agents;
  }

  /** Before anything is done, even to find out who asks. */
  count(app: FastifyInstance): void {
    const left = () => {
      this.#all -= 1;
    };
    app.addHook('onRequest', (request, reply, done) => {
      // Streams of events last for hours and are people's: they have a bound of their own.
      if (request.routeOptions.url === EVENTS) return done();
      if (this.#all >= this.#most && isCall(request)) return done(full(this.#most));
      this.#all += 1;
      onRequestEnd(request, reply, left);
      done();
    });
  }

  /** Once it is known who asks. */
  share(app: FastifyInstance): void {
    app.addHook('onRequest', (request, reply, done) => {
      const name = request.caller?.countedAs;
      if (name === undefined || this.#agents() < 2 || !isCall(request)) return done();
      const under = this.#byName.get(name) ?? 0;
      const most = Math.max(1, Math.floor(this.#most / 2));
      if (under >= most) return done(greedy(most));
      this.#byName.set(name, under + 1);
      onRequestEnd(request, reply, () => this.#leave(name));
      done();
    });
  }

  #leave(name: string): void {
    const left = (this.#byName.get(name) ?? 1) - 1;
    if (left === 0) this.#byName.delete(name);
    else this.#byName.set(name, left);
  }
}

function isCall(request: FastifyRequest): boolean {
  return CALLS.test(request.routeOptions.url ?? '');
}

function full(most: number): GatewayError {
  return new GatewayError('unavailable', `The gateway is carrying ${most} requests already.`, { retryAfterSeconds: 1 });
}

function greedy(most: number): GatewayError {
  const detail = `You have half of all requests under way that this gateway carries: ${most}.`;
  return new GatewayError('rate_limited', detail, { retryAfterSeconds: 1 });
}
