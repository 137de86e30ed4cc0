import type { JsonObject } from './json.ts';
import type { Agent, JwtSpec } from './policy.ts';

/** Whether a bearer credential has the form of a signed token: three base64url parts. Does not verify it. */
export function isTokenShaped(bearer: string): boolean {
  return bearer.length <= 16_384 && /^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*$/.test(bearer);
}

/** Whether verified claims match the spec of an agent. */
export function matchesJwtSpec(spec: JwtSpec, claims: JsonObject): boolean {
  const { aud } = claims;
  const isForAudience = Array.isArray(aud) ? aud.includes(spec.audience) : aud === spec.audience;
  return (
    claims['iss'] === spec.issuer &&
    isForAudience &&
    Object.entries(spec.claims).every(([name, value]) => Object.hasOwn(claims, name) && claims[name] === value)
  );
}

/** The agents that verified claims match. A caller refuses a token that matches several. */
export function findAgentsByClaims(agents: Iterable<Agent>, claims: JsonObject): Agent[] {
  return [...agents].filter(({ jwt }) => jwt !== undefined && matchesJwtSpec(jwt, claims));
}
