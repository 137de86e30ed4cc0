import { hash } from 'node:crypto';
import { createRemoteJWKSet, customFetch, decodeJwt, errors, jwtVerify } from 'jose';
import { type OutboundResponse, sendOutboundRequest } from '../adapters/http/outbound-request.ts';
import { GatewayError } from './domain/errors.ts';
import type { JsonObject } from './domain/json.ts';
import type { JwtSpec, Policies } from './domain/policy.ts';

/** Signed with the private half of a key pair: a shared secret, or nothing at all, proves no issuer. */
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
const TIMEOUT_MS = 2_000;
const MOST_BYTES = 262_144;
/** A token with an unknown key makes us look again, this often at most: it may be forged, or the keys were rotated. */
const LOOK_AGAIN_MS = 5_000;
/** After a failure the issuer is left alone this long, and whoever asks is told so at once. */
const LEAVE_ALONE_MS = 2_000;
/** Keys older than this are fetched anew beside the work; while that fails, they are trusted up to the limit below. */
const REFRESH_MS = 600_000;
const MOST_AGE_MS = 3_600_000;
/** For this long a verified token is not verified again. A withdrawn key is believed no longer than this and a refresh. */
const REMEMBER_MS = 30_000;
const MOST_REMEMBERED = 10_000;

/** The issuer could not be asked, or did not answer as an issuer does: nothing is known about the token. */
class IssuerError extends Error {
  override readonly name = 'IssuerError';
}

interface Remembered {
  readonly claims: JsonObject;
  readonly untilMs: number;
}

/** Verifies tokens against the keys of the issuers that policies name; no other issuer is ever asked anything. */
export class Tokens {
  readonly #issuers = new Map<string, Issuer>();
  readonly #remembered = new Map<string, Remembered>();

  /** The claims of a token that was verified a moment ago, at no cost. */
  recall(token: string): JsonObject | undefined {
    if (this.#remembered.size === 0) return undefined;
    const name = digest(token);
    const found = this.#remembered.get(name);
    if (found === undefined || found.untilMs > Date.now()) return found?.claims;
    this.#remembered.delete(name);
    return undefined;
  }

  /** The token's claims, which are true: 401 when it is bad, 503 when that cannot be known now. */
  async verify(token: string, policies: Policies): Promise<JsonObject> {
    const specs = specsFor(token, policies);
    const [spec] = specs;
    if (spec === undefined) throw bad('its issuer is none that an agent names');
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
      this.#remember(token, claims, payload.exp ?? 0);
      return claims;
    } catch (error) {
      throw told(error);
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

  #remember(token: string, claims: JsonObject, exp: number): void {
    const oldest = this.#remembered.size >= MOST_REMEMBERED ? this.#remembered.keys().next() : undefined;
    if (oldest?.done === false) this.#remembered.delete(oldest.value);
    const untilMs = Math.min(Date.now() + REMEMBER_MS, (exp + CLOCK_TOLERANCE_S) * 1000);
    this.#remembered.set(digest(token), { claims, untilMs });
  }
}

function digest(token: string): string {
  return hash('sha256', token, 'base64');
}

function specsFor(token: string, policies: Policies): JwtSpec[] {
  const specs = [...policies.agents.values()].flatMap(({ jwt }) => (jwt === undefined ? [] : [jwt]));
  if (specs.length === 0) return [];
  try {
    const { iss } = decodeJwt(token);
    return specs.filter(({ issuer }) => issuer === iss);
  } catch {
    throw bad('it is not a JSON Web Token');
  }
}

function bad(why: string): GatewayError {
  return new GatewayError('unauthenticated', `This token is not accepted: ${why}.`);
}

function told(error: unknown): GatewayError {
  if (error instanceof IssuerError || error instanceof errors.JWKSTimeout || error instanceof errors.JWKSInvalid)
    return new GatewayError('unavailable', 'The issuer of this token cannot be asked for its keys.', {
      retryAfterSeconds: Math.ceil(LEAVE_ALONE_MS / 1000),
    });
  if (error instanceof errors.JWTExpired) return bad('it has expired');
  if (error instanceof errors.JWTClaimValidationFailed) return bad(`its ${error.claim} is not as it must be`);
  if (error instanceof errors.JOSEAlgNotAllowed) return bad('its algorithm is not one that is trusted');
  if (error instanceof errors.JWKSNoMatchingKey) return bad('its issuer has no such key');
  return bad('its signature does not verify');
}

/** One issuer: where its keys are (OIDC discovery) and the keys, both kept, both asked for at most once at a time. */
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
    const isOld = keys.jwks() !== undefined && performance.now() - this.#fetchedAt > REFRESH_MS;
    if (isOld && !keys.reloading && !this.#leftAlone()) void keys.reload().catch(() => {});
    return keys;
  }

  async #discover(): Promise<ReturnType<typeof createRemoteJWKSet>> {
    const at = `${this.#issuer.replace(/\/$/, '')}/.well-known/openid-configuration`;
    const { issuer, jwks_uri: uri } = (await this.#json(at)) as { issuer?: unknown; jwks_uri?: unknown };
    if (issuer !== this.#issuer) throw this.#failed('its configuration names another issuer');
    if (typeof uri !== 'string' || !URL.canParse(uri)) throw this.#failed('its configuration has no jwks_uri');
    const keys = createRemoteJWKSet(new URL(uri), {
      timeoutDuration: TIMEOUT_MS + 500,
      cooldownDuration: LOOK_AGAIN_MS,
      cacheMaxAge: MOST_AGE_MS,
      [customFetch]: async (url) => {
        try {
          const fetched = await this.#json(url);
          this.#fetchedAt = performance.now();
          return Response.json(fetched);
        } catch (error) {
          // Nothing to go on with: perhaps the keys are somewhere else by now.
          if (!keys.fresh) this.#keys = undefined;
          throw error;
        }
      },
    });
    return keys;
  }

  async #json(url: string): Promise<unknown> {
    if (this.#leftAlone()) throw new IssuerError('the issuer failed a moment ago');
    const { protocol } = new URL(url);
    if (protocol !== 'https:' && !(protocol === 'http:' && this.#allowPrivate))
      throw this.#failed(`${protocol}// is not asked for keys`);
    let answer: OutboundResponse;
    try {
      answer = await sendOutboundRequest({
        url,
        method: 'GET',
        headers: { accept: 'application/json' },
        allowPrivate: this.#allowPrivate,
        maxBytes: MOST_BYTES,
        timeoutMs: TIMEOUT_MS,
      });
    } catch (error) {
      throw this.#failed(String(error));
    }
    if (answer.status !== 200) throw this.#failed(`it answered ${answer.status}`);
    try {
      return JSON.parse(answer.body) ?? {};
    } catch {
      throw this.#failed('it answered something else than JSON');
    }
  }

  #leftAlone(): boolean {
    return performance.now() - this.#failedAt < LEAVE_ALONE_MS;
  }

  #failed(why: string): IssuerError {
    this.#failedAt = performance.now();
    return new IssuerError(why);
  }
}
