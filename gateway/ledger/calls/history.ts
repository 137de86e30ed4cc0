import { History, type HistoryQuery } from '../../domain/calls/history.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { GroupCommit } from '../group-commit.ts';
import { lockBucket } from './limits.ts';

/** Whose past, as seen by which call. */
export interface HistoryRequest {
  readonly agent: string;
  readonly queries: readonly HistoryQuery[];
  /** The call that asks: it is no part of its own past. */
  readonly exceptTxn: string | null;
  /** Of a call that was claimed before: the past is that of its claim. Absent: now. */
  readonly asOf?: Date | undefined;
}

/**
 * Arguments as JSON that PostgreSQL reads: it refuses \u0000, which is in no number. A backslash that is escaped itself is
 * skipped with its pair, so that what follows it is not taken for the escape.
 */
const READABLE_ARGS = `case when strpos(c.args, '\\u0000') = 0 then c.args
  else regexp_replace(c.args, '(\\\\\\\\)|\\\\u0000', '\\1', 'g') end`;

/**
 * Counts what an agent did, over the index of its calls: whatever it did counts, under whichever rule and policies, and a call
 * that no rule asks about pays nothing for it. Left out is what provably had no effect, and what the gateway did by itself to
 * undo something. A negative amount counts as nothing; one that is erased by now, or no number, makes the sum unknown.
 */
export async function readHistory(
  db: Queryable,
  { agent, queries: questions, exceptTxn: besides, asOf }: HistoryRequest,
): Promise<History> {
  const rows = await db.run<{ place: number; calls: number; total: number | null; unknown: boolean }>({
    name: 'read-past',
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
            and c.state not in ('failed', 'rejected', 'expired', 'cancelled')
          -- Arguments are read once, and not by each of those that ask.
          offset 0
        ) c
      ) p`,
    values: [
      agent,
      questions.map(({ glob }) => glob.replaceAll('_', '\\_').replaceAll('*', '%')),
      questions.map(({ windowMs }) => windowMs),
      questions.map(({ sum }) => (sum === undefined ? null : `{${sum.map((part) => `"${part}"`).join(',')}}`)),
      besides,
      asOf ?? null,
    ],
  });
  return new History(
    rows.flatMap(({ place, calls, total, unknown }) => {
      const question = questions[place - 1];
      if (question === undefined) return [];
      const answer = question.sum === undefined ? calls : unknown ? 'unknown' : (total ?? 0);
      return [[question.text, answer] as const];
    }),
  );
}

/** Two at once of one agent: whoever has a long past, and asks often, must not keep the connections of all others busy. */
const AGENT_QUEUE = { maxBatch: 1, maxInFlight: 2 };

export class HistoryReader {
  readonly #db: Database;
  /** By agent; there are as many as the policies ever named. */
  readonly #queues = new Map<string, GroupCommit<HistoryRequest, History>>();

  constructor(db: Database) {
    this.#db = db;
  }

  read(looking: HistoryRequest): Promise<History> {
    let lane = this.#queues.get(looking.agent);
    if (lane === undefined) {
      lane = new GroupCommit({
        ...AGENT_QUEUE,
        run: (all) => Promise.all(all.map((each) => readHistory(this.#db, each))),
      });
      this.#queues.set(looking.agent, lane);
    }
    return lane.submit(looking);
  }
}

/**
 * The same in the transaction of a claim, behind the agent's row: whoever else claims under a rule that asks waits, and then
 * counts this call. So of two at once that would both be the last one allowed, one is not.
 */
export async function lockAndReadHistory(tx: Tx, looking: HistoryRequest): Promise<History> {
  await lockBucket(tx, `history/${looking.agent}`);
  return readHistory(tx, looking);
}
