import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { endHeldCall } from '../../gateway/ledger/approvals/approvals.ts';
import { handOverCalls, releaseClaim, takeOverCalls } from '../../gateway/ledger/calls/call-ownership.ts';
import type { OpenCallPatch, SettlementPatch } from '../../gateway/ledger/calls/call-patches.ts';
import { recordResolution } from '../../gateway/ledger/calls/verdicts.ts';
import { buildNewCall, buildSuccess, buildUpdate } from '../support/call-record.ts';
import { useCallStore, useLease, useLedger } from '../support/use-ledger.ts';

/** Whatever happens to calls in whatever order: each has an open row or an outcome, never both and never neither. */

const { database, db } = useLedger(4);
const calls = useCallStore(db);
const lease = useLease(db);

const OPERATIONS = ['claim', 'doubt', 'park', 'succeed', 'fail', 'late success', 'cancel', 'judge', 'release'] as const;
const SWEEPS = ['take over', 'hand over'] as const;
type Operation = (typeof OPERATIONS)[number];

interface Life {
  readonly txn: string;
  readonly start: 'held' | 'ready' | 'sending';
  /** The owner of the claim: this process, or one that has died. */
  readonly owner: string;
}

/** The row that an owner has seen, and the number of its next patch. */
type Seen = Pick<OpenCallPatch, 'txn' | 'fence' | 'updateNumber'>;

const putInDoubt = (seen: Seen, changes: Partial<OpenCallPatch> = {}) =>
  calls.update(buildUpdate(seen.txn, { ...seen, state: 'in_doubt', unresolved: 1, unknownSinceMs: 0, ...changes }));

const end = (seen: Seen, changes: Partial<SettlementPatch>) =>
  calls.settle(
    buildSuccess(seen.txn, { ...seen, unknownSinceMs: 0, outcome: null, leaf: Buffer.from(randomUUID()), ...changes }),
  );

async function apply(
  { txn, start, owner }: Life,
  operation: Operation,
  fence: number,
  isStale: boolean,
): Promise<unknown> {
  if (operation === 'claim')
    return calls.claim(buildNewCall(owner, { txn, state: start, owner: start === 'held' ? null : owner, fence }));
  const call = await calls.read(txn);
  const seen = { txn, fence: (call?.fence ?? fence) - (isStale ? 1 : 0), updateNumber: (call?.updateNumber ?? 0) + 1 };
  switch (operation) {
    case 'doubt':
      return putInDoubt(seen);
    case 'park':
      return putInDoubt(seen, { parked: { dueInMs: 0 }, event: { at: 'now', what: 'in_doubt' } });
    case 'succeed':
      return end(seen, {});
    case 'fail':
      return end(seen, { state: 'failed', problem: 'tool_failed' });
    case 'late success':
      return end(seen, { isEvidence: true });
    case 'cancel':
      return endHeldCall(db, txn, 'cancelled', 'withdrawn', '{}');
    case 'judge': {
      if (call === undefined) return undefined;
      const verdict = (['applied', 'not_applied', 'retry'] as const)[fence % 3] ?? 'retry';
      return recordResolution(db, call, { verdict, person: 'p', reason: 'r', answer: null, undo: null, entry: '{}' });
    }
    case 'release':
      return releaseClaim(db, { txn, owner: call?.owner ?? null, fence: seen.fence }, '{}');
  }
}

it('each call is open or has ended, whatever happens in whatever order and at the same time', async () => {
  const life = fc.record({
    txn: fc.uuid(),
    start: fc.constantFrom('held' as const, 'ready' as const, 'sending' as const),
    isOwnerDead: fc.boolean(),
  });
  const step = fc.record({
    operation: fc.constantFrom(...OPERATIONS, ...SWEEPS),
    which: fc.nat(2),
    fence: fc.integer({ min: 1, max: 9 }),
    isStale: fc.boolean(),
  });
  const reached = new Set<string>();
  await fc.assert(
    fc.asyncProperty(
      fc.array(life, { minLength: 1, maxLength: 3 }),
      fc.array(fc.array(step, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 8 }),
      async (drawn, rounds) => {
        const lives: Life[] = drawn.map(({ isOwnerDead, ...each }) => ({
          ...each,
          owner: isOwnerDead ? randomUUID() : lease.id,
        }));
        const ended = new Map<string, string>();
        for (const each of lives) await apply(each, 'claim', 1, false);
        for (const round of rounds) {
          // A refused operation is fine. What matters is what it leaves behind.
          await Promise.allSettled(
            round.map(({ operation, which, fence, isStale }) => {
              if (operation === 'take over') return takeOverCalls(db, lease.id, () => '{}');
              if (operation === 'hand over') return handOverCalls(db, lease.id);
              const each = lives[which % lives.length];
              return each && apply(each, operation, fence, isStale);
            }),
          );
          const rows = await database.query<{ txn: string; calls: number; open: string | null; ended: string | null }>(
            `select x.txn, (select count(*) from calls c where c.txn = x.txn)::int as calls,
               (select o.state::text from open_calls o where o.txn = x.txn) as open,
               (select to_jsonb(r)::text from settlements r where r.txn = x.txn) as ended
             from unnest($1::uuid[]) as x(txn)`,
            [lives.map(({ txn }) => txn)],
          );
          for (const { txn, calls: count, open, ended: outcome } of rows) {
            expect({ txn, rows: Number(open !== null) + Number(outcome !== null) }).toEqual({ txn, rows: count });
            // A released claim leaves nothing, and an outcome stays as it is.
            if (ended.has(txn)) expect(outcome).toBe(ended.get(txn));
            if (outcome !== null) ended.set(txn, outcome);
            reached.add(open ?? (outcome === null ? 'released' : JSON.parse(outcome).state));
          }
        }
      },
    ),
    { numRuns: 60 },
  );
  for (const state of ['held', 'ready', 'sending', 'in_doubt', 'succeeded', 'failed', 'cancelled', 'released'])
    expect(reached).toContain(state);
  const orphans = await database.query(
    `select txn from open_calls union select txn from settlements union select txn from call_events union select txn from undos
     except select txn from calls`,
  );
  expect(orphans).toEqual([]);
});
