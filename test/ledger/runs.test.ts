import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { describe, expect, it } from 'vitest';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { listOlderOpenCalls, takeRun } from '../../gateway/ledger/controls/runs.ts';
import { buildNewCall } from '../support/call-record.ts';
import { useCallStore, useLedger } from '../support/use-ledger.ts';

const OWNER = randomUUID();

const { database, db } = useLedger(6);
const calls = useCallStore(db);

const take = (id: string) =>
  takeRun(db, { id, agent: 'a', name: id, key: null, ttlMs: null, buildEntry: (epoch) => `{"epoch":${epoch}}` });

/** Another transaction that locks these rows until `end`. */
async function lockRows(text: string, values: unknown[]): Promise<{ end: () => Promise<void> }> {
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

const countWaiting = async () => {
  const rows = await database.query(
    `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  );
  return rows.length;
};

describe('a concurrent claim and takeover', () => {
  it('the claim is first: the takeover waits for it and sees the call', async () => {
    const run = randomUUID();
    await take(run);
    await database.query(`insert into limit_buckets values ($1)`, [run]);
    // The claim has locked the run and waits for the bucket of its limit before it can commit.
    const bucket = await lockRows('select bucket from limit_buckets where bucket = $1 for update', [run]);
    const intent = buildNewCall(OWNER, { run, epoch: 1 });
    const charges = [{ kind: 'rate' as const, bucket: run, amount: 1, max: 10, perMs: 1_000 }];
    const claimed = calls.claim(intent, { charges, approval: undefined, locks: undefined });
    await expect.poll(countWaiting).toBe(1);
    const taken = take(run);
    await expect.poll(countWaiting).toBe(2);
    await bucket.end();
    expect(await claimed).toMatchObject({ kind: 'won' });
    expect(await taken).toMatchObject({ epoch: 2 });
    expect(await listOlderOpenCalls(db, { run, epoch: 2 }, 10)).toMatchObject([{ txn: intent.txn, epoch: 1 }]);
  });

  it('the takeover is first: the claim waits for it, is refused and writes nothing', async () => {
    const run = randomUUID();
    await take(run);
    const taking = await lockRows('update runs set epoch = 2 where id = $1', [run]);
    const old = buildNewCall(OWNER, { run, epoch: 1 });
    const claimed = calls.claim(old);
    await expect.poll(countWaiting).toBe(1);
    await taking.end();
    expect(await claimed).toEqual({ kind: 'taken' });
    expect(await calls.read(old.txn)).toBeUndefined();
    expect(await calls.claim(buildNewCall(OWNER, { run, epoch: 2 }))).toMatchObject({ kind: 'won' });
  });
});

it('an epoch never decreases, and the agent of a run never changes', async () => {
  const run = randomUUID();
  await take(run);
  await take(run);
  await expect(database.query('update runs set epoch = 1 where id = $1', [run])).rejects.toThrow(/may not go from/);
  await expect(database.query(`update runs set agent = 'b' where id = $1`, [run])).rejects.toThrow(/another's/);
});

it('batches of calls in many runs, in any order, never deadlock', async () => {
  const runs = Array.from({ length: 12 }, () => randomUUID());
  for (const run of runs) await take(run);
  const other = new CallStore(db);
  const claims = Array.from({ length: 300 }, (_, k) => {
    const run = runs[(k * 7) % runs.length] as string;
    return (k % 2 === 0 ? calls : other).claim(buildNewCall(OWNER, { run, epoch: k % 5 === 0 ? 9 : 1 }));
  });
  const results = await Promise.all(claims);
  results.forEach((result, k) => {
    expect([k, result.kind]).toEqual([k, k % 5 === 0 ? 'taken' : 'won']);
  });
});
