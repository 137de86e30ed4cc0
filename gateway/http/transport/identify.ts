import { hash } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { findAgentsByClaims } from '../../domain/match-jwt-claims.ts';
import type { Agent, Person, Policies, Role } from '../../domain/policy.ts';

/** Owners by the SHA-256 of their keys. `principal` is the name under which limits count their requests. */
type Keys<T> = ReadonlyMap<string, { readonly owner: T; readonly principal: string }>;

interface Keyring {
  readonly agents: Keys<Agent>;
  readonly people: Keys<Person>;
}

const keyrings = new WeakMap<Policies, Keyring>();

/** The credentials of a request. The front door and the route each look them up in the policies of that moment. */
export interface RequestCredentials {
  readonly bearer: string | undefined;
  readonly digest: string | undefined;
  /** `agent NAME` or `person NAME`; undefined until the request is identified. */
  principal: string | undefined;
  /** The verified claims of a token, or why the token is invalid. */
  tokenResult: JsonObject | GatewayError | undefined;
}

declare module 'fastify' {
  interface FastifyRequest {
    /** The front door sets these. */
    credentials: RequestCredentials | undefined;
  }
}

/** Finds the agent that owns the bearer key or token. */
export function identifyAgent(request: FastifyRequest, policies: Policies): Agent {
  const digest = requireBearerDigest(request);
  const keyring = getKeyring(policies);
  const agent = keyring.agents.get(digest)?.owner ?? findTokenAgent(request, policies);
  if (agent !== undefined) return agent;
  throw new GatewayError(
    'unauthenticated',
    keyring.people.has(digest)
      ? 'This is the key of a person. This API is for agents: send the key of an agent.'
      : 'No agent has this bearer key.',
  );
}

/** The agent, for routes that also serve anonymous requests. Undefined without credentials and for people. */
export function identifyOptionalAgent(request: FastifyRequest, policies: Policies): Agent | undefined {
  if (request.headers.authorization === undefined) return undefined;
  return getKeyring(policies).people.get(requireBearerDigest(request)) === undefined
    ? identifyAgent(request, policies)
    : undefined;
}

/** Identifies bearer keys. A token needs verification, so its principal stays undefined. */
export function readCredentials(request: FastifyRequest, policies: Policies): RequestCredentials {
  const bearer = readBearer(request);
  const digest = bearer === undefined ? undefined : sha256(bearer);
  return { bearer, digest, principal: digest && findPrincipal(digest, getKeyring(policies)), tokenResult: undefined };
}

function findPrincipal(digest: string, { agents, people }: Keyring): string | undefined {
  return (agents.get(digest) ?? people.get(digest))?.principal;
}

function findTokenAgent(request: FastifyRequest, policies: Policies): Agent | undefined {
  const outcome = request.credentials?.tokenResult;
  if (outcome === undefined) return undefined;
  if (outcome instanceof GatewayError) throw outcome;
  const [agent, second] = findAgentsByClaims(policies.agents.values(), outcome);
  if (agent === undefined) throw new GatewayError('unauthenticated', 'No agent matches the claims of this token.');
  if (second !== undefined)
    throw new GatewayError('unauthenticated', 'More than one agent matches the claims of this token.');
  return agent;
}

/** The roles that suffice for each required role. `admin` suffices for all; every role suffices for `viewer`. */
const SUFFICIENT_ROLES: Readonly<Record<Role, readonly Role[]>> = {
  viewer: ['viewer', 'approver', 'operator', 'admin'],
  approver: ['approver', 'admin'],
  operator: ['operator', 'admin'],
  admin: ['admin'],
};

export function identifyPerson(request: FastifyRequest, policies: Policies, role: Role): Person {
  const digest = requireBearerDigest(request);
  const keyring = getKeyring(policies);
  const person = keyring.people.get(digest)?.owner;
  if (person === undefined) {
    const agent = keyring.agents.get(digest)?.owner ?? findTokenAgent(request, policies);
    if (agent !== undefined)
      throw new GatewayError(
        'forbidden',
        'This is the key of an agent. The admin API is for people: send the key of a person.',
      );
    throw new GatewayError('unauthenticated', 'No person has this bearer key.');
  }
  if (!person.roles.some((has) => SUFFICIENT_ROLES[role].includes(has))) {
    throw new GatewayError('forbidden', `This needs the role ${role}; ${person.name} has ${person.roles.join(', ')}.`);
  }
  return person;
}

function requireBearerDigest({ credentials, headers }: FastifyRequest): string {
  if (credentials?.digest !== undefined) return credentials.digest;
  const hasHeader = headers.authorization !== undefined;
  throw new GatewayError(
    'unauthenticated',
    hasHeader ? 'The Authorization header is not "Bearer <key>".' : 'Send the key as "Authorization: Bearer <key>".',
  );
}

function readBearer(request: FastifyRequest): string | undefined {
  return /^Bearer +([\x21-\x7e]+)$/i.exec(request.headers.authorization ?? '')?.[1];
}

/** Keys are looked up by digest, so that the time of a look-up reveals nothing about a key. */
function sha256(key: string): string {
  return hash('sha256', key, 'hex');
}

function getKeyring(policies: Policies): Keyring {
  let keyring = keyrings.get(policies);
  if (keyring === undefined) {
    keyring = {
      agents: indexKeys('agent', policies.agents.values()),
      people: indexKeys('person', policies.people.values()),
    };
    keyrings.set(policies, keyring);
  }
  return keyring;
}

function indexKeys<T extends { readonly name: string; readonly keys: readonly Buffer[] }>(
  kind: 'agent' | 'person',
  owners: Iterable<T>,
): Keys<T> {
  const entries = [...owners].flatMap((owner) =>
    owner.keys.map((digest) => [digest.toString('hex'), { owner, principal: `${kind} ${owner.name}` }] as const),
  );
  return new Map(entries);
}
