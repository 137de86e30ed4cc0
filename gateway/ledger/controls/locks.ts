import { isPrefixLock, type LockMode, type LockScope, listCoveringPrefixes } from '../../domain/controls/lock.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Database, Queryable, Tx } from '../db.ts';

/** One thing that a call locks. */
export interface RequestedLock {
  /** Its name, each segment hashed: the same for everybody who means the same thing. */
  readonly resource: string;
  readonly displayName: string;
  readonly mode: LockMode;
  readonly for: LockScope;
}

/** Everything that a call locks: all of it or nothing. */
export interface LockRequest {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly saga: string | null;
  readonly run: string | null;
  readonly locks: readonly RequestedLock[];
}

/** Somebody else holds what a call wants to lock. */
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
 * Takes all locks of a call, in the transaction of its claim or right before its first attempt. The gates of the names are
 * locked first, in order, so nobody can take a conflicting one meanwhile and no two wait for each other in a circle. What the
 * call's own saga or run holds is not in its way. Answers the token, or who was first; then nothing was written.
 */
export async function takeLocks(tx: Tx, order: LockRequest): Promise<LockGrant | LockConflict> {
  // Run and saga before gates, as a claim that is bound to them does: two that meet must not wait for each other.
  const lasting = await keepOpenHolders(tx, order);
  await lockGates(tx, [...new Set(order.locks.flatMap(({ resource }) => listGates(resource)))].sort());
  const taken = await findConflict(tx, order);
  if (taken !== undefined) return taken;
  const [drawn] = await tx.run<{ token: string }>({
    name: 'draw-token',
    text: `select nextval('lock_tokens') as token`,
    values: [],
  });
  const token = Number(drawn?.token);
  await insertLocks(tx, lasting, token);
  await tx.run({
    name: 'note-locks',
    text: `with noted as (update calls set lock_token = $2 where txn = $1)
      update open_calls set locked = true where txn = $1`,
    values: [order.txn, token],
  });
  return { kind: 'lock_grant', token };
}

/** The same for a call that is open already: one that waited for a person, or whose tool got locks since. */
export async function takeLocksOfOpenCall(
  db: Database,
  order: LockRequest,
  holder: { readonly fence: number; readonly entry: string },
): Promise<LockGrant | LockConflict | CallLost> {
  return db.transaction(async (tx) => {
    // As everywhere: run and saga, then the call, then gates.
    await keepOpenHolders(tx, order);
    const mine = await tx.run({
      name: 'lock-mine',
      text: 'select txn from calls where txn = $1 and fence = $2 and settled_at is null for update',
      values: [order.txn, holder.fence],
    });
    if (mine.length === 0) return { kind: 'call_lost' };
    const taken = await takeLocks(tx, order);
    if (taken.kind === 'lock_grant')
      await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [holder.entry] });
    return taken;
  });
}

/** Only what is not over can hold something beyond its call: what ends later lets go, what ended before never would. */
async function keepOpenHolders(tx: Tx, order: LockRequest): Promise<LockRequest> {
  const isFor = (scope: LockScope) => order.locks.some((wish) => wish.for === scope);
  const { saga, run } = order;
  return {
    ...order,
    saga: saga !== null && isFor('saga') && (await isOpenSaga(tx, saga)) ? saga : null,
    run: run !== null && isFor('run') && (await isOpenRun(tx, run)) ? run : null,
  };
}

async function isOpenSaga(tx: Tx, id: string): Promise<boolean> {
  const rows = await tx.run({
    name: 'keep-saga-open',
    text: 'select id from sagas where id = $1 and ended_at is null for share',
    values: [id],
  });
  return rows.length > 0;
}

async function isOpenRun(tx: Tx, id: string): Promise<boolean> {
  const rows = await tx.run({
    name: 'keep-run-open',
    text: 'select id from runs where id = $1 and ended_at is null for share',
    values: [id],
  });
  return rows.length > 0;
}

/** By the first digits of the first two segments, which are hashes; a prefix right below the first has all of its gates. */
function listGates(resource: string): string[] {
  const [first = '', second] = resource.split('/');
  const of = first.slice(0, 2);
  if (second === '*') return [...'0123456789abcdef'].map((digit) => `${of}${digit}`);
  return [`${of}${second?.charAt(0) ?? ''}`];
}

async function lockGates(tx: Tx, gates: readonly string[]): Promise<void> {
  const lock = {
    name: 'lock-gates',
    text: 'select gate from lock_gates where gate = any($1::text[]) order by gate for update',
    values: [gates],
  };
  if ((await tx.run(lock)).length === gates.length) return;
  await tx.run({
    name: 'make-gates',
    text: 'insert into lock_gates select unnest($1::text[]) on conflict do nothing',
    values: [gates],
  });
  await tx.run(lock);
}

/**
 * A lock of somebody else that is the same, covers one of these, or is covered by one; and one of the two is exclusive. Without
 * the gates it is only how things stand just now.
 */
export async function findConflict(
  on: Queryable,
  { txn, saga, run, locks: wishes }: LockRequest,
): Promise<LockConflict | undefined> {
  const names = listCoveringNames(wishes);
  const below = wishes.flatMap(({ resource, mode }, place) =>
    isPrefixLock(resource) ? [{ from: resource.slice(0, -1), place, exclusive: mode === 'exclusive' }] : [],
  );
  const [found] = await on.run<{ place: number; taken_at: Date }>({
    name: 'find-conflict',
    text: `select w.place, l.taken_at from unnest($1::text[], $2::int[], $3::bool[]) as w(name, place, exclusive)
        join locks l on l.resource = w.name collate "C"
        where l.holder <> all($4::uuid[]) and (w.exclusive or l.mode = 'exclusive')
      union all
      -- From the slash on to the character that follows it.
      select b.place, l.taken_at from unnest($5::text[], $6::int[], $7::bool[]) as b(low, place, exclusive)
        join locks l on l.resource >= b.low collate "C" and l.resource < left(b.low, -1) || '0' collate "C"
        where l.holder <> all($4::uuid[]) and (b.exclusive or l.mode = 'exclusive')
      limit 1`,
    values: [
      names.map(({ name }) => name),
      names.map(({ place }) => place),
      names.map(({ exclusive }) => exclusive),
      [txn, saga, run].filter((holder) => holder !== null),
      below.map(({ from }) => from),
      below.map(({ place }) => place),
      below.map(({ exclusive }) => exclusive),
    ],
  });
  if (found === undefined) return undefined;
  return { kind: 'lock_conflict', wanted: wishes[found.place]?.displayName ?? '', since: found.taken_at };
}

interface LockLookup {
  readonly name: string;
  /** Of the wish, among all of them, that looks for it. */
  readonly place: number;
  readonly exclusive: boolean;
}

/** The names of locks that are the same as, or cover, one of these; each once, for the strongest wish. */
function listCoveringNames(wishes: readonly RequestedLock[]): LockLookup[] {
  const names = new Map<string, LockLookup>();
  wishes.forEach(({ resource, mode }, place) => {
    const exclusive = mode === 'exclusive';
    for (const name of [resource, ...listCoveringPrefixes(resource)]) {
      const known = names.get(name);
      if (known === undefined || (exclusive && !known.exclusive)) names.set(name, { name, place, exclusive });
    }
  });
  return [...names.values()];
}

/** A call holds what it locks; its saga or run beside it, if the lock is to last as long as they do. */
async function insertLocks(tx: Tx, order: LockRequest, token: number): Promise<void> {
  const { txn, saga, run, locks: wishes } = order;
  await insertHolderLocks(tx, order, token, 'call', txn, wishes);
  for (const [of, holder] of [
    ['saga', saga],
    ['run', run],
  ] as const) {
    const lasting = holder === null ? [] : wishes.filter((wish) => wish.for === of);
    if (holder !== null && lasting.length > 0) await insertHolderLocks(tx, order, token, of, holder, lasting);
  }
}

async function insertHolderLocks(
  tx: Tx,
  order: LockRequest,
  token: number,
  of: LockScope,
  holder: string,
  wishes: readonly RequestedLock[],
): Promise<void> {
  const held = keepStrongest(wishes);
  await tx.run({
    name: 'insert-locks',
    text: `insert into locks (resource, mode, shown, holder, of, token, txn, agent, tool)
      select t.*, $4::uuid, $5, $6::bigint, $7::uuid, $8, $9 from unnest($1::text[], $2::text[], $3::text[]) as t
      on conflict (resource, holder) do update set token = excluded.token,
        mode = case when locks.mode = 'exclusive' then locks.mode else excluded.mode end`,
    values: [
      held.map((wish) => wish.resource),
      held.map((wish) => wish.mode),
      held.map((wish) => wish.displayName),
      holder,
      of,
      token,
      order.txn,
      order.agent,
      order.tool,
    ],
  });
}

/** Each resource once. */
function keepStrongest(wishes: readonly RequestedLock[]): RequestedLock[] {
  const found = new Map<string, RequestedLock>();
  for (const wish of wishes) if (found.get(wish.resource)?.mode !== 'exclusive') found.set(wish.resource, wish);
  return [...found.values()];
}

/** A lock as people see it. */
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

/** Newest first; the cursor is the number of the last one seen. */
export async function listLocks(
  db: Database,
  { agent, holder, cursor, limit }: LockFilter,
): Promise<{ items: readonly HeldLock[]; cursor: string | null }> {
  if (cursor !== undefined && !/^\d{1,18}$/.test(cursor))
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
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
