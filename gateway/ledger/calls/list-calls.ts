import type { Call } from '../../domain/calls/call.ts';
import { type CallState, isFinalState } from '../../domain/calls/call-state.ts';
import type { Database } from '../db.ts';
import { CALL_COLUMNS, CALLS_WITH_OWNER, type CallRow, toCall } from './call-row.ts';

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
export function buildCursorCondition(time: string, id: string, micros: string, last: string): string {
  const at = `case when ${micros}::bigint is null then 'infinity'::timestamptz
      else to_timestamp(${micros}::bigint / 1000000) + (${micros}::bigint % 1000000) * interval '1 microsecond' end`;
  return `(${time}, ${id}) < (${at}, coalesce(${last}::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))`;
}

/**
 * Payloads of a page, in bytes. Somebody who looks must not stop a gateway that works: 200 calls may hold half a gigabyte. A page
 * ends with the item that reaches it, has one at least, and its cursor leads on.
 */
const MAX_PAGE_BYTES = 4 * 1024 * 1024;

/**
 * The rows of `found` (an id, a time, how many bytes) that fit on a page, and how many were found. PostgreSQL measures a text without
 * unpacking it: what does not fit is never read.
 */
export function buildFittingQuery(id: string, time: string): string {
  return `select ${id}, count(*) over ()::int as found,
      coalesce(sum(bytes) over (order by ${time} desc, ${id} desc rows between unbounded preceding and 1 preceding), 0)
        < ${MAX_PAGE_BYTES} as fits
    from found`;
}

/** What was read of a page, without the row that only tells that there are more, and where the next page starts. */
export function toPage<Row extends { readonly position: string; readonly found: number }>(
  rows: readonly Row[],
  limit: number,
): { readonly items: readonly Row[]; readonly cursor: string | null } {
  const items = rows.slice(0, limit);
  const found = rows[0]?.found ?? 0;
  return { items, cursor: found > items.length ? (items.at(-1)?.position ?? null) : null };
}

const CALL_BYTES_SQL = [
  ...['args', 'request', 'answer', 'undo', 'undo_args', 'before', 'sealed', 'undo_sealed'].map(
    (column) => `coalesce(octet_length(c.${column}), 0)`,
  ),
  'pg_column_size(c.events)',
].join(' + ');

/** Few calls are open, whatever the size of the ledger: they are found among themselves. */
const OPEN_ONLY = 'c.txn = any (array(select txn from open_calls))';

/** Newest first. The cursor is the position of the last row seen, so pages stay whole while calls come in. */
export async function listCalls(db: Database, filter: CallFilter): Promise<CallPage> {
  const [micros, txn] = filter.cursor?.split('.') ?? [];
  const isOpen = filter.state !== undefined && !isFinalState(filter.state);
  const rows = await db.run<CallRow & { position: string; found: number }>({
    name: `list-calls${isOpen ? '-open' : ''}${filter.agent === undefined ? '' : '-of-agent'}${filter.saga === undefined ? '' : '-of-saga'}${filter.run === undefined ? '' : '-of-run'}`,
    text: `with found as materialized (
      select c.txn, c.created_at, ${CALL_BYTES_SQL} as bytes from calls c
      where ${filter.agent === undefined ? '$1::text is null' : 'c.agent = $1::text'}
        and ${filter.saga === undefined ? '$8::uuid is null' : 'c.saga = $8::uuid'}
        and ${filter.run === undefined ? '$9::uuid is null' : 'c.run = $9::uuid'}
        and ($2::text is null or tool = $2) and ($3::text is null or state = $3) and ($4::timestamptz is null or created_at >= $4)
        and ${buildCursorCondition('c.created_at', 'c.txn', '$5', '$6')} and ${isOpen ? OPEN_ONLY : 'true'}
      order by c.created_at desc, c.txn desc limit $7
    ), fitting as materialized (${buildFittingQuery('txn', 'created_at')})
    select ${CALL_COLUMNS}, (extract(epoch from c.created_at) * 1000000)::bigint || '.' || c.txn as position, f.found
      from fitting f join ${CALLS_WITH_OWNER} on c.txn = f.txn where f.fits order by c.created_at desc, c.txn desc`,
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
  return { items: items.map(toCall), cursor };
}

const CURSOR_PATTERN = /^\d{1,16}\.[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Where a list begins that holds what came before a time. */
export function buildCursorAt(time: Date): string {
  return `${time.getTime() * 1000}.00000000-0000-0000-0000-000000000000`;
}

export function isCursor(text: string): boolean {
  return CURSOR_PATTERN.test(text);
}
