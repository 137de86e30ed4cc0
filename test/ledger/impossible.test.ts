import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { useDatabase } from '../support/use-gateway.ts';

const database = useDatabase();

/** A valid call in state `sending`, as SQL values. */
const SENDING: Readonly<Record<string, string>> = {
  agent: "'a'",
  tool: "'t'",
  identity: "'key'",
  fingerprint: `'\\x${'00'.repeat(32)}'`,
  kind: "'key'",
  state: "'sending'",
  attempt: '1',
  policy_version: "'v'",
  rule: "'r'",
  args: "'{}'",
};

const FAILED = { state: "'failed'", settled_at: 'now()', problem: "'tool_failed'", evidence: "'answer'" };

/** For each constraint, the values that violate it. */
const VIOLATIONS: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  calls_state_check: { state: "'lost'" },
  calls_kind_check: { kind: "'sometimes'" },
  calls_identity_check: { identity: "'name'" },
  calls_undo_state_check: { undo_state: "'maybe'" },
  calls_evidence_check: { evidence: "'rumour'" },
  calls_fingerprint_check: { fingerprint: "'\\x00'" },
  calls_attempt_check: { attempt: '-1' },
  calls_check: { unresolved: '2' },
  attempts_only_when_sent: { state: "'held'" },
  sent_calls_have_attempts: { attempt: '0' },
  final_calls_are_settled: { settled_at: 'now()' },
  failures_have_a_reason: { problem: "'tool_failed'" },
  doubt_is_ended_by_evidence: { ...FAILED, evidence: 'null' },
  failed_means_no_effect: { ...FAILED, unresolved: '1' },
  steps_have_a_saga: { ordinal: '1' },
  running_undos_have_a_txn: { undo_state: "'running'" },
  only_what_happened_is_undone: { undo_state: "'due'" },
  calls_of_a_run_have_an_epoch: { epoch: '1' },
  fenced_calls_are_recalled: { fenced: 'true' },
};

describe('an impossible call', () => {
  const insert = (changes: Readonly<Record<string, string>>) => {
    const columns = { ...SENDING, ...changes };
    return database.query(
      `insert into calls (txn, ${Object.keys(columns).join(', ')}) values ($1, ${Object.values(columns).join(', ')})`,
      [randomUUID()],
    );
  };

  it('differs from a valid one, which is accepted', async () => {
    await expect(insert({})).resolves.toEqual([]);
  });

  it.each(Object.entries(VIOLATIONS))('is refused by %s', async (constraint, changes) => {
    await expect(insert(changes)).rejects.toMatchObject({ code: '23514', constraint });
  });

  it('is tested for every constraint of the schema', async () => {
    const [found] = await database.query<{ source: string }>(
      `select prosrc as source from pg_proc where proname = 'refuse_impossible'`,
    );
    const rules = [...(found?.source ?? '').matchAll(/then '(\w+)'/g)].map(([, rule]) => rule);
    expect(rules.sort()).toEqual(Object.keys(VIOLATIONS).sort());
  });
});
