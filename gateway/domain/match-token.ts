import type { JsonObject } from './json.ts';
import type { Agent, JwtSpec } from './policy.ts';

/** Three base64url parts: what a signed token looks like before anybody believed it. */
export function isTokenShaped(bearer: string): boolean {
  return bearer.length <= 16_384 && /^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*$/.test(bearer);
}

/** Whether a token with these claims makes its bearer the agent. The claims must have been verified. */
export function matchesJwtSpec(spec: JwtSpec, claims: JsonObject): boolean {
  const { aud } = claims;
  const heard = Array.isArray(aud) ? aud.includes(spec.audience) : aud === spec.audience;
  return (
    claims['iss'] === spec.issuer &&
    heard &&
    Object.entries(spec.claims).every(([name, value]) => Object.hasOwn(claims, name) && claims[name] === value)
  );
}

/** The agents a token with these claims stands for; a token that fits several stands for nobody. */
export function findAgentsByClaims(agents: Iterable<Agent>, claims: JsonObject): Agent[] {
  return [...agents].filter(({ jwt }) => jwt !== undefined && matchesJwtSpec(jwt, claims));
}
