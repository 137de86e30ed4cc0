import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { GatewayError, LedgerError } from '../../gateway/domain/errors.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { GroupCommit } from '../../gateway/ledger/group-commit.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';

let database: TestDatabase;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  await database.query('create table notes (id int primary key, text text)');
  db = new Database(database.url, { max: 4, applicationName: 'test' });
});
afterAll(async () => {
  await db?.close();
  await database?.drop();
});

const insert = (id: number) => ({ name: 'insert-note', text: 'insert into notes values ($1, $2)', values: [id, 'x'] });
const ids = async () => (await database.query<{ id: number }>('select id from notes order by id')).map((row) => row.id);

describe('a transaction', () => {
  it('that swallowed a failed statement is not committed, and says so', async () => {
    const swallowing = db.transaction(async (tx) => {
      await tx.run(insert(1));
      await tx.run(insert(1)).catch(() => undefined);
    });
    await expect(swallowing).rejects.toThrow(/ROLLBACK/);
    await expect(swallowing).rejects.toMatchObject({ isCommitUnknown: false });
    expect(await ids()).toEqual([]);
  });

  it('whose work refuses is undone, and its connection lives on', async () => {
    const refusing = db.transaction(async (tx) => {
      await tx.run(insert(2));
      throw new GatewayError('locked', 'no');
    });
    await expect(refusing).rejects.toBeInstanceOf(GatewayError);
    expect(await ids()).toEqual([]);
    expect(db.busyConnections).toBe(0);
  });

  it('whose connection dies before COMMIT certainly did nothing', async () => {
    const dying = db.transaction(async (tx) => {
      await tx.run(insert(3));
      const [row] = await tx.run<{ pid: number }>({ name: 'pid', text: 'select pg_backend_pid() pid', values: [] });
      await database.query('select pg_terminate_backend($1)', [row?.pid]);
      await tx.run(insert(4));
    });
    await expect(dying).rejects.toMatchObject({ name: 'LedgerError', isCommitUnknown: false });
    expect(await ids()).toEqual([]);
  });
});

describe('a statement', () => {
  it('that breaks a rule was certainly not committed', async () => {
    await db.run(insert(5));
    await expect(db.run(insert(5))).rejects.toMatchObject({
      name: 'LedgerError',
      isCommitUnknown: false,
      isRejected: true,
    });
  });

  it.each([
    ['what no text can hold', `select convert_from('\\x00'::bytea, 'UTF8')`, true],
    ['what is there already', `insert into notes values (77, 'x'), (77, 'y')`, true],
    [
      'a moment that was bad',
      `do $$ begin raise exception 'later' using errcode = 'serialization_failure'; end $$`,
      false,
    ],
  ])('that is refused for %s says whether it always will be', async (_, text, isPermanent) => {
    const refused = db.run({ name: text.slice(0, 20), text, values: [] });
    await expect(refused).rejects.toMatchObject({ isRejected: true, isCommitUnknown: false, isPermanent });
  });

  it('whose connection dies under it may have been', async () => {
    const slow = db.run({ name: 'slow', text: 'select pg_sleep(5)', values: [] }).catch((error: unknown) => error);
    await expect
      .poll(() =>
        database
          .query(
            `select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_sleep(5)%' and pid <> pg_backend_pid()`,
          )
          .then((rows) => rows.length),
      )
      .toBeGreaterThan(0);
    expect(await slow).toMatchObject({ name: 'LedgerError', isCommitUnknown: true });
  });

  it('to a server that is not there certainly was not', async () => {
    const nobody = new Database('postgres://nobody@127.0.0.1:1/none', { max: 1, applicationName: 'test' });
    await expect(nobody.run(insert(6))).rejects.toMatchObject({
      name: 'LedgerError',
      isCommitUnknown: false,
      isRejected: false,
    });
    await nobody.close();
  });
});

describe('a wait for a connection', () => {
  let narrow: Database;
  beforeAll(() => {
    narrow = new Database(database.url, { max: 1, applicationName: 'test' });
  });
  afterAll(() => narrow?.close());
  /** Keeps the only connection. */
  const keepBusy = (ms = 1_000) => narrow.transaction(() => sleep(ms));
  const slow = { name: 'slowly', text: 'select pg_sleep(1.1)', values: [] };

  it('shortens the time of what a caller waits for', async () => {
    const busy = keepBusy();
    await expect(narrow.run(slow)).rejects.toMatchObject({ name: 'LedgerError', isCommitUnknown: true });
    await busy;
  });

  it('does not shorten that of what nobody waits for', async () => {
    const busy = keepBusy();
    expect(await narrow.run({ ...slow, hasFullTimeout: true })).toHaveLength(1);
    await busy;
  });

  it('does not cost a process its lease', async () => {
    const troubles: unknown[] = [];
    const lease = new Lease(narrow, (error) => troubles.push(error));
    await lease.start();
    const other = new pg.Client({ connectionString: database.url });
    await other.connect();
    await other.query('begin');
    await other.query('select from processes where id = $1 for update', [lease.id]);
    // It is asked for after a second, when the connection is busy, and then has to wait for the row.
    await sleep(900);
    await keepBusy(1_250);
    await sleep(850);
    await other.query('commit');
    const end = lease.end();
    await other.end();
    await end;
    expect(troubles).toEqual([]);
  });
});

describe('group commit', () => {
  it('refuses one item without refusing its neighbours', async () => {
    const group = new GroupCommit<number, string>({
      maxBatch: 10,
      maxInFlight: 1,
      run: async (items) => {
        if (items.includes(3)) throw new LedgerError('3 is bad', { isCommitUnknown: false, isRejected: true });
        return items.map((item) => `ok ${item}`);
      },
    });
    const settled = await Promise.allSettled([1, 2, 3, 4].map((item) => group.submit(item)));
    expect(settled.map((one) => one.status)).toEqual(['fulfilled', 'fulfilled', 'rejected', 'fulfilled']);
  });

  it('tells each item of an unknown batch that it is unknown, and those behind it that they were never sent', async () => {
    let runs = 0;
    const group = new GroupCommit<number, number>({
      maxBatch: 2,
      maxInFlight: 1,
      run: async () => {
        runs += 1;
        throw new LedgerError('gone', { isCommitUnknown: true });
      },
    });
    const settled = await Promise.allSettled([1, 2, 3, 4].map((item) => group.submit(item)));
    const unknown = settled.map((one) => one.status === 'rejected' && (one.reason as LedgerError).isCommitUnknown);
    expect(unknown).toEqual([true, true, false, false]);
    expect(runs).toBe(1);
  });

  it('puts what waits into one batch, and lets a lone item leave at once', async () => {
    const batches: number[] = [];
    const group = new GroupCommit<number, number>({
      maxBatch: 64,
      maxInFlight: 1,
      run: async (items) => {
        batches.push(items.length);
        await new Promise((resolve) => setImmediate(resolve));
        return items;
      },
    });
    await group.submit(1);
    await Promise.all(Array.from({ length: 100 }, (_, i) => group.submit(i)));
    expect(batches).toEqual([1, 64, 36]);
  });
});
