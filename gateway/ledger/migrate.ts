import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { describeReplicas, lockOutReplicas } from './live-replicas.ts';
import { moveBatch } from './migration-batches.ts';
import { type Migration, readMigrations } from './migration-files.ts';
import { type BatchCounts, MigrationProgress } from './migration-progress.ts';
import { LEASE_MS, type ReplicaIdentity } from './process-lease.ts';
import { SchemaError } from './schema-error.ts';

/** The advisory lock that replicas take to migrate one after another. Any number works if all replicas use the same. */
const MIGRATION_LOCK = 7_364_921;
/** Long enough for a distant PostgreSQL. A server that accepts the connection and then stays silent is probably not PostgreSQL. */
const CONNECT_TIMEOUT_MS = 10_000;
/** The lease of a replica that was killed right before this start lapses within this time. */
const MAX_WAIT_FOR_REPLICAS_MS = LEASE_MS + 1_000;
const CHECK_REPLICAS_EVERY_MS = 250;
/** A shorter wait for another migrating replica is not worth a line. */
const QUIET_LOCK_WAIT_MS = 2_000;

/** No connection to PostgreSQL could be opened. */
export class DatabaseUnreachableError extends Error {
  override readonly name = 'DatabaseUnusable';
}

/**
 * Migrates the database to the newest schema, and refuses a server that can lose commits. Returns the migrations that this
 * process completed. `log` gets the progress of long migrations, and what the migrator waits for.
 */
export async function migrateDatabase(
  url: string,
  directory: string,
  log: (line: string) => void = () => {},
): Promise<readonly string[]> {
  const client = await connect(url);
  try {
    await refuseNonDurableServer(client);
    const migrations = await readMigrations(directory);
    const applied: string[] = [];
    for (const migration of migrations) {
      if (await applyMigration(client, migration, log)) applied.push(migration.name);
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
  // A connection that is lost while it is idle emits this event. The next statement fails and reports the loss.
  client.on('error', () => {});
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

/** What one transaction of a migration did. */
type Step =
  | { readonly kind: 'known' }
  | { readonly kind: 'completed' }
  | { readonly kind: 'moved'; readonly counts: BatchCounts }
  | { readonly kind: 'refused'; readonly replicas: readonly ReplicaIdentity[] };

/** Runs the transactions of one migration until it is complete. Returns whether this process completed it. */
async function applyMigration(client: pg.Client, migration: Migration, log: (line: string) => void): Promise<boolean> {
  const progress = new MigrationProgress(migration.title, log);
  let refuseAt: number | undefined;
  for (;;) {
    const startedAt = performance.now();
    const step = await runStep(client, migration, log);
    switch (step.kind) {
      case 'known':
      case 'completed':
        progress.finish();
        return step.kind === 'completed';
      case 'moved':
        progress.report(step.counts);
        break;
      case 'refused':
        if (refuseAt === undefined) {
          refuseAt = startedAt + MAX_WAIT_FOR_REPLICAS_MS;
          log(
            `Migration ${migration.title} waits up to ${MAX_WAIT_FOR_REPLICAS_MS / 1_000} s until the leases of ${describeReplicas(step.replicas)} have ended.`,
          );
        } else if (startedAt >= refuseAt) throw buildLiveReplicasError(migration, step.replicas);
        await sleep(CHECK_REPLICAS_EVERY_MS);
        break;
    }
  }
}

function buildLiveReplicasError(migration: Migration, replicas: readonly ReplicaIdentity[]): SchemaError {
  return new SchemaError(
    `Migration ${migration.title} cannot run beside ${describeReplicas(replicas)}. Stop them, then start this version. ` +
      `The lease of a killed replica ends after ${LEASE_MS / 1_000} s.`,
  );
}

/**
 * One transaction: it applies a migration, moves one batch, or finds the migration applied. A crash rolls it back, and the next
 * start repeats it.
 *
 * The advisory lock ends with the transaction, because a connection pooler in transaction mode gives the next transaction another
 * session: a lock of the session would stay behind. So replicas that boot together may move the batches of one migration in turn.
 * That is safe, because each transaction decides by the rows that it finds under the lock. No replica goes on to the next migration
 * before this one is recorded.
 */
async function runStep(client: pg.Client, migration: Migration, log: (line: string) => void): Promise<Step> {
  try {
    await client.query('begin');
    await takeMigrationLock(client, log);
    const step = await runLockedStep(client, migration);
    const { command } = await client.query('commit');
    if (command !== 'COMMIT')
      throw new SchemaError(`Migration ${migration.name} was not committed: PostgreSQL answered ${command}.`);
    return step;
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error instanceof SchemaError ? error : buildFailedError(migration, error);
  }
}

/** The message of PostgreSQL only: its details can contain stored values. */
function buildFailedError(migration: Migration, error: unknown): SchemaError {
  const { message, code } = error as NodeJS.ErrnoException;
  const next = migration.isBatched
    ? 'Finished batches are kept: correct the cause and start again, then the migration continues.'
    : 'Correct the cause and start again.';
  return new SchemaError(`Migration ${migration.name} failed: ${message || code}. ${next}`, { cause: error });
}

async function takeMigrationLock(client: pg.Client, log: (line: string) => void): Promise<void> {
  const notice = setTimeout(() => log('Waiting for another replica that migrates the database.'), QUIET_LOCK_WAIT_MS);
  try {
    await client.query('select pg_advisory_xact_lock($1)', [MIGRATION_LOCK]);
  } finally {
    clearTimeout(notice);
  }
}

async function runLockedStep(client: pg.Client, migration: Migration): Promise<Step> {
  if (await isApplied(client, migration)) return { kind: 'known' };
  if (migration.refusesLiveReplicas) {
    const replicas = await lockOutReplicas(client);
    if (replicas.length > 0) return { kind: 'refused', replicas };
  }
  if (migration.isBatched) {
    const counts = await moveBatch(client, migration);
    if (counts !== undefined) return { kind: 'moved', counts };
  }
  await client.query('insert into schema_migrations (version, name, sha256) values ($1, $2, $3)', [
    migration.version,
    migration.name,
    migration.sha256,
  ]);
  if (!migration.isBatched) await client.query(migration.sql);
  return { kind: 'completed' };
}

async function isApplied(client: pg.Client, { version, name, sha256 }: Migration): Promise<boolean> {
  await client.query(`create table if not exists schema_migrations (
    version integer primary key, name text not null, sha256 text not null, applied_at timestamptz not null default now())`);
  const { rows } = await client.query<{ sha256: string }>('select sha256 from schema_migrations where version = $1', [
    version,
  ]);
  const known = rows[0];
  if (known !== undefined && known.sha256 !== sha256) {
    throw new SchemaError(
      `Migration ${name} was applied with other contents: the database belongs to another build of Oncegate. Start that build.`,
    );
  }
  return known !== undefined;
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
