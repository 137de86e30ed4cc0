import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { handOverCalls, orphanCall, releaseClaim, takeOverCalls } from '../../gateway/ledger/calls/call-ownership.ts';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { areSendersGone, recordResolution } from '../../gateway/ledger/calls/verdicts.ts';
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

describe('a release of a claim', () => {
  it('under an older fence changes nothing, although the owner is the same', async () => {
    const one = newCall({ state: 'ready' });
    await calls.claim(one);
    await orphanCall(db, one.txn, lease.id);
    const taken = await takeOverCalls(db, lease.id, () => '{}');
    expect(taken.find(({ txn }) => txn === one.txn)).toMatchObject({ owner: lease.id, fence: 2, unresolved: 0 });
    expect(await releaseClaim(db, { txn: one.txn, owner: lease.id, fence: 1 }, '{}')).toBe(false);
    expect(await calls.read(one.txn)).toMatchObject({ state: 'ready', fence: 2 });
  });

  it('changes nothing while an attempt may have had an effect', async () => {
    const one = newCall();
    await calls.claim(one);
    await calls.update(buildUpdate(one.txn, { unresolved: 1 }));
    expect(await releaseClaim(db, { txn: one.txn, owner: lease.id, fence: 1 }, '{}')).toBe(false);
    expect(await calls.read(one.txn)).toMatchObject({ state: 'sending', unresolved: 1 });
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

  it('of a former owner is a late answer, and leaves the attempt of the new owner unknown', async () => {
    const one = newCall({ owner: randomUUID(), kind: 'key' });
    await calls.claim(one);
    await takeOverCalls(db, lease.id, () => '{}');
    const reopened = { fence: 2, state: 'in_doubt', attempt: 2, attemptOpen: true, unresolved: 1 } as const;
    expect(await calls.update(buildUpdate(one.txn, reopened))).toBe(true);
    const doubt = await calls.read(one.txn);
    expect(await calls.settle(buildSuccess(one.txn, { isEvidence: true }))).toBe(true);
    const ended = await calls.read(one.txn);
    expect(ended).toMatchObject({ state: 'succeeded', evidence: 'late_answer', attempt: 2 });
    // Only the success is certain. The unknown time is now that of the second attempt.
    expect(ended?.unknownSince?.getTime()).toBeGreaterThan(doubt?.unknownSince?.getTime() ?? Number.POSITIVE_INFINITY);
  });

  it('whose commit was not confirmed is confirmed when it is written again, and any other is not', async () => {
    const one = newCall();
    await calls.claim(one);
    const written = buildSuccess(one.txn, { entry: '{"ended":1}', leaf: Buffer.alloc(32, 3) });
    expect(await calls.settle(written)).toBe(true);
    expect(await calls.settle(written)).toBe(true);
    expect(await database.query(`select 1 from audit_entries where entry = '{"ended":1}'`)).toHaveLength(1);
    expect(await calls.settle({ ...written, leaf: Buffer.alloc(32, 4) })).toBe(false);
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

  it('keeps what only the open row knew', async () => {
    const one = newCall();
    await calls.claim(one);
    await database.query(
      `update open_calls set lock_token = 7, owner_deaths = 2, retried_by = 'p', unknown_since = now() where txn = $1`,
      [one.txn],
    );
    const open = await calls.read(one.txn);
    expect(open).toMatchObject({ lockToken: 7, ownerDeaths: 2, retriedBy: 'p', attempt: 1 });
    expect(await calls.settle(buildSuccess(one.txn))).toBe(true);
    const keptFields = ['lockToken', 'ownerDeaths', 'retriedBy', 'attempt', 'firstSentAt', 'unknownSince'] as const;
    const ended = await calls.read(one.txn);
    for (const field of keptFields) expect([field, ended?.[field]]).toEqual([field, open?.[field]]);
    expect(ended?.firstSentAt).not.toBeNull();
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

describe('the verdict retry', () => {
  it.each([
    ['none', 0],
    ['key', 1],
  ] as const)('for a call of kind %s ends the right of the former owner to update it', async (kind, unresolved) => {
    const one = newCall({ kind });
    await calls.claim(one);
    const doubt = { state: 'in_doubt', unresolved: 1, parked: { dueInMs: null } } as const;
    await calls.update(buildUpdate(one.txn, doubt));
    const seen = await calls.read(one.txn);
    if (seen === undefined) throw new Error('the call is gone');
    const verdict = { verdict: 'retry', person: 'p', reason: 'r', answer: null, undo: null, entry: '{}' } as const;
    expect(await recordResolution(db, seen, verdict)).toBe(true);
    expect(await calls.update(buildUpdate(one.txn, { ...doubt, updateNumber: 2 }))).toBe(false);
    expect(await calls.read(one.txn)).toMatchObject({ fence: 2, updateNumber: 1, unresolved, isRetryRequested: true });
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
    const txns = new Set(lost.map(({ txn }) => txn));
    const taken = takers.flat().map(({ txn }) => txn);
    // Other tests of this file leave due calls.
    expect(taken.filter((txn) => txns.has(txn)).sort()).toEqual([...txns].sort());
  });

  it('remembers every former owner, and none of them is gone before its process has ended', async () => {
    const former = [randomUUID(), randomUUID()];
    await database.query(
      `insert into processes (id, host, pid, pid_started, lease_until, schema_version)
       select id, 'elsewhere', 7, '1', now() - interval '1 s', 20 from unnest($1::uuid[]) as id`,
      [former],
    );
    const end = (id: string | undefined) => database.query('update processes set ended_at = now() where id = $1', [id]);
    const one = newCall({ owner: former[0] ?? null });
    await calls.claim(one);
    expect(await areSendersGone(db, one.txn)).toBe(true);
    for (const next of [former[1] ?? '', lease.id]) await takeOverCalls(db, next, () => '{}');
    await end(former[1]);
    expect(await areSendersGone(db, one.txn)).toBe(false);
    await end(former[0]);
    expect(await areSendersGone(db, one.txn)).toBe(true);
  });

  it('follows a hand-over at once, but skips an open attempt while its process lives', async () => {
    const own = new Lease(db, () => {});
    await own.start();
    const [idle, sending] = [newCall({ owner: own.id, state: 'ready' }), newCall({ owner: own.id })];
    for (const each of [idle, sending]) await calls.claim(each);
    await handOverCalls(db, own.id);
    const taken = (await takeOverCalls(db, lease.id, () => '{}')).map(({ txn }) => txn);
    expect([idle, sending].map(({ txn }) => taken.includes(txn))).toEqual([true, false]);
    expect(await calls.read(sending.txn)).toMatchObject({ owner: own.id, attemptOpen: true, unresolved: 0 });
    await own.end();
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
  it('of a former owner are not reported as applied, although the new owner has written their number', async () => {
    const each = newCall({ owner: randomUUID() });
    await calls.claim(each);
    await takeOverCalls(db, lease.id, () => '{}');
    const parked = { state: 'in_doubt', unresolved: 1, parked: { dueInMs: null } } as const;
    expect(await calls.update(buildUpdate(each.txn, { ...parked, fence: 2 }))).toBe(true);
    expect(await calls.update(buildUpdate(each.txn, parked))).toBe(false);
  });

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

  it.each([
    ['are refused for a recalled call of which nothing is unknown', 'key', { recalled: true }, 0, false],
    ['apply to a recalled call whose doubt they resolve', 'key', { recalled: true }, 1, true],
    ['are refused for a fenced idempotent call in any case', 'idempotent', { recalled: true, fenced: true }, 1, false],
    ['apply to a fenced call with a key whose doubt they resolve', 'key', { recalled: true, fenced: true }, 1, true],
  ] as const)('that open an attempt %s', async (_, kind, flags, unresolved, isApplied) => {
    const each = newCall({ kind });
    await calls.claim(each);
    await calls.update(buildUpdate(each.txn, { unresolved }));
    // The owner read the call before it was recalled, so only the ledger can refuse the attempt.
    for (const flag of Object.keys(flags))
      await database.query(`update open_calls set ${flag} = true where txn = $1`, [each.txn]);
    const opened = buildUpdate(each.txn, { updateNumber: 2, attempt: 2, attemptOpen: true, unresolved });
    expect(await calls.update(opened)).toBe(isApplied);
    expect(await calls.read(each.txn)).toMatchObject({ attempt: isApplied ? 2 : 1, attemptOpen: isApplied });
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
