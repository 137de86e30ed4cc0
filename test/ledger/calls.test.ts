import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { releaseClaim, takeOverCalls } from '../../gateway/ledger/calls/call-ownership.ts';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { recordResolution } from '../../gateway/ledger/calls/verdicts.ts';
import { endDeadProcessesOnHost, Lease } from '../../gateway/ledger/process-lease.ts';
import { buildNewCall, buildSuccess, buildUpdate, type TestCallFields } from '../support/call-record.ts';
import { useCallStore, useLease, useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger(8);
const calls = useCallStore(db);
const lease = useLease(db);

const newCall = (changes: Partial<TestCallFields> = {}) => buildNewCall(lease.id, changes);
const ANSWER = { status: 200, contentType: null, body: null, encoding: 'utf8' } as const;

describe('a claim', () => {
  it('is won by one of several, within a batch and across processes', async () => {
    const one = newCall();
    const elsewhere = new CallStore(db);
    const won = await Promise.all(
      [one, { ...one }, { ...one }].map((same, i) => (i === 2 ? elsewhere : calls).claim(same)),
    );
    expect(won.filter((claimed) => claimed.kind === 'won')).toHaveLength(1);
    const rows = await database.query('select * from open_calls where txn = $1', [one.txn]);
    expect(rows).toHaveLength(1);
  });

  it('writes its audit entry in the same commit, and none if it is lost', async () => {
    const one = newCall({ entry: '{"once":1}' });
    await calls.claim(one);
    await calls.claim({ ...one });
    expect(await database.query(`select * from audit_entries where entry = '{"once":1}'`)).toHaveLength(1);
  });

  it('can be released while nothing was sent, and then claimed again', async () => {
    const one = newCall();
    await calls.claim(one);
    expect(await releaseClaim(db, { txn: one.txn, owner: lease.id, fence: 1 }, '{}')).toBe(true);
    expect(await calls.read(one.txn)).toBeUndefined();
    expect(await calls.claim(one)).toMatchObject({ kind: 'won' });
  });

  it('of another owner cannot be released', async () => {
    const one = newCall();
    await calls.claim(one);
    expect(await releaseClaim(db, { txn: one.txn, owner: randomUUID(), fence: 1 }, '{}')).toBe(false);
    expect(await calls.read(one.txn)).toBeDefined();
  });
});

describe('a settlement', () => {
  it('closes the call once; a second settlement changes nothing', async () => {
    const one = newCall();
    await calls.claim(one);
    expect(await calls.settle(buildSuccess(one.txn, { answer: ANSWER }))).toBe(true);
    const other = { answer: { ...ANSWER, status: 201 }, isEvidence: true, leaf: Buffer.alloc(32, 2) };
    expect(await calls.settle(buildSuccess(one.txn, other))).toBe(false);
    const call = await calls.read(one.txn);
    expect(call).toMatchObject({ state: 'succeeded', answer: { status: 200 }, owner: null });
  });

  it('with an old fence does not apply, unless it is evidence', async () => {
    const one = newCall({ owner: randomUUID() });
    await calls.claim(one);
    const taken = await takeOverCalls(db, lease.id, () => '{}');
    const own = taken.find((call) => call.txn === one.txn);
    expect(own).toMatchObject({ fence: 2, attemptOpen: false, unresolved: 1, ownerDeaths: 1 });
    expect(
      await calls.update(buildUpdate(one.txn, { state: 'in_doubt', parked: { dueInMs: null }, unresolved: 1 })),
    ).toBe(false);
    expect(await calls.settle(buildSuccess(one.txn, { isEvidence: true, evidence: 'late_answer' }))).toBe(true);
  });

  it('does not apply after later ones, and is not applied twice', async () => {
    const one = newCall();
    await calls.claim(one);
    const closed = buildUpdate(one.txn, { updateNumber: 1, entry: '{"closed":1}' });
    const opened = buildUpdate(one.txn, { updateNumber: 2, attempt: 2, attemptOpen: true });
    expect(await calls.update(closed)).toBe(true);
    expect(await calls.update(closed)).toBe(true);
    expect(await database.query(`select 1 from audit_entries where entry = '{"closed":1}'`)).toHaveLength(1);
    expect(await calls.update(opened)).toBe(true);
    expect(await calls.update(closed)).toBe(false);
    expect(await calls.read(one.txn)).toMatchObject({ attempt: 2, attemptOpen: true });
  });

  it('by a person does not apply if an attempt was opened after they read the call', async () => {
    const one = newCall();
    await calls.claim(one);
    await calls.update(buildUpdate(one.txn, { updateNumber: 1, state: 'in_doubt', unresolved: 1 }));
    const seen = await calls.read(one.txn);
    await calls.update(
      buildUpdate(one.txn, { updateNumber: 2, state: 'in_doubt', unresolved: 1, attempt: 2, attemptOpen: true }),
    );
    if (seen === undefined) throw new Error('the call is gone');
    const verdict = {
      verdict: 'not_applied',
      person: 'p',
      reason: 'r',
      answer: null,
      undo: null,
      entry: '{}',
    } as const;
    expect(await recordResolution(db, seen, verdict)).toBe(false);
    expect(await calls.read(one.txn)).toMatchObject({ state: 'in_doubt', attemptOpen: true });
  });

  it('applies for each of two updates of one call in the same batch', async () => {
    const one = newCall();
    await calls.claim(one);
    const both = await Promise.all([
      calls.update(
        buildUpdate(one.txn, { updateNumber: 1, state: 'in_doubt', unresolved: 1, parked: { dueInMs: null } }),
      ),
      calls.settle(buildSuccess(one.txn, { isEvidence: true })),
    ]);
    expect(both).toEqual([true, true]);
    expect(await calls.read(one.txn)).toMatchObject({ state: 'succeeded' });
  });

  it('that is illegal is rejected by the database alone; others of the batch apply', async () => {
    const [good, bad] = [newCall(), newCall()];
    await Promise.all([calls.claim(good), calls.claim(bad)]);
    const settled = await Promise.allSettled([
      calls.settle(buildSuccess(good.txn)),
      calls.settle(buildSuccess(bad.txn, { state: 'failed', outcome: null, leaf: null, problem: null })),
    ]);
    expect(settled.map((one) => one.status)).toEqual(['fulfilled', 'rejected']);
    expect(await calls.read(good.txn)).toMatchObject({ state: 'succeeded' });
    expect(await calls.read(bad.txn)).toMatchObject({ state: 'sending' });
  });

  it('is never changed, only erased', async () => {
    const one = newCall();
    await calls.claim(one);
    const expectRefused = (change: string) =>
      expect(database.query(`update ${change} where txn = $1`, [one.txn]), change).rejects.toThrow(/call /);
    await expectRefused(`open_calls set fence = 0`);
    await calls.settle(buildSuccess(one.txn, { answer: ANSWER }));
    await expectRefused(`calls set agent = 'b'`);
    for (const set of [
      `state = 'failed', problem = 'tool_failed'`,
      `settled_at = settled_at + interval '1 s'`,
      `answer = '{}'`,
      `outcome = 'other'`,
      `leaf = '\\x00'`,
      `evidence = 'person'`,
    ])
      await expectRefused(`settlements set ${set}`);
    await database.query(`update calls set args = null, erased_at = now() where txn = $1`, [one.txn]);
    await database.query(`update settlements set answer = null where txn = $1`, [one.txn]);
  });
});

describe('taking over', () => {
  it('skips calls of live processes, however old', async () => {
    const one = newCall();
    await calls.claim(one);
    await database.query(`update open_calls set due_at = now() - interval '1 day' where txn = $1`, [one.txn]);
    const taken = await takeOverCalls(db, randomUUID(), () => '{}');
    expect(taken.map((call) => call.txn)).not.toContain(one.txn);
  });

  it('gives each call to one of several takers', async () => {
    const dead = randomUUID();
    const lost = Array.from({ length: 50 }, () => newCall({ owner: dead }));
    await Promise.all(lost.map((one) => calls.claim(one)));
    const takers = await Promise.all(Array.from({ length: 4 }, () => takeOverCalls(db, lease.id, () => '{}')));
    const taken = takers.flat().map((call) => call.txn);
    expect(taken.sort()).toEqual(lost.map((one) => one.txn).sort());
  });

  it('takes a call without an owner when it is due, and counts no owner death', async () => {
    const one = newCall({ state: 'held', owner: null, dueInMs: 0 });
    await calls.claim(one);
    const taken = await takeOverCalls(db, lease.id, () => '{}');
    expect(taken.find((call) => call.txn === one.txn)).toMatchObject({ state: 'held', ownerDeaths: 0, unresolved: 0 });
  });
});

describe('a lease', () => {
  it('is the right to send under one id only', async () => {
    expect(lease.holds(lease.id)).toBe(true);
    expect(lease.holds(randomUUID())).toBe(false);
    expect(lease.holds('')).toBe(false);
  });

  it('that lapsed is replaced under another id, and the old id no longer sends', async () => {
    const own = new Lease(db, () => {});
    await own.start();
    const old = own.id;
    await database.query(`update processes set lease_until = now() - interval '1 second' where id = $1`, [old]);
    await expect.poll(() => own.id !== old && own.id !== '' && own.holds(own.id), { timeout: 5_000 }).toBe(true);
    expect(own.holds(old)).toBe(false);
    await own.end();
  });

  it('of a dead process of this host ends at once', async () => {
    const gone = randomUUID();
    await database.query(
      `insert into processes (id, host, pid, pid_started, lease_until, schema_version) select $1, host, pid, '1', now() + interval '1 hour', 20 from processes where id = $2`,
      [gone, lease.id],
    );
    await endDeadProcessesOnHost(db, lease.id);
    const rows = await database.query<{ id: string; dead: boolean }>(
      'select id, ended_at is not null as dead from processes where id = any($1)',
      [[gone, lease.id]],
    );
    expect(new Map(rows.map((row) => [row.id, row.dead]))).toEqual(
      new Map([
        [gone, true],
        [lease.id, false],
      ]),
    );
  });
});

describe('updates of one call', () => {
  it('whose step number a late success took are not reported as applied', async () => {
    const each = newCall();
    await calls.claim(each);
    expect(await calls.settle(buildSuccess(each.txn, { isEvidence: true, fence: 99, leaf: Buffer.alloc(32, 9) }))).toBe(
      true,
    );
    expect(
      await calls.update(buildUpdate(each.txn, { state: 'in_doubt', parked: { dueInMs: null }, unresolved: 1 })),
    ).toBe(false);
    expect((await calls.read(each.txn))?.state).toBe('succeeded');
  });

  it('of which the second is rejected do not reject claims of the same batch', async () => {
    const [each, other] = [newCall(), newCall()];
    await calls.claim(each);
    const impossible = buildUpdate(each.txn, { updateNumber: 2, state: 'held', attempt: 1 });
    const all = [calls.update(buildUpdate(each.txn)), calls.update(impossible), calls.claim(other)];
    const [first, second, claimed] = await Promise.allSettled(all);
    expect(first).toMatchObject({ status: 'fulfilled', value: true });
    expect(second?.status).toBe('rejected');
    expect(claimed).toMatchObject({ status: 'fulfilled', value: { kind: 'won' } });
  });
});
