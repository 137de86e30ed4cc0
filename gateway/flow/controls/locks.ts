import { createHmac } from 'node:crypto';
import type { PreparedRequest } from '../../domain/attempts/adapter.ts';
import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { pathsUnder, REDACTED, redact } from '../../domain/calls/redact.ts';
import { MAX_LOCK_SEGMENTS_PER_CALL, MAX_LOCKS } from '../../domain/controls/lock.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { ExpressionError, type LockSpec, type Tool } from '../../domain/policy.ts';
import {
  type CallLost,
  type LockConflict,
  type LockFilter,
  type LockRequest,
  listLocks,
  type RequestedLock,
  takeLocksOfOpenCall,
} from '../../ledger/controls/locks.ts';
import { type InFlightCall, patchCall } from '../attempts/in-flight-call.ts';
import { type CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import type { Context } from '../context.ts';

/** Sent with every attempt of a call that holds locks. A service can refuse a smaller token than it has seen before. */
const LOCK_TOKEN_HEADER = 'oncegate-lock-token';

/** A call that waits for a lock polls with growing delays and jitter. */
const POLL_DELAY = { firstMs: 10, maxMs: 200 };

/** The call that requests locks. */
export interface LockingCall {
  readonly txn: string;
  readonly agent: string;
  readonly args: JsonObject;
  readonly saga: string | null;
  readonly run: string | null;
}

/** The locks that a call must hold before it is sent; undefined when it needs none. */
export function buildLockRequest(
  ctx: Pick<Context, 'sealingKey'>,
  tool: Tool,
  call: LockingCall,
): LockRequest | undefined {
  if (tool.locks.length === 0) return undefined;
  const hashName = createNameHasher(ctx.sealingKey);
  let lockCount = 0;
  let segmentCount = 0;
  const requested = tool.locks.flatMap((lock, index) => {
    const names = evaluateLockNames(tool, index, lock, call, call.args);
    lockCount += names.length;
    for (const name of names) segmentCount += name.split('/').length;
    if (lockCount > MAX_LOCKS) throw buildTooManyLocksError(tool, `more than ${MAX_LOCKS} locks`);
    if (segmentCount > MAX_LOCK_SEGMENTS_PER_CALL)
      throw buildTooManyLocksError(tool, `more than ${MAX_LOCK_SEGMENTS_PER_CALL} segments in all names`);
    const shown = redactLockNames(tool, index, lock, call, names);
    return names.map(
      (name, i): RequestedLock => ({
        resource: hashName(name),
        displayName: shown[i] ?? REDACTED,
        mode: lock.mode,
        for: lock.for,
      }),
    );
  });
  const { txn, agent, saga, run } = call;
  return requested.length === 0 ? undefined : { txn, agent, tool: tool.name, saga, run, locks: requested };
}

function buildTooManyLocksError({ name }: Tool, excess: string): GatewayError {
  return new GatewayError('invalid_arguments', `These arguments need too many locks of ${name}: ${excess}.`);
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
    throw new GatewayError(
      'invalid_arguments',
      `The name of lock ${index + 1} of ${tool.name} cannot be evaluated: ${error.message}.`,
    );
  }
}

/** The names as they are stored and shown, without the values that the tool redacts. */
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

/** 64 bits are enough: two names with the same hash would only wait for each other. */
const HASH_HEX_DIGITS = 16;

/**
 * Hashes each segment of a name, so that a name below a prefix stays below it. The hash is keyed, because redacted values
 * could otherwise be guessed.
 */
function createNameHasher(key: Buffer): (name: string) => string {
  const hashes = new Map<string, string>([['*', '*']]);
  const hash = (segment: string): string => {
    let hex = hashes.get(segment);
    if (hex === undefined) {
      hex = createHmac('sha256', key)
        .update('oncegate.lock.1\0')
        .update(segment)
        .digest('hex')
        .slice(0, HASH_HEX_DIGITS);
      hashes.set(segment, hex);
    }
    return hex;
  };
  return (name) => name.split('/').map(hash).join('/');
}

/** Repeats an attempt while it meets a lock, until `until` on the monotonic clock. Then returns the conflict. */
export async function retryWhileLocked<T extends { readonly kind: string }>(
  attempt: () => Promise<T>,
  until: number,
  ...cancelTokens: readonly (CancelToken | undefined)[]
): Promise<T> {
  for (let delayMs = POLL_DELAY.firstMs; ; delayMs = Math.min(delayMs * 1.5, POLL_DELAY.maxMs)) {
    const result = await attempt();
    if (result.kind !== 'lock_conflict') return result;
    const leftMs = until - performance.now();
    if (leftMs <= 0 || cancelTokens.some((token) => token?.isCancelled === true)) return result;
    await sleepUnlessCancelled(Math.min(delayMs * (0.5 + Math.random()), leftMs), ...cancelTokens);
  }
}

/** The error does not name the holder, because the holder may be another agent. */
export function buildLockedError({ wanted, since }: LockConflict): GatewayError {
  return new GatewayError(
    'locked',
    `Another call has held ${wanted} since ${since.toISOString()}. Repeat the call later.`,
    {
      retryAfterSeconds: 1,
      members: { resource: wanted },
    },
  );
}

/** Why a call cannot be sent now: a lock is held, another replica owns the call, or a lock name cannot be evaluated. */
export type LockBlocker = LockConflict | CallLost | { readonly kind: 'invalid_locks'; readonly why: string };

/**
 * Takes the locks that a call needs but does not hold yet: the call was held for a person, or its tool declares more locks
 * than at the claim. A crash after this leaves a call with locks, which it keeps until it is final.
 */
export async function acquireMissingLocks(ctx: Context, call: InFlightCall): Promise<LockBlocker | undefined> {
  const { txn, agent, tool, saga, run, fence } = call.record;
  if (call.record.lockToken !== null) return undefined;
  let request: LockRequest | undefined;
  try {
    request = buildLockRequest(ctx, call.tool, { txn, agent, args: call.payload.args, saga, run });
  } catch (error) {
    // The tool declares other locks than at the claim.
    if (error instanceof GatewayError) return { kind: 'invalid_locks', why: error.message };
    throw error;
  }
  if (request === undefined) return undefined;
  const entry = buildAuditEntry('call_locked', { txn, agent, tool });
  const taken = await takeLocksOfOpenCall(ctx.db, request, { fence, entry });
  if (taken.kind !== 'lock_grant') return taken;
  patchCall(call, { lockToken: taken.token });
  return undefined;
}

/** Adds the lock token, which is not stored with the request. A call keeps its locks, so all attempts send one token. */
export function withLockToken({ record: { lockToken }, payload: { request } }: InFlightCall): PreparedRequest {
  if (lockToken === null) return request;
  return { ...request, headers: { ...request.headers, [LOCK_TOKEN_HEADER]: String(lockToken) } };
}

/** Lists the held locks for people. */
export function listHeldLocks({ db }: Context, filter: LockFilter) {
  return listLocks(db, filter);
}
