import type { Database, Tx } from '../db.ts';
import { groupByDatabase } from '../group-commit.ts';

/**
 * One large batch at a time, so that refusals use only one connection. Otherwise an agent whose calls are all refused would cause
 * a commit per call, and the claims and lease renewals of others would wait. See docs/adr/0008-group-commit.md.
 */
const BATCH = { maxBatch: 128, maxInFlight: 1 };

/** Writes an entry that belongs to no other change, such as a refusal. Resolves after its commit. */
export const enqueueAuditEntry = groupByDatabase<string, void>(BATCH, async (db, entries) => {
  await insertLoneEntries(db, entries);
  return entries.map(() => undefined);
});

/** Each entry gets its own row, even among equal entries. Inserts lock no existing row, so batches never wait for each other. */
async function insertLoneEntries(db: Database, entries: readonly string[]): Promise<void> {
  await db.run({
    name: 'log-alone',
    text: 'insert into audit_queue (entry) select * from unnest($1::text[])',
    values: [entries],
  });
}

/** Writes the entry of a change in the transaction of that change, so that both commit or neither does. */
export async function insertAuditEntry(tx: Tx, entry: string): Promise<void> {
  await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
}

/** The same for several entries. */
export async function insertAuditEntries(tx: Tx, entries: readonly string[]): Promise<void> {
  await tx.run({
    name: 'log-entries',
    text: `insert into audit_queue (entry) select unnest($1::text[])`,
    values: [entries],
  });
}
