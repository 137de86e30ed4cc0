import { copyFile, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { createTestDatabase, type TestDatabase } from './database.ts';
import { stopAfterTest } from './use-resource.ts';

/** For one test: a database that has only the migrations before `next`, such as `0018`. */
export async function createOlderDatabaseForTest(next: string): Promise<TestDatabase> {
  const database = await stopAfterTest(createTestDatabase('template0'), ({ drop }) => drop());
  await migrateBefore(database, next);
  return database;
}

/** Runs the migrations before `next` that the database lacks. */
export async function migrateBefore({ url }: TestDatabase, next: string): Promise<readonly string[]> {
  const directory = await mkdtemp(join(tmpdir(), 'oncegate-migrations-'));
  try {
    for (const file of await readdir('migrations'))
      if (file < next) await copyFile(join('migrations', file), join(directory, file));
    return await migrateDatabase(url, directory);
  } finally {
    await rm(directory, { recursive: true });
  }
}
