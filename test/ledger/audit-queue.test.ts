import { afterEach, expect, it } from 'vitest';
import { enqueueAuditEntry } from '../../gateway/ledger/audit/audit-queue.ts';
import { useClient, useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger(3);
const blocker = useClient(database);
afterEach(() => blocker.query('rollback'));

const buildEntries = (of: string, count: number) => Array.from({ length: count }, (_, i) => `{"${of}":${i}}`);
const readEntries = async (of: string) =>
  (await database.query<{ entry: string }>('select entry from audit_queue where entry like $1', [`{"${of}"%`])).map(
    ({ entry }) => entry,
  );

/** Blocks writes to the queue until the lock is released. */
async function lockQueue(): Promise<void> {
  await blocker.query('begin');
  await blocker.query('lock table audit_queue in share mode');
}

const listWaiting = () =>
  database.query<{ pid: number }>(
    `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  );

it('writes one leaf for each of many concurrent entries, even equal ones, in few commits', async () => {
  await Promise.all([...buildEntries('crowd', 299), '{"crowd":0}'].map((entry) => enqueueAuditEntry(db, entry)));
  expect((await readEntries('crowd')).sort()).toEqual([...buildEntries('crowd', 299), '{"crowd":0}'].sort());
  const [commits] = await database.query<{ count: number }>(
    `select count(distinct xmin::text)::int as count from audit_queue where entry like '{"crowd"%'`,
  );
  expect(commits?.count).toBeLessThanOrEqual(3);
});

it('leaves connections to others while many entries wait', async () => {
  await lockQueue();
  const crowd = Promise.all(buildEntries('slow', 50).map((entry) => enqueueAuditEntry(db, entry)));
  await expect.poll(async () => (await listWaiting()).length).toBeGreaterThan(0);
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
  expect(await readEntries('slow')).toEqual([]);
  await blocker.query('rollback');
  await crowd;
  expect(await readEntries('slow')).toHaveLength(50);
});

it('reports an unknown commit to each entry of a batch whose connection dies, and queued ones as not sent', async () => {
  await lockQueue();
  const crowd = Promise.allSettled(buildEntries('lost', 130).map((entry) => enqueueAuditEntry(db, entry)));
  await expect.poll(async () => (await listWaiting()).length).toBe(1);
  await database.query('select pg_terminate_backend($1)', [(await listWaiting())[0]?.pid]);
  const reasons = (await crowd).map((one) => (one.status === 'rejected' ? one.reason : undefined));
  for (const [i, reason] of reasons.entries())
    expect(reason).toMatchObject({ name: 'LedgerError', isCommitUnknown: i < 128 });
  await blocker.query('rollback');
  expect(await readEntries('lost')).toEqual([]);
});

it('rejects only the entry that the database cannot store', async () => {
  const three = ['{"odd":1}', '{"odd":2}\0', '{"odd":3}'].map((entry) => enqueueAuditEntry(db, entry));
  expect((await Promise.allSettled(three)).map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
  expect((await readEntries('odd')).sort()).toEqual(['{"odd":1}', '{"odd":3}']);
});
