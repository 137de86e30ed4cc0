import type { CallState } from '../domain/calls/call-state.ts';
import type { Database } from './db.ts';

/** Calls of one tool in one state that began in the same minute. */
export interface CallCount {
  readonly tool: string;
  readonly state: CallState;
  /** How many whole minutes ago; 60 for everything between an hour and a day ago. */
  readonly minutes: number;
  readonly calls: number;
  readonly oldest: Date;
}

/**
 * The newest calls of the last day, counted, but never more than `most`: the index gives them newest first, so what this costs
 * does not grow with the ledger.
 */
export function countRecentCalls(db: Database, most: number): Promise<readonly CallCount[]> {
  return db.run<CallCount>({
    name: 'tally-calls',
    text: `with newest as materialized (
        select tool, state, created_at from calls where created_at > now() - interval '1 day' order by created_at desc limit $1
      )
      select tool, state, least(60, greatest(0, floor(extract(epoch from now() - created_at) / 60)))::integer as minutes,
        count(*)::integer as calls, min(created_at) as oldest
      from newest group by 1, 2, 3`,
    values: [most],
  });
}

export interface WaitingCounts {
  readonly approvals: number;
  readonly sagasOpen: number;
  readonly sagasRollingBack: number;
  readonly sagasParked: number;
}

/** What waits for somebody, up to `most` of each: all of it is found in indexes that hold little else. */
export async function countWaiting(db: Database, most: number): Promise<WaitingCounts> {
  const sagas = (state: string) =>
    `(select count(*)::integer from (select from sagas where state = '${state}' limit $1) found)`;
  const [row] = await db.run<WaitingCounts>({
    name: 'count-waiting',
    text: `select (select count(*)::integer from (select from approvals where state = 'pending' limit $1) found) as approvals,
      ${sagas('open')} as "sagasOpen", ${sagas('rolling_back')} as "sagasRollingBack", ${sagas('parked')} as "sagasParked"`,
    values: [most],
  });
  return row ?? { approvals: 0, sagasOpen: 0, sagasRollingBack: 0, sagasParked: 0 };
}

export interface LiveProcess {
  readonly id: string;
  readonly pid: number;
  readonly startedAt: Date;
}

/** Processes that hold a lease now, the longest-lived first. */
export function listLiveProcesses(db: Database, most: number): Promise<readonly LiveProcess[]> {
  return db.run<LiveProcess>({
    name: 'living-processes',
    text: `select id, pid, started_at as "startedAt" from processes
      where lease_until > now() and ended_at is null order by started_at, id limit $1`,
    values: [most],
  });
}
