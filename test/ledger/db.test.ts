import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { GatewayError, LedgerError } from '../../gateway/domain/errors.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { GroupCommit } from '../../gateway/ledger/group-commit.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import { useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger();
beforeAll(() => database.query('create table notes (id int primary key, text text)'));

const insert = (id: number) => ({ name: 'insert-note', text: 'insert into notes values ($1, $2)', values: [id, 'x'] });
const ids = async () => (await database.query<{ id: number }>('select id from notes order by id')).map((row) => row.id);

describe('a transaction', () => {
  it('that swallowed a failed statement is not committed and reports it', async () => {
    const swallowing = db.transaction(async (tx) => {
      await tx.run(insert(1));
      await tx.run(insert(1)).catch(() => undefined);
    });
    await expect(swallowing).rejects.toThrow(/ROLLBACK/);
    await expect(swallowing).rejects.toMatchObject({ isCommitUnknown: false });
    expect(await ids()).toEqual([]);
  });

  it('whose work throws a GatewayError is rolled back and keeps its connection', async () => {
    const refusing = db.transaction(async (tx) => {
      await tx.run(insert(2));
      throw new GatewayError('locked', 'no');
    });
    await expect(refusing).rejects.toBeInstanceOf(GatewayError);
    expect(await ids()).toEqual([]);
    expect(db.busyConnections).toBe(0);
  });

  it('whose connection dies before COMMIT certainly had no effect', async () => {
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
  it('that violates a constraint certainly did not commit', async () => {
    await db.run(insert(5));
    await expect(db.run(insert(5))).rejects.toMatchObject({
      name: 'LedgerError',
      isCommitUnknown: false,
      isRejected: true,
    });
  });

  it.each([
    ['an invalid text', `select convert_from('\\x00'::bytea, 'UTF8')`, true],
    ['a duplicate key', `insert into notes values (77, 'x'), (77, 'y')`, true],
    [
      'a serialization failure',
      `do $$ begin raise exception 'later' using errcode = 'serialization_failure'; end $$`,
      false,
    ],
  ])('that is rejected for %s reports whether the rejection is permanent', async (_, text, isPermanent) => {
    const refused = db.run({ name: text.slice(0, 20), text, values: [] });
    await expect(refused).rejects.toMatchObject({ isRejected: true, isCommitUnknown: false, isPermanent });
  });

  it('whose connection dies meanwhile may have committed', async () => {
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

  it('to an unreachable server certainly did not commit', async () => {
    const unreachable = new Database('postgres://nobody@127.0.0.1:1/none', { max: 1, applicationName: 'test' });
    await expect(unreachable.run(insert(6))).rejects.toMatchObject({
      name: 'LedgerError',
      isCommitUnknown: false,
      isRejected: false,
    });
    await unreachable.close();
  });
});

describe('a wait for a connection', () => {
  let narrow: Database;
  beforeAll(() => {
    narrow = new Database(database.url, { max: 1, applicationName: 'test' });
  });
  afterAll(() => narrow?.close());
  /** Occupies the only connection. */
  const keepBusy = (ms = 1_000) => narrow.transaction(() => sleep(ms));
  const slow = { name: 'slowly', text: 'select pg_sleep(1.1)', values: [] };

  it('shortens the timeout of a statement that a caller waits for', async () => {
    const busy = keepBusy();
    await expect(narrow.run(slow)).rejects.toMatchObject({ name: 'LedgerError', isCommitUnknown: true });
    await busy;
  });

  it('does not shorten the timeout of a background statement', async () => {
    const busy = keepBusy();
    expect(await narrow.run({ ...slow, hasFullTimeout: true })).toHaveLength(1);
    await busy;
  });

  it('does not cost a process its lease', async () => {
    const errors: unknown[] = [];
    const lease = new Lease(narrow, (error) => errors.push(error));
    await lease.start();
    const other = new pg.Client({ connectionString: database.url });
    await other.connect();
    await other.query('begin');
    await other.query('select from processes where id = $1 for update', [lease.id]);
    // The lease is renewed after a second. Then the connection is busy, and afterwards the row is locked.
    await sleep(900);
    await keepBusy(1_250);
    await sleep(850);
    await other.query('commit');
    const end = lease.end();
    await other.end();
    await end;
    expect(errors).toEqual([]);
  });
});

describe('group commit', () => {
  it('rejects one item without rejecting the others of its batch', async () => {
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

  it('reports an unknown commit to each item of the batch, and queued items as not sent', async () => {
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

  it('puts waiting items into one batch, and sends a lone item at once', async () => {
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
