import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';

/** Replicas that boot together queue up here; the number only has to be the same for all of them. */
const MIGRATION_LOCK = 7_364_921;
/** Something that takes the connection and never answers is no database; a real one far away has answered by then. */
const CONNECT_TIMEOUT_MS = 10_000;

export class SchemaError extends Error {
  override readonly name = 'SchemaError';
}

/** There is no talking to the database at all. */
export class DatabaseUnreachableError extends Error {
  override readonly name = 'DatabaseUnusable';
}

interface Migration {
  readonly version: number;
  readonly name: string;
  readonly sql: string;
  readonly sha256: string;
}

/** Brings the database to the newest schema and refuses one that cannot keep the promise. Returns what it applied. */
export async function migrateDatabase(url: string, directory: string): Promise<readonly string[]> {
  const client = await connect(url);
  try {
    await refuseNonDurableServer(client);
    const migrations = await readMigrations(directory);
    const applied: string[] = [];
    for (const migration of migrations) {
      if (await applyMigration(client, migration)) applied.push(migration.name);
    }
    await refuseUnknownSchema(client, migrations);
    return applied;
  } finally {
    await client.end();
  }
}

async function connect(url: string): Promise<pg.Client> {
  const options = { application_name: 'oncegate-migrate', connectionTimeoutMillis: CONNECT_TIMEOUT_MS };
  const client = new pg.Client({ connectionString: url, ...options });
  const began = performance.now();
  try {
    await client.connect();
    return client;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const isLate = performance.now() - began >= CONNECT_TIMEOUT_MS;
    // Of a name with several addresses, none of which answers, only the code is told.
    const why = isLate ? `it does not answer within ${CONNECT_TIMEOUT_MS / 1_000} s` : message || code;
    throw new DatabaseUnreachableError(why, { cause: error });
  }
}

/** A commit that does not survive a power cut is no commit: the ledger would forget what it promised. */
async function refuseNonDurableServer(client: pg.Client): Promise<void> {
  for (const setting of ['fsync', 'synchronous_commit', 'full_page_writes']) {
    const { rows } = await client.query<{ value: string }>(`select current_setting($1) as value`, [setting]);
    if (rows[0]?.value === 'off') {
      throw new SchemaError(
        `PostgreSQL runs with ${setting} = off and may forget what it acknowledged. Set ${setting} = on and start again.`,
      );
    }
  }
}

async function readMigrations(directory: string): Promise<Migration[]> {
  const files = (await readdir(directory)).filter((file) => /^\d{4}_.+\.sql$/.test(file)).sort();
  return Promise.all(
    files.map(async (file) => {
      const sql = await readFile(join(directory, file), 'utf8');
      const sha256 = createHash('sha256').update(sql).digest('hex');
      return { version: Number(file.slice(0, 4)), name: file, sql, sha256 };
    }),
  );
}

/** One transaction each, the version row first: a replica that lost the race waits here and then finds it done. */
async function applyMigration(client: pg.Client, migration: Migration): Promise<boolean> {
  await client.query('begin');
  try {
    await client.query('select pg_advisory_xact_lock($1)', [MIGRATION_LOCK]);
    await client.query(`create table if not exists schema_migrations (
      version integer primary key, name text not null, sha256 text not null, applied_at timestamptz not null default now())`);
    const { rows } = await client.query<{ sha256: string }>('select sha256 from schema_migrations where version = $1', [
      migration.version,
    ]);
    const known = rows[0];
    if (known !== undefined && known.sha256 !== migration.sha256) {
      throw new SchemaError(
        `migration ${migration.name} was applied with other contents: the database belongs to another build of Oncegate.`,
      );
    }
    if (known === undefined) {
      await client.query('insert into schema_migrations (version, name, sha256) values ($1, $2, $3)', [
        migration.version,
        migration.name,
        migration.sha256,
      ]);
      await client.query(migration.sql);
    }
    const { command } = await client.query('commit');
    if (command !== 'COMMIT') throw new SchemaError(`migration ${migration.name} ended in ${command}`);
    return known === undefined;
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

async function refuseUnknownSchema(client: pg.Client, migrations: readonly Migration[]): Promise<void> {
  const { rows } = await client.query<{ name: string }>(
    'select name from schema_migrations where version > $1 order by version limit 1',
    [migrations.at(-1)?.version ?? 0],
  );
  const unknown = rows[0];
  if (unknown !== undefined) {
    throw new SchemaError(
      `the database has migration ${unknown.name}, which this build does not know. Start the newer build of Oncegate.`,
    );
  }
}
