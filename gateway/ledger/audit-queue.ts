import type { Database } from './db.ts';

/** A leaf that stands alone: a decision that changed nothing else. */
export async function logEntry(db: Database, entry: string): Promise<void> {
  await db.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
}
