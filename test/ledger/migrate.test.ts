import { randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest';
import { migrateDatabase } from '../../gateway/ledger/migrate.ts';
import { SchemaError } from '../../gateway/ledger/schema-error.ts';
import { createOlderDatabaseForTest, migrateBefore } from '../support/older-schema.ts';

const name = `migrate_${randomBytes(6).toString('hex')}`;
let admin: pg.Client;
let url: string;

beforeAll(async () => {
  admin = new pg.Client({ connectionString: inject('postgresUrl') });
  await admin.connect();
  await admin.query(`create database ${name}`);
  const target = new URL(inject('postgresUrl'));
  target.pathname = `/${name}`;
  url = target.href;
});
afterAll(async () => {
  await admin.query(`drop database if exists ${name} with (force)`);
  await admin.end();
});

describe('migrations', () => {
  it('rename the kind of stored calls from nature to idempotent', async () => {
    const database = await createOlderDatabaseForTest('0018');
    const insert = `insert into calls (txn, agent, identity, tool, kind, fingerprint, policy_version, state, attempt)
      values (gen_random_uuid(), 'bot', 'key', 't', $1, sha256('x'), 'v', 'sending', 1)`;
    await database.query(insert, ['nature']);
    await database.query(insert, ['key']);
    expect(await migrateBefore(database, '0019')).toEqual(['0018_once_by_idempotent.sql']);
    const rows = await database.query('select kind from calls order by kind');
    expect(rows).toEqual([{ kind: 'idempotent' }, { kind: 'key' }]);
    await expect(database.query(insert, ['nature'])).rejects.toThrow('calls_kind_check');
    await expect(database.query(`update calls set kind = 'probe'`)).rejects.toThrow('never changes');
  });

  it('fill the columns that replace decisions by sentences and by the timeline', async () => {
    const database = await createOlderDatabaseForTest('0019');
    const open = async (tool: string, attemptOpen: boolean, events: readonly object[]) => {
      await database.query(
        `insert into calls (txn, agent, identity, tool, kind, fingerprint, policy_version, state, attempt, attempt_open, events)
         values (gen_random_uuid(), 'bot', 'key', $1, 'probe', sha256('x'), 'v', 'in_doubt', 2, $2, $3)`,
        [tool, attemptOpen, JSON.stringify(events)],
      );
    };
    const parked = async (tool: string, reason: string) => {
      await database.query(
        `insert into calls (txn, agent, identity, tool, kind, fingerprint, policy_version, state, attempt, evidence, settled_at, undo_state, undo_reason)
         values (gen_random_uuid(), 'bot', 'key', $1, 'key', sha256('x'), 'v', 'succeeded', 1, 'answer', now(), 'failed', $2)`,
        [tool, reason],
      );
    };
    const retry = { what: 'verdict', verdict: 'retry' };
    await open('a retried', false, [{ what: 'probe_not_applied', attempt: 1 }, retry]);
    await open('b retried, in doubt again', false, [
      retry,
      { what: 'in_doubt', attempt: 2, told: 'the socket closed' },
    ]);
    await open('c retried, being sent', true, [retry, { what: 'attempt_ended', attempt: 1, detail: 'refused' }]);
    await open('d disproved', false, [
      { what: 'attempt_ended', attempt: 2, detail: 'timed out' },
      { what: 'observed_not_satisfied', attempt: 2 },
    ]);
    await open('e taken over', false, [{ what: 'taken_over', attempt: 2 }]);
    await parked('f person', 'in doubt, a person must resolve it: x');
    await parked('g gateway', 'in doubt, the gateway is finding out: x');
    await parked('h failed', 'tried 3 times; x');
    await migrateBefore(database, '0020');
    const rows = await database.query(
      `select tool, verdict, retry_requested, disproved_by, attempt_detail, undo_doubt from calls order by tool`,
    );
    expect(rows.map((row) => Object.values(row))).toEqual([
      ['a retried', 'retry', true, null, null, null],
      ['b retried, in doubt again', 'retry', false, null, 'the socket closed', null],
      ['c retried, being sent', 'retry', true, null, null, null],
      ['d disproved', null, false, 'observation', 'timed out', null],
      ['e taken over', null, false, null, 'the process that sent it ended', null],
      ['f person', null, false, null, null, 'person'],
      ['g gateway', null, false, null, null, 'gateway'],
      ['h failed', null, false, null, null, null],
    ]);
  });

  it('run once when replicas boot at the same time', async () => {
    const applied = await Promise.all(Array.from({ length: 5 }, () => migrateDatabase(url, 'migrations')));
    // Each migration is its own transaction: replicas may share the work, but each migration is applied exactly once.
    const files = (await readdir('migrations')).filter((file) => file.endsWith('.sql')).sort();
    expect(applied.flat().sort()).toEqual(files);
    expect(await migrateDatabase(url, 'migrations')).toEqual([]);
  });

  it.each(['synchronous_commit'])('refuse a server with %s off', async (setting) => {
    await admin.query(`alter database ${name} set ${setting} = off`);
    await expect(migrateDatabase(url, 'migrations')).rejects.toThrow(`${setting} = off`);
    await admin.query(`alter database ${name} reset ${setting}`);
  });

  it('refuse a schema of a newer build, and one with changed migrations', async () => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    await client.query(`insert into schema_migrations values (9999, '9999_future.sql', 'x')`);
    await expect(migrateDatabase(url, 'migrations')).rejects.toThrow(
      /9999_future\.sql, which this build does not know/,
    );
    await client.query(`delete from schema_migrations where version = 9999`);
    await client.query(`update schema_migrations set sha256 = 'other' where version = 1`);
    await expect(migrateDatabase(url, 'migrations')).rejects.toBeInstanceOf(SchemaError);
    await client.end();
  });
});
