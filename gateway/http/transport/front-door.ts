import rateLimit from '@fastify/rate-limit';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { findAgentsByClaims, isTokenShaped } from '../../domain/match-token.ts';
import type { Policies, Rate } from '../../domain/policy.ts';
import { callerOf, type RequestCredentials } from './identify.ts';
import { Limiter, Stores } from './limiter.ts';

export interface TokenCheck {
  /** The claims of a token that was verified a moment ago. */
  recall(token: string): JsonObject | undefined;
  /** The claims of a good token; a `GatewayError` for any other. */
  verify(token: string, policies: Policies): Promise<JsonObject>;
}

export interface DoorLimits {
  /** Of one agent, or one person. */
  readonly perAgent: Rate;
  /** Of one address, for requests whose key or token is nobody's. */
  readonly perAddress: Rate;
}

const MOST_ADDRESSES = 5_000;
const OPEN = new Set(['/healthz', '/readyz']);

/**
 * Who comes in, and how often: before the body is read, and before anything else is done. It is a guard against floods and
 * counts in this process only, in fixed windows: with N replicas an agent may come N times as often. The exact limits are
 * those of its rules. Behind a proxy all strangers have the proxy's address; agents and people are counted by name and are
 * not touched by what strangers do.
 */
export async function frontDoor(
  app: FastifyInstance,
  policies: () => Policies,
  tokens: TokenCheck,
  limits: DoorLimits,
): Promise<void> {
  await app.register(rateLimit, { global: false, store: Stores });
  app.decorateRequest('caller', undefined);
  // There are no more names than the policies have; addresses may be as many as a flood likes.
  const byName = new Limiter(app, limits.perAgent, Number.POSITIVE_INFINITY, ({ caller }) => caller?.countedAs ?? '');
  const byAddress = new Limiter(app, limits.perAddress, MOST_ADDRESSES);

  app.addHook('onRequest', (request, _reply, done) => {
    if (OPEN.has(request.routeOptions.url ?? '')) return done();
    const caller = callerOf(request, policies());
    request.caller = caller;
    if (caller.countedAs !== undefined && byName.admits(caller.countedAs)) return done();
    return ask(request, caller);
  });

  /** Of a token nothing is known until it is verified. */
  async function ask(request: FastifyRequest, caller: RequestCredentials): Promise<void> {
    const { bearer } = caller;
    if (caller.countedAs === undefined && bearer !== undefined && isTokenShaped(bearer)) {
      caller.token = tokens.recall(bearer);
      if (caller.token === undefined) {
        // Verifying is work: an address that sent too much rubbish already is turned away first.
        await byAddress.ask(request, false);
        caller.token = await outcome(tokens, bearer, policies());
      }
      if (!(caller.token instanceof GatewayError)) caller.countedAs = nameOf(policies(), caller.token);
    }
    return (caller.countedAs === undefined ? byAddress : byName).ask(request, true);
  }
}

async function outcome(tokens: TokenCheck, token: string, policies: Policies): Promise<JsonObject | GatewayError> {
  try {
    return await tokens.verify(token, policies);
  } catch (error) {
    if (error instanceof GatewayError) return error;
    throw error;
  }
}

function nameOf(policies: Policies, claims: JsonObject): string | undefined {
  const [agent] = findAgentsByClaims(policies.agents.values(), claims);
  return agent && `agent ${agent.name}`;
}
