import type { Database } from '../db.ts';

export interface Backlog {
  readonly held: number;
  readonly inDoubt: number;
  readonly underWay: number;
  /** Seconds since the oldest unowned call became due. */
  readonly recoveryLag: number;
  readonly auditQueue: number;
  /** More calls are open than `limit`, so the counts are too low. */
  readonly hasMore: boolean;
}

/**
 * Counts open calls and waiting audit entries, at most `limit` of each, so that a large backlog does not make the count slow.
 * The recovery lag is exact. Reads one snapshot and locks nothing.
 */
export async function readBacklog(db: Database, limit: number): Promise<Backlog> {
  const [row] = await db.run<Backlog>({
    name: 'read-backlog',
    text: `select
        count(*) filter (where o.state = 'held')::integer as held,
        count(*) filter (where o.state = 'in_doubt')::integer as "inDoubt",
        count(*) filter (where o.state in ('ready', 'sending', 'running'))::integer as "underWay",
        coalesce((select greatest(0, extract(epoch from now() - d.due_at)) from open_calls d
          where d.owner is null and d.due_at is not null order by d.due_at limit 1), 0)::float8 as "recoveryLag",
        count(*) >= $1 as "hasMore",
        (select count(*)::integer from (select from audit_queue limit $1) queued) as "auditQueue"
      from (select state from open_calls limit $1) o`,
    values: [limit],
  });
  return row ?? { held: 0, inDoubt: 0, underWay: 0, recoveryLag: 0, auditQueue: 0, hasMore: false };
}
