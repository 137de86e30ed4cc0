import pg from 'pg';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import type { TestDatabase } from './database.ts';
import { useDatabase } from './use-gateway.ts';
import { type Scope, useResource } from './use-resource.ts';

/** The ledger without a gateway: a database, and a pool of at most `max` connections to it. */
export function useLedger(max = 4, scope: Scope = 'file') {
  const database = useDatabase(scope);
  const db = useResource(
    () => new Database(database.url, { max, applicationName: 'test' }),
    (pool) => pool.close(),
    scope,
  );
  return { database, db };
}

/** A lease, as a gateway process holds it. */
export function useLease(db: Database, scope: Scope = 'file'): Lease {
  const start = async () => {
    const lease = new Lease(db, () => {});
    await lease.start();
    return lease;
  };
  return useResource(start, (lease) => lease.end(), scope);
}

export function useCallStore(db: Database): CallStore {
  return useResource(
    () => new CallStore(db),
    () => {},
  );
}

/** A connection outside the pool, for tests that hold locks against the pool. */
export function useClient(database: TestDatabase): pg.Client {
  const start = async () => {
    const client = new pg.Client({ connectionString: database.url });
    await client.connect();
    return client;
  };
  return useResource(start, (client) => client.end());
}
