import type { CallRecord } from '../../domain/calls/call-record.ts';
import { type CallState, isFinalState } from '../../domain/calls/call-state.ts';
import type { Database } from '../db.ts';
import { CALL_COLUMNS, CALLS_JOINED, type CallRow, toCallRecord } from './call-columns.ts';

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
  readonly items: readonly CallRecord[];
  /** Where the next page starts; null on the last one. */
  readonly cursor: string | null;
}

/**
 * Selects rows before a cursor, in the order of a time and an id; without a cursor, all rows. The condition is always a row
 * comparison and never `is null or`, because only a row comparison lets a generic plan use the index.
 */
export function buildCursorCondition(time: string, id: string, micros: string, last: string): string {
  const at = `case when ${micros}::bigint is null then 'infinity'::timestamptz
      else to_timestamp(${micros}::bigint / 1000000) + (${micros}::bigint % 1000000) * interval '1 microsecond' end`;
  return `(${time}, ${id}) < (${at}, coalesce(${last}::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))`;
}

/**
 * The limit of payload bytes of a page: 200 calls may hold half a gigabyte, and a listing must not stall the gateway. A page ends
 * with the item that reaches the limit, so it has at least one item, and its cursor leads to the rest.
 */
const MAX_PAGE_BYTES = 4 * 1024 * 1024;

/**
 * Marks the rows of `found` (id, time, bytes) that fit on a page, and counts all of them. PostgreSQL measures a text without
 * unpacking it, so texts that do not fit are never read.
 */
export function buildFittingQuery(id: string, time: string): string {
  return `select ${id}, count(*) over ()::int as found,
      coalesce(sum(bytes) over (order by ${time} desc, ${id} desc rows between unbounded preceding and 1 preceding), 0)
        < ${MAX_PAGE_BYTES} as fits
    from found`;
}

/** The items of a page and the cursor of the next page. The query reads one row beyond `limit` to see whether there is more. */
export function toPage<Row extends { readonly position: string; readonly found: number }>(
  rows: readonly Row[],
  limit: number,
): { readonly items: readonly Row[]; readonly cursor: string | null } {
  const items = rows.slice(0, limit);
  const found = rows[0]?.found ?? 0;
  return { items, cursor: found > items.length ? (items.at(-1)?.position ?? null) : null };
}

const CALL_BYTES_SQL = ['c.args', 'c.request', 'c.undo', 'c.sealed', 'r.answer', 'u.args', 'u.before', 'u.sealed']
  .map((column) => `coalesce(octet_length(${column}), 0)`)
  .join(' + ');

/** Starts from the open calls: few calls are open, whatever the size of the ledger. */
const OPEN_ONLY = `c.txn = any (array(select txn from open_calls where state = $3::open_state))`;
const ENDED_ONLY = 'r.state = $3::final_state';

/**
 * Lists calls, newest first. The cursor is the position of the last row, so new calls do not shift the pages. Each combination of
 * filters has its own statement, because one generic plan could not use the index of each filter. Locks nothing.
 */
export async function listCalls(db: Database, filter: CallFilter): Promise<CallPage> {
  const [micros, txn] = filter.cursor?.split('.') ?? [];
  const isOpen = filter.state !== undefined && !isFinalState(filter.state);
  const rows = await db.run<CallRow & { position: string; found: number }>({
    name: `list-calls${filter.state === undefined ? '' : isOpen ? '-open' : '-ended'}${filter.agent === undefined ? '' : '-of-agent'}${filter.saga === undefined ? '' : '-of-saga'}${filter.run === undefined ? '' : '-of-run'}`,
    text: `with found as materialized (
      select c.txn, c.created_at, ${CALL_BYTES_SQL} as bytes from ${CALLS_JOINED}
      where ${filter.agent === undefined ? '$1::text is null' : 'c.agent = $1::text'}
        and ${filter.saga === undefined ? '$8::uuid is null' : 'c.saga = $8::uuid'}
        and ${filter.run === undefined ? '$9::uuid is null' : 'c.run = $9::uuid'}
        and ($2::text is null or c.tool = $2) and ($4::timestamptz is null or c.created_at >= $4)
        and ${buildCursorCondition('c.created_at', 'c.txn', '$5', '$6')}
        and ${filter.state === undefined ? '$3::text is null' : isOpen ? OPEN_ONLY : ENDED_ONLY}
      order by c.created_at desc, c.txn desc limit $7
    ), fitting as materialized (${buildFittingQuery('txn', 'created_at')})
    select ${CALL_COLUMNS}, (extract(epoch from c.created_at) * 1000000)::bigint || '.' || c.txn as position, f.found
      from fitting f join (${CALLS_JOINED}) on c.txn = f.txn where f.fits order by c.created_at desc, c.txn desc`,
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
  const { items, cursor } = toPage(rows, filter.limit);
  return { items: items.map(toCallRecord), cursor };
}

const CURSOR_PATTERN = /^\d{1,16}\.[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** A cursor that starts a list with the rows before a time. */
export function buildCursorAt(time: Date): string {
  return `${time.getTime() * 1000}.00000000-0000-0000-0000-000000000000`;
}

export function isCursor(text: string): boolean {
  return CURSOR_PATTERN.test(text);
}
