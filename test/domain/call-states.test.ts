import { randomBytes, randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { CALL_STATES, CALL_TRANSITIONS, type CallState, isFinalState } from '../../gateway/domain/calls/call-state.ts';
import { useDatabase } from '../support/use-gateway.ts';

const database = useDatabase();

/** Column values that satisfy all CHECK constraints of a state, so that only the trigger can refuse a transition. */
function columnsFor(state: CallState) {
  const final = isFinalState(state);
  return {
    attempt: ['held', 'ready', 'rejected'].includes(state) ? 0 : 1,
    settled_at: final ? '2026-01-01T00:00:00Z' : null,
    problem: final && state !== 'succeeded' ? 'tool_failed' : null,
    evidence: final ? 'answer' : null,
    outcome: final ? state : null,
  };
}

async function insertCall(state: CallState, more: Record<string, unknown> = {}): Promise<string> {
  const txn = randomUUID();
  const row = { ...columnsFor(state), ...more };
  await database.query(
    `insert into calls (txn, agent, tool, identity, fingerprint, kind, state, policy_version, attempt, settled_at, problem, evidence, outcome)
     values ($1, 'a', 't', 'random', $2, 'none', $3, 'v', $4, $5, $6, $7, $8)`,
    [txn, randomBytes(32), state, row.attempt, row.settled_at, row.problem, row.evidence, row.outcome],
  );
  return txn;
}

const move = (txn: string, state: CallState) => {
  const row = columnsFor(state);
  return database.query(
    'update calls set state = $2, attempt = greatest(attempt, $3), settled_at = $4, problem = $5, evidence = $6, outcome = $7 where txn = $1 returning txn',
    [txn, state, row.attempt, row.settled_at, row.problem, row.evidence, row.outcome],
  );
};

const pairs = CALL_STATES.flatMap((from) => CALL_STATES.map((to) => [from, to] as const));

describe('the states of a call', () => {
  it.each(pairs)('from %s to %s: the code and the database agree', async (from, to) => {
    // A CHECK already forbids that a sent call becomes held. With attempt 0, only the trigger can refuse it.
    const sent = ['held', 'ready', 'rejected'].includes(to) ? { attempt: 0 } : {};
    const canInsert = !(sent.attempt === 0 && ['sending', 'in_doubt'].includes(from));
    const txn = await insertCall(from, canInsert ? sent : {});
    const isAllowed = from === to || CALL_TRANSITIONS[from].includes(to);
    if (isAllowed) {
      await expect(move(txn, to)).resolves.toHaveLength(1);
    } else {
      await expect(move(txn, to)).rejects.toThrow(/may not go from|is final|violates check/);
      const [row] = await database.query<{ state: string }>('select state from calls where txn = $1', [txn]);
      expect(row?.state).toBe(from);
      if (canInsert)
        await expect(move(txn, to)).rejects.toThrow(new RegExp(`may not go from ${from} to ${to}|is final`));
    }
  });

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
    ['settled_at', 'now()'],
    ['leaf', "'\\x00'"],
    ['attempt', 'attempt + 1'],
  ])('refuses a change of %s of a final call', async (column, value) => {
    const txn = await insertCall('failed');
    await expect(database.query(`update calls set ${column} = ${value} where txn = $1`, [txn])).rejects.toThrow(
      /is final/,
    );
  });

  it.each([
    ['txn', 'gen_random_uuid()'],
    ['agent', "'b'"],
    ['tool', "'u'"],
    ['fingerprint', "decode(repeat('00', 32), 'hex')"],
    ['kind', "'key'"],
    ['created_at', "now() + interval '1 s'"],
    ['fence', 'fence - 1'],
  ])('refuses a change of %s of any call', async (column, value) => {
    const txn = await insertCall('sending');
    await expect(database.query(`update calls set ${column} = ${value} where txn = $1`, [txn])).rejects.toThrow();
  });

  it('allows erasing the payload of a final call', async () => {
    const txn = await insertCall('succeeded');
    const erase = 'update calls set args = null, answer = null, erased_at = now() where txn = $1 returning txn';
    await expect(database.query(erase, [txn])).resolves.toHaveLength(1);
  });

  it.each<[string, CallState, string]>([
    [
      'a failure with something unresolved',
      'sending',
      "state = 'failed', settled_at = now(), problem = 'tool_failed', evidence = 'answer', unresolved = 1",
    ],
    ['a success without evidence', 'sending', "state = 'succeeded', settled_at = now()"],
    ['a final state that is not settled', 'sending', "state = 'succeeded', evidence = 'answer'"],
    [
      'a success with a problem',
      'sending',
      "state = 'succeeded', settled_at = now(), evidence = 'answer', problem = 'internal'",
    ],
    ['a failure without a problem', 'sending', "state = 'failed', settled_at = now(), evidence = 'answer'"],
    ['more unresolved than attempts', 'sending', 'unresolved = 2'],
    ['a send without an attempt', 'held', "state = 'sending'"],
    ['an attempt while held', 'held', 'attempt = 1'],
    ['an unknown state', 'held', "state = 'lost'"],
  ])('refuses %s', async (_name, state, change) => {
    const txn = await insertCall(state);
    await expect(database.query(`update calls set ${change} where txn = $1`, [txn])).rejects.toThrow(
      /violates check|may not go/,
    );
  });
});
