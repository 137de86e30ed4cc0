import { expect } from 'vitest';
import type { TestDatabase } from './database.ts';

// biome-ignore lint/suspicious/noExplicitAny: tests look into entries of every kind
export type AuditEntry = any;

/** The audit log in order, sealed or not. `what` selects one kind; `about` selects entries that contain a text. */
export async function readAuditEntries(database: TestDatabase, what?: string, about = ''): Promise<AuditEntry[]> {
  const rows = await database.query<{ entry: string }>('select entry from audit_entries order by index, id');
  return rows
    .filter(({ entry }) => entry.includes(about))
    .map(({ entry }) => JSON.parse(entry))
    .filter((entry) => what === undefined || entry.what === what);
}

/** Every row of every table, as text. */
export async function dumpTables(database: TestDatabase): Promise<string> {
  const tables = await database.query<{ name: string }>(
    "select quote_ident(table_name) as name from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE'",
  );
  expect(tables.length).toBeGreaterThan(5);
  const rows = await Promise.all(
    tables.map(({ name }) => database.query<{ row: string }>(`select t::text as row from ${name} t`)),
  );
  return rows
    .flat()
    .map(({ row }) => row)
    .join('\n');
}
