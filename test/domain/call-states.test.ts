import { describe, expect, it } from 'vitest';
import { CALL_STATES, CALL_TRANSITIONS, type CallState, isFinalState } from '../../gateway/domain/calls/call-state.ts';
import { endOpenCall, insertEndedCall, insertOpenCall, readCallState } from '../support/call-rows.ts';
import { useDatabase } from '../support/use-gateway.ts';

const database = useDatabase();

const hasAttempt = (state: CallState) => !['held', 'ready', 'rejected', 'expired', 'cancelled'].includes(state);

const insertCall = (state: CallState, more: Record<string, unknown> = {}): Promise<string> =>
  isFinalState(state)
    ? insertEndedCall(database, { state, ...more })
    : insertOpenCall(database, { state, attempt: hasAttempt(state) ? 1 : 0, ...more });

/** Moves a call as the statements of the ledger do. Returns whether its row was there. */
async function move(txn: string, from: CallState, to: CallState): Promise<boolean> {
  if (!isFinalState(from) && isFinalState(to)) return endOpenCall(database, txn, { state: to });
  const change = isFinalState(from)
    ? `settlements set state = $2::text::final_state`
    : `open_calls set state = $2::text::open_state, attempt = greatest(attempt, ${hasAttempt(to) ? 1 : 0})`;
  return (await database.query(`update ${change} where txn = $1 returning txn`, [txn, to])).length === 1;
}

/** The open row is gone when the outcome is written, so the database cannot compare the two. The code must. */
const LEFT_TO_THE_CODE = ['held>succeeded', 'held>failed', 'ready>rejected'];

const pairs = CALL_STATES.flatMap((from) => CALL_STATES.map((to) => [from, to] as const));

describe('the states of a call', () => {
  it.each(pairs)('from %s to %s: the code and the database agree', async (from, to) => {
    const txn = await insertCall(from);
    const isAllowed = from === to || CALL_TRANSITIONS[from].includes(to);
    if (isAllowed || LEFT_TO_THE_CODE.includes(`${from}>${to}`)) {
      await expect(move(txn, from, to)).resolves.toBe(true);
      return;
    }
    await expect(move(txn, from, to)).rejects.toThrow(
      new RegExp(`may not go from ${from} to ${to}|never changes|violates check|invalid input value for enum`),
    );
    expect(await readCallState(database, txn)).toBe(from);
  });

  it.each(pairs.filter((pair) => !pair.some(isFinalState)))(
    'from %s to %s: the trigger refuses what the CHECK would allow',
    async (from, to) => {
      if (from === to || CALL_TRANSITIONS[from].includes(to) || (hasAttempt(from) && !hasAttempt(to))) return;
      await expect(move(await insertCall(from), from, to)).rejects.toThrow(`may not go from ${from} to ${to}`);
    },
  );

  it('final states have no transitions, all others have some', () => {
    for (const state of CALL_STATES) expect(isFinalState(state)).toBe(CALL_TRANSITIONS[state].length === 0);
    expect(CALL_STATES.filter(isFinalState)).toEqual(['succeeded', 'failed', 'rejected', 'expired', 'cancelled']);
  });

  it('have no cycle', () => {
    const listReachable = (from: CallState): Set<CallState> => {
      const found = new Set<CallState>();
      const visit = (state: CallState) => {
        for (const next of CALL_TRANSITIONS[state]) {
          if (found.has(next)) continue;
          found.add(next);
          visit(next);
        }
      };
      visit(from);
      return found;
    };
    for (const state of CALL_STATES) expect(listReachable(state).has(state), state).toBe(false);
  });

  it('after the send are in_doubt, succeeded and failed only', () => {
    for (const state of ['sending', 'in_doubt'] as const)
      for (const next of CALL_TRANSITIONS[state]) expect(['in_doubt', 'succeeded', 'failed']).toContain(next);
  });
});

describe('the database', () => {
  it.each([
    ['outcome', "'other'"],
    ['problem', "'internal'"],
    ['evidence', "'person'"],
    ['answer', "'{}'"],
    ['settled_at', "now() + interval '1 s'"],
    ['leaf', "'\\x00'"],
    ['attempt', 'attempt + 1'],
  ])('refuses a change of %s of a final call', async (column, value) => {
    const txn = await insertCall('failed');
    await expect(database.query(`update settlements set ${column} = ${value} where txn = $1`, [txn])).rejects.toThrow(
      /never changes/,
    );
  });

  it.each([
    ['calls', 'txn', 'gen_random_uuid()'],
    ['calls', 'agent', "'b'"],
    ['calls', 'tool', "'u'"],
    ['calls', 'fingerprint', "decode(repeat('00', 32), 'hex')"],
    ['calls', 'kind', "'key'"],
    ['calls', 'created_at', "now() + interval '1 s'"],
    ['open_calls', 'fence', 'fence - 1'],
  ])('refuses, in %s, a change of %s of any call', async (table, column, value) => {
    const txn = await insertCall('sending');
    await expect(database.query(`update ${table} set ${column} = ${value} where txn = $1`, [txn])).rejects.toThrow(
      /never changes|only grows/,
    );
  });

  it('allows erasing the payload of a final call', async () => {
    const txn = await insertCall('succeeded', { answer: '{}', detail: 'd' });
    const eraseIntent = 'update calls set args = null, erased_at = now() where txn = $1 returning txn';
    await expect(database.query(eraseIntent, [txn])).resolves.toHaveLength(1);
    const eraseAnswer = 'update settlements set answer = null, detail = null where txn = $1 returning txn';
    await expect(database.query(eraseAnswer, [txn])).resolves.toHaveLength(1);
  });

  it.each<[string, CallState, Record<string, unknown>]>([
    ['a success without evidence', 'sending', { state: 'succeeded', evidence: null }],
    ['a final state that is not settled', 'sending', { state: 'succeeded', settled_at: null }],
    ['a success with a problem', 'sending', { state: 'succeeded', problem: 'internal' }],
    ['a failure without a problem', 'sending', { state: 'failed', problem: null }],
  ])('refuses %s', async (_name, state, outcome) => {
    const txn = await insertCall(state);
    await expect(endOpenCall(database, txn, outcome)).rejects.toThrow(/violates (check|not-null)/);
    expect(await readCallState(database, txn)).toBe(state);
  });

  it.each<[string, CallState, string]>([
    ['more unresolved than attempts', 'sending', 'unresolved = 2'],
    ['a send without an attempt', 'held', "state = 'sending'"],
    ['an attempt while held', 'held', 'attempt = 1'],
    ['an unknown state', 'held', "state = 'lost'"],
  ])('refuses %s', async (_name, state, change) => {
    const txn = await insertCall(state);
    await expect(database.query(`update open_calls set ${change} where txn = $1`, [txn])).rejects.toThrow(
      /violates check|may not go|invalid input value for enum/,
    );
  });
});
