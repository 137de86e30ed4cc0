import rateLimit from '@fastify/rate-limit';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { findAgentsByClaims, isTokenShaped } from '../../domain/match-jwt-claims.ts';
import type { Policies, Rate } from '../../domain/policy.ts';
import { type RequestCredentials, readCredentials } from './identify.ts';
import { RateLimiter } from './rate-limiter.ts';

export interface TokenCheck {
  /** The claims of a token that was verified recently. */
  recall(token: string): JsonObject | undefined;
  /** Returns the claims of a valid token; throws a `GatewayError` for any other. */
  verify(token: string, policies: Policies): Promise<JsonObject>;
}

export interface DoorLimits {
  /** Per agent or person. */
  readonly perAgent: Rate;
  /** Per address, for requests without a known key or token. */
  readonly perAddress: Rate;
}

const MAX_ADDRESSES = 5_000;
const UNLIMITED_ROUTES = new Set(['/healthz', '/readyz']);

/**
 * Identifies each request and limits its rate before anything reads the body. This guard against floods counts per process in fixed
 * windows, so N replicas admit N times the limit; the rules of an agent have the exact limits. Agents and people are counted by name
 * and other requests by address: a flood without credentials does not use up the limit of an agent, even behind one proxy address.
 */
export async function frontDoor(
  app: FastifyInstance,
  policies: () => Policies,
  tokens: TokenCheck,
  limits: DoorLimits,
): Promise<void> {
  await app.register(rateLimit, { global: false });
  app.decorateRequest('credentials', undefined);
  // The policies bound the number of principals. Nothing bounds the number of addresses.
  const byPrincipal = new RateLimiter(app, limits.perAgent, {
    maxKeys: 0,
    keyGenerator: ({ credentials }) => credentials?.principal ?? '',
  });
  const byAddress = new RateLimiter(app, limits.perAddress, { maxKeys: MAX_ADDRESSES });

  app.addHook('onRequest', async (request) => {
    if (UNLIMITED_ROUTES.has(request.routeOptions.url ?? '')) return;
    const credentials = readCredentials(request, policies());
    request.credentials = credentials;
    if (credentials.principal === undefined) await identifyByToken(request, credentials);
    await (credentials.principal === undefined ? byAddress : byPrincipal).count(request);
  });

  async function identifyByToken(request: FastifyRequest, credentials: RequestCredentials): Promise<void> {
    const { bearer } = credentials;
    if (bearer === undefined || !isTokenShaped(bearer)) return;
    credentials.tokenResult = tokens.recall(bearer);
    if (credentials.tokenResult === undefined) {
      // Verification is expensive, so an address over its limit is refused first.
      await byAddress.peek(request);
      credentials.tokenResult = await verifyToken(tokens, bearer, policies());
    }
    if (!(credentials.tokenResult instanceof GatewayError))
      credentials.principal = findTokenPrincipal(policies(), credentials.tokenResult);
  }
}

async function verifyToken(tokens: TokenCheck, token: string, policies: Policies): Promise<JsonObject | GatewayError> {
  try {
    return await tokens.verify(token, policies);
  } catch (error) {
    if (error instanceof GatewayError) return error;
    throw error;
  }
}

function findTokenPrincipal(policies: Policies, claims: JsonObject): string | undefined {
  const [agent] = findAgentsByClaims(policies.agents.values(), claims);
  return agent && `agent ${agent.name}`;
}
