import { hash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import type { Agent, Person, Policies, Role } from '../domain/policy.ts';
import { agentsOf } from '../domain/token.ts';

interface Keyring {
  readonly agents: ReadonlyMap<string, readonly [Buffer, Agent]>;
  readonly people: ReadonlyMap<string, readonly [Buffer, Person]>;
}

const keyrings = new WeakMap<Policies, Keyring>();

/** What came of a request's token, if it brought one: its claims, which are true, or why they are not. */
const tokens = new WeakMap<FastifyRequest, JsonObject | GatewayError>();

/** Called by the front door once it knows; what a token means is then asked as any key is, of the policies at hand. */
export function rememberToken(request: FastifyRequest, outcome: JsonObject | GatewayError): void {
  tokens.set(request, outcome);
}

/** The agent whose bearer key or token this is. */
export function identifyAgent(request: FastifyRequest, policies: Policies): Agent {
  const digest = bearerDigest(request);
  const agent = find(keyringOf(policies).agents, digest) ?? agentOfToken(request, policies);
  if (agent === undefined) throw new GatewayError('unauthenticated', 'This bearer key belongs to no agent.');
  return agent;
}

/** Who a caller is, if an agent: for pages that show more to those who are known. A person sees what everybody sees. */
export function maybeAgent(request: FastifyRequest, policies: Policies): Agent | undefined {
  if (request.headers.authorization === undefined) return undefined;
  return find(keyringOf(policies).people, bearerDigest(request)) === undefined
    ? identifyAgent(request, policies)
    : undefined;
}

/** Whose request this is as far as it is known without doing anything: a name to count under, or the bearer to ask about. */
export function callerOf(
  request: FastifyRequest,
  policies: Policies,
): { readonly known: string } | { readonly bearer: string | undefined } {
  const bearer = bearerOf(request);
  if (bearer === undefined) return { bearer };
  const digest = sha256(bearer);
  digests.set(request, digest);
  const { agents, people } = keyringOf(policies);
  const agent = find(agents, digest);
  if (agent !== undefined) return { known: `agent ${agent.name}` };
  const person = find(people, digest);
  return person === undefined ? { bearer } : { known: `person ${person.name}` };
}

function agentOfToken(request: FastifyRequest, policies: Policies): Agent | undefined {
  const outcome = tokens.get(request);
  if (outcome === undefined) return undefined;
  if (outcome instanceof GatewayError) throw outcome;
  const [agent, second] = agentsOf(policies.agents.values(), outcome);
  if (agent === undefined) throw new GatewayError('unauthenticated', 'This token has not the claims of any agent.');
  if (second !== undefined)
    throw new GatewayError('unauthenticated', 'This token has the claims of more than one agent.');
  return agent;
}

/** `admin` may do everything; `approver` and `operator` may also look. */
const IMPLIED: Readonly<Record<Role, readonly Role[]>> = {
  viewer: ['viewer', 'approver', 'operator', 'admin'],
  approver: ['approver', 'admin'],
  operator: ['operator', 'admin'],
  admin: ['admin'],
};

export function identifyPerson(request: FastifyRequest, policies: Policies, role: Role): Person {
  const digest = bearerDigest(request);
  const keyring = keyringOf(policies);
  const person = find(keyring.people, digest);
  if (person === undefined) {
    const agent = find(keyring.agents, digest) ?? agentOfToken(request, policies);
    if (agent !== undefined)
      throw new GatewayError('forbidden', 'This is the key of an agent; the admin API is for people.');
    throw new GatewayError('unauthenticated', 'This bearer key belongs to no person.');
  }
  if (!person.roles.some((has) => IMPLIED[role].includes(has))) {
    throw new GatewayError('forbidden', `${person.name} has the roles ${person.roles.join(', ')}; this needs ${role}.`);
  }
  return person;
}

/** Asked for by the front door and again by the route. */
const digests = new WeakMap<FastifyRequest, Buffer>();

function bearerDigest(request: FastifyRequest): Buffer {
  const known = digests.get(request);
  if (known !== undefined) return known;
  const bearer = bearerOf(request);
  if (bearer !== undefined) return sha256(bearer);
  const sent = request.headers.authorization !== undefined;
  throw new GatewayError(
    'unauthenticated',
    sent ? 'The Authorization header is not "Bearer <key>".' : 'Send the key as "Authorization: Bearer <key>".',
  );
}

function bearerOf(request: FastifyRequest): string | undefined {
  return /^Bearer +([\x21-\x7e]+)$/i.exec(request.headers.authorization ?? '')?.[1];
}

function sha256(text: string): Buffer {
  return hash('sha256', text, 'buffer');
}

/** Only digests are compared, so the look-up tells nothing about a key; the last word is constant-time all the same. */
function find<T>(keys: ReadonlyMap<string, readonly [Buffer, T]>, digest: Buffer): T | undefined {
  const found = keys.get(digest.toString('base64'));
  return found !== undefined && timingSafeEqual(found[0], digest) ? found[1] : undefined;
}

function keyringOf(policies: Policies): Keyring {
  let keyring = keyrings.get(policies);
  if (keyring === undefined) {
    keyring = { agents: index(policies.agents.values()), people: index(policies.people.values()) };
    keyrings.set(policies, keyring);
  }
  return keyring;
}

function index<T extends { readonly keys: readonly Buffer[] }>(
  owners: Iterable<T>,
): ReadonlyMap<string, readonly [Buffer, T]> {
  const entries = [...owners].flatMap((owner) =>
    owner.keys.map((key) => [key.toString('base64'), [key, owner]] as const),
  );
  return new Map(entries);
}
