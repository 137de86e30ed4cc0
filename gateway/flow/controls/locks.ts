import { createHmac } from 'node:crypto';
import type { PreparedRequest } from '../../domain/attempts/adapter.ts';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { pathsUnder, REDACTED, redact } from '../../domain/calls/redact.ts';
import { MAX_LOCK_SEGMENTS_PER_CALL, MAX_LOCKS } from '../../domain/controls/lock.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { ExpressionError, type LockSpec, type Tool } from '../../domain/policy.ts';
import {
  type LockConflict,
  type LockFilter,
  type LockRequest,
  listLocks,
  type RequestedLock,
  takeLocksOfOpenCall,
} from '../../ledger/controls/locks.ts';
import type { Job } from '../attempts/job.ts';
import { type CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';

/** Goes with every attempt of a call that holds locks: a service that refuses smaller ones than it saw is fenced too. */
const LOCK_TOKEN_HEADER = 'oncegate-lock-token';

/** A call that wants something locked asks again this often, rarer the longer it takes, and not all at the same moment. */
const POLL_DELAY = { firstMs: 10, mostMs: 200 };

/** Whose locks they are to be. */
export interface LockingCall {
  readonly txn: string;
  readonly agent: string;
  readonly args: JsonObject;
  readonly saga: string | null;
  readonly run: string | null;
}

/** What a call must hold before anything of it is sent; undefined: nothing. */
export function buildLockRequest(
  ctx: Pick<Context, 'sealingKey'>,
  tool: Tool,
  call: LockingCall,
): LockRequest | undefined {
  if (tool.locks.length === 0) return undefined;
  const hashed = createNameHasher(ctx.sealingKey);
  let locks = 0;
  let segments = 0;
  const wishes = tool.locks.flatMap((lock, index) => {
    const names = evaluateLockNames(tool, index, lock, call, call.args);
    locks += names.length;
    for (const name of names) segments += name.split('/').length;
    if (locks > MAX_LOCKS) throw buildTooManyLocksError(tool, `${MAX_LOCKS} things at once`);
    if (segments > MAX_LOCK_SEGMENTS_PER_CALL)
      throw buildTooManyLocksError(tool, `${MAX_LOCK_SEGMENTS_PER_CALL} segments in all their names`);
    const shown = redactLockNames(tool, index, lock, call, names);
    return names.map(
      (name, i): RequestedLock => ({
        resource: hashed(name),
        shown: shown[i] ?? REDACTED,
        mode: lock.mode,
        for: lock.for,
      }),
    );
  });
  const { txn, agent, saga, run } = call;
  return wishes.length === 0 ? undefined : { txn, agent, tool: tool.name, saga, run, wishes };
}

function buildTooManyLocksError({ name }: Tool, most: string): GatewayError {
  return new GatewayError('invalid_arguments', `The locks of ${name} cannot be made: more than ${most}.`);
}

function evaluateLockNames(
  tool: Tool,
  index: number,
  lock: LockSpec,
  { agent, saga, run }: LockingCall,
  args: JsonObject,
): string[] {
  try {
    return lock.keys({ args, agent, saga, run });
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error;
    throw new GatewayError('invalid_arguments', `Lock ${index + 1} of ${tool.name} cannot be made: ${error.message}.`);
  }
}

/** The names as they may be stored and shown: without what the tool redacts. */
function redactLockNames(
  tool: Tool,
  index: number,
  lock: LockSpec,
  call: LockingCall,
  names: readonly string[],
): readonly string[] {
  const paths = pathsUnder('args', tool.redact);
  if (paths.length === 0) return names;
  try {
    const shown = evaluateLockNames(tool, index, lock, call, redact(call.args, paths) as JsonObject);
    return shown.length === names.length ? shown : [];
  } catch (error) {
    if (error instanceof GatewayError) return [];
    throw error;
  }
}

/** 64 bits: two names that hash alike would only wait for each other. */
const HASH_HEX_DIGITS = 16;

/** Segment by segment, so that what lies below a prefix still does; with a key, because what is redacted could be guessed. */
function createNameHasher(key: Buffer): (name: string) => string {
  const known = new Map<string, string>([['*', '*']]);
  const hash = (segment: string): string => {
    let text = known.get(segment);
    if (text === undefined) {
      text = createHmac('sha256', key)
        .update('oncegate.lock.1\0')
        .update(segment)
        .digest('hex')
        .slice(0, HASH_HEX_DIGITS);
      known.set(segment, text);
    }
    return text;
  };
  return (name) => name.split('/').map(hash).join('/');
}

export function isLockConflict(claimed: unknown): claimed is LockConflict {
  return typeof claimed === 'object' && claimed !== null && 'wanted' in claimed;
}

/** Tries again and again while something is locked, as long as the caller has patience; then tells what is. */
export async function retryWhileLocked<T>(
  attempt: () => Promise<T>,
  patienceMs: number,
  ...callers: readonly (CancelToken | undefined)[]
): Promise<T> {
  const until = performance.now() + patienceMs;
  for (let poll = POLL_DELAY.firstMs; ; poll = Math.min(poll * 1.5, POLL_DELAY.mostMs)) {
    const result = await attempt();
    if (!isLockConflict(result)) return result;
    const left = until - performance.now();
    if (left <= 0 || callers.some((caller) => caller?.gone === true)) return result;
    await sleepUnlessCancelled(Math.min(poll * (0.5 + Math.random()), left), ...callers);
  }
}

/** Who holds it is not told: it may be another agent. */
export function buildLockedError({ wanted, since }: LockConflict): GatewayError {
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
export type LockBlocker = LockConflict | 'elsewhere' | { readonly why: string };

/**
 * Takes what a call must hold and does not yet: it waited for a person, or its tool declares more than when it was claimed. A
 * crash after it leaves a call with locks, which keeps them until it is final.
 */
export async function acquireMissingLocks(ctx: Context, job: Job): Promise<LockBlocker | undefined> {
  if (job.lockToken !== null) return undefined;
  let order: LockRequest | undefined;
  try {
    order = buildLockRequest(ctx, job.tool, job);
  } catch (error) {
    // Its tool declares other locks than when it was claimed.
    if (error instanceof GatewayError) return { why: error.message };
    throw error;
  }
  if (order === undefined) return undefined;
  const entry = buildAuditEntry('call_locked', { txn: job.txn, agent: job.agent, tool: job.tool.name });
  const taken = await takeLocksOfOpenCall(ctx.db, order, { fence: job.fence, entry });
  if (taken === 'elsewhere' || isLockConflict(taken)) return taken;
  job.lockToken = taken.token;
  return undefined;
}

/** Not part of what is stored: it is the same for every attempt all the same, because the locks are kept until the end. */
export function withLockToken({ request, lockToken }: Job): PreparedRequest {
  if (lockToken === null) return request;
  return { ...request, headers: { ...request.headers, [LOCK_TOKEN_HEADER]: String(lockToken) } };
}

/** What is locked, by whom and since when: for people. */
export function listHeldLocks({ db }: Context, filter: LockFilter) {
  return listLocks(db, filter);
}
