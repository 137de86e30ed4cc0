import { readFileSync, rmSync } from 'node:fs';
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
  stopOnSignal(dataDir);
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

/** Vitest runs no tear-down when a signal ends it, so this stops PostgreSQL and removes its data. */
function stopOnSignal(dataDir: string): void {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1));
  process.once('exit', () => {
    try {
      const [pid] = readFileSync(join(dataDir, 'postgres', 'postmaster.pid'), 'utf8').split('\n');
      process.kill(Number(pid), 'SIGQUIT');
      rmSync(dataDir, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
    } catch {
      // The tear-down has stopped PostgreSQL already.
    }
  });
}
