import { createHmac } from 'node:crypto';
import type { PreparedRequest } from '../domain/adapter.ts';
import { auditEntry } from '../domain/audit.ts';
import { GatewayError } from '../domain/errors.ts';
import type { JsonObject } from '../domain/json.ts';
import { MOST_LOCKS, MOST_SEGMENTS_OF_A_CALL } from '../domain/lock.ts';
import { ExpressionError, type Lock, type Tool } from '../domain/policy.ts';
import { pathsUnder, REDACTED, redact } from '../domain/redact.ts';
import {
  type LockedBy,
  type LockFilter,
  type LockOrder,
  type LockWish,
  listLocks,
  takeLocksLate,
} from '../ledger/locks.ts';
import type { Job } from './job.ts';
import { type Caller, pause } from './patience.ts';
import type { Station } from './station.ts';

/** Goes with every attempt of a call that holds locks: a service that refuses smaller ones than it saw is fenced too. */
const TOKEN_HEADER = 'oncegate-lock-token';

/** A call that wants something locked asks again this often, rarer the longer it takes, and not all at the same moment. */
const POLL = { firstMs: 10, mostMs: 200 };

/** Whose locks they are to be. */
export interface Locking {
  readonly txn: string;
  readonly agent: string;
  readonly args: JsonObject;
  readonly saga: string | null;
  readonly run: string | null;
}

/** What a call must hold before anything of it is sent; undefined: nothing. */
export function lockOrderOf(station: Pick<Station, 'sealingKey'>, tool: Tool, call: Locking): LockOrder | undefined {
  if (tool.locks.length === 0) return undefined;
  const hashed = hasher(station.sealingKey);
  let locks = 0;
  let segments = 0;
  const wishes = tool.locks.flatMap((lock, index) => {
    const names = namesOf(tool, index, lock, call, call.args);
    locks += names.length;
    for (const name of names) segments += name.split('/').length;
    if (locks > MOST_LOCKS) throw tooMany(tool, `${MOST_LOCKS} things at once`);
    if (segments > MOST_SEGMENTS_OF_A_CALL)
      throw tooMany(tool, `${MOST_SEGMENTS_OF_A_CALL} segments in all their names`);
    const shown = shownNames(tool, index, lock, call, names);
    return names.map(
      (name, i): LockWish => ({ resource: hashed(name), shown: shown[i] ?? REDACTED, mode: lock.mode, for: lock.for }),
    );
  });
  const { txn, agent, saga, run } = call;
  return wishes.length === 0 ? undefined : { txn, agent, tool: tool.name, saga, run, wishes };
}

function tooMany({ name }: Tool, most: string): GatewayError {
  return new GatewayError('invalid_arguments', `The locks of ${name} cannot be made: more than ${most}.`);
}

function namesOf(tool: Tool, index: number, lock: Lock, { agent, saga, run }: Locking, args: JsonObject): string[] {
  try {
    return lock.keys({ args, agent, saga, run });
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error;
    throw new GatewayError('invalid_arguments', `Lock ${index + 1} of ${tool.name} cannot be made: ${error.message}.`);
  }
}

/** The names as they may be stored and shown: without what the tool redacts. */
function shownNames(tool: Tool, index: number, lock: Lock, call: Locking, names: readonly string[]): readonly string[] {
  const paths = pathsUnder('args', tool.redact);
  if (paths.length === 0) return names;
  try {
    const shown = namesOf(tool, index, lock, call, redact(call.args, paths) as JsonObject);
    return shown.length === names.length ? shown : [];
  } catch (error) {
    if (error instanceof GatewayError) return [];
    throw error;
  }
}

/** 64 bits: two names that hash alike would only wait for each other. */
const HASH_DIGITS = 16;

/** Segment by segment, so that what lies below a prefix still does; with a key, because what is redacted could be guessed. */
function hasher(key: Buffer): (name: string) => string {
  const known = new Map<string, string>([['*', '*']]);
  const hash = (segment: string): string => {
    let text = known.get(segment);
    if (text === undefined) {
      text = createHmac('sha256', key).update('oncegate.lock.1\0').update(segment).digest('hex').slice(0, HASH_DIGITS);
      known.set(segment, text);
    }
    return text;
  };
  return (name) => name.split('/').map(hash).join('/');
}

export function isLocked(claimed: unknown): claimed is LockedBy {
  return typeof claimed === 'object' && claimed !== null && 'wanted' in claimed;
}

/** Tries again and again while something is locked, as long as the caller has patience; then tells what is. */
export async function whenUnlocked<T>(
  attempt: () => Promise<T>,
  patienceMs: number,
  ...callers: readonly (Caller | undefined)[]
): Promise<T> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL.firstMs; ; poll = Math.min(poll * 1.5, POLL.mostMs)) {
    const result = await attempt();
    if (!isLocked(result)) return result;
    const left = until - performance.now();
    if (left <= 0 || callers.some((caller) => caller?.gone === true)) return result;
    await pause(Math.min(poll * (0.5 + Math.random()), left), ...callers);
  }
}

/** Who holds it is not told: it may be another agent. */
export function locked({ wanted, since }: LockedBy): GatewayError {
  return new GatewayError(
    'locked',
    `${wanted} is held by another call since ${since.toISOString()}. Ask again later.`,
    {
      retryAfterSeconds: 1,
      members: { resource: wanted },
    },
  );
}

/** Why a call cannot be sent now: something is locked, another has it, or what it must lock cannot be told. */
export type Bar = LockedBy | 'elsewhere' | { readonly why: string };

/**
 * Takes what a call must hold and does not yet: it waited for a person, or its tool declares more than when it was claimed. A
 * crash after it leaves a call with locks, which keeps them until it is final.
 */
export async function lockLate(station: Station, job: Job): Promise<Bar | undefined> {
  if (job.lockToken !== null) return undefined;
  let order: LockOrder | undefined;
  try {
    order = lockOrderOf(station, job.tool, job);
  } catch (error) {
    // Its tool declares other locks than when it was claimed.
    if (error instanceof GatewayError) return { why: error.message };
    throw error;
  }
  if (order === undefined) return undefined;
  const entry = auditEntry('call_locked', { txn: job.txn, agent: job.agent, tool: job.tool.name });
  const taken = await takeLocksLate(station.db, order, { fence: job.fence, entry });
  if (taken === 'elsewhere' || isLocked(taken)) return taken;
  job.lockToken = taken.token;
  return undefined;
}

/** Not part of what is stored: it is the same for every attempt all the same, because the locks are kept until the end. */
export function withToken({ request, lockToken }: Job): PreparedRequest {
  if (lockToken === null) return request;
  return { ...request, headers: { ...request.headers, [TOKEN_HEADER]: String(lockToken) } };
}

/** What is locked, by whom and since when: for people. */
export function heldLocks({ db }: Station, filter: LockFilter) {
  return listLocks(db, filter);
}
