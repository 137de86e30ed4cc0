import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { Tool } from '../../gateway/domain/policy.ts';
import { decodeUndoArgs, encodeUndoArguments } from '../../gateway/flow/sagas/undo.ts';
import { transitionSaga } from '../../gateway/ledger/sagas/saga-rollback.ts';
import { addUndoTask, claimUndoTasks, removeUndoTask } from '../../gateway/ledger/sagas/undo-tasks.ts';
import { UndoStore } from '../../gateway/ledger/sagas/undos.ts';
import { buildNewCall, type TestCallFields } from '../support/call-record.ts';
import { endOpenCall, insertRow } from '../support/call-rows.ts';
import { useCallStore, useLease, useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger();
const calls = useCallStore(db);
const lease = useLease(db);

async function openSaga(agent = 'a'): Promise<string> {
  const id = randomUUID();
  await database.query('insert into sagas (id, agent, asked) values ($1, $2, $3)', [id, agent, Buffer.alloc(32)]);
  return id;
}

const step = (saga: string, changes: Partial<TestCallFields> = {}) =>
  buildNewCall(lease.id, { kind: 'key', saga, ...changes });

const settle = (txn: string, answer: string | null = null) =>
  endOpenCall(database, txn, { outcome: 'answered', answer });

describe('steps of a saga', () => {
  it('of another agent are refused, even in a batch with a valid step', async () => {
    const saga = await openSaga('a');
    const [own, foreign] = [step(saga), step(saga, { agent: 'b' })];
    expect(await Promise.all([calls.claim(own), calls.claim(foreign)])).toMatchObject([
      { kind: 'won' },
      { kind: 'taken' },
    ]);
    expect(await calls.read(foreign.txn)).toBeUndefined();
    expect(await calls.claim(step(saga))).toMatchObject({ kind: 'won' });
  });

  it('get ordinals in order of arrival', async () => {
    const saga = await openSaga();
    const steps = Array.from({ length: 20 }, () => step(saga));
    await Promise.all(steps.map((each) => calls.claim(each)));
    const rows = await database.query<{ txn: string }>('select txn from calls where saga = $1 order by ordinal', [
      saga,
    ]);
    expect(rows.map((row) => row.txn)).toEqual(steps.map((each) => each.txn));
  });

  it('are read even if an answer contains a NUL', async () => {
    const saga = await openSaga();
    const [done, undo] = [step(saga), step(saga, { saga: null })];
    for (const each of [done, undo]) await calls.claim(each);
    await settle(done.txn);
    await settle(undo.txn, JSON.stringify({ status: 422, contentType: 'text/plain', body: 'a\0b', encoding: 'utf8' }));
    await insertRow(database, 'undos', { txn: done.txn, state: 'running', undo_txn: undo.txn, args: '{}' });
    const { steps } = await new UndoStore(db).read(saga);
    expect(steps[0]?.compensation?.detail).toBe('the upstream answered 422');
  });

  it('are outlined without the arguments of their undos', async () => {
    const saga = await openSaga();
    const [due, unknown] = [step(saga), step(saga)];
    for (const each of [due, unknown]) {
      await calls.claim(each);
      await settle(each.txn);
    }
    const args = JSON.stringify({ text: 'x'.repeat(700_000) });
    await insertRow(database, 'undos', { txn: due.txn, state: 'due', args });
    const undos = new UndoStore(db);
    const [whole, outline] = [await undos.read(saga), await undos.readOutline(saga, 'saga')];
    expect(whole.steps.map(({ undoArgs }) => undoArgs)).toEqual([args, null]);
    expect(outline.steps.map(({ undoArgs }) => undoArgs)).toEqual(['{}', null]);
    const timeless = ({ steps }: typeof whole) =>
      steps.map((each) => ({ ...each, undoArgs: null, msSinceDue: 0, msToNextTry: 0 }));
    expect(timeless(outline)).toEqual(timeless(whole));
    const { steps } = await undos.readOutline(due.txn, 'call');
    expect(steps.map(({ txn, undoArgs }) => [txn, undoArgs])).toEqual([[due.txn, '{}']]);
  });
});

describe('the end of a rollback', () => {
  it('does not end a second rollback that began after the steps were read', async () => {
    const saga = await openSaga();
    const late = step(saga);
    await calls.claim(late);
    await settle(late.txn);
    await database.query(`update sagas set state = 'rolling_back', keep = 0 where id = $1`, [saga]);
    const change = { state: 'open', reason: null, by: 'x', entry: '{}', recheckInMs: null } as const;
    expect(await transitionSaga(db, { id: saga, state: 'rolling_back', keep: 0 }, change)).toBe(false);
    await insertRow(database, 'undos', { txn: late.txn, state: 'skipped' });
    expect(await transitionSaga(db, { id: saga, state: 'rolling_back', keep: 0 }, change)).toBe(true);
  });

  it('keeps an undo task that was added meanwhile', async () => {
    const id = randomUUID();
    await db.transaction((tx) => addUndoTask(tx, id, 'call'));
    expect((await claimUndoTasks(db, 100, 60_000)).map((task) => task.id)).toContain(id);
    await db.transaction((tx) => addUndoTask(tx, id, 'call'));
    await removeUndoTask(db, id);
    expect((await claimUndoTasks(db, 100, 60_000)).map((task) => task.id)).toContain(id);
    await removeUndoTask(db, id);
    expect(await database.query('select id from undo_work where id = $1', [id])).toEqual([]);
  });
});

describe('the arguments of an undo', () => {
  const tool = (redact: string[][]) => ({ redact }) as unknown as Tool;
  const key = Buffer.alloc(32, 3);
  const scope = {
    txn: randomUUID(),
    agent: 'a',
    args: { card: '4111-secret', order: 'o-1' },
    result: { id: 'ch_1' },
    before: undefined,
    isBeforeSecret: false,
  };

  it.each([
    ['the tool redacts them', tool([['args', 'card']]), tool([])],
    ['the undo redacts them', tool([]), tool([['args', 'card']])],
  ])('are sealed if %s', (_, forward, undo) => {
    const kept = encodeUndoArguments(key, forward, undo, scope, { charge: 'ch_1', card: '4111-secret' });
    expect(kept.args).toBe('{"card":"[redacted]","charge":"ch_1"}');
    const call = { txn: scope.txn, before: null, undoArgs: kept.args, undoSealed: kept.sealed };
    expect(decodeUndoArgs(key, call)).toEqual({ charge: 'ch_1', card: '4111-secret' });
    expect(decodeUndoArgs(Buffer.alloc(32, 4), call)).toContain('cannot be decrypted');
  });
});
