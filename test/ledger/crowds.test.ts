import { randomUUID } from 'node:crypto';
import { afterEach, expect, it } from 'vitest';
import { findAliasedTxn } from '../../gateway/ledger/calls/joins.ts';
import { findNewestRepeat, recordGeneration } from '../../gateway/ledger/calls/repeats.ts';
import { useClient, useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger(3);
const blocker = useClient(database);
afterEach(() => blocker.query('rollback'));

const READS = { aliases: findAliasedTxn, repeats: findNewestRepeat };

it.each(Object.entries(READS))('many reads of %s at once leave connections to others', async (table, read) => {
  await blocker.query('begin');
  await blocker.query(`lock table ${table} in access exclusive mode`);
  const crowd = Promise.all(Array.from({ length: 50 }, () => read(db, randomUUID())));
  const waiting = () =>
    database.query(`select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`);
  await expect.poll(async () => (await waiting()).length).toBeGreaterThan(0);
  const other = db.run({ name: 'other', text: 'select 1 as one', values: [] });
  const ended = crowd.then(
    () => 'crowd',
    () => 'crowd',
  );
  expect(await Promise.race([other.then(() => 'other'), ended])).toBe('other');
  await blocker.query('rollback');
  expect(new Set(await crowd)).toEqual(new Set([undefined]));
});

it('each of many concurrent reads gets its own answer', async () => {
  const repeats = Array.from({ length: 40 }, (_, i) => ({ slot: randomUUID(), txn: randomUUID(), generation: i }));
  for (const { slot, txn, generation } of repeats) {
    await recordGeneration(db, slot, generation, txn);
    await database.query('insert into aliases (alias, txn) values ($1, $2)', [slot, txn]);
  }
  const twice = [...repeats, ...repeats];
  const newest = await Promise.all(twice.map(({ slot }) => findNewestRepeat(db, slot)));
  expect(newest).toMatchObject(twice.map(({ txn, generation }) => ({ txn, generation, call: undefined })));
  expect(await Promise.all(twice.map(({ slot }) => findAliasedTxn(db, slot)))).toEqual(twice.map(({ txn }) => txn));
});
