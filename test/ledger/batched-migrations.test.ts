import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { SchemaError } from '../../gateway/ledger/schema-error.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { pollUntil } from '../support/poll.ts';
import { stopAfterTest } from '../support/use-resource.ts';

const ROWS = 10_000;
const BATCH = 500;
const MOVE = '0002_move_rows.batch.sql';
const AFTER = '0003_drop_old_rows.sql';

const CREATE = `create table old_rows (id integer primary key, body text not null);
  create table new_rows (id integer primary key, body text not null);
  insert into old_rows select i, repeat(md5(i::text), 10) from generate_series(1, ${ROWS}) i;`;
/** Takes `seconds` longer than the move itself, so that a test can act in the middle. */
const buildMove = (seconds: number) => `-- Moves rows.
-- total: select count(*) from old_rows
with batch as (
  delete from old_rows where id in (select id from old_rows order by id limit ${BATCH}) returning id, body
), moved as (
  insert into new_rows (id, body) select id, body from batch
)
select (select count(*) from batch) as moved from pg_sleep(${seconds});`;

function createEmptyDatabase(): Promise<TestDatabase> {
  return stopAfterTest(createTestDatabase('template0'), (database) => database.drop());
}

async function writeMigrations(files: Readonly<Record<string, string>>): Promise<string> {
  const directory = await stopAfterTest(mkdtemp(join(tmpdir(), 'oncegate-migrations-')), (made) =>
    rm(made, { recursive: true }),
  );
  for (const [name, sql] of Object.entries(files)) await writeFile(join(directory, name), sql);
  return directory;
}

/** A database with the old rows, and the migrations that move them and then drop the old table. */
async function prepareMove(seconds: number) {
  const database = await createEmptyDatabase();
  const directory = await writeMigrations({
    '0001_create.sql': CREATE,
    [MOVE]: buildMove(seconds),
    // Fails if another migrator could run this while rows are left.
    [AFTER]: `do $$ begin assert not exists (select 1 from old_rows); end $$; drop table old_rows`,
  });
  return { database, directory };
}

/** Rows that a migrator committed. The table does not exist at first. */
const countMoved = async ({ query }: TestDatabase): Promise<number> => {
  const [row] = await query<{ is_there: boolean }>(`select to_regclass('new_rows') is not null as is_there`);
  if (row?.is_there !== true) return 0;
  const [count] = await query<{ n: number }>('select count(*)::int as n from new_rows');
  return count?.n ?? 0;
};

async function expectAllMoved({ query }: TestDatabase): Promise<void> {
  const [rows] = await query(`select count(*)::int as n, count(distinct id)::int as ids, min(id), max(id),
    count(*) filter (where body = repeat(md5(id::text), 10))::int as unchanged from new_rows`);
  expect(rows).toEqual({ n: ROWS, ids: ROWS, min: 1, max: ROWS, unchanged: ROWS });
  expect(await query(`select to_regclass('old_rows') as old, to_regclass('migration_progress') as progress`)).toEqual([
    { old: null, progress: null },
  ]);
  expect(await query('select version from schema_migrations order by version')).toHaveLength(3);
}

/** A migrator in a process of its own, which can be killed. */
function spawnMigrator(url: string, directory: string): ChildProcess {
  const source = `import { migrateDatabase } from ${JSON.stringify(resolve('dist/gateway/ledger/migrate.js'))};
    await migrateDatabase(${JSON.stringify(url)}, ${JSON.stringify(directory)});`;
  return spawn(process.execPath, ['--input-type=module', '--eval', source], { stdio: 'inherit' });
}

const MIGRATOR_BACKENDS = `select pid from pg_stat_activity where application_name = 'oncegate-migrate' and datname = current_database()`;

describe('a batched migration', () => {
  it('moves all rows and reports its progress', async () => {
    const { database, directory } = await prepareMove(0);
    const lines: string[] = [];
    const applied = await migrateDatabase(database.url, directory, (line) => lines.push(line));
    expect(applied).toEqual(['0001_create.sql', MOVE, AFTER]);
    await expectAllMoved(database);
    expect(lines[0]).toBe('Migration 0002_move_rows: 500 of about 10,000 rows (5 %).');
    expect(lines.at(-1)).toBe('Migration 0002_move_rows is complete.');
    expect(await migrateDatabase(database.url, directory)).toEqual([]);
  });

  it('continues after its process was killed, and loses and repeats nothing', async () => {
    const { database, directory } = await prepareMove(0.05);
    for (let kill = 1; kill <= 3; kill++) {
      const before = await countMoved(database);
      const migrator = spawnMigrator(database.url, directory);
      const exited = once(migrator, 'exit');
      await pollUntil(
        () => countMoved(database),
        (moved) => moved >= before + 3 * BATCH,
      );
      migrator.kill('SIGKILL');
      await exited;
      // PostgreSQL rolls back the batch that was under way when it notices the loss of the client.
      await pollUntil(
        () => database.query(MIGRATOR_BACKENDS),
        (backends) => backends.length === 0,
      );
      const moved = await countMoved(database);
      expect(moved).toBeLessThan(ROWS);
      expect(moved % BATCH).toBe(0);
    }
    const moved = await countMoved(database);
    const lines: string[] = [];
    await migrateDatabase(database.url, directory, (line) => lines.push(line));
    await expectAllMoved(database);
    // The progress counts what the killed processes moved.
    expect(lines[0]).toContain(`${(moved + BATCH).toLocaleString('en-US')} of about 10,000 rows`);
  });

  it('continues after its connection was terminated', async () => {
    const { database, directory } = await prepareMove(0.05);
    const migrating = migrateDatabase(database.url, directory);
    const failed = expect(migrating).rejects.toThrow(/^Migration 0002_move_rows\.batch\.sql failed: .+ start again/);
    await pollUntil(
      () => countMoved(database),
      (moved) => moved >= 2 * BATCH,
    );
    await database.query(`select pg_terminate_backend(pid) from (${MIGRATOR_BACKENDS}) backends`);
    await failed;
    const moved = await countMoved(database);
    expect(moved).toBeLessThan(ROWS);
    expect(moved % BATCH).toBe(0);
    await migrateDatabase(database.url, directory);
    await expectAllMoved(database);
  });

  it('is shared by replicas that boot together, and each waits for its end', async () => {
    const { database, directory } = await prepareMove(0.01);
    const applied = await Promise.all(Array.from({ length: 3 }, () => migrateDatabase(database.url, directory)));
    expect(applied.flat().sort()).toEqual(['0001_create.sql', MOVE, AFTER]);
    await expectAllMoved(database);
  });

  it('rolls back a batch that fails, names the migration, and continues when the cause is corrected', async () => {
    const { database, directory } = await prepareMove(0);
    await migrateDatabase(database.url, await writeMigrations({ '0001_create.sql': CREATE }));
    await database.query('alter table new_rows add constraint no_5250 check (id <> 5250)');
    const failure = await migrateDatabase(database.url, directory).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(SchemaError);
    expect((failure as Error).message).toBe(
      'Migration 0002_move_rows.batch.sql failed: new row for relation "new_rows" violates check constraint "no_5250". ' +
        'Finished batches are kept: correct the cause and start again, then the migration continues.',
    );
    expect(await countMoved(database)).toBe(5_000);
    await database.query('alter table new_rows drop constraint no_5250');
    await migrateDatabase(database.url, directory);
    await expectAllMoved(database);
  });

  it('is refused if its file changed since it began', async () => {
    const { database, directory } = await prepareMove(0);
    await migrateDatabase(database.url, await writeMigrations({ '0001_create.sql': CREATE }));
    await database.query('alter table new_rows add constraint no_5250 check (id <> 5250)');
    await expect(migrateDatabase(database.url, directory)).rejects.toThrow('no_5250');
    await writeFile(join(directory, MOVE), buildMove(0.001));
    await expect(migrateDatabase(database.url, directory)).rejects.toThrow(
      'Migration 0002_move_rows.batch.sql was begun with other contents',
    );
    expect(await countMoved(database)).toBe(5_000);
  });

  it.each([
    ['no number', 'select 1 as n'],
    ['no row', 'select 1 as moved where false'],
    ['two rows', 'select 0 as moved union all select 1'],
    ['less than nothing', 'select -1 as moved'],
    ['nothing from the last statement', 'select 0 as moved; create table t ()'],
  ])('is refused if it returns %s', async (_, sql) => {
    const database = await createEmptyDatabase();
    const directory = await writeMigrations({ '0001_wrong.batch.sql': sql });
    await expect(migrateDatabase(database.url, directory)).rejects.toThrow(
      'Migration 0001_wrong.batch.sql must end with a statement that returns one row with the number `moved`.',
    );
  });
});

describe('the declarations of a migration', () => {
  it.each([
    ['0001_a.sql', '-- require: no live replicas'],
    ['0001_a.sql', '-- requires: nothing'],
    ['0001_a.sql', '-- total: select 1'],
    ['0001_a.batch.sql', '-- A move.\n-- totals: select 1'],
  ])('are refused in %s if they are unknown: %j', async (name, header) => {
    const database = await createEmptyDatabase();
    const directory = await writeMigrations({ [name]: `${header}\nselect 0 as moved` });
    await expect(migrateDatabase(database.url, directory)).rejects.toThrow(
      `${name} declares "${header.split('-- ').at(-1)}".`,
    );
  });
});
