import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { startEmbeddedPostgres } from '../../gateway/ledger/embedded/embedded-postgres.ts';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { buildIfStale } from './build.ts';

declare module 'vitest' {
  interface ProvidedContext {
    postgresUrl: string;
  }
}

/** Builds `dist` if it is stale, and starts one PostgreSQL with a migrated template that test databases are cloned from. */
export async function setup(project: TestProject): Promise<() => Promise<void>> {
  await buildIfStale();
  const dataDir = await mkdtemp(join(tmpdir(), 'oncegate-suite-'));
  const postgres = await startEmbeddedPostgres({ dataDir, log: () => {} });
  const template = new URL(postgres.url);
  template.pathname = '/oncegate_template';
  const admin = new pg.Client({ connectionString: postgres.url });
  await admin.connect();
  await admin.query('create database oncegate_template');
  await admin.end();
  await migrateDatabase(template.href, 'migrations');
  project.provide('postgresUrl', postgres.url);
  return async () => {
    await postgres.stop();
    await rm(dataDir, { recursive: true, force: true });
  };
}
