import type { CallRecord } from '../../domain/calls/call-record.ts';
import type { Database } from '../db.ts';
import { groupByDatabase } from '../group-commit.ts';
import { CALL_COLUMNS, CALLS_JOINED, type CallRow, toCallRecord } from './call-columns.ts';

/** Every call without a key reads repeats, even a refused one. A flood of calls must not take all connections. */
const BATCH = { maxBatch: 128, maxInFlight: 2 };

/** The newest call of a slot. A slot stands for all equal requests without a key. */
export interface NewestRepeat {
  readonly generation: number;
  readonly txn: string;
  /** Absent after a crash between recording the generation and claiming the call, or after the claim was released. */
  readonly call: CallRecord | undefined;
  readonly msSinceDelivered: number | null;
}

/** Finds the newest call of an equal request without a key. Reads a snapshot: `recordGeneration` never replaces a newer generation. */
export const findNewestRepeat = groupByDatabase<string, NewestRepeat | undefined>(BATCH, async (db, slots) => {
  const rows = await db.run<RepeatRow>({
    name: 'find-newest-repeat',
    text: `select s.slot, s.generation, s.txn as slot_txn, extract(epoch from now() - s.delivered_at)::float8 * 1000 as ms,
        ${CALL_COLUMNS}
      from repeats s left join (${CALLS_JOINED}) on c.txn = s.txn
      where s.slot = any($1::uuid[])`,
    values: [[...new Set(slots)]],
  });
  const found = new Map(rows.map((row) => [row.slot, toNewestRepeat(row)]));
  return slots.map((slot) => found.get(slot));
});

type RepeatRow = { slot: string; generation: number; slot_txn: string; ms: number | null } & CallRow;

function toNewestRepeat(row: RepeatRow): NewestRepeat {
  const call = row.state === null ? undefined : toCallRecord({ ...row, txn: row.slot_txn });
  return { generation: row.generation, txn: row.slot_txn, call, msSinceDelivered: row.ms };
}

/** Records a generation before its call is claimed. The condition keeps an older generation from overwriting a newer one. */
export async function recordGeneration(db: Database, slot: string, generation: number, txn: string): Promise<void> {
  await db.run({
    name: 'record-generation',
    text: `insert into repeats (slot, generation, txn) values ($1, $2, $3)
      on conflict (slot) do update set generation = excluded.generation, txn = excluded.txn, delivered_at = null
      where repeats.generation < excluded.generation`,
    values: [slot, generation, txn],
  });
}

/**
 * Records that the answer was written to the caller's connection. Until then an equal request counts as a retry. Records
 * only the first delivery, only of the newest call of the slot, and only if that call has ended.
 */
export async function recordDelivery(db: Database, slot: string, txn: string): Promise<void> {
  await db.run({
    name: 'record-delivery',
    text: `update repeats set delivered_at = now() where slot = $1 and txn = $2 and delivered_at is null
      and exists (select 1 from settlements where txn = $2)`,
    values: [slot, txn],
  });
}
