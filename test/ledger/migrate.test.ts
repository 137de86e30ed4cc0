import { randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest';
import { migrate, SchemaError } from '../../gateway/ledger/migrate.ts';

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
  it('run once when replicas boot at the same time', async () => {
    const applied = await Promise.all(Array.from({ length: 5 }, () => migrate(url, 'migrations')));
    // Each migration is a transaction of its own: two replicas may share them, but none is applied twice or left out.
    const files = (await readdir('migrations')).filter((file) => file.endsWith('.sql')).sort();
    expect(applied.flat().sort()).toEqual(files);
    expect(await migrate(url, 'migrations')).toEqual([]);
  });

  it.each(['synchronous_commit'])('refuse a server with %s off', async (setting) => {
    await admin.query(`alter database ${name} set ${setting} = off`);
    await expect(migrate(url, 'migrations')).rejects.toThrow(`${setting} = off`);
    await admin.query(`alter database ${name} reset ${setting}`);
  });

  it('refuse a schema of a newer build, and one whose history was changed', async () => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    await client.query(`insert into schema_migrations values (9999, '9999_future.sql', 'x')`);
    await expect(migrate(url, 'migrations')).rejects.toThrow(/9999_future\.sql, which this build does not know/);
    await client.query(`delete from schema_migrations where version = 9999`);
    await client.query(`update schema_migrations set sha256 = 'other' where version = 1`);
    await expect(migrate(url, 'migrations')).rejects.toBeInstanceOf(SchemaError);
    await client.end();
  });
});
