import { buildAuditEntry } from '../../domain/audit/audit.ts';
import { insertAuditEntry } from '../audit/audit-queue.ts';
import type { Database, Tx } from '../db.ts';

/** Removes the payload of an intent. The rest of the row is the tombstone of the call. */
const ERASE_ASSIGNMENTS = 'key = null, args = null, request = null, sealed = null, undo = null, erased_at = now()';

/** Removes the other payloads of the calls in `erased`. */
const ERASE_RELATED_CTES = `erased_settlements as (
        update settlements r set detail = null, answer = null from erased e where e.txn = r.txn
      ), erased_undos as (
        update undos u set args = null, sealed = null, before = null, reason = null from erased e where e.txn = u.txn
      ), deleted_events as (
        delete from call_events v using erased e where e.txn = v.txn
      ), erased_approvals as (
        update approvals a set shown = null from erased e where e.txn = a.txn
      ), erased_votes as (
        update votes v set reason = '' from erased e where e.txn = v.txn
      ), deleted_notices as (
        delete from notices n using erased e where e.txn = n.txn
      )`;

/** Small, so that a sweep holds its row locks only briefly beside live calls. */
const MAX_CALLS_PER_SWEEP = 500;

/**
 * Erases the payloads of calls that were settled longer than `payloadsMs` ago; the row stays as a tombstone. The sweep walks
 * calls in the order of their creation. Calls that cannot be erased yet go to `sweep_later` and are tried again. Returns how
 * many new calls it passed: fewer than a full batch means that it has caught up.
 */
export async function eraseExpiredPayloads(db: Database, payloadsMs: number): Promise<number> {
  return db.transaction(async (tx) => {
    const txns = await lockSweepAndListCalls(tx, payloadsMs);
    const erased = await eraseDueCalls(tx, payloadsMs, txns);
    if (erased > 0)
      await insertAuditEntry(tx, buildAuditEntry('payloads_expired', { calls: erased, afterMs: payloadsMs }));
    const last = txns.at(-1);
    if (last !== undefined) await advanceSweep(tx, last);
    return txns.length;
  });
}

/** Lists the next calls of the sweep. Locks the row of the sweep, so that two replicas do not sweep the same calls. */
async function lockSweepAndListCalls(tx: Tx, payloadsMs: number): Promise<readonly string[]> {
  const rows = await tx.run<{ txn: string }>({
    name: 'sweep-window',
    text: `select c.txn from calls c
        where (c.created_at, c.txn) > (coalesce((select through_at from sweeps where name = 'payloads' for update), '-infinity'), '00000000-0000-0000-0000-000000000000')
          and c.created_at < now() - $1 * interval '1 ms'
        order by c.created_at, c.txn limit ${MAX_CALLS_PER_SWEEP}`,
    values: [payloadsMs],
  });
  return rows.map((row) => row.txn);
}

/**
 * Erases the payloads of `txns` and of calls in `sweep_later` whose retention is over. Skips a call that is open, whose undo is
 * due or running, or whose saga may still roll back. A settled call never reopens; `erased_at is null` lets one replica erase it.
 */
async function eraseDueCalls(tx: Tx, payloadsMs: number, txns: readonly string[]): Promise<number> {
  const [swept] = await tx.run<{ erased: number }>({
    name: 'sweep-erase',
    text: `with candidates as (
          select unnest($2::uuid[]) as txn union select txn from (
            select l.txn from sweep_later l join settlements r on r.txn = l.txn and r.settled_at < now() - $1 * interval '1 ms'
            join calls s on s.txn = l.txn left join undos u on u.txn = l.txn
            where coalesce(u.state not in ('due', 'running'), true)
              and (s.saga is null or exists (select 1 from sagas g where g.id = s.saga and g.ended_at < now() - $1 * interval '1 ms'))
            order by l.txn limit ${MAX_CALLS_PER_SWEEP}) l
        ), ripe as (
          -- Keeps payloads that an undo may still need.
          select c.txn, coalesce(r.settled_at < now() - $1 * interval '1 ms', false)
            and coalesce(u.state not in ('due', 'running'), true)
            and (c.saga is null or exists (select 1 from sagas s where s.id = c.saga and s.ended_at < now() - $1 * interval '1 ms')) as erase
          from candidates join calls c using (txn) left join settlements r using (txn) left join undos u using (txn)
        ), erased as (
          update calls c set ${ERASE_ASSIGNMENTS}
          from ripe r where r.txn = c.txn and r.erase and c.erased_at is null
          returning c.txn
        ), ${ERASE_RELATED_CTES}, done as (
          delete from sweep_later l using ripe r where r.txn = l.txn and r.erase
        ), postponed as (
          insert into sweep_later select txn from ripe where not erase on conflict do nothing
        )
        select count(*)::int as erased from erased`,
    values: [payloadsMs, txns],
  });
  return swept?.erased ?? 0;
}

/** Moves the sweep to the creation time of this call. It never moves back, whichever replica commits last. */
async function advanceSweep(tx: Tx, txn: string): Promise<void> {
  await tx.run({
    name: 'sweep-mark',
    text: `insert into sweeps (name, through_at) select 'payloads', created_at from calls where txn = $1
          on conflict (name) do update set through_at = excluded.through_at where sweeps.through_at < excluded.through_at`,
    values: [txn],
  });
}

/**
 * Erases payloads before their time, each with its audit entry. Returns the erased txns. It skips calls that are open, may still
 * be undone, or are erased already; the conditions and the update are one statement, so two requests erase a call once.
 */
export async function eraseCalls(db: Database, calls: readonly { txn: string; entry: string }[]): Promise<string[]> {
  const rows = await db.run<{ txn: string }>({
    name: 'erase-calls',
    text: `with requested as (
        select * from unnest($1::uuid[], $2::text[]) as t(txn, entry)
      ), erased as (
        update calls c set ${ERASE_ASSIGNMENTS} from requested w join settlements r on r.txn = w.txn left join undos u on u.txn = w.txn
        where c.txn = w.txn and c.erased_at is null and coalesce(u.state not in ('due', 'running'), true)
          and (c.saga is null or exists (select 1 from sagas s where s.id = c.saga and s.ended_at is not null))
        returning c.txn, w.entry
      ), ${ERASE_RELATED_CTES}, done as (
        delete from sweep_later l using erased e where e.txn = l.txn
      ), logged as (
        insert into audit_queue (entry) select entry from erased
      )
      select txn from erased`,
    values: [calls.map(({ txn }) => txn), calls.map(({ entry }) => entry)],
  });
  return rows.map(({ txn }) => txn);
}

/** Erases the texts that an agent wrote about an ended saga. An ended saga never reopens. */
export async function eraseSaga(db: Database, id: string): Promise<void> {
  await db.run({
    name: 'erase-saga',
    text: `with ended as (
        update sagas set name = null, key = null, reason = null where id = $1 and ended_at is not null returning id
      )
      delete from savepoints p using ended o where p.saga = o.id`,
    values: [id],
  });
}

/** Erases the checkpoints of an agent's ended runs and the texts of its ended sagas. Runs that continue keep theirs. */
export async function eraseAgent(db: Database, agent: string): Promise<void> {
  await db.run({
    name: 'erase-agent',
    text: `with erased_runs as (
        update runs set checkpoint = null, checkpoint_at = null where agent = $1 and ended_at is not null
      ), ended as (
        update sagas set name = null, key = null, reason = null where agent = $1 and ended_at is not null returning id
      )
      delete from savepoints p using ended o where p.saga = o.id`,
    values: [agent],
  });
}

/** Lists runs of an agent that continue, so `eraseAgent` skipped them. A snapshot. */
export async function listUnfinishedRuns(db: Database, agent: string, limit: number): Promise<string[]> {
  const rows = await db.run<{ id: string }>({
    name: 'unfinished-runs',
    text: 'select id from runs where agent = $1 and ended_at is null order by id limit $2',
    values: [agent, limit],
  });
  return rows.map(({ id }) => id);
}

/** Erases the checkpoints of runs that ended longer ago than payloads are kept. A run that is taken again has no `ended_at`. */
export async function eraseRunCheckpoints(db: Database, payloadsMs: number): Promise<void> {
  await db.run({
    name: 'erase-run-checkpoints',
    text: `update runs set checkpoint = null, checkpoint_at = null
      where ended_at < now() - $1 * interval '1 ms' and checkpoint is not null`,
    values: [payloadsMs],
  });
}

/**
 * Deletes tombstones older than `keysMs`, with everything that refers to them. Runs only if the operator set a limit, because an
 * old key is then new again. `skip locked` leaves calls that another replica is deleting to that replica.
 */
export async function dropTombstones(db: Database, keysMs: number): Promise<number> {
  const rows = await db.run<{ txn: string }>({
    name: 'drop-tombstones',
    text: `with dropped as (
        delete from calls where txn in (
          select txn from calls where created_at < now() - $1 * interval '1 ms' and erased_at is not null
          order by created_at limit ${MAX_CALLS_PER_SWEEP} for update skip locked)
        returning txn
      ), dropped_settlements as (
        delete from settlements r using dropped d where r.txn = d.txn
      ), dropped_undos as (
        delete from undos u using dropped d where u.txn = d.txn
      ), dropped_events as (
        -- The erasure deleted the events before. A contradiction can come later.
        delete from call_events e using dropped d where e.txn = d.txn
      ), dropped_approvals as (
        delete from approvals a using dropped d where a.txn = d.txn
      ), dropped_votes as (
        delete from votes v using dropped d where v.txn = d.txn
      ), dropped_joins as (
        delete from joins j using dropped d where j.txn = d.txn
      ), dropped_aliases as (
        delete from aliases a using dropped d where a.txn = d.txn
      ), dropped_sagas as (
        delete from sagas where id in (select id from sagas where created_at < now() - $1 * interval '1 ms' and ended_at < now() - $1 * interval '1 ms'
          and not exists (select 1 from calls c where c.saga = sagas.id and c.erased_at is null) order by created_at limit ${MAX_CALLS_PER_SWEEP})
      )
      select txn from dropped`,
    values: [keysMs],
  });
  return rows.length;
}
