import { History, type HistoryQuery } from '../../domain/calls/history.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { GroupCommit } from '../group-commit.ts';
import { lockBucket } from './limits.ts';

/** The history of an agent, as one call sees it. */
export interface HistoryRequest {
  readonly agent: string;
  readonly queries: readonly HistoryQuery[];
  /** The call that is being decided. It is not part of its own history. */
  readonly exceptTxn: string | null;
  /** The end of the history, for a call that was claimed earlier. Absent: now. */
  readonly asOf?: Date | undefined;
}

/**
 * The arguments without the escape \u0000, which PostgreSQL's JSON refuses. Sums are not affected, because no number contains it.
 * The pattern skips `\\` as a pair: in `\\u0000` the backslash is escaped, so the text stays.
 */
const READABLE_ARGS = `case when strpos(c.args, '\\u0000') = 0 then c.args
  else regexp_replace(c.args, '(\\\\\\\\)|\\\\u0000', '\\1', 'g') end`;

/**
 * Counts and sums the calls of an agent through the index of its calls, whatever rule or policy allowed them. Calls that provably
 * had no effect, and compensations, do not count. A negative amount counts as zero. An erased amount, or one that is not a
 * number, makes the sum unknown. Exact only under the lock of `lockAndReadHistory`; without it, a snapshot.
 */
export async function readHistory(
  db: Queryable,
  { agent, queries, exceptTxn, asOf }: HistoryRequest,
): Promise<History> {
  const rows = await db.run<{ place: number; calls: number; total: number | null; unknown: boolean }>({
    name: 'read-history',
    text: `select q.place::int as place, p.calls, p.total, p.unknown
      from unnest($2::text[], $3::float8[], $4::text[]) with ordinality as q(pattern, ms, path, place)
      cross join lateral (
        select count(*)::int as calls,
          sum(case when json_typeof(found) = 'number' then greatest(0, (found #>> '{}')::numeric) end)::float8 as total,
          coalesce(bool_or(args is null or json_typeof(found) not in ('number', 'null')), false) as unknown
        from (
          select c.args, case when q.path is not null then (${READABLE_ARGS})::json #> q.path::text[] end as found from calls c
          where c.agent = $1 and c.created_at > coalesce($6::timestamptz, now()) - q.ms * interval '1 ms'
            and ($6::timestamptz is null or c.created_at <= $6) and c.tool like q.pattern
            and c.txn is distinct from $5::uuid and c.undo_of is null
            and not exists (select 1 from settlements r where r.txn = c.txn and r.state <> 'succeeded')
          -- Keeps the planner from inlining the subquery, which would parse the arguments once for each use.
          offset 0
        ) c
      ) p`,
    values: [
      agent,
      queries.map(({ glob }) => glob.replaceAll('_', '\\_').replaceAll('*', '%')),
      queries.map(({ windowMs }) => windowMs),
      queries.map(({ sum }) => (sum === undefined ? null : `{${sum.map((part) => `"${part}"`).join(',')}}`)),
      exceptTxn,
      asOf ?? null,
    ],
  });
  return new History(
    rows.flatMap(({ place, calls, total, unknown }) => {
      const query = queries[place - 1];
      if (query === undefined) return [];
      const answer = query.sum === undefined ? calls : unknown ? 'unknown' : (total ?? 0);
      return [[query.text, answer] as const];
    }),
  );
}

/** Two reads of one agent at once: an agent with a long history must not occupy all connections. */
const AGENT_QUEUE = { maxBatch: 1, maxInFlight: 2 };

/** Reads histories outside of claims, at most two of one agent at once. */
export class HistoryReader {
  readonly #db: Database;
  /** By agent. Policies name finitely many, so the map stays small. */
  readonly #queues = new Map<string, GroupCommit<HistoryRequest, History>>();

  constructor(db: Database) {
    this.#db = db;
  }

  read(request: HistoryRequest): Promise<History> {
    let queue = this.#queues.get(request.agent);
    if (queue === undefined) {
      queue = new GroupCommit({
        ...AGENT_QUEUE,
        run: (requests) => Promise.all(requests.map((each) => readHistory(this.#db, each))),
      });
      this.#queues.set(request.agent, queue);
    }
    return queue.submit(request);
  }
}

/**
 * Reads the history in the transaction of a claim, under a lock for the agent. Other claims whose rules use history wait for the
 * lock and then count this call. So two concurrent calls cannot both be the last one allowed.
 */
export async function lockAndReadHistory(tx: Tx, request: HistoryRequest): Promise<History> {
  await lockBucket(tx, `history/${request.agent}`);
  return readHistory(tx, request);
}
