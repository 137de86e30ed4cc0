import { buildAuditEntry } from '../../domain/audit/audit.ts';
import type { Database } from '../db.ts';

/** What is left of a call without its payload is a tombstone. */
const ERASE_ASSIGNMENTS = `args = null, request = null, sealed = null, answer = null, key = null, detail = null, events = '[]',
  undo = null, undo_args = null, undo_sealed = null, before = null, undo_reason = null, erased_at = now()`;

/** What was shown, said and told about calls that are `erased`. */
const ERASE_RELATED_CTES = `forgotten as (
        update approvals a set shown = null from erased e where e.txn = a.txn
      ), unsaid as (
        update votes v set reason = '' from erased e where e.txn = v.txn
      ), untold as (
        delete from notices n using erased e where e.txn = n.txn
      )`;

/** Small enough that a sweep never holds row locks for long beside live calls. */
const MAX_CALLS_PER_SWEEP = 500;

/**
 * Erases the payloads of calls that were settled longer ago than `payloadsMs`; the row stays as a tombstone. The sweep
 * walks calls in the order they came; those still open when it passes are remembered and looked at again. Returns how
 * many calls it looked at: less than a full batch means it has caught up.
 */
export async function eraseExpiredPayloads(db: Database, payloadsMs: number): Promise<number> {
  return db.transaction(async (tx) => {
    const passed = await tx.run<{ txn: string; created_at: Date }>({
      name: 'sweep-window',
      text: `select c.txn from calls c
        where (c.created_at, c.txn) > (coalesce((select through_at from sweeps where name = 'payloads' for update), '-infinity'), '00000000-0000-0000-0000-000000000000')
          and c.created_at < now() - $1 * interval '1 ms'
        order by c.created_at, c.txn limit ${MAX_CALLS_PER_SWEEP}`,
      values: [payloadsMs],
    });
    const txns = passed.map((row) => row.txn);
    const [swept] = await tx.run<{ erased: number }>({
      name: 'sweep-erase',
      text: `with candidates as (
          select unnest($2::uuid[]) as txn union select txn from (
            select l.txn from sweep_later l join calls s on s.txn = l.txn and s.settled_at < now() - $1 * interval '1 ms'
            where s.undo_state not in ('due', 'running')
              and (s.saga is null or exists (select 1 from sagas g where g.id = s.saga and g.ended_at < now() - $1 * interval '1 ms'))
            order by l.txn limit ${MAX_CALLS_PER_SWEEP}) l
        ), ripe as (
          -- What may still have to be undone is kept.
          select c.txn, c.settled_at is not null and c.settled_at < now() - $1 * interval '1 ms'
            and c.undo_state not in ('due', 'running') and (c.saga is null or exists (select 1 from sagas s where s.id = c.saga and s.ended_at < now() - $1 * interval '1 ms')) as erase
          from candidates join calls c using (txn)
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
    const erased = swept?.erased ?? 0;
    if (erased > 0) {
      const entry = buildAuditEntry('payloads_expired', { calls: erased, afterMs: payloadsMs });
      await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
    }
    if (txns.length > 0) {
      await tx.run({
        name: 'sweep-mark',
        text: `insert into sweeps (name, through_at) select 'payloads', created_at from calls where txn = $1
          on conflict (name) do update set through_at = excluded.through_at where sweeps.through_at < excluded.through_at`,
        values: [txns.at(-1)],
      });
    }
    return txns.length;
  });
}

/**
 * Erases payloads before their time, each with its entry in the log. Answers those it erased: not what is open, may still be
 * undone, or was erased before.
 */
export async function eraseCalls(db: Database, calls: readonly { txn: string; entry: string }[]): Promise<string[]> {
  const rows = await db.run<{ txn: string }>({
    name: 'erase-calls',
    text: `with wish as (
        select * from unnest($1::uuid[], $2::text[]) as t(txn, entry)
      ), erased as (
        update calls c set ${ERASE_ASSIGNMENTS} from wish w
        where c.txn = w.txn and c.settled_at is not null and c.erased_at is null and c.undo_state not in ('due', 'running')
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

/** What an agent wrote about a saga that is over. */
export async function eraseSaga(db: Database, id: string): Promise<void> {
  await db.run({
    name: 'forget-saga',
    text: `with over as (
        update sagas set name = null, key = null, reason = null where id = $1 and ended_at is not null returning id
      )
      delete from savepoints p using over o where p.saga = o.id`,
    values: [id],
  });
}

/** What an agent kept in its runs and wrote about its sagas that are over; from runs that go on nothing is taken away. */
export async function eraseAgent(db: Database, agent: string): Promise<void> {
  await db.run({
    name: 'forget-agent',
    text: `with runs_forgotten as (
        update runs set checkpoint = null, checkpoint_at = null where agent = $1 and ended_at is not null
      ), over as (
        update sagas set name = null, key = null, reason = null where agent = $1 and ended_at is not null returning id
      )
      delete from savepoints p using over o where p.saga = o.id`,
    values: [agent],
  });
}

/** Runs of an agent that go on, and keep what they keep. */
export async function listUnfinishedRuns(db: Database, agent: string, most: number): Promise<string[]> {
  const rows = await db.run<{ id: string }>({
    name: 'unfinished-runs',
    text: 'select id from runs where agent = $1 and ended_at is null order by id limit $2',
    values: [agent, most],
  });
  return rows.map(({ id }) => id);
}

/** Checkpoints of runs that ended longer ago than payloads are kept. */
export async function eraseRunCheckpoints(db: Database, payloadsMs: number): Promise<void> {
  await db.run({
    name: 'forget-checkpoints',
    text: `update runs set checkpoint = null, checkpoint_at = null
      where ended_at < now() - $1 * interval '1 ms' and checkpoint is not null`,
    values: [payloadsMs],
  });
}

/** Drops tombstones older than `keysMs`. Only if the operator set a limit: afterwards an old key is new again. */
export async function dropTombstones(db: Database, keysMs: number): Promise<number> {
  const rows = await db.run<{ txn: string }>({
    name: 'drop-tombstones',
    text: `with dropped as (
        delete from calls where txn in (
          select txn from calls where created_at < now() - $1 * interval '1 ms' and erased_at is not null
          order by created_at limit ${MAX_CALLS_PER_SWEEP} for update skip locked)
        returning txn
      ), approvals_too as (
        delete from approvals a using dropped d where a.txn = d.txn
      ), votes_too as (
        delete from votes v using dropped d where v.txn = d.txn
      ), joins_too as (
        delete from joins j using dropped d where j.txn = d.txn
      ), aliases_too as (
        delete from aliases a using dropped d where a.txn = d.txn
      ), sagas_too as (
        delete from sagas where id in (select id from sagas where created_at < now() - $1 * interval '1 ms' and ended_at < now() - $1 * interval '1 ms'
          and not exists (select 1 from calls c where c.saga = sagas.id and c.erased_at is null) order by created_at limit ${MAX_CALLS_PER_SWEEP})
      )
      select txn from dropped`,
    values: [keysMs],
  });
  return rows.length;
}
