import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import type { Tool } from '../../gateway/domain/policy.ts';
import type { UndoState } from '../../gateway/domain/sagas/saga.ts';
import { decodeUndoArgs, encodeUndoArguments } from '../../gateway/flow/sagas/undo.ts';
import { transitionSaga } from '../../gateway/ledger/sagas/saga-rollback.ts';
import { addUndoTask, claimUndoTasks, removeUndoTask } from '../../gateway/ledger/sagas/undo-tasks.ts';
import { UndoStore } from '../../gateway/ledger/sagas/undos.ts';
import { buildNewCall, type TestCallFields } from '../support/call-record.ts';
import { endOpenCall, insertRow } from '../support/call-rows.ts';
import { useCallStore, useLease, useLedger } from '../support/use-ledger.ts';
import { useResource } from '../support/use-resource.ts';

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

describe('a mark of an undo', () => {
  const mark = (txn: string, from: UndoState, to: UndoState, tries: number) =>
    undos.mark({ txn, from, tries, to, reason: null, doubt: null, inMs: 0, entry: JSON.stringify({ txn, from, to }) });
  const readEntries = async (txn: string) =>
    (
      await database.query<{ entry: string }>(
        'select entry from audit_entries where entry like $1 order by index, id',
        [`{"txn":"${txn}"%`],
      )
    ).map(({ entry }) => `${JSON.parse(entry).from}>${JSON.parse(entry).to}`);
  const undos = useResource(
    () => new UndoStore(db),
    () => {},
  );

  async function makeDone(): Promise<string> {
    const done = buildNewCall(lease.id, { kind: 'key' });
    await calls.claim(done);
    await settle(done.txn);
    return done.txn;
  }
  const claimUndo = (txn: string, tries: number) =>
    calls.claim(buildNewCall(lease.id, { identity: 'undo', undoOf: txn, undoTries: tries }));

  it('applies from the state and try that were read only, and logs each once', async () => {
    const txn = await makeDone();
    expect(await mark(txn, 'due', 'failed', 0)).toBe(false);
    expect(await mark(txn, 'none', 'due', 0)).toBe(true);
    expect(await mark(txn, 'none', 'due', 0)).toBe(false);
    expect(await claimUndo(txn, 0)).toMatchObject({ kind: 'won' });
    expect(await claimUndo(txn, 0)).toMatchObject({ kind: 'taken' });
    expect(await mark(txn, 'due', 'failed', 0)).toBe(false);
    expect(await mark(txn, 'running', 'due', 1)).toBe(true);
    // A worker that read the undo before its first try must not start the second.
    expect(await claimUndo(txn, 0)).toMatchObject({ kind: 'taken' });
    expect(await claimUndo(txn, 1)).toMatchObject({ kind: 'won' });
    expect(await mark(txn, 'running', 'done', 1)).toBe(false);
    expect(await mark(txn, 'running', 'done', 2)).toBe(true);
    expect(await mark(txn, 'running', 'done', 2)).toBe(false);
    expect(await readEntries(txn)).toEqual(['none>due', 'running>due', 'running>done']);
  });

  it('applies beside an impossible one in the same batch, and to a call with a known observation', async () => {
    const [fresh, observed] = [await makeDone(), await makeDone()];
    const open = buildNewCall(lease.id, { kind: 'key' });
    await calls.claim(open);
    await insertRow(database, 'undos', { txn: observed, before: '{"b":1}' });
    const all = await Promise.allSettled([
      mark(fresh, 'none', 'irreversible', 0),
      mark(open.txn, 'none', 'due', 0),
      mark(observed, 'none', 'due', 0),
    ]);
    expect(all.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    const rows = await database.query('select txn, state, before from undos where txn = any($1)', [
      [fresh, observed, open.txn],
    ]);
    expect(new Set(rows)).toEqual(
      new Set([
        { txn: fresh, state: 'irreversible', before: null },
        { txn: observed, state: 'due', before: '{"b":1}' },
      ]),
    );
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
