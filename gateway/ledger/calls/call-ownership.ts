import type { Call } from '../../domain/calls/call.ts';
import type { Database } from '../db.ts';
import { CALL_COLUMNS, CALLS_WITH_OWNER, type CallRow, toCall } from './call-row.ts';

/** How many calls one sweep takes over: small enough that several replicas share the work. */
const MAX_TAKEN_PER_SWEEP = 256;
/** What others are just taking is passed over, so it looks at more than it takes. */
const MAX_SCANNED_PER_SWEEP = 4 * MAX_TAKEN_PER_SWEEP;

/**
 * Who owns open calls, from one to the next through the index: a living process may own thousands, and leaves as many dead rows
 * behind every second. None of them is looked at.
 */
const OWNERS_CTE = `owners(id) as (
          (select owner from open_calls where owner is not null order by owner limit 1)
          union all
          select (select owner from open_calls where owner > w.id order by owner limit 1) from owners w where w.id is not null
        )`;

const buildOwnerGoneCondition = (owner: string) =>
  `not exists (select 1 from processes p where p.id = ${owner} and p.lease_until > now() and p.ended_at is null)`;

/**
 * Takes over open calls that nobody looks after: their owner's lease lapsed, or their time has come. An attempt that its
 * owner left open is closed as unknown here, once, whatever crashes afterwards: the fence grows, so the old owner can
 * change nothing any more, and the next taker finds an ordinary closed attempt.
 */
export async function takeOverCalls(
  db: Database,
  owner: string,
  entryOf: (txn: string) => string,
): Promise<readonly Call[]> {
  return db.transaction(async (tx) => {
    const taken = await tx.run<{ txn: string; from: string | null }>({
      name: 'take-over',
      text: `with recursive ${OWNERS_CTE}, found as materialized (
          (select txn from open_calls where owner is null and due_at <= now() order by due_at limit ${MAX_SCANNED_PER_SWEEP})
          union all
          (select o.txn from owners w cross join lateral (
              select txn from open_calls where owner = w.id limit ${MAX_SCANNED_PER_SWEEP}
            ) o where w.id <> $1 and ${buildOwnerGoneCondition('w.id')} limit ${MAX_SCANNED_PER_SWEEP})
        ), free as (
          select o.txn, o.owner as previous from open_calls o join calls c on c.txn = o.txn
          -- Of both, or a plan that was made while the tables were empty walks one of them to find the other.
          where o.txn = any (array(select txn from found)) and c.txn = any (array(select txn from found))
            and ((o.owner is null and o.due_at <= now()) or (o.owner is not null and o.owner <> $1 and ${buildOwnerGoneCondition('o.owner')}))
          order by o.txn limit ${MAX_TAKEN_PER_SWEEP}
          for update of o, c skip locked
        )
        update open_calls o set owner = $1, due_at = null from free f where f.txn = o.txn returning o.txn, f.previous as from`,
      values: [owner],
    });
    if (taken.length === 0) return [];
    await tx.run({
      name: 'close-orphaned-attempts',
      text: `update calls c set
          fence = c.fence + 1,
          unresolved = c.unresolved + (c.attempt_open and c.kind <> 'read')::int,
          unknown_since = case when c.attempt_open and c.kind <> 'read' then now() else c.unknown_since end,
          attempt_open = false,
          owner_deaths = c.owner_deaths + (t.previous is not null)::int,
          events = case when t.previous is null then c.events else c.events || jsonb_build_array(jsonb_build_object(
            'at', now(), 'what', 'taken_over', 'attempt', c.attempt, 'from', t.previous)) end
        from unnest($1::uuid[], $2::uuid[]) as t(txn, previous)
        where c.txn = t.txn and c.settled_at is null`,
      values: [taken.map((t) => t.txn), taken.map((t) => t.from)],
    });
    const rows = await tx.run<CallRow>({
      name: 'read-taken',
      text: `select ${CALL_COLUMNS} from ${CALLS_WITH_OWNER} where c.txn = any($1::uuid[]) and c.settled_at is null`,
      values: [taken.map((t) => t.txn)],
    });
    const orphans = taken.filter((t) => t.from !== null).map((t) => entryOf(t.txn));
    if (orphans.length > 0) {
      await tx.run({
        name: 'log-entries',
        text: `insert into audit_queue (entry) select unnest($1::text[])`,
        values: [orphans],
      });
    }
    return rows.map(toCall);
  });
}

/** Hands the calls of a process that ends cleanly to whoever is there: they are due at once. */
export async function handOverCalls(db: Database, owner: string): Promise<void> {
  await db.run({
    name: 'hand-over',
    text: `update open_calls o set owner = null, due_at = now() from calls c
      where o.owner = $1 and c.txn = o.txn and not c.attempt_open`,
    values: [owner],
  });
}

/** Unbinds a claim of which it is certain that nothing was ever sent: the key may be used as if never seen. */
export async function releaseClaim(
  db: Database,
  claim: { readonly txn: string; readonly owner: string | null; readonly fence: number },
  entry: string,
): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'release',
    text: `with dropped as (
        delete from calls c using open_calls o
        where c.txn = $1 and o.txn = c.txn and o.owner is not distinct from $2::uuid and c.fence = $4 and c.settled_at is null and c.unresolved = 0
        returning c.txn
      ), closed as (
        delete from open_calls o using dropped d where o.txn = d.txn
      ), refunded as (
        delete from spends s using dropped d where s.txn = d.txn
      ), undecided as (
        delete from approvals a using dropped d where a.txn = d.txn
      ), unvoted as (
        delete from votes v using dropped d where v.txn = d.txn
      ), unjoined as (
        delete from joins j using dropped d where j.txn = d.txn
      ), unaliased as (
        delete from aliases a using dropped d where a.txn = d.txn
      ), logged as (
        insert into audit_queue (entry) select $3 from dropped
      )
      select txn from dropped`,
    values: [claim.txn, claim.owner, entry, claim.fence],
  });
  return rows.length === 1;
}

/** Every open call that is in this process's name. */
export async function listOwnedCalls(db: Database, owner: string): Promise<readonly string[]> {
  const rows = await db.run<{ txn: string }>({
    name: 'owned-calls',
    text: 'select txn from open_calls where owner = $1',
    values: [owner],
  });
  return rows.map((row) => row.txn);
}

/** Gives up a call that is in this process's name and not in its hands: it is taken over as from the dead. */
export async function orphanCall(db: Database, txn: string, owner: string): Promise<void> {
  await db.run({
    name: 'disown',
    text: `update open_calls set owner = '00000000-0000-0000-0000-000000000000' where txn = $1 and owner = $2`,
    values: [txn, owner],
  });
}

/** Looks at a call again later. Nothing about it changed, so nothing is logged. */
export async function postponeCall(db: Database, txn: string, owner: string, ms: number): Promise<void> {
  await db.run({
    name: 'postpone',
    text: `update open_calls set owner = null, due_at = now() + $3 * interval '1 ms' where txn = $1 and owner = $2`,
    values: [txn, owner, ms],
  });
}

/** After a T1 whose commit is unknown: whether the claim is there and in these hands (null: in nobody's, as what is held). */
export async function isOwnedBy(db: Database, txn: string, owner: string | null): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'owned-by',
    text: `select txn from open_calls where txn = $1 and owner is not distinct from $2::uuid`,
    values: [txn, owner],
  });
  return rows.length === 1;
}

/** An answer that says otherwise than the final state came too late: kept beside it, for a person to see. */
export async function recordContradiction(db: Database, txn: string, text: string, entry: string): Promise<void> {
  await db.run({
    name: 'note-contradiction',
    text: `with noted as (
        update calls set contradiction = $2 where txn = $1 and contradiction is null returning txn
      )
      insert into audit_queue (entry) select $3 from noted`,
    values: [txn, text, entry],
  });
}
