import type { Database } from '../db.ts';

export interface LogHead {
  /** The number of entries in the log. The next entry gets this number as its index. */
  readonly size: number;
  /** When the newest checkpoint was signed; null before the first. */
  readonly sealedAt: Date | null;
}

/** Reads one row without locking. The sequencer replaces it as a whole, so size and time belong together. */
export async function readLogHead(db: Database): Promise<LogHead> {
  const [row] = await db.run<{ size: string; sealed_at: Date | null }>({
    name: 'read-log-head',
    text: `select size, nullif(sealed_at, '-infinity') as sealed_at from audit_head`,
    values: [],
  });
  return { size: Number(row?.size ?? 0), sealedAt: row?.sealed_at ?? null };
}

export interface TailEntry {
  readonly index: number;
  readonly entry: string;
}

/** The size of one read. A longer entry is read alone. */
const MAX_TAIL_BYTES = 4 * 1024 * 1024;

/**
 * Reads entries in order, `from` inclusive, `to` exclusive, until `MAX_TAIL_BYTES` are reached. Entries never change once they
 * have an index, so no lock is needed.
 */
export async function readLogTail(db: Database, from: number, to: number): Promise<TailEntry[]> {
  const rows = await db.run<{ index: string; entry: string }>({
    name: 'read-log-tail',
    text: `select index, entry from (
        select index, entry, sum(octet_length(entry)) over (order by index) - octet_length(entry) as before
        from audit_log where index >= $1 and index < $2) l
      where before < $3 order by index`,
    values: [from, to, MAX_TAIL_BYTES],
  });
  return rows.map(({ index, entry }) => ({ index: Number(index), entry }));
}
