import type { CallState } from '../domain/calls/call-state.ts';
import type { Database } from './db.ts';

/** The number of calls of one tool in one state that began in the same minute. */
export interface CallCount {
  readonly tool: string;
  readonly state: CallState;
  /** Age in whole minutes; 60 stands for everything between an hour and a day. */
  readonly minutes: number;
  readonly calls: number;
  readonly oldest: Date;
}

/**
 * Counts the newest calls of the last day, at most `limit` of them. The index yields them newest first, so the cost does not
 * grow with the ledger. Reads one snapshot and locks nothing.
 */
export function countRecentCalls(db: Database, limit: number): Promise<readonly CallCount[]> {
  return db.run<CallCount>({
    name: 'count-recent-calls',
    text: `with newest as materialized (
        select c.tool, coalesce(r.state::text, o.state::text) as state, c.created_at
        from calls c left join settlements r on r.txn = c.txn left join open_calls o on o.txn = c.txn
        where c.created_at > now() - interval '1 day' order by c.created_at desc limit $1
      )
      select tool, state, least(60, greatest(0, floor(extract(epoch from now() - created_at) / 60)))::integer as minutes,
        count(*)::integer as calls, min(created_at) as oldest
      from newest group by 1, 2, 3`,
    values: [limit],
  });
}

export interface WaitingCounts {
  readonly approvals: number;
  readonly sagasOpen: number;
  readonly sagasRollingBack: number;
  readonly sagasParked: number;
}

/**
 * Counts pending approvals and unfinished sagas, at most `limit` of each. Indexes find them by
 * state. Reads one snapshot and locks nothing.
 */
export async function countWaiting(db: Database, limit: number): Promise<WaitingCounts> {
  const sagas = (state: string) =>
    `(select count(*)::integer from (select from sagas where state = '${state}' limit $1) found)`;
  const [row] = await db.run<WaitingCounts>({
    name: 'count-waiting',
    text: `select (select count(*)::integer from (select from approvals where state = 'pending' limit $1) found) as approvals,
      ${sagas('open')} as "sagasOpen", ${sagas('rolling_back')} as "sagasRollingBack", ${sagas('parked')} as "sagasParked"`,
    values: [limit],
  });
  return row ?? { approvals: 0, sagasOpen: 0, sagasRollingBack: 0, sagasParked: 0 };
}

export interface LiveProcess {
  readonly id: string;
  readonly pid: number;
  readonly startedAt: Date;
}

/** Lists processes that hold a lease, the oldest first. Reads without locking: the list may be outdated on arrival. */
export function listLiveProcesses(db: Database, limit: number): Promise<readonly LiveProcess[]> {
  return db.run<LiveProcess>({
    name: 'list-live-processes',
    text: `select id, pid, started_at as "startedAt" from processes
      where lease_until > now() and ended_at is null order by started_at, id limit $1`,
    values: [limit],
  });
}
