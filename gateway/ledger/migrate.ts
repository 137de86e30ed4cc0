import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';

/** The advisory lock that replicas take to migrate one after another. Any number works if all replicas use the same. */
const MIGRATION_LOCK = 7_364_921;
/** Long enough for a distant PostgreSQL. A server that accepts the connection and then stays silent is probably not PostgreSQL. */
const CONNECT_TIMEOUT_MS = 10_000;

/** The gateway cannot work with this schema or this server. */
export class SchemaError extends Error {
  override readonly name = 'SchemaError';
}

/** No connection to PostgreSQL could be opened. */
export class DatabaseUnreachableError extends Error {
  override readonly name = 'DatabaseUnusable';
}

interface Migration {
  readonly version: number;
  readonly name: string;
  readonly sql: string;
  readonly sha256: string;
}

/** Migrates the database to the newest schema, and refuses a server that can lose commits. Returns the applied migrations. */
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
  const startedAt = performance.now();
  try {
    await client.connect();
    return client;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const isTimeout = performance.now() - startedAt >= CONNECT_TIMEOUT_MS;
    // If a host name has several addresses and none answers, the error has a code but no message.
    const why = isTimeout ? `it does not answer within ${CONNECT_TIMEOUT_MS / 1_000} s` : message || code;
    throw new DatabaseUnreachableError(why, { cause: error });
  }
}

/** Refuses settings with which an acknowledged commit can be lost in a power cut: a call could then be sent twice. */
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

/**
 * Applies one migration in one transaction, or finds it applied. Returns whether it applied it. The advisory lock makes
 * replicas migrate one after another; it ends with the transaction. A crash rolls the migration back.
 */
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
        `Migration ${migration.name} was applied with other contents: the database belongs to another build of Oncegate. Start that build.`,
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
    if (command !== 'COMMIT')
      throw new SchemaError(`Migration ${migration.name} was not committed: PostgreSQL answered ${command}.`);
    return known === undefined;
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Refuses a schema that a newer build migrated: this build would write rows that the newer schema forbids. */
async function refuseUnknownSchema(client: pg.Client, migrations: readonly Migration[]): Promise<void> {
  const { rows } = await client.query<{ name: string }>(
    'select name from schema_migrations where version > $1 order by version limit 1',
    [migrations.at(-1)?.version ?? 0],
  );
  const unknown = rows[0];
  if (unknown !== undefined) {
    throw new SchemaError(
      `The database has migration ${unknown.name}, which this build does not know. Start the newer build of Oncegate.`,
    );
  }
}
