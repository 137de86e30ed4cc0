import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { hashLeaf } from '../../domain/audit/audit.ts';
import type { Call } from '../../domain/calls/call.ts';
import type { Database } from '../db.ts';
import type { UndoArguments } from './calls.ts';

/** A person's verdict about a call in doubt. */
export interface DoubtResolution {
  readonly verdict: 'applied' | 'not_applied' | 'retry';
  readonly person: string;
  readonly reason: string;
  readonly answer: UpstreamAnswer | null;
  readonly undo: UndoArguments | null;
  readonly entry: string;
}

/**
 * Writes a person's verdict. The fence grows, so the former owner can change nothing more. Returns false if the call is no longer
 * in the doubt that the person saw: the fence, the state and (unless the verdict is "applied") the attempt must be unchanged.
 */
export async function recordResolution(db: Database, call: Call, verdict: DoubtResolution): Promise<boolean> {
  const event = {
    at: new Date().toISOString(),
    what: 'verdict',
    verdict: verdict.verdict,
    person: verdict.person,
    reason: verdict.reason,
  };
  const state = verdict.verdict === 'applied' ? 'succeeded' : verdict.verdict === 'not_applied' ? 'failed' : 'in_doubt';
  const isFinal = state !== 'in_doubt';
  const rows = await db.run<{ txn: string }>({
    name: 'apply-verdict',
    text: `with judged as (
        update calls set
          state = $3, fence = fence + 1,
          -- The verdict retry asserts that nothing happened so far. A call with an upstream key needs no such assertion.
          unresolved = case when $3 = 'in_doubt' and kind = 'key' then unresolved else 0 end,
          round_from = case when $3 = 'in_doubt' then attempt else round_from end,
          round_at = case when $3 = 'in_doubt' then now() else round_at end,
          attempt_open = false,
          owner_deaths = case when $3 = 'in_doubt' then 0 else owner_deaths end,
          settled_at = case when $4 then now() end,
          outcome = case when $4 then 'verdict' end,
          problem = case when $3 = 'failed' then 'tool_failed' end,
          detail = $5, answer = $6,
          evidence = case when $4 then 'person' end,
          resolved_by = $7,
          verdict = $15,
          retry_requested = $3 = 'in_doubt',
          -- The verdict retry starts again: earlier evidence about the unknown attempts no longer counts.
          disproved_by = null,
          leaf = case when $4 then $8::bytea end,
          events = events || $9::jsonb,
          undo_args = coalesce($12, undo_args),
          undo_sealed = coalesce($13, undo_sealed),
          undo_reason = coalesce($14, undo_reason)
        where txn = $1 and fence = $2 and state = 'in_doubt' and ($3 = 'succeeded' or (attempt = $11 and not attempt_open))
        returning txn, saga, undo_of
      ), closed as (
        delete from open_calls o using judged j where o.txn = j.txn and $4
      ), due as (
        update open_calls o set owner = null, due_at = now() from judged j where o.txn = j.txn and not $4
      ), resumed as (
        -- The doubt of this compensation held up an undo task: makes the task due now. A saga closed by hand has no task left.
        update undo_work w set due_at = now() from judged j where w.id in (j.undo_of, j.saga) and j.undo_of is not null
      ), logged as (
        insert into audit_queue (entry) select $10 from judged
      )
      select txn from judged`,
    values: [
      call.txn,
      call.fence,
      state,
      isFinal,
      verdict.reason,
      verdict.answer === null ? null : JSON.stringify(verdict.answer),
      verdict.person,
      hashLeaf(verdict.entry),
      JSON.stringify([event]),
      verdict.entry,
      call.attempt,
      verdict.undo?.args ?? null,
      verdict.undo?.sealed ?? null,
      verdict.undo?.reason ?? null,
      verdict.verdict,
    ],
  });
  return rows.length === 1;
}

/** Whether all processes that owned this call and lost it have certainly ended. An ended process never sends again. */
export async function areSendersGone(db: Database, txn: string): Promise<boolean> {
  const rows = await db.run<{ gone: boolean }>({
    name: 'are-senders-gone',
    text: `select coalesce(bool_and(p.ended_at is not null), true) as gone
      from calls c cross join lateral jsonb_array_elements(c.events) e
      join processes p on p.id = (e->>'from')::uuid
      where c.txn = $1 and e->>'what' = 'taken_over'`,
    values: [txn],
  });
  return rows[0]?.gone ?? true;
}
