import { isPrefixLock, type LockMode, type LockScope, listCoveringPrefixes } from '../../domain/controls/lock.ts';
import { GatewayError } from '../../domain/errors.ts';
import { insertAuditEntry } from '../audit/audit-queue.ts';
import type { Database, Queryable, Tx } from '../db.ts';

/** One resource that a call locks. */
export interface RequestedLock {
  /** The name with each segment hashed. Equal names give equal hashes for every agent. */
  readonly resource: string;
  /** The name as people see it, with secrets redacted. */
  readonly displayName: string;
  readonly mode: LockMode;
  readonly for: LockScope;
}

/** All locks of a call. They are taken together or not at all. */
export interface LockRequest {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly saga: string | null;
  readonly run: string | null;
  readonly locks: readonly RequestedLock[];
}

/** Another call, saga or run holds a lock that the call needs. */
export interface LockConflict {
  readonly kind: 'lock_conflict';
  readonly wanted: string;
  readonly since: Date;
}

/** All locks of a call are taken. Every later grant has a larger token. */
export interface LockGrant {
  readonly kind: 'lock_grant';
  readonly token: number;
}

/** The call is final, or another process owns it. */
export interface CallLost {
  readonly kind: 'call_lost';
}

/**
 * Takes all locks of a call, in the transaction of its claim or right before its first attempt. First it locks the gates of the
 * names, in order. So no conflicting lock appears before the commit, and two calls never wait in a circle. Locks of the call's
 * own saga or run do not conflict. On a conflict nothing is written.
 */
export async function takeLocks(tx: Tx, request: LockRequest): Promise<LockGrant | LockConflict> {
  // Lock the run and the saga before the gates, in the same order as a claim.
  const openHolders = await keepOpenHolders(tx, request);
  await lockGates(tx, [...new Set(request.locks.flatMap(({ resource }) => listGates(resource)))].sort());
  const conflict = await findConflict(tx, request);
  if (conflict !== undefined) return conflict;
  const token = await drawToken(tx);
  await insertLocks(tx, openHolders, token);
  await recordToken(tx, request.txn, token);
  return { kind: 'lock_grant', token };
}

/** Draws the fencing token. The gates are locked, so of two conflicting grants the later one has the larger token. */
async function drawToken(tx: Tx): Promise<number> {
  const [drawn] = await tx.run<{ token: string }>({
    name: 'draw-token',
    text: `select nextval('lock_tokens') as token`,
    values: [],
  });
  return Number(drawn?.token);
}

/** Marks the open call with its token, so that a trigger deletes its locks when it ends. This transaction holds the call. */
async function recordToken(tx: Tx, txn: string, token: number): Promise<void> {
  await tx.run({
    name: 'record-lock-token',
    text: 'update open_calls set lock_token = $2 where txn = $1',
    values: [txn, token],
  });
}

/** Takes the locks of a call that is already open: it was held, or its tool has declared locks since the claim. */
export async function takeLocksOfOpenCall(
  db: Database,
  request: LockRequest,
  holder: { readonly fence: number; readonly entry: string },
): Promise<LockGrant | LockConflict | CallLost> {
  return db.transaction(async (tx) => {
    // The lock order is the same everywhere: run, saga, call, gates.
    await keepOpenHolders(tx, request);
    if (!(await lockOwnCall(tx, request.txn, holder.fence))) return { kind: 'call_lost' };
    const result = await takeLocks(tx, request);
    if (result.kind === 'lock_grant') await insertAuditEntry(tx, holder.entry);
    return result;
  });
}

/** Locks the call if it is open and still has this fence. Returns false if it is final or another process owns it. */
async function lockOwnCall(tx: Tx, txn: string, fence: number): Promise<boolean> {
  const rows = await tx.run({
    name: 'lock-own-call',
    text: 'select txn from open_calls where txn = $1 and fence = $2 for update',
    values: [txn, fence],
  });
  return rows.length > 0;
}

/**
 * Returns the request without a saga or run that has ended: nothing would release a new lock of such a holder. The row of an open
 * saga or run is locked until the commit, so it cannot end before the locks are written.
 */
async function keepOpenHolders(tx: Tx, request: LockRequest): Promise<LockRequest> {
  const isFor = (scope: LockScope) => request.locks.some((lock) => lock.for === scope);
  const { saga, run } = request;
  return {
    ...request,
    saga: saga !== null && isFor('saga') && (await isOpenSaga(tx, saga)) ? saga : null,
    run: run !== null && isFor('run') && (await isOpenRun(tx, run)) ? run : null,
  };
}

/** The shared lock keeps the saga open until the commit, and lets other calls of the saga take locks too. */
async function isOpenSaga(tx: Tx, id: string): Promise<boolean> {
  const rows = await tx.run({
    name: 'lock-open-saga',
    text: 'select id from sagas where id = $1 and ended_at is null for share',
    values: [id],
  });
  return rows.length > 0;
}

/** The shared lock keeps the run open until the commit, and lets other calls of the run take locks too. */
async function isOpenRun(tx: Tx, id: string): Promise<boolean> {
  const rows = await tx.run({
    name: 'lock-open-run',
    text: 'select id from runs where id = $1 and ended_at is null for share',
    values: [id],
  });
  return rows.length > 0;
}

/**
 * Lists the gates of a name. A gate is a row that stands for a part of the name space; its lock serializes claims of names in that
 * part. The first digits of the first two hashed segments choose it. A lock on all names below the first segment covers sixteen gates.
 */
function listGates(resource: string): string[] {
  const [first = '', second] = resource.split('/');
  const base = first.slice(0, 2);
  if (second === '*') return [...'0123456789abcdef'].map((digit) => `${base}${digit}`);
  return [`${base}${second?.charAt(0) ?? ''}`];
}

/**
 * Locks the gates until the commit, in order of name, and creates missing ones first. Two conflicting names share a gate, so
 * between the check for conflicts and the commit no other call can take a conflicting lock.
 */
async function lockGates(tx: Tx, gates: readonly string[]): Promise<void> {
  const lock = {
    name: 'lock-gates',
    text: 'select gate from lock_gates where gate = any($1::text[]) order by gate for update',
    values: [gates],
  };
  if ((await tx.run(lock)).length === gates.length) return;
  await tx.run({
    name: 'insert-gates',
    text: 'insert into lock_gates select unnest($1::text[]) on conflict do nothing',
    values: [gates],
  });
  await tx.run(lock);
}

/**
 * Finds a lock of another holder that equals, covers or is covered by a requested one, where one of the two is exclusive. Exact
 * while the caller holds the gates; otherwise a snapshot, for explanations.
 */
export async function findConflict(
  on: Queryable,
  { txn, saga, run, locks }: LockRequest,
): Promise<LockConflict | undefined> {
  const names = listCoveringNames(locks);
  const below = locks.flatMap(({ resource, mode }, position) =>
    isPrefixLock(resource) ? [{ from: resource.slice(0, -1), position, exclusive: mode === 'exclusive' }] : [],
  );
  const [found] = await on.run<{ position: number; taken_at: Date }>({
    name: 'find-conflict',
    text: `select w.position, l.taken_at from unnest($1::text[], $2::int[], $3::bool[]) as w(name, position, exclusive)
        join locks l on l.resource = w.name collate "C"
        where l.holder <> all($4::uuid[]) and (w.exclusive or l.mode = 'exclusive')
      union all
      -- The names below a prefix lie between prefix/ and prefix0, because 0 follows / in ASCII.
      select b.position, l.taken_at from unnest($5::text[], $6::int[], $7::bool[]) as b(low, position, exclusive)
        join locks l on l.resource >= b.low collate "C" and l.resource < left(b.low, -1) || '0' collate "C"
        where l.holder <> all($4::uuid[]) and (b.exclusive or l.mode = 'exclusive')
      limit 1`,
    values: [
      names.map(({ name }) => name),
      names.map(({ position }) => position),
      names.map(({ exclusive }) => exclusive),
      [txn, saga, run].filter((holder) => holder !== null),
      below.map(({ from }) => from),
      below.map(({ position }) => position),
      below.map(({ exclusive }) => exclusive),
    ],
  });
  if (found === undefined) return undefined;
  return { kind: 'lock_conflict', wanted: locks[found.position]?.displayName ?? '', since: found.taken_at };
}

interface LockLookup {
  readonly name: string;
  /** The index of the requested lock that this name comes from. */
  readonly position: number;
  readonly exclusive: boolean;
}

/** The names that equal or cover a requested lock; each once, for the strongest mode that needs it. */
function listCoveringNames(locks: readonly RequestedLock[]): LockLookup[] {
  const names = new Map<string, LockLookup>();
  locks.forEach(({ resource, mode }, position) => {
    const exclusive = mode === 'exclusive';
    for (const name of [resource, ...listCoveringPrefixes(resource)]) {
      const known = names.get(name);
      if (known === undefined || (exclusive && !known.exclusive)) names.set(name, { name, position, exclusive });
    }
  });
  return [...names.values()];
}

/** The call holds all of its locks. Its saga or run also holds those that last as long as the saga or run. */
async function insertLocks(tx: Tx, request: LockRequest, token: number): Promise<void> {
  const { txn, saga, run, locks } = request;
  await insertHolderLocks(tx, request, token, 'call', txn, locks);
  for (const [of, holder] of [
    ['saga', saga],
    ['run', run],
  ] as const) {
    const lastingLocks = holder === null ? [] : locks.filter((lock) => lock.for === of);
    if (holder !== null && lastingLocks.length > 0)
      await insertHolderLocks(tx, request, token, of, holder, lastingLocks);
  }
}

/**
 * Writes the locks of one holder. A lock that the holder has already keeps the stronger mode and gets the new token. The gates
 * are locked and no conflict was found, so the locks cannot conflict.
 */
async function insertHolderLocks(
  tx: Tx,
  request: LockRequest,
  token: number,
  of: LockScope,
  holder: string,
  locks: readonly RequestedLock[],
): Promise<void> {
  const strongest = keepStrongest(locks);
  await tx.run({
    name: 'insert-locks',
    text: `insert into locks (resource, mode, shown, holder, of, token, txn, agent, tool)
      select t.*, $4::uuid, $5, $6::bigint, $7::uuid, $8, $9 from unnest($1::text[], $2::text[], $3::text[]) as t
      on conflict (resource, holder) do update set token = excluded.token,
        mode = case when locks.mode = 'exclusive' then locks.mode else excluded.mode end`,
    values: [
      strongest.map((lock) => lock.resource),
      strongest.map((lock) => lock.mode),
      strongest.map((lock) => lock.displayName),
      holder,
      of,
      token,
      request.txn,
      request.agent,
      request.tool,
    ],
  });
}

/** Each resource once; exclusive wins over shared. */
function keepStrongest(locks: readonly RequestedLock[]): RequestedLock[] {
  const found = new Map<string, RequestedLock>();
  for (const lock of locks) if (found.get(lock.resource)?.mode !== 'exclusive') found.set(lock.resource, lock);
  return [...found.values()];
}

/** A lock, as lists show it. */
export interface HeldLock {
  readonly resource: string;
  readonly mode: LockMode;
  readonly for: LockScope;
  readonly holder: string;
  readonly token: number;
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly since: Date;
}

export interface LockFilter {
  readonly agent?: string | undefined;
  readonly holder?: string | undefined;
  readonly cursor?: string | undefined;
  readonly limit: number;
}

/** Lists locks, newest first. The cursor is the id of the last one. Reads without locking: a lock may be released meanwhile. */
export async function listLocks(
  db: Database,
  { agent, holder, cursor, limit }: LockFilter,
): Promise<{ items: readonly HeldLock[]; cursor: string | null }> {
  if (cursor !== undefined && !/^\d{1,18}$/.test(cursor))
    throw new GatewayError('malformed', 'The cursor is invalid. Use the cursor of the previous page.');
  const rows = await db.run<HeldLock & { id: string }>({
    name: holder === undefined ? 'list-locks' : 'list-locks-of-holder',
    text: `select id, shown as resource, mode, of as for, holder, token::float8 as token, txn, agent, tool, taken_at as since from locks
      where ($1::text is null or agent = $1) and ($2::bigint is null or id < $2)
        and ${holder === undefined ? '$4::uuid is null' : 'holder = $4::uuid'}
      order by id desc limit $3`,
    values: [agent ?? null, cursor ?? null, limit + 1, holder ?? null],
  });
  const items = rows.slice(0, limit);
  return {
    items: items.map(({ id: _, ...lock }) => lock),
    cursor: rows.length > limit ? (items.at(-1)?.id ?? null) : null,
  };
}
