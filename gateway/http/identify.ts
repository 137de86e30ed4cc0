import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import type { Agent, Person, Policies, Role } from '../domain/policy.ts';

interface Keyring {
  readonly agents: ReadonlyMap<string, readonly [Buffer, Agent]>;
  readonly people: ReadonlyMap<string, readonly [Buffer, Person]>;
}

const keyrings = new WeakMap<Policies, Keyring>();

/** The agent whose bearer key this is. */
export function identifyAgent(request: FastifyRequest, policies: Policies): Agent {
  const digest = bearerDigest(request);
  const agent = find(keyringOf(policies).agents, digest);
  if (agent === undefined) throw new GatewayError('unauthenticated', 'This bearer key belongs to no agent.');
  return agent;
}

/** Who a caller is, if anybody: for pages that show more to those who are known. */
export function maybeAgent(request: FastifyRequest, policies: Policies): Agent | undefined {
  return request.headers.authorization === undefined ? undefined : identifyAgent(request, policies);
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
    const agent = find(keyring.agents, digest);
    if (agent !== undefined)
      throw new GatewayError('forbidden', 'This is the key of an agent; the admin API is for people.');
    throw new GatewayError('unauthenticated', 'This bearer key belongs to no person.');
  }
  if (!person.roles.some((has) => IMPLIED[role].includes(has))) {
    throw new GatewayError('forbidden', `${person.name} has the roles ${person.roles.join(', ')}; this needs ${role}.`);
  }
  return person;
}

function bearerDigest(request: FastifyRequest): Buffer {
  const header = request.headers.authorization;
  if (header === undefined) throw new GatewayError('unauthenticated', 'Send the key as "Authorization: Bearer <key>".');
  const [, key] = /^Bearer +([\x21-\x7e]+)$/i.exec(header) ?? [];
  if (key === undefined) throw new GatewayError('unauthenticated', 'The Authorization header is not "Bearer <key>".');
  return createHash('sha256').update(key).digest();
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
