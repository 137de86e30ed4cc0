import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { listOlderOpenCalls, takeRun } from '../../gateway/ledger/controls/runs.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { buildIntent } from '../support/intent.ts';

let database: TestDatabase;
let db: Database;
let calls: CallStore;
const OWNER = randomUUID();

beforeAll(async () => {
  database = await createTestDatabase();
  db = new Database(database.url, { max: 6, applicationName: 'test' });
  calls = new CallStore(db);
});
afterAll(async () => {
  await db?.close();
  await database?.drop();
});

const take = (id: string) =>
  takeRun(db, { id, agent: 'a', name: id, key: null, ttlMs: null, buildEntry: (epoch) => `{"epoch":${epoch}}` });

/** A transaction of somebody else that holds these rows until it is ended. */
async function holding(text: string, values: unknown[]): Promise<{ end: () => Promise<void> }> {
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  await client.query('begin');
  await client.query(text, values);
  return {
    end: async () => {
      await client.query('commit');
      await client.end();
    },
  };
}

const waiting = async () => {
  const rows = await database.query(
    `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  );
  return rows.length;
};

describe('a claim and a take-over at the same time', () => {
  it('the claim is first: the take-over waits for it, and sees it', async () => {
    const run = randomUUID();
    await take(run);
    await database.query(`insert into limit_buckets values ($1)`, [run]);
    // The claim has locked the run and is kept from committing by the bucket of its limit.
    const bucket = await holding('select bucket from limit_buckets where bucket = $1 for update', [run]);
    const intent = buildIntent(OWNER, { run, epoch: 1 });
    const spends = [{ kind: 'rate' as const, bucket: run, amount: 1, max: 10, perMs: 1_000 }];
    const claimed = calls.claim(intent, { charges: spends, approval: undefined, locks: undefined });
    await expect.poll(waiting).toBe(1);
    const taken = take(run);
    await expect.poll(waiting).toBe(2);
    await bucket.end();
    expect(await claimed).toMatchObject({ kind: 'won' });
    expect(await taken).toMatchObject({ epoch: 2 });
    expect(await listOlderOpenCalls(db, { run, epoch: 2 }, 10)).toMatchObject([{ txn: intent.txn, epoch: 1 }]);
  });

  it('the take-over is first: the claim waits for it, and is refused with nothing written', async () => {
    const run = randomUUID();
    await take(run);
    const taking = await holding('update runs set epoch = 2 where id = $1', [run]);
    const old = buildIntent(OWNER, { run, epoch: 1 });
    const claimed = calls.claim(old);
    await expect.poll(waiting).toBe(1);
    await taking.end();
    expect(await claimed).toEqual({ kind: 'taken' });
    expect(await calls.read(old.txn)).toBeUndefined();
    expect(await calls.claim(buildIntent(OWNER, { run, epoch: 2 }))).toMatchObject({ kind: 'won' });
  });
});

it('an epoch never shrinks, and a run is never another’s', async () => {
  const run = randomUUID();
  await take(run);
  await take(run);
  await expect(database.query('update runs set epoch = 1 where id = $1', [run])).rejects.toThrow(/may not go from/);
  await expect(database.query(`update runs set agent = 'b' where id = $1`, [run])).rejects.toThrow(/another's/);
});

it('batches of calls in many runs and sagas, in any order, never wait for each other in a circle', async () => {
  const runs = Array.from({ length: 12 }, () => randomUUID());
  for (const run of runs) await take(run);
  const other = new CallStore(db);
  const claims = Array.from({ length: 300 }, (_, k) => {
    const run = runs[(k * 7) % runs.length] as string;
    return (k % 2 === 0 ? calls : other).claim(buildIntent(OWNER, { run, epoch: k % 5 === 0 ? 9 : 1 }));
  });
  const answers = await Promise.all(claims);
  answers.forEach((answer, k) => {
    expect([k, answer.kind]).toEqual([k, k % 5 === 0 ? 'taken' : 'won']);
  });
});
