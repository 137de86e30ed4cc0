import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { handOverCalls, isOwnedBy, releaseClaim, takeOverCalls } from '../../gateway/ledger/calls/call-ownership.ts';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { listCalls } from '../../gateway/ledger/calls/list-calls.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import { closeSagaForRollback } from '../../gateway/ledger/sagas/saga-rollback.ts';
import { UndoStore } from '../../gateway/ledger/sagas/undos.ts';
import { buildNewCall, buildSuccess, type TestCall, type TestCallFields } from '../support/call-record.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';

/**
 * A connection plans a statement once, often while the ledger is empty, and keeps the plan until PostgreSQL analyses the tables. A
 * plan that scans a table is good while the table is empty, and stalls the gateway a minute later.
 */

const CALLS = 3_000;
/** Room for a few rows of each index, for each of a few calls. */
const MAX_ROWS_READ = 400;

let database: TestDatabase;
let db: Database;
let calls: CallStore;
let lease: Lease;
let neighbour: Lease;
let leases: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  leases = new Database(database.url, { max: 2, applicationName: 'leases' });
  lease = new Lease(leases, () => {});
  neighbour = new Lease(leases, () => {});
  await lease.start();
  await neighbour.start();
  // One connection, which keeps its plans and reports its row counts on request.
  db = new Database(database.url, { max: 1, applicationName: 'test' });
  calls = new CallStore(db);
  for (const [, run] of OPERATIONS) await run();
  await fillLedger();
});
afterAll(async () => {
  await db?.close();
  await lease?.end();
  await neighbour?.end();
  await leases?.close();
  await database?.drop();
});

const settle = ({ txn }: TestCall) => calls.settle(buildSuccess(txn));

async function claimCall(changes: Partial<TestCallFields> = {}): Promise<TestCall> {
  const newCall = buildNewCall(lease.id, { kind: 'key', ...changes });
  expect(await calls.claim(newCall)).toMatchObject({ kind: 'won' });
  return newCall;
}

async function settleSteps(): Promise<string> {
  const saga = randomUUID();
  await database.query('insert into sagas (id, agent, asked) values ($1, $2, $3)', [saga, 'a', Buffer.alloc(32)]);
  for (const step of [await claimCall({ saga }), await claimCall({ saga })]) expect(await settle(step)).toBe(true);
  return saga;
}

const OPERATIONS: readonly (readonly [name: string, run: () => Promise<unknown>])[] = [
  [
    'claims and settlements',
    async () => Promise.all([await claimCall(), await claimCall(), await claimCall()].map(settle)),
  ],
  ['a repeat of a claim', async () => expect(await calls.claim(await claimCall())).toEqual({ kind: 'taken' })],
  ['a read', async () => calls.read((await claimCall()).txn)],
  ['steps of a saga', settleSteps],
  [
    'the rollback of a saga',
    async () => {
      const id = await settleSteps();
      await closeSagaForRollback(db, { id, to: undefined, reason: 'r', by: 'b', canResumeParked: false, entry: '{}' });
      const undos = new UndoStore(db);
      return [await undos.read(id), await undos.readOutline(id, 'saga')];
    },
  ],
  [
    'a compensation',
    async () => {
      const done = await claimCall();
      await settle(done);
      await database.query(`insert into undos (txn, state, args) values ($1, 'due', '{}')`, [done.txn]);
      await claimCall({ identity: 'undo', undoOf: done.txn, undoTries: 0 });
    },
  ],
  ['a release', async () => expect(await releaseClaim(db, (await claimCall()).record, '{}')).toBe(true)],
  [
    'a check of the owner of a call',
    async () => expect(await isOwnedBy(db, (await claimCall()).txn, lease.id)).toBe(true),
  ],
  [
    'taking over',
    async () => {
      const { txn } = await claimCall({ owner: randomUUID() });
      expect((await takeOverCalls(db, lease.id, () => '{}')).map((call) => call.txn)).toContain(txn);
      expect(await takeOverCalls(db, lease.id, () => '{}')).toEqual([]);
    },
  ],
  ['a page of calls of an agent', async () => listCalls(db, { limit: 20, agent: 'a' })],
  ['handing over', async () => handOverCalls(db, lease.id)],
];

/** Many open calls of another live gateway. */
async function fillLedger(): Promise<void> {
  await database.query(
    `with made as (
       insert into calls (txn, agent, tool, identity, fingerprint, kind, policy_version)
       select gen_random_uuid(), 'a', 't', 'key', sha256(i::text::bytea), 'none', 'v' from generate_series(1, $2::int) i
       returning txn
     )
     insert into open_calls (txn, owner, state, fence, attempt) select txn, $1, 'sending', 1, 1 from made`,
    [neighbour.id, CALLS],
  );
}

async function countRowsRead(): Promise<number> {
  await db.run({ name: 'flush-stats', text: 'select pg_stat_force_next_flush()', values: [] });
  const [row] = await database.query<{ read: string }>(
    `select (select sum(idx_tup_read) from pg_stat_user_indexes) + (select sum(seq_tup_read) from pg_stat_user_tables) as read`,
  );
  return Number(row?.read);
}

it.each(OPERATIONS)('%s: reads few rows in a full ledger with a plan from an empty one', async (_, run) => {
  const before = await countRowsRead();
  await run();
  expect((await countRowsRead()) - before).toBeLessThan(MAX_ROWS_READ);
});
