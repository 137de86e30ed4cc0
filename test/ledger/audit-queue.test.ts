import pg from 'pg';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { enqueueAuditEntry } from '../../gateway/ledger/audit/audit-queue.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';

let database: TestDatabase;
let db: Database;
let inTheWay: pg.Client;

beforeAll(async () => {
  database = await createTestDatabase();
  db = new Database(database.url, { max: 3, applicationName: 'test' });
  inTheWay = new pg.Client({ connectionString: database.url });
  await inTheWay.connect();
});
afterEach(() => inTheWay.query('rollback'));
afterAll(async () => {
  await db?.close();
  await inTheWay?.end();
  await database?.drop();
});

const many = (of: string, count: number) => Array.from({ length: count }, (_, i) => `{"${of}":${i}}`);
const logged = async (of: string) =>
  (await database.query<{ entry: string }>('select entry from audit_queue where entry like $1', [`{"${of}"%`])).map(
    ({ entry }) => entry,
  );

/** Nothing is written to the log until the lock goes. */
async function holdUp(): Promise<void> {
  await inTheWay.query('begin');
  await inTheWay.query('lock table audit_queue in share mode');
}

const waiting = () =>
  database.query<{ pid: number }>(
    `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  );

it('many at once are one leaf each, equal ones too, in few commits', async () => {
  await Promise.all([...many('crowd', 299), '{"crowd":0}'].map((entry) => enqueueAuditEntry(db, entry)));
  expect((await logged('crowd')).sort()).toEqual([...many('crowd', 299), '{"crowd":0}'].sort());
  const [commits] = await database.query<{ count: number }>(
    `select count(distinct xmin::text)::int as count from audit_queue where entry like '{"crowd"%'`,
  );
  expect(commits?.count).toBeLessThanOrEqual(3);
});

it('a crowd that waits leaves connections to everybody else', async () => {
  await holdUp();
  const crowd = Promise.all(many('slow', 50).map((entry) => enqueueAuditEntry(db, entry)));
  await expect.poll(async () => (await waiting()).length).toBeGreaterThan(0);
  const others = Promise.all([1, 2, 3].map(() => db.run({ name: 'other', text: 'select 1 as one', values: [] })));
  expect(
    await Promise.race([
      others.then(() => 'others'),
      crowd.then(
        () => 'crowd',
        () => 'crowd',
      ),
    ]),
  ).toBe('others');
  expect(await logged('slow')).toEqual([]);
  await inTheWay.query('rollback');
  await crowd;
  expect(await logged('slow')).toHaveLength(50);
});

it('a batch whose connection dies is an error of the ledger for each, and those behind were not sent', async () => {
  await holdUp();
  const crowd = Promise.allSettled(many('lost', 130).map((entry) => enqueueAuditEntry(db, entry)));
  await expect.poll(async () => (await waiting()).length).toBe(1);
  await database.query('select pg_terminate_backend($1)', [(await waiting())[0]?.pid]);
  const reasons = (await crowd).map((one) => (one.status === 'rejected' ? one.reason : undefined));
  for (const [i, reason] of reasons.entries())
    expect(reason).toMatchObject({ name: 'LedgerError', isCommitUnknown: i < 128 });
  await inTheWay.query('rollback');
  expect(await logged('lost')).toEqual([]);
});

it('one that the database cannot hold is refused alone', async () => {
  const three = ['{"odd":1}', '{"odd":2}\0', '{"odd":3}'].map((entry) => enqueueAuditEntry(db, entry));
  expect((await Promise.allSettled(three)).map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
  expect((await logged('odd')).sort()).toEqual(['{"odd":1}', '{"odd":3}']);
});
