import type pg from 'pg';
import type { Migration } from './migration-files.ts';
import type { BatchCounts } from './migration-progress.ts';
import { SchemaError } from './schema-error.ts';

/**
 * Runs the SQL of a batched migration once. Returns the counts after this batch, or undefined if no row was left to move.
 *
 * The rows that are still in the old place are the only state that decides what is left to do. `migration_progress` only counts
 * for people: it changes in the transaction of each batch, so that a resumed migration reports its whole progress. The table
 * exists only while a batched migration runs.
 */
export async function moveBatch(client: pg.Client, migration: Migration): Promise<BatchCounts | undefined> {
  await client.query(`create table if not exists migration_progress (
    version integer primary key, sha256 text not null, moved bigint not null default 0, total bigint)`);
  const before = (await readProgress(client, migration)) ?? (await beginProgress(client, migration));
  const moved = readMoved(migration, await client.query(migration.sql));
  if (moved === 0) {
    await client.query('drop table migration_progress');
    return undefined;
  }
  await client.query('update migration_progress set moved = moved + $2 where version = $1', [migration.version, moved]);
  return { moved: before.moved + moved, total: before.total };
}

async function readProgress(client: pg.Client, { version, name, sha256 }: Migration): Promise<BatchCounts | undefined> {
  const { rows } = await client.query<{ sha256: string; moved: string; total: string | null }>(
    'select sha256, moved, total from migration_progress where version = $1',
    [version],
  );
  const [row] = rows;
  if (row === undefined) return undefined;
  if (row.sha256 !== sha256) {
    throw new SchemaError(
      `Migration ${name} was begun with other contents: the database belongs to another build of Oncegate. Start that build.`,
    );
  }
  return { moved: Number(row.moved), total: row.total === null ? undefined : Number(row.total) };
}

/** Counts the rows once: a count of millions of rows takes seconds. */
async function beginProgress(client: pg.Client, { version, sha256, totalQuery }: Migration): Promise<BatchCounts> {
  const total = totalQuery === undefined ? undefined : readFirstNumber(await client.query(totalQuery));
  await client.query('insert into migration_progress (version, sha256, total) values ($1, $2, $3)', [
    version,
    sha256,
    total ?? null,
  ]);
  return { moved: 0, total };
}

function readFirstNumber({ rows }: pg.QueryResult<Record<string, unknown>>): number {
  return Number(Object.values(rows[0] ?? {})[0]);
}

/** Reads `moved` from the only row of the last statement. */
function readMoved({ name }: Migration, result: pg.QueryResult | pg.QueryResult[]): number {
  const last = Array.isArray(result) ? result.at(-1) : result;
  const moved = Number(last?.rows[0]?.moved ?? Number.NaN);
  if (last?.rows.length !== 1 || !Number.isSafeInteger(moved) || moved < 0) {
    throw new SchemaError(
      `Migration ${name} must end with a statement that returns one row with the number \`moved\`.`,
    );
  }
  return moved;
}
