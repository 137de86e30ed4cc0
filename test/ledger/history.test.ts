import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { History, type HistoryQuery } from '../../gateway/domain/calls/history.ts';
import { canonicalize } from '../../gateway/domain/canonical.ts';
import type { Json } from '../../gateway/domain/json.ts';
import type { StoredUndo } from '../../gateway/domain/sagas/saga.ts';
import { releaseClaim } from '../../gateway/ledger/calls/call-ownership.ts';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import type { ClaimGuards } from '../../gateway/ledger/calls/claim.ts';
import { readHistory } from '../../gateway/ledger/calls/history.ts';
import { buildNewCall, type TestCallFields } from '../support/call-record.ts';
import { endOpenCall } from '../support/call-rows.ts';
import { useCallStore, useLease, useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger(8);
const calls = useCallStore(db);
const lease = useLease(db);

const HOUR = 3_600_000;
const count = (glob: string, windowMs = HOUR): HistoryQuery => ({ text: `count ${glob}`, glob, windowMs });
const sum = (glob: string, ...path: string[]): HistoryQuery => ({
  text: `sum ${glob}`,
  glob,
  windowMs: HOUR,
  sum: path,
});

async function claimCall(
  agent: string,
  tool: string,
  args: Json = {},
  changes: Partial<TestCallFields> = {},
): Promise<string> {
  const intent = buildNewCall(lease.id, { agent, tool, args: canonicalize(args), ...changes });
  expect(await calls.claim(intent)).toMatchObject({ kind: 'won' });
  return intent.txn;
}

async function answer(agent: string, query: HistoryQuery, exceptTxn: string | null = null) {
  return (await readHistory(db, { agent, queries: [query], exceptTxn })).get(query.text);
}

const settle = (txn: string, state: string) => endOpenCall(database, txn, { state });

describe('the history of an agent', () => {
  it('counts calls that may have had an effect (open, in doubt, done), not failed or released ones', async () => {
    const agent = randomUUID();
    const [open, inDoubt, done, failed, released] = [
      await claimCall(agent, 'a.delete_x'),
      await claimCall(agent, 'a.delete_x'),
      await claimCall(agent, 'b.delete_y'),
      await claimCall(agent, 'a.delete_x'),
      await claimCall(agent, 'a.delete_x'),
    ];
    await database.query(
      `update open_calls set state = 'in_doubt', attempt_open = false, unresolved = 1 where txn = $1`,
      [inDoubt],
    );
    await settle(done, 'succeeded');
    await settle(failed, 'failed');
    expect(await releaseClaim(db, { txn: released, owner: lease.id, fence: 1 }, '{}')).toBe(true);
    for (const state of ['rejected', 'expired', 'cancelled']) {
      const held = await claimCall(agent, 'a.delete_x', {}, { state: 'held', owner: null, dueInMs: HOUR });
      await settle(held, state);
    }
    const waiting = await claimCall(agent, 'a.delete_x', {}, { state: 'held', owner: null, dueInMs: HOUR });
    expect(await answer(agent, count('*.delete_*'))).toBe(4);
    expect(await answer(agent, count('a.*'))).toBe(3);
    expect(await answer(agent, count('*.delete_*'), open)).toBe(3);
    expect(await answer(agent, count('*.delete_*'), waiting)).toBe(3);
    expect(await answer(randomUUID(), count('*'))).toBe(0);
  });

  it('treats _ in a glob as a literal character', async () => {
    const agent = randomUUID();
    await claimCall(agent, 'a.deleteXy');
    expect(await answer(agent, count('*.delete_*'))).toBe(0);
  });

  it('does not count compensations', async () => {
    const agent = randomUUID();
    const txn = await claimCall(agent, 'a.make', {}, { undo: { kind: 'compensable', tool: 'a.delete' } as StoredUndo });
    await settle(txn, 'succeeded');
    await database.query(`insert into undos (txn, state) values ($1, 'due')`, [txn]);
    await claimCall(agent, 'a.delete', {}, { undoOf: txn, undoTries: 0, identity: 'undo' });
    expect(await answer(agent, count('a.*'))).toBe(1);
  });

  it('ends with its window', async () => {
    const agent = randomUUID();
    await claimCall(agent, 'a.x');
    expect(await answer(agent, count('a.*', 60_000))).toBe(1);
    // The window has passed when the history is read.
    await expect.poll(() => answer(agent, count('a.*', 1))).toBe(0);
  });

  it('of a call that was claimed earlier ends at its claim', async () => {
    const agent = randomUUID();
    await claimCall(agent, 'a.x');
    const [{ at }] = (await database.query<{ at: Date }>(`select clock_timestamp() as at`)) as [{ at: Date }];
    await expect.poll(() => Date.now()).toBeGreaterThan(at.getTime());
    await claimCall(agent, 'a.x');
    const queries = [count('a.*')];
    expect((await readHistory(db, { agent, queries, exceptTxn: null, asOf: at })).get('count a.*')).toBe(1);
  });
});

describe('a sum', () => {
  it('is exact in decimals, and skips negative and missing amounts', async () => {
    const agent = randomUUID();
    for (const amount of [0.1, 0.2, -5, null]) await claimCall(agent, 'a.pay', { order: { total: amount } });
    await claimCall(agent, 'a.pay', {});
    await claimCall(agent, 'a.pay', { order: [] });
    expect(await answer(agent, sum('a.*', 'order', 'total'))).toBe(0.3);
    expect(await answer(agent, count('a.*'))).toBe(6);
  });

  it.each<[string, Json]>([
    ['a NUL beside it', { note: 'a\0b', amount: 5 }],
    ['a backslash and u0000', { note: '\\u0000\\', amount: 5 }],
    ['both, in a row', { note: '\\\0\\\\\0', '\0': '\\', amount: 5 }],
    ['a quote', { 'a"b': '"', amount: 5 }],
  ])('reads arguments with %s', async (_name, args) => {
    const agent = randomUUID();
    await claimCall(agent, 'a.pay', args);
    expect(await answer(agent, sum('a.pay', 'amount'))).toBe(5);
  });

  it.each<[string, Json]>([
    ['a text', '5'],
    ['a list', [5]],
    ['redacted', '[redacted]'],
  ])('is unknown where the amount is %s', async (_name, amount) => {
    const agent = randomUUID();
    await claimCall(agent, 'a.pay', { amount: 1 });
    await claimCall(agent, 'a.pay', { amount });
    expect(await answer(agent, sum('a.pay', 'amount'))).toBe('unknown');
  });

  it('is unknown if a payload was erased; a count is not', async () => {
    const agent = randomUUID();
    const txn = await claimCall(agent, 'a.pay', { amount: 1 });
    await settle(txn, 'succeeded');
    await database.query(`update calls set args = null, erased_at = now() where txn = $1`, [txn]);
    expect(await answer(agent, sum('a.pay', 'amount'))).toBe('unknown');
    expect(await answer(agent, count('a.pay'))).toBe(1);
  });

  it('answers several queries at once', async () => {
    const agent = randomUUID();
    await claimCall(agent, 'a.pay', { amount: 2, fee: 1 });
    const queries = [sum('a.pay', 'amount'), count('b.*'), { ...sum('a.*', 'fee'), text: 'fees' }];
    const history = await readHistory(db, { agent, queries, exceptTxn: null });
    expect(history.toJson()).toEqual({ 'sum a.pay': 2, 'count b.*': 0, fees: 1 });
  });
});

describe('a claim under a rule with history', () => {
  const allowUpTo = (limit: number): ClaimGuards => ({
    charges: [],
    approval: undefined,
    locks: undefined,
    history: { queries: [count('a.*')], isDecisionUnchanged: (history) => Number(history.get('count a.*')) < limit },
  });

  it('wins exactly seven of twenty times at once on two replicas; the others get the new history', async () => {
    const agent = randomUUID();
    const elsewhere = new CallStore(db);
    const settlements = await Promise.all(
      Array.from({ length: 20 }, (_, i) =>
        (i % 2 === 0 ? calls : elsewhere).claim(buildNewCall(lease.id, { agent, tool: 'a.x' }), allowUpTo(7)),
      ),
    );
    expect(settlements.filter((outcome) => outcome.kind === 'won')).toHaveLength(7);
    const stale = settlements.filter((outcome) => outcome.kind === 'stale_decision');
    expect(stale).toHaveLength(13);
    for (const { history } of stale) expect(history.get('count a.*')).toBe(7);
    expect(await answer(agent, count('a.*'))).toBe(7);
  });

  it('that is refused writes nothing', async () => {
    const agent = randomUUID();
    const intent = buildNewCall(lease.id, { agent, tool: 'a.x' });
    expect(await calls.claim(intent, allowUpTo(0))).toEqual({ kind: 'stale_decision', history: expect.any(History) });
    expect(await calls.read(intent.txn)).toBeUndefined();
  });
});
