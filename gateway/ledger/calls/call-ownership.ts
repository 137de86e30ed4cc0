import type { CallRecord } from '../../domain/calls/call-record.ts';
import { insertAuditEntries } from '../audit/audit-queue.ts';
import type { Database, Tx } from '../db.ts';
import { CALL_COLUMNS, CALLS_JOINED, type CallRow, toCallRecord } from './call-columns.ts';

/** The number of calls that one sweep takes over: small, so that several replicas share the work. */
const MAX_TAKEN_PER_SWEEP = 256;
/** A sweep skips calls that other replicas are taking, so it scans more calls than it takes. */
const MAX_SCANNED_PER_SWEEP = 4 * MAX_TAKEN_PER_SWEEP;

/**
 * The distinct owners of open calls, found by a loose index scan: one index lookup for each owner. A plain scan would read
 * thousands of open calls of every live process, and as many dead rows of the last second.
 */
const OWNERS_CTE = `owners(id) as (
          (select owner from open_calls where owner is not null order by owner limit 1)
          union all
          select (select owner from open_calls where owner > w.id order by owner limit 1) from owners w where w.id is not null
        )`;

const buildOwnerGoneCondition = (owner: string) =>
  `not exists (select 1 from processes p where p.id = ${owner} and p.lease_until > now() and p.ended_at is null)`;

/**
 * Takes over open calls that are due and have no owner, or whose owner's lease lapsed. One transaction changes the owner, raises
 * the fence, and closes as unknown an attempt that the old owner left open. So the old owner can change nothing any more. After
 * a crash, the next owner finds an ordinary closed attempt.
 */
export async function takeOverCalls(
  db: Database,
  owner: string,
  buildEntry: (txn: string) => string,
): Promise<readonly CallRecord[]> {
  return db.transaction(async (tx) => {
    const taken = await assignUnattendedCalls(tx, owner);
    if (taken.length === 0) return [];
    await closeOrphanedAttempts(tx, taken);
    const calls = await readTakenCalls(tx, taken);
    const orphans = taken.filter(({ previousOwner }) => previousOwner !== null);
    if (orphans.length > 0)
      await insertAuditEntries(
        tx,
        orphans.map(({ txn }) => buildEntry(txn)),
      );
    return calls;
  });
}

interface TakenCall {
  readonly txn: string;
  /** Null: the call had no owner and was due. */
  readonly previousOwner: string | null;
}

/**
 * Decides which calls this process takes. `for update skip locked` gives each call to one taker, and skips calls that are ending
 * now. The conditions are checked again on the locked rows, because the scan before reads without locks.
 *
 * `gone` is materialized: a plan made for empty tables would otherwise read the calls of live owners before it drops these owners.
 */
function assignUnattendedCalls(tx: Tx, owner: string): Promise<readonly TakenCall[]> {
  return tx.run<TakenCall>({
    name: 'take-over',
    text: `with recursive ${OWNERS_CTE}, gone as materialized (
          select w.id from owners w where w.id <> $1 and ${buildOwnerGoneCondition('w.id')}
        ), found as materialized (
          (select txn from open_calls where owner is null and due_at <= now() order by due_at limit ${MAX_SCANNED_PER_SWEEP})
          union all
          (select o.txn from gone w cross join lateral (
              select txn from open_calls where owner = w.id limit ${MAX_SCANNED_PER_SWEEP}
            ) o limit ${MAX_SCANNED_PER_SWEEP})
        ), free as (
          select o.txn, o.owner as previous from open_calls o
          where o.txn = any (array(select txn from found))
            and ((o.owner is null and o.due_at <= now()) or (o.owner is not null and o.owner <> $1 and ${buildOwnerGoneCondition('o.owner')}))
          order by o.txn limit ${MAX_TAKEN_PER_SWEEP}
          for update of o skip locked
        )
        update open_calls o set owner = $1, due_at = null from free f where f.txn = o.txn returning o.txn, f.previous as "previousOwner"`,
    values: [owner],
  });
}

/**
 * Raises the fence, and counts an open attempt of the old owner as unknown: the attempt may have had its effect. An open read
 * had none. The rows are locked since `assignUnattendedCalls`.
 */
async function closeOrphanedAttempts(tx: Tx, taken: readonly TakenCall[]): Promise<void> {
  await tx.run({
    name: 'close-orphaned-attempts',
    text: `with closed as (
          update open_calls o set
            fence = o.fence + 1,
            unresolved = o.unresolved + (o.attempt_open and c.kind <> 'read')::int,
            unknown_since = case when o.attempt_open and c.kind <> 'read' then now() else o.unknown_since end,
            attempt_open = false,
            owner_deaths = o.owner_deaths + (t.previous is not null)::int,
            former_owners = case when t.previous is null then o.former_owners else o.former_owners || t.previous end,
            attempt_detail = case when t.previous is null then o.attempt_detail else coalesce(o.attempt_detail, 'the process that sent it ended') end
          from unnest($1::uuid[], $2::uuid[]) as t(txn, previous) join calls c on c.txn = t.txn
          -- Restricts each table: a plan made while they were empty would otherwise scan one of them.
          where o.txn = t.txn and o.txn = any ($1::uuid[]) and c.txn = any ($1::uuid[])
          returning o.txn, o.attempt, t.previous
        )
        insert into call_events (txn, event)
        select txn, jsonb_build_object('at', now(), 'what', 'taken_over', 'attempt', attempt, 'from', previous)
        from closed where previous is not null`,
    values: [taken.map(({ txn }) => txn), taken.map(({ previousOwner }) => previousOwner)],
  });
}

/** Reads the taken calls with their new fence. The rows are locked, so nothing can change before the commit. */
async function readTakenCalls(tx: Tx, taken: readonly TakenCall[]): Promise<readonly CallRecord[]> {
  const rows = await tx.run<CallRow>({
    name: 'read-taken',
    text: `select ${CALL_COLUMNS} from ${CALLS_JOINED} where c.txn = any($1::uuid[]) and o.txn is not null`,
    values: [taken.map(({ txn }) => txn)],
  });
  return rows.map(toCallRecord);
}

/**
 * Makes the calls of a process that shuts down due at once, for any process. Skips calls with an open attempt: their outcome is
 * still unknown, and `takeOverCalls` finds them when the lease has ended.
 */
export async function handOverCalls(db: Database, owner: string): Promise<void> {
  await db.run({
    name: 'hand-over',
    text: `update open_calls set owner = null, due_at = now() where owner = $1 and not attempt_open`,
    values: [owner],
  });
}

/**
 * Deletes a claim under which certainly nothing was sent; its key can then be used as if it were new. The owner, the fence and
 * `unresolved = 0` are checked in the same statement, so it never deletes a call that was taken over or may have been sent.
 */
export async function releaseClaim(
  db: Database,
  claim: { readonly txn: string; readonly owner: string | null; readonly fence: number },
  entry: string,
): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'release',
    text: `with closed as (
        delete from open_calls where txn = $1 and owner is not distinct from $2::uuid and fence = $4 and unresolved = 0 returning txn
      ), released as (
        delete from calls c using closed d where c.txn = d.txn returning c.txn
      ), without_undo as (
        delete from undos u using released d where u.txn = d.txn
      ), without_events as (
        delete from call_events e using released d where e.txn = d.txn
      ), refunded as (
        delete from spends s using released d where s.txn = d.txn
      ), undecided as (
        delete from approvals a using released d where a.txn = d.txn
      ), unvoted as (
        delete from votes v using released d where v.txn = d.txn
      ), unjoined as (
        delete from joins j using released d where j.txn = d.txn
      ), unaliased as (
        delete from aliases a using released d where a.txn = d.txn
      ), logged as (
        insert into audit_queue (entry) select $3 from released
      )
      select txn from released`,
    values: [claim.txn, claim.owner, entry, claim.fence],
  });
  return rows.length === 1;
}

/** Lists the open calls of this process. Reads without locking: only this process claims calls for itself. */
export async function listOwnedCalls(db: Database, owner: string): Promise<readonly string[]> {
  const rows = await db.run<{ txn: string }>({
    name: 'list-owned-calls',
    text: 'select txn from open_calls where owner = $1',
    values: [owner],
  });
  return rows.map((row) => row.txn);
}

/**
 * Gives up a call that this process owns but does not work on. The nil owner has no lease, so the call is taken over like that of
 * a dead process. Does nothing if the owner has changed.
 */
export async function orphanCall(db: Database, txn: string, owner: string): Promise<void> {
  await db.run({
    name: 'orphan-call',
    text: `update open_calls set owner = '00000000-0000-0000-0000-000000000000' where txn = $1 and owner = $2`,
    values: [txn, owner],
  });
}

/** Makes a call due later, without an owner. Does nothing if the owner has changed. The call is unchanged, so nothing is logged. */
export async function postponeCall(db: Database, txn: string, owner: string, ms: number): Promise<void> {
  await db.run({
    name: 'postpone-call',
    text: `update open_calls set owner = null, due_at = now() + $3 * interval '1 ms' where txn = $1 and owner = $2`,
    values: [txn, owner, ms],
  });
}

/** After a claim whose commit is unknown: whether it committed for this owner. Held calls have no owner (null). */
export async function isOwnedBy(db: Database, txn: string, owner: string | null): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'is-owned-by',
    text: `select txn from open_calls where txn = $1 and owner is not distinct from $2::uuid`,
    values: [txn, owner],
  });
  return rows.length === 1;
}

/** Adds a late answer that contradicts the final state to the timeline, for people to see. Only the first one is kept. */
export async function recordContradiction(db: Database, txn: string, text: string, entry: string): Promise<void> {
  await db.run({
    name: 'record-contradiction',
    text: `with recorded as (
        insert into call_events (txn, event)
        select txn, jsonb_build_object('at', now(), 'what', 'contradiction', 'detail', $2::text) from settlements
        where txn = $1 on conflict (txn) where event ->> 'what' = 'contradiction' do nothing returning txn
      )
      insert into audit_queue (entry) select $3 from recorded`,
    values: [txn, text, entry],
  });
}
