import { join } from 'node:path';
import pg from 'pg';
import { startEmbeddedPostgres } from '../gateway/ledger/embedded/embedded-postgres.ts';

export interface BenchDatabaseServer {
  /** Creates a database on the server and returns its URL. */
  createDatabase(name: string): Promise<string>;
  stop(): Promise<void>;
}

/** One PostgreSQL server for all systems of the benchmark. */
export async function startDatabaseServer(home: string): Promise<BenchDatabaseServer> {
  const server = await startEmbeddedPostgres({ dataDir: join(home, 'postgres'), log: () => {} });
  return {
    createDatabase: async (name) => {
      const admin = new pg.Client({ connectionString: server.url });
      await admin.connect();
      await admin.query(`create database ${name}`).finally(() => admin.end());
      const url = new URL(server.url);
      url.pathname = `/${name}`;
      return url.href;
    },
    stop: () => server.stop(),
  };
}
