import rateLimit from '@fastify/rate-limit';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Policies, Rate } from '../domain/policy.ts';
import { agentsOf, looksLikeToken } from '../domain/token.ts';
import { callerOf, rememberToken } from './identify.ts';

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
  await app.register(rateLimit, { global: false });
  const names = new WeakMap<FastifyRequest, string>();
  const byName = limiter(app, limits.perAgent, (request) => names.get(request) ?? '');
  const byAddress = limiter(app, limits.perAddress);

  app.addHook('onRequest', async (request) => {
    if (OPEN.has(request.routeOptions.url ?? '')) return;
    const caller = callerOf(request, policies());
    let known = 'known' in caller ? caller.known : undefined;
    if ('bearer' in caller && caller.bearer !== undefined && looksLikeToken(caller.bearer)) {
      const token = caller.bearer;
      let claims: JsonObject | GatewayError | undefined = tokens.recall(token);
      if (claims === undefined) {
        // Verifying is work: an address that sent too much rubbish already is turned away first.
        await byAddress(request, false);
        claims = await outcome(tokens, token, policies());
      }
      rememberToken(request, claims);
      if (!(claims instanceof GatewayError)) known = nameOf(policies(), claims);
    }
    if (known === undefined) return byAddress(request, true);
    names.set(request, known);
    return byName(request, true);
  });
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
  const [agent] = agentsOf(policies.agents.values(), claims);
  return agent && `agent ${agent.name}`;
}

function limiter(
  app: FastifyInstance,
  { limit, perMs }: Rate,
  keyGenerator?: (request: FastifyRequest) => string,
): (request: FastifyRequest, count: boolean) => Promise<void> {
  const check = app.createRateLimit({
    max: limit,
    timeWindow: perMs,
    ...(keyGenerator === undefined ? {} : { keyGenerator }),
  });
  return async (request, count) => {
    const found = await check(request, { increment: count });
    if (found.isAllowed) return;
    // Looked at without counting, a limit that is just used up is already too much.
    if (!found.isExceeded && (count || found.remaining > 0)) return;
    throw new GatewayError('rate_limited', `More than ${limit} requests in ${perMs / 1000} s.`, {
      retryAfterSeconds: Math.max(1, found.ttlInSeconds),
    });
  };
}
