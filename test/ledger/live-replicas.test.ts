import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Database } from '../../gateway/ledger/db.ts';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import { SchemaError } from '../../gateway/ledger/schema-error.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';

let database: TestDatabase;
let directory: string;
let lines: string[];

beforeEach(async () => {
  database = await createTestDatabase();
  directory = await mkdtemp(join(tmpdir(), 'oncegate-migrations-'));
  lines = [];
  await cp('migrations', directory, { recursive: true });
  await writeFile(join(directory, '9000_newer.sql'), '-- requires: no live replicas\ncreate table newer ()');
});
afterEach(async () => {
  await database.drop();
  await rm(directory, { recursive: true });
});

const migrate = () => migrateDatabase(database.url, directory, (line) => lines.push(line));

/** Registers a process as the gateway does; by default one of another host, with a lease that nobody renews. */
async function register(changes: { host?: string; pid?: number; pidStarted?: string; leaseSeconds: number }) {
  const { host = 'elsewhere', pid = 7, pidStarted = '1', leaseSeconds } = changes;
  await database.query(
    `insert into processes (id, host, pid, pid_started, lease_until, schema_version)
     values (gen_random_uuid(), $1, $2, $3, now() + $4 * interval '1 s', 20)`,
    [host, pid, pidStarted, leaseSeconds],
  );
}

/** Runs `work` while this process holds a lease and renews it. */
async function withLease(work: (lease: Lease) => Promise<void>): Promise<void> {
  const db = new Database(database.url, { max: 1, applicationName: 'older-replica' });
  const lease = new Lease(db, () => {});
  try {
    await lease.start();
    await work(lease);
  } finally {
    await lease.end();
    await db.close();
  }
}

describe('a migration that requires no live replicas', () => {
  it('is refused while a replica renews its lease, and runs when that replica has stopped', async () => {
    await withLease(async () => {
      await register({ host: 'f6e5d4c3-aaaa/pid:[4026531836]', leaseSeconds: 3_600 });
      const failure = await migrate().catch((error: unknown) => error);
      const replicas = `2 replicas of an earlier version (pid ${process.pid} on this host, pid 7 on host f6e5d4c3)`;
      expect(failure).toBeInstanceOf(SchemaError);
      expect((failure as Error).message).toBe(
        `Migration 9000_newer cannot run beside ${replicas}. Stop them, then start this version. The lease of a killed replica ends after 6 s.`,
      );
      expect(lines).toEqual([`Migration 9000_newer waits up to 7 s until the leases of ${replicas} have ended.`]);
      expect(await database.query(`select to_regclass('newer') as newer`)).toEqual([{ newer: null }]);
    });
    await database.query(`update processes set ended_at = now() where host like 'f6e5%'`);
    expect(await migrate()).toEqual(['9000_newer.sql']);
  });

  it('waits for the lease of a replica that was killed elsewhere', async () => {
    await register({ leaseSeconds: 2 });
    expect(await migrate()).toEqual(['9000_newer.sql']);
    expect(lines).toEqual([
      'Migration 9000_newer waits up to 7 s until the leases of 1 replica of an earlier version (pid 7 on host elsewhere) have ended.',
    ]);
  });

  it('does not wait for a replica of this host whose process is gone', async () => {
    await withLease(async () => {});
    const [own] = await database.query<{ host: string }>('select host from processes');
    // This pid exists, but its process did not start at tick 1.
    await register({ host: own?.host ?? '', pid: process.pid, pidStarted: '1', leaseSeconds: 3_600 });
    expect(await migrate()).toEqual(['9000_newer.sql']);
    expect(lines).toEqual([]);
  });

  it('ends lapsed leases for good, also for a renewal that began before, and calls no process ended', async () => {
    await register({ leaseSeconds: 1 });
    const late = new pg.Client({ connectionString: database.url });
    await late.connect();
    await late.query('begin');
    // The transaction keeps this time as its `now()`, like a renewal that is delayed after it began.
    await late.query('select now()');
    await migrate();
    const renewal = `update processes set lease_until = now() + interval '6 s' where lease_until > now() and ended_at is null`;
    expect((await late.query(renewal)).rowCount).toBe(0);
    await late.query('commit');
    await late.end();
    expect(await database.query(`select lease_until = '-infinity' as lapsed, ended_at from processes`)).toEqual([
      { lapsed: true, ended_at: null },
    ]);
  });

  it('runs in an empty database', async () => {
    const empty = await createTestDatabase('template0');
    try {
      await writeFile(join(directory, '0000_first.sql'), '-- requires: no live replicas\ncreate table first ()');
      expect(await migrateDatabase(empty.url, directory)).toContain('0000_first.sql');
    } finally {
      await empty.drop();
    }
  });
});

describe('a replica of a version before the split', () => {
  it('gets no lease after the split, so it neither sends nor counts as live', async () => {
    const registering = database.query(
      `insert into processes (id, host, pid, pid_started, lease_until)
       values (gen_random_uuid(), 'elsewhere', 7, '1', now() + interval '6 s')`,
    );
    await expect(registering).rejects.toThrow('a newer version of Oncegate has migrated this ledger');
    expect(await database.query('select 1 from processes')).toEqual([]);
  });
});
