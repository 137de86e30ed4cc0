import { randomBytes, randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { CALL_STATES, CALL_TRANSITIONS } from '../../gateway/domain/calls/call-state.ts';
import {
  SAGA_STATES,
  SAGA_TRANSITIONS,
  type SagaState,
  UNDO_STATES,
  UNDO_TRANSITIONS,
  type UndoState,
} from '../../gateway/domain/sagas/saga.ts';
import { insertEndedCall, insertRow } from '../support/call-rows.ts';
import { useDatabase } from '../support/use-gateway.ts';

const database = useDatabase();

const pairsOf = <T>(states: readonly T[]) => states.flatMap((from) => states.map((to) => [from, to] as const));
const endedAt = (state: SagaState) =>
  SAGA_TRANSITIONS[state].length === 0 ? new Date('2026-01-01T00:00:00Z').toISOString() : null;

async function insertSaga(state: SagaState): Promise<string> {
  const id = randomUUID();
  await database.query(`insert into sagas (id, agent, asked, state, keep, ended_at) values ($1, 'a', $2, $3, 0, $4)`, [
    id,
    randomBytes(32),
    state,
    endedAt(state),
  ]);
  return id;
}

const moveSaga = (id: string, to: SagaState) =>
  database.query('update sagas set state = $2, ended_at = $3 where id = $1 returning id', [id, to, endedAt(to)]);

async function insertSucceededCall(undo: UndoState): Promise<string> {
  const txn = await insertEndedCall(database);
  await insertRow(database, 'undos', { txn, state: undo, undo_txn: randomUUID() });
  return txn;
}

const moveUndo = (txn: string, to: UndoState) =>
  database.query('update undos set state = $2 where txn = $1 returning txn', [txn, to]);

describe('the states of a saga', () => {
  it.each(pairsOf(SAGA_STATES))('from %s to %s: the code and the database agree', async (from, to) => {
    const id = await insertSaga(from);
    if (from === to || SAGA_TRANSITIONS[from].includes(to)) {
      await expect(moveSaga(id, to)).resolves.toHaveLength(1);
      return;
    }
    await expect(moveSaga(id, to)).rejects.toThrow(`may not go from ${from} to ${to}`);
    const [row] = await database.query<{ state: string }>('select state from sagas where id = $1', [id]);
    expect(row?.state).toBe(from);
  });

  it('end in committed, rolled_back or closed, which are reachable from every state', () => {
    const finals = SAGA_STATES.filter((state) => SAGA_TRANSITIONS[state].length === 0);
    expect(finals).toEqual(['committed', 'rolled_back', 'closed']);
    const ends = (state: SagaState, seen: readonly SagaState[] = []): boolean =>
      finals.includes(state) ||
      SAGA_TRANSITIONS[state].some((next) => !seen.includes(next) && ends(next, [...seen, state]));
    for (const state of SAGA_STATES) expect(ends(state), state).toBe(true);
  });

  it.each([
    ['an unknown state', `state = 'lost'`],
    ['a final state without an end time', `state = 'committed'`],
    ['an end time before the end', 'ended_at = now()'],
    ['a rollback without keep', `state = 'rolling_back', keep = null`],
    ['a keep below -1', 'keep = -2'],
  ])('the database refuses %s', async (_name, change) => {
    const id = await insertSaga('open');
    await expect(database.query(`update sagas set ${change} where id = $1`, [id])).rejects.toThrow(
      /violates check|may not go/,
    );
  });
});

describe('the states of an undo', () => {
  it.each(pairsOf(UNDO_STATES))('from %s to %s: the code and the database agree', async (from, to) => {
    const txn = await insertSucceededCall(from);
    if (from === to || UNDO_TRANSITIONS[from].includes(to)) {
      await expect(moveUndo(txn, to)).resolves.toHaveLength(1);
      return;
    }
    await expect(moveUndo(txn, to)).rejects.toThrow(`may not go from ${from} to ${to}`);
    const [row] = await database.query<{ state: string }>('select state from undos where txn = $1', [txn]);
    expect(row?.state).toBe(from);
  });

  it('end in done, skipped or irreversible', () => {
    const finals = UNDO_STATES.filter((state) => UNDO_TRANSITIONS[state].length === 0);
    expect(finals).toEqual(['done', 'skipped', 'irreversible']);
  });

  it('running requires the txn of the compensation', async () => {
    const txn = await insertSucceededCall('due');
    const change = `update undos set state = 'running', undo_txn = null where txn = $1`;
    await expect(database.query(change, [txn])).rejects.toThrow(/running_undos_have_a_txn/);
  });

  it.each(['due', 'failed'] as const)('%s is refused for a call that did not happen', async (state) => {
    const txn = await insertEndedCall(database, { state: 'failed' });
    await insertRow(database, 'undos', { txn });
    await expect(moveUndo(txn, state)).rejects.toThrow(/may not go|did not happen, so it is not undone/);
    await expect(moveUndo(txn, 'skipped')).resolves.toHaveLength(1);
  });

  it.each([
    ['saga', 'gen_random_uuid()'],
    ['ordinal', '7'],
    ['undo_of', 'gen_random_uuid()'],
    ['undo', `'{"kind":"none"}'`],
  ])('the column %s of a call never changes', async (column, value) => {
    const txn = await insertSucceededCall('none');
    await expect(database.query(`update calls set ${column} = ${value} where txn = $1`, [txn])).rejects.toThrow();
  });
});

describe('docs/reference/states.md', () => {
  /** Reads the first table below a heading: its first column, with the names in its second column. */
  async function readTable(heading: string): Promise<Map<string, string[]>> {
    const text = await readFile('docs/reference/states.md', 'utf8');
    const below = text.split(`\n${heading}\n`)[1];
    if (below === undefined) throw new Error(`docs/reference/states.md has no ${heading}`);
    const rows = [...(below.split(/^#/m)[0] ?? '').matchAll(/^\| `(\w+)` +\| (.*?) +\|/gm)];
    return new Map(
      rows.map(([, name = '', cell = '']) => [name, [...cell.matchAll(/`(\w+)`/g)].map(([, to]) => to ?? '')]),
    );
  }

  it.each<[string, Readonly<Record<string, readonly string[]>>]>([
    ['## Transitions', CALL_TRANSITIONS],
    ['### Transitions of a saga', SAGA_TRANSITIONS],
    ['### Transitions of an undo', UNDO_TRANSITIONS],
  ])('has the transitions of the code under "%s"', async (heading, transitions) => {
    const left = Object.entries(transitions).filter(([, to]) => to.length > 0);
    expect([...(await readTable(heading))]).toEqual(left);
  });

  it.each<[string, readonly string[]]>([
    ['## States', CALL_STATES],
    ['## The life of a saga', SAGA_STATES],
    ['## The life of an undo', UNDO_STATES],
  ])('explains every state under "%s"', async (heading, states) => {
    expect([...(await readTable(heading)).keys()].sort()).toEqual([...states].sort());
  });
});
