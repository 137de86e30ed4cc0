import { hash } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { findAgentsByClaims } from '../../domain/match-token.ts';
import type { Agent, Person, Policies, Role } from '../../domain/policy.ts';

/** By the SHA-256 of a key: whose it is, and the name their requests are counted under. */
type Keys<T> = ReadonlyMap<string, { readonly owner: T; readonly countedAs: string }>;

interface Keyring {
  readonly agents: Keys<Agent>;
  readonly people: Keys<Person>;
}

const keyrings = new WeakMap<Policies, Keyring>();

/** What a request brings to say who sends it. What that means is asked of the policies at hand, by the door and by the route. */
export interface RequestCredentials {
  readonly bearer: string | undefined;
  readonly digest: string | undefined;
  /** Whose request it is, once that is known. */
  countedAs: string | undefined;
  /** What came of the token, if this is one: its claims, which are true, or why they are not. */
  token: JsonObject | GatewayError | undefined;
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Set by the front door. */
    caller: RequestCredentials | undefined;
  }
}

/** The agent whose bearer key or token this is. */
export function identifyAgent(request: FastifyRequest, policies: Policies): Agent {
  const digest = bearerDigest(request);
  const keyring = keyringOf(policies);
  const agent = keyring.agents.get(digest)?.owner ?? agentOfToken(request, policies);
  if (agent !== undefined) return agent;
  throw new GatewayError(
    'unauthenticated',
    keyring.people.has(digest)
      ? 'This is the key of a person; this API is for agents.'
      : 'This bearer key belongs to no agent.',
  );
}

/** Who a caller is, if an agent: for pages that show more to those who are known. A person sees what everybody sees. */
export function maybeAgent(request: FastifyRequest, policies: Policies): Agent | undefined {
  if (request.headers.authorization === undefined) return undefined;
  return keyringOf(policies).people.get(bearerDigest(request)) === undefined
    ? identifyAgent(request, policies)
    : undefined;
}

/** Whose request this is as far as it is known without doing anything. */
export function callerOf(request: FastifyRequest, policies: Policies): RequestCredentials {
  const bearer = bearerOf(request);
  const digest = bearer === undefined ? undefined : sha256(bearer);
  return { bearer, digest, countedAs: digest && countedAs(digest, keyringOf(policies)), token: undefined };
}

function countedAs(digest: string, { agents, people }: Keyring): string | undefined {
  return (agents.get(digest) ?? people.get(digest))?.countedAs;
}

function agentOfToken(request: FastifyRequest, policies: Policies): Agent | undefined {
  const outcome = request.caller?.token;
  if (outcome === undefined) return undefined;
  if (outcome instanceof GatewayError) throw outcome;
  const [agent, second] = findAgentsByClaims(policies.agents.values(), outcome);
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
  const person = keyring.people.get(digest)?.owner;
  if (person === undefined) {
    const agent = keyring.agents.get(digest)?.owner ?? agentOfToken(request, policies);
    if (agent !== undefined)
      throw new GatewayError('forbidden', 'This is the key of an agent; the admin API is for people.');
    throw new GatewayError('unauthenticated', 'This bearer key belongs to no person.');
  }
  if (!person.roles.some((has) => IMPLIED[role].includes(has))) {
    throw new GatewayError('forbidden', `${person.name} has the roles ${person.roles.join(', ')}; this needs ${role}.`);
  }
  return person;
}

function bearerDigest({ caller, headers }: FastifyRequest): string {
  if (caller?.digest !== undefined) return caller.digest;
  const sent = headers.authorization !== undefined;
  throw new GatewayError(
    'unauthenticated',
    sent ? 'The Authorization header is not "Bearer <key>".' : 'Send the key as "Authorization: Bearer <key>".',
  );
}

function bearerOf(request: FastifyRequest): string | undefined {
  return /^Bearer +([\x21-\x7e]+)$/i.exec(request.headers.authorization ?? '')?.[1];
}

/** Keys are told apart by their digests alone, so how long a look-up takes says nothing about a key. */
function sha256(key: string): string {
  return hash('sha256', key, 'hex');
}

function keyringOf(policies: Policies): Keyring {
  let keyring = keyrings.get(policies);
  if (keyring === undefined) {
    keyring = { agents: index('agent', policies.agents.values()), people: index('person', policies.people.values()) };
    keyrings.set(policies, keyring);
  }
  return keyring;
}

function index<T extends { readonly name: string; readonly keys: readonly Buffer[] }>(
  kind: 'agent' | 'person',
  owners: Iterable<T>,
): Keys<T> {
  const entries = [...owners].flatMap((owner) =>
    owner.keys.map((digest) => [digest.toString('hex'), { owner, countedAs: `${kind} ${owner.name}` }] as const),
  );
  return new Map(entries);
}
