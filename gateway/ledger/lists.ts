import type { Call } from '../domain/call.ts';
import type { CallState } from '../domain/states.ts';
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

/** Newest first. The cursor is the position of the last row seen, so pages stay whole while calls come in. */
export async function listCalls(db: Database, filter: CallFilter): Promise<CallPage> {
  const [micros, txn] = filter.cursor?.split('.') ?? [];
  const rows = await db.run<CallRow & { position: string }>({
    name: `list-calls${filter.agent === undefined ? '' : '-of-agent'}${filter.saga === undefined ? '' : '-of-saga'}${filter.run === undefined ? '' : '-of-run'}`,
    text: `select ${CALL_COLUMNS}, (extract(epoch from created_at) * 1000000)::bigint || '.' || c.txn as position from ${CALLS}
      where ${filter.agent === undefined ? '$1::text is null' : 'c.agent = $1::text'}
        and ${filter.saga === undefined ? '$8::uuid is null' : 'c.saga = $8::uuid'}
        and ${filter.run === undefined ? '$9::uuid is null' : 'c.run = $9::uuid'}
        and ($2::text is null or tool = $2) and ($3::text is null or state = $3) and ($4::timestamptz is null or created_at >= $4)
        and ($5::bigint is null or (c.created_at, c.txn) < (to_timestamp($5::bigint / 1000000) + ($5::bigint % 1000000) * interval '1 microsecond', $6::uuid))
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
