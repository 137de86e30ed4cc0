import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import { EVENTS_PATH } from '../event-routes.ts';
import { onRequestEnd } from './on-request-end.ts';

/** Routes of agents. Matches the route, because a URL may be absolute or percent-encoded. */
const AGENT_ROUTES = /^\/(?:v1\/|mcp)/;

/**
 * Limits concurrent requests, to bound memory. With several agents, each has at most half of the slots, so that one agent with many
 * waiting requests cannot lock out the others.
 */
export class Inflight {
  readonly #max: number;
  readonly #countAgents: () => number;
  readonly #byPrincipal = new Map<string, number>();
  #total = 0;

  constructor(max: number, countAgents: () => number) {
    this.#max = max;
    this.#countAgents = countAgents;
  }

  /** Register before the front door: no work is done for a request above the limit, not even identification. */
  limitTotal(app: FastifyInstance): void {
    const release = () => {
      this.#total -= 1;
    };
    app.addHook('onRequest', (request, reply, done) => {
      // Event streams last for hours and have a limit of their own.
      if (request.routeOptions.url === EVENTS_PATH) return done();
      if (this.#total >= this.#max && isAgentRoute(request)) return done(gatewayFull(this.#max));
      this.#total += 1;
      onRequestEnd(request, reply, release);
      done();
    });
  }

  /** Register after the front door, which sets `principal`. */
  limitPerAgent(app: FastifyInstance): void {
    app.addHook('onRequest', (request, reply, done) => {
      const name = request.credentials?.principal;
      if (name === undefined || this.#countAgents() < 2 || !isAgentRoute(request)) return done();
      const inFlight = this.#byPrincipal.get(name) ?? 0;
      const max = Math.max(1, Math.floor(this.#max / 2));
      if (inFlight >= max) return done(agentFull(max));
      this.#byPrincipal.set(name, inFlight + 1);
      onRequestEnd(request, reply, () => this.#release(name));
      done();
    });
  }

  #release(name: string): void {
    const remaining = (this.#byPrincipal.get(name) ?? 1) - 1;
    if (remaining === 0) this.#byPrincipal.delete(name);
    else this.#byPrincipal.set(name, remaining);
  }
}

function isAgentRoute(request: FastifyRequest): boolean {
  return AGENT_ROUTES.test(request.routeOptions.url ?? '');
}

function gatewayFull(max: number): GatewayError {
  return new GatewayError('unavailable', `The gateway has reached its limit of ${max} concurrent requests.`, {
    retryAfterSeconds: 1,
  });
}

function agentFull(max: number): GatewayError {
  const detail = `You have reached the limit of concurrent requests per agent (${max}).`;
  return new GatewayError('rate_limited', detail, { retryAfterSeconds: 1 });
}
