import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { buildBaseUpdate } from '../../gateway/flow/attempts/record.ts';
import { handOverCalls, isOwnedBy, releaseClaim, takeOverCalls } from '../../gateway/ledger/calls/call-ownership.ts';
import { CallStore, type Intent } from '../../gateway/ledger/calls/calls.ts';
import { listCalls } from '../../gateway/ledger/calls/list-calls.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { Lease } from '../../gateway/ledger/process-lease.ts';
import { closeSagaForRollback } from '../../gateway/ledger/sagas/saga-rollback.ts';
import { UndoStore } from '../../gateway/ledger/sagas/undos.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { buildIntent } from '../support/intent.ts';

/**
 * A connection plans a statement once, often while the ledger is empty, and keeps the plan until PostgreSQL analyses the tables. A plan
 * that walks an empty table is a good one, and ruins a gateway a minute later.
 */

const CALLS = 3_000;
/** A few rows of each index, for each of a few calls. */
const MOST_READ = 400;

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
  // One connection, which keeps its plans and tells what it has read when it is asked to.
  db = new Database(database.url, { max: 1, applicationName: 'test' });
  calls = new CallStore(db);
  for (const [, way] of WAYS) await way();
  await fill();
});
afterAll(async () => {
  await db?.close();
  await lease?.end();
  await neighbour?.end();
  await leases?.close();
  await database?.drop();
});

const settle = ({ txn, fence }: Intent) =>
  calls.update({
    ...buildBaseUpdate({
      txn,
      fence,
      step: 0,
      state: 'sending',
      attempt: 1,
      attemptOpen: false,
      unresolved: 0,
      unknownSince: null,
    }),
    state: 'succeeded',
    custody: 'close',
    outcome: 'answered',
    evidence: 'answer',
    leaf: Buffer.alloc(32),
    entry: '{}',
  });

async function made(changes: Partial<Intent> = {}): Promise<Intent> {
  const intent = buildIntent(lease.id, { kind: 'key', ...changes });
  expect(await calls.claim(intent)).toMatchObject({ kind: 'won' });
  return intent;
}

async function steps(): Promise<string> {
  const saga = randomUUID();
  await database.query('insert into sagas (id, agent, asked) values ($1, $2, $3)', [saga, 'a', Buffer.alloc(32)]);
  for (const step of [await made({ saga }), await made({ saga })]) expect(await settle(step)).toBe(true);
  return saga;
}

const WAYS: readonly (readonly [name: string, way: () => Promise<unknown>])[] = [
  ['claims and settlements', async () => Promise.all([await made(), await made(), await made()].map(settle))],
  ['a repeat of a claim', async () => expect(await calls.claim(await made())).toEqual({ kind: 'taken' })],
  ['a reading', async () => calls.read((await made()).txn)],
  ['steps of a saga', steps],
  [
    'the rollback of a saga',
    async () => {
      const id = await steps();
      await closeSagaForRollback(db, { id, to: undefined, reason: 'r', by: 'b', canResumeParked: false, entry: '{}' });
      const undos = new UndoStore(db);
      return [await undos.read(id), await undos.readOutline(id, 'saga')];
    },
  ],
  [
    'a compensation',
    async () => {
      const done = await made();
      await settle(done);
      await database.query(`update calls set undo_state = 'due', undo_args = '{}' where txn = $1`, [done.txn]);
      await made({ identity: 'undo', undoes: { txn: done.txn, tries: 0 } });
    },
  ],
  ['a release', async () => expect(await releaseClaim(db, await made(), '{}')).toBe(true)],
  ['a look at who owns a call', async () => expect(await isOwnedBy(db, (await made()).txn, lease.id)).toBe(true)],
  [
    'taking over',
    async () => {
      const { txn } = await made({ owner: randomUUID() });
      expect((await takeOverCalls(db, lease.id, () => '{}')).map((call) => call.txn)).toContain(txn);
      expect(await takeOverCalls(db, lease.id, () => '{}')).toEqual([]);
    },
  ],
  ['a page of calls of an agent', async () => listCalls(db, { limit: 20, agent: 'a' })],
  ['handing over', async () => handOverCalls(db, lease.id)],
];

/** Many calls, some of them open, in the hands of another gateway that lives. */
async function fill(): Promise<void> {
  await database.query(
    `with made as (
       insert into calls (txn, agent, tool, identity, fingerprint, kind, state, attempt, policy_version)
       select gen_random_uuid(), 'a', 't', 'key', sha256(i::text::bytea), 'none', 'sending', 1, 'v' from generate_series(1, $2::int) i
       returning txn
     )
     insert into open_calls (txn, owner) select txn, $1 from made`,
    [neighbour.id, CALLS],
  );
}

async function readSoFar(): Promise<number> {
  await db.run({ name: 'tell', text: 'select pg_stat_force_next_flush()', values: [] });
  const [row] = await database.query<{ read: string }>(
    `select (select sum(idx_tup_read) from pg_stat_user_indexes) + (select sum(seq_tup_read) from pg_stat_user_tables) as read`,
  );
  return Number(row?.read);
}

it.each(WAYS)('%s read as little in a full ledger as in the empty one they were planned in', async (_, way) => {
  const before = await readSoFar();
  await way();
  expect((await readSoFar()) - before).toBeLessThan(MOST_READ);
});
