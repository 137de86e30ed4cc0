import { randomUUID } from 'node:crypto';
import { afterEach, expect, it } from 'vitest';
import { eraseCalls, eraseExpiredPayloads } from '../../gateway/ledger/calls/retention.ts';
import { closeSagaForRollback } from '../../gateway/ledger/sagas/saga-rollback.ts';
import { UndoStore } from '../../gateway/ledger/sagas/undos.ts';
import { buildNewCall, buildSuccess, buildUpdate } from '../support/call-record.ts';
import { insertEndedCall } from '../support/call-rows.ts';
import { pollUntil } from '../support/poll.ts';
import { useCallStore, useClient, useLease, useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger(4);
const calls = useCallStore(db);
const lease = useLease(db);
const client = useClient(database);

// A failed test must not keep its locks: the next one would wait for them.
afterEach(() => client.query('rollback'));

const WAITING = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;

async function claim(txn: string) {
  const claimed = await calls.claim(buildNewCall(lease.id, { txn }));
  expect(claimed.kind).toBe('won');
}

it('stores an observation that is only sealed, for the undo after a takeover', async () => {
  const txn = randomUUID();
  await claim(txn);
  const sealed = Buffer.from('sealed observation');
  await calls.update(buildUpdate(txn, { undo: { before: null, args: null, sealed, reason: null } }));
  expect((await calls.read(txn))?.undoSealed).toEqual(sealed);
});

it('locks the open rows of a batch by txn, so that a rollback that locks by txn never waits in a circle', async () => {
  const [first = '', second = ''] = [randomUUID(), randomUUID()].sort();
  await claim(first);
  await claim(second);
  await client.query('begin');
  await client.query('select 1 from open_calls where txn = $1 for update', [first]);
  // One batch that updates the second call and ends the first.
  const written = Promise.all([
    calls.update(buildUpdate(second, { attemptOpen: true })),
    calls.settle(buildSuccess(first)),
  ]);
  await pollUntil(
    () => database.query(WAITING),
    (waiting) => waiting.length === 1,
  );
  // The batch waits for the first row, so it must not hold the second.
  await client.query('select 1 from open_calls where txn = $1 for update nowait', [second]);
  await client.query('commit');
  expect(await written).toEqual([true, true]);
});

it('recalls the steps of a rollback by txn, so that a batch that locks by txn never waits in a circle', async () => {
  const saga = randomUUID();
  await database.query(`insert into sagas (id, agent, asked) values ($1, 'a', '')`, [saga]);
  const [first = '', second = ''] = [randomUUID(), randomUUID()].sort();
  // The later step has the smaller txn, so the steps and the locks are ordered differently.
  for (const txn of [second, first]) await calls.claim(buildNewCall(lease.id, { txn, saga, kind: 'key' }));
  await client.query('begin');
  await client.query('select 1 from open_calls where txn = $1 for update', [first]);
  const request = { id: saga, to: undefined, reason: 'r', by: 'agent', canResumeParked: false, entry: '{}' };
  const closing = closeSagaForRollback(db, request);
  await pollUntil(
    () => database.query(WAITING),
    (waiting) => waiting.length === 1,
  );
  // The rollback waits for the first row, so it must not hold the second.
  await client.query('select 1 from open_calls where txn = $1 for update nowait', [second]);
  await client.query('commit');
  expect((await closing).toSorted()).toEqual([first, second]);
});

it('does not erase the arguments of an undo that a person begins at the same time', async () => {
  const txn = await insertEndedCall(database);
  await client.query('begin');
  await client.query('select 1 from calls where txn = $1 for no key update', [txn]);
  await client.query(`insert into undos (txn, state, args) values ($1, 'due', '{}')`, [txn]);
  const erasing = eraseCalls(db, [{ txn, entry: '{}' }]);
  await pollUntil(
    () => database.query(WAITING),
    (waiting) => waiting.length === 1,
  );
  await client.query('commit');
  expect(await erasing).toEqual([]);
  expect(await database.query('select args from undos where txn = $1', [txn])).toEqual([{ args: '{}' }]);
});

it('does not sweep a call whose undo a person begins at the same time', async () => {
  const txn = await insertEndedCall(database, { settled_at: new Date(0) });
  await client.query('begin');
  await client.query('select 1 from calls where txn = $1 for no key update', [txn]);
  await client.query(`insert into undos (txn, state, args) values ($1, 'due', '{}')`, [txn]);
  const sweeping = eraseExpiredPayloads(db, 0);
  await pollUntil(
    () => database.query(WAITING),
    (waiting) => waiting.length === 1,
  );
  await client.query('commit');
  await sweeping;
  expect(await database.query('select erased_at from calls where txn = $1', [txn])).toEqual([{ erased_at: null }]);
});

it('does not begin the undo of a call that is erased at the same time', async () => {
  const txn = await insertEndedCall(database);
  await client.query('begin');
  await client.query('select 1 from calls where txn = $1 for no key update', [txn]);
  const beginning = new UndoStore(db).beginUndo(txn, { text: '{}', sealed: null }, '{}');
  const refused = expect(beginning).rejects.toThrow('Only a succeeded call can be undone');
  await pollUntil(
    () => database.query(WAITING),
    (waiting) => waiting.length === 1,
  );
  await client.query('update calls set erased_at = now() where txn = $1', [txn]);
  await client.query('commit');
  await refused;
  expect(await database.query(`select 1 from undos where txn = $1 and state <> 'none'`, [txn])).toEqual([]);
});
