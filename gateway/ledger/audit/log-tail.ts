import type { Database } from '../db.ts';

export interface LogHead {
  /** How many entries have their place; the next one gets this as its index. */
  readonly size: number;
  /** When the newest checkpoint was signed; null before the first. */
  readonly sealedAt: Date | null;
}

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

/** Whoever reads takes no more than this of one go, and one entry at least. */
const MAX_TAIL_BYTES = 4 * 1024 * 1024;

/** Entries in their places, `from` inclusive, `to` exclusive: as many as are not too much at once, the first ones first. */
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
