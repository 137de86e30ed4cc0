import type { Database } from './db.ts';

export interface Backlog {
  readonly held: number;
  readonly inDoubt: number;
  readonly underWay: number;
  readonly recoveryLag: number;
  readonly auditQueue: number;
}

/** More than this is much, however much it is: looking must cost little when things are bad. */
const MOST_COUNTED = 100_000;

export async function readBacklog(db: Database): Promise<Backlog> {
  const [row] = await db.run<Backlog>({
    name: 'read-backlog',
    text: `select
        count(*) filter (where c.state = 'held')::integer as held,
        count(*) filter (where c.state = 'in_doubt')::integer as "inDoubt",
        count(*) filter (where c.state in ('ready', 'sending'))::integer as "underWay",
        coalesce(extract(epoch from now() - min(o.due_at) filter (where o.owner is null and o.due_at < now())), 0)::float8
          as "recoveryLag",
        (select count(*)::integer from (select from audit_queue limit $1) queued) as "auditQueue"
      from (select * from open_calls limit $1) o join calls c using (txn)`,
    values: [MOST_COUNTED],
  });
  return row ?? { held: 0, inDoubt: 0, underWay: 0, recoveryLag: 0, auditQueue: 0 };
}
