import { hash } from 'node:crypto';
import { createRemoteJWKSet, customFetch, decodeJwt, errors, jwtVerify } from 'jose';
import { type OutboundResponse, sendOutboundRequest } from '../adapters/http/outbound-request.ts';
import { GatewayError } from './domain/errors.ts';
import type { JsonObject } from './domain/json.ts';
import type { JwtSpec, Policies } from './domain/policy.ts';

/** Asymmetric algorithms only: HMAC and `none` do not prove the issuer. */
const ALGORITHMS = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
];
const CLOCK_TOLERANCE_S = 60;
const REQUEST_TIMEOUT_MS = 2_000;
const MAX_ANSWER_BYTES = 262_144;
/** A token with an unknown key triggers a key refresh, at most this often: the token may be forged. */
const UNKNOWN_KEY_COOLDOWN_MS = 5_000;
/** After a failure the issuer gets no request for this long; tokens are answered with 503 at once. */
const FAILURE_COOLDOWN_MS = 2_000;
/** Older keys are refreshed in the background. If that fails, they stay valid until MAX_KEY_AGE_MS. */
const KEY_REFRESH_MS = 600_000;
const MAX_KEY_AGE_MS = 3_600_000;
/** A verified token is not verified again for this long. A revoked key is trusted for at most this plus one refresh. */
const TOKEN_CACHE_MS = 30_000;
const MAX_CACHED_TOKENS = 10_000;

/** The issuer did not answer, or not as an issuer does, so the token cannot be verified. */
class IssuerError extends Error {
  override readonly name = 'IssuerError';
}

interface CachedToken {
  readonly claims: JsonObject;
  readonly untilMs: number;
}

/** Verifies tokens with the keys of the issuers in the policies. No other issuer ever gets a request. */
export class TokenVerifier {
  readonly #issuers = new Map<string, Issuer>();
  readonly #cache = new Map<string, CachedToken>();

  /** The cached claims of a recently verified token. */
  recall(token: string): JsonObject | undefined {
    if (this.#cache.size === 0) return undefined;
    const name = digest(token);
    const found = this.#cache.get(name);
    if (found === undefined || found.untilMs > Date.now()) return found?.claims;
    this.#cache.delete(name);
    return undefined;
  }

  /** Returns the verified claims. Throws 401 for a bad token, 503 if the issuer does not answer. */
  async verify(token: string, policies: Policies): Promise<JsonObject> {
    const specs = findSpecs(token, policies);
    const [spec] = specs;
    if (spec === undefined) throw buildRejection('no agent in the policies names its issuer');
    try {
      const keys = await this.#issuer(spec).keys();
      const { payload } = await jwtVerify(token, keys, {
        algorithms: ALGORITHMS,
        issuer: spec.issuer,
        audience: specs.map(({ audience }) => audience),
        clockTolerance: CLOCK_TOLERANCE_S,
        requiredClaims: ['exp'],
      });
      const claims = payload as JsonObject;
      this.#cacheToken(token, claims, payload.exp ?? 0);
      return claims;
    } catch (error) {
      throw toGatewayError(error);
    }
  }

  #issuer({ issuer, allowPrivate }: JwtSpec): Issuer {
    const name = `${allowPrivate} ${issuer}`;
    let found = this.#issuers.get(name);
    if (found === undefined) {
      found = new Issuer(issuer, allowPrivate);
      this.#issuers.set(name, found);
    }
    return found;
  }

  #cacheToken(token: string, claims: JsonObject, exp: number): void {
    const oldest = this.#cache.size >= MAX_CACHED_TOKENS ? this.#cache.keys().next() : undefined;
    if (oldest?.done === false) this.#cache.delete(oldest.value);
    const untilMs = Math.min(Date.now() + TOKEN_CACHE_MS, (exp + CLOCK_TOLERANCE_S) * 1000);
    this.#cache.set(digest(token), { claims, untilMs });
  }
}

function digest(token: string): string {
  return hash('sha256', token, 'base64');
}

function findSpecs(token: string, policies: Policies): JwtSpec[] {
  const specs = [...policies.agents.values()].flatMap(({ jwt }) => (jwt === undefined ? [] : [jwt]));
  if (specs.length === 0) return [];
  try {
    const { iss } = decodeJwt(token);
    return specs.filter(({ issuer }) => issuer === iss);
  } catch {
    throw buildRejection('it is not a JSON Web Token');
  }
}

function buildRejection(reason: string): GatewayError {
  return new GatewayError('unauthenticated', `This token is not accepted: ${reason}.`);
}

function toGatewayError(error: unknown): GatewayError {
  if (error instanceof IssuerError || error instanceof errors.JWKSTimeout || error instanceof errors.JWKSInvalid)
    return new GatewayError(
      'unavailable',
      'The issuer of this token does not provide its keys at the moment. Try again later.',
      {
        retryAfterSeconds: Math.ceil(FAILURE_COOLDOWN_MS / 1000),
      },
    );
  if (error instanceof errors.JWTExpired) return buildRejection('it has expired');
  if (error instanceof errors.JWTClaimValidationFailed)
    return buildRejection(`its claim ${error.claim} is missing or wrong`);
  if (error instanceof errors.JOSEAlgNotAllowed) return buildRejection('its algorithm is not allowed');
  if (error instanceof errors.JWKSNoMatchingKey) return buildRejection('its issuer has no key with this id');
  return buildRejection('its signature does not verify');
}

/** One issuer: discovers its keys (OIDC discovery) and caches them, with at most one request at a time. */
class Issuer {
  readonly #issuer: string;
  readonly #allowPrivate: boolean;
  #keys: Promise<ReturnType<typeof createRemoteJWKSet>> | undefined;
  #fetchedAt = 0;
  #failedAt = Number.NEGATIVE_INFINITY;

  constructor(issuer: string, allowPrivate: boolean) {
    this.#issuer = issuer;
    this.#allowPrivate = allowPrivate;
  }

  async keys(): Promise<ReturnType<typeof createRemoteJWKSet>> {
    this.#keys ??= this.#discover().catch((error: unknown) => {
      this.#keys = undefined;
      throw error;
    });
    const keys = await this.#keys;
    const isOld = keys.jwks() !== undefined && performance.now() - this.#fetchedAt > KEY_REFRESH_MS;
    if (isOld && !keys.reloading && !this.#isCoolingDown()) void keys.reload().catch(() => {});
    return keys;
  }

  async #discover(): Promise<ReturnType<typeof createRemoteJWKSet>> {
    const configurationUrl = `${this.#issuer.replace(/\/$/, '')}/.well-known/openid-configuration`;
    const { issuer, jwks_uri: uri } = (await this.#fetchJson(configurationUrl)) as {
      issuer?: unknown;
      jwks_uri?: unknown;
    };
    if (issuer !== this.#issuer) throw this.#recordFailure('its configuration names another issuer');
    if (typeof uri !== 'string' || !URL.canParse(uri)) throw this.#recordFailure('its configuration has no jwks_uri');
    const keys = createRemoteJWKSet(new URL(uri), {
      timeoutDuration: REQUEST_TIMEOUT_MS + 500,
      cooldownDuration: UNKNOWN_KEY_COOLDOWN_MS,
      cacheMaxAge: MAX_KEY_AGE_MS,
      [customFetch]: async (url) => {
        try {
          const fetched = await this.#fetchJson(url);
          this.#fetchedAt = performance.now();
          return Response.json(fetched);
        } catch (error) {
          // No fresh keys are left, so repeat the discovery: the keys may have moved.
          if (!keys.fresh) this.#keys = undefined;
          throw error;
        }
      },
    });
    return keys;
  }

  async #fetchJson(url: string): Promise<unknown> {
    if (this.#isCoolingDown()) throw new IssuerError('the issuer failed a moment ago');
    const { protocol } = new URL(url);
    if (protocol !== 'https:' && !(protocol === 'http:' && this.#allowPrivate))
      throw this.#recordFailure(`keys are not fetched over ${protocol}//`);
    let answer: OutboundResponse;
    try {
      answer = await sendOutboundRequest({
        url,
        method: 'GET',
        headers: { accept: 'application/json' },
        allowPrivate: this.#allowPrivate,
        maxBytes: MAX_ANSWER_BYTES,
        timeoutMs: REQUEST_TIMEOUT_MS,
      });
    } catch (error) {
      throw this.#recordFailure(String(error));
    }
    if (answer.status !== 200) throw this.#recordFailure(`it answered ${answer.status}`);
    try {
      return JSON.parse(answer.body) ?? {};
    } catch {
      throw this.#recordFailure('it did not answer with JSON');
    }
  }

  #isCoolingDown(): boolean {
    return performance.now() - this.#failedAt < FAILURE_COOLDOWN_MS;
  }

  #recordFailure(reason: string): IssuerError {
    this.#failedAt = performance.now();
    return new IssuerError(reason);
  }
}
