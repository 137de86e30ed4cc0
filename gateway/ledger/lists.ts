import type { Call } from '../domain/call.ts';
import { type CallState, isFinal } from '../domain/states.ts';
import { CALL_COLUMNS, CALLS, type CallRow, toCall } from './call-row.ts';
import type { Database } from './db.ts';

export interface CallFilter {
  readonly agent?: string | undefined;
  readonly tool?: string | undefined;
  readonly state?: CallState | undefined;
  readonly saga?: string | undefined;
  readonly run?: string | undefined;
  readonly since?: Date | undefined;
  readonly cursor?: string | undefined;
  readonly limit: number;
}

export interface CallPage {
  readonly items: readonly Call[];
  /** Where the next page starts; null on the last one. */
  readonly cursor: string | null;
}

/**
 * Rows before a cursor, in the order of a time and an id; without one, all of them. Always a comparison of rows and never
 * `is null or`: only so can a plan that was made once go through the index instead of through everything.
 */
export function before(time: string, id: string, micros: string, last: string): string {
  const at = `case when ${micros}::bigint is null then 'infinity'::timestamptz
      else to_timestamp(${micros}::bigint / 1000000) + (${micros}::bigint % 1000000) * interval '1 microsecond' end`;
  return `(${time}, ${id}) < (${at}, coalesce(${last}::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))`;
}

/** Few calls are open, whatever the size of the ledger: they are found among themselves. */
const OPEN_ONLY = 'c.txn = any (array(select txn from open_calls))';

/** Newest first. The cursor is the position of the last row seen, so pages stay whole while calls come in. */
export async function listCalls(db: Database, filter: CallFilter): Promise<CallPage> {
  const [micros, txn] = filter.cursor?.split('.') ?? [];
  const isOpen = filter.state !== undefined && !isFinal(filter.state);
  const rows = await db.run<CallRow & { position: string }>({
    name: `list-calls${isOpen ? '-open' : ''}${filter.agent === undefined ? '' : '-of-agent'}${filter.saga === undefined ? '' : '-of-saga'}${filter.run === undefined ? '' : '-of-run'}`,
    text: `select ${CALL_COLUMNS}, (extract(epoch from created_at) * 1000000)::bigint || '.' || c.txn as position from ${CALLS}
      where ${filter.agent === undefined ? '$1::text is null' : 'c.agent = $1::text'}
        and ${filter.saga === undefined ? '$8::uuid is null' : 'c.saga = $8::uuid'}
        and ${filter.run === undefined ? '$9::uuid is null' : 'c.run = $9::uuid'}
        and ($2::text is null or tool = $2) and ($3::text is null or state = $3) and ($4::timestamptz is null or created_at >= $4)
        and ${before('c.created_at', 'c.txn', '$5', '$6')} and ${isOpen ? OPEN_ONLY : 'true'}
      order by c.created_at desc, c.txn desc limit $7`,
    values: [
      filter.agent ?? null,
      filter.tool ?? null,
      filter.state ?? null,
      filter.since ?? null,
      micros ?? null,
      txn ?? null,
      filter.limit + 1,
      filter.saga ?? null,
      filter.run ?? null,
    ],
  });
  const items = rows.slice(0, filter.limit);
  return {
    items: items.map(toCall),
    cursor: rows.length > filter.limit ? (items.at(-1)?.position ?? null) : null,
  };
}

const CURSOR = /^\d{1,16}\.[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export function isCursor(text: string): boolean {
  return CURSOR.test(text);
}
