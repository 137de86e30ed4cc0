import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { hashLeaf } from '../../domain/audit/audit.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import type { Database } from '../db.ts';
import type { UndoArguments } from './call-patches.ts';
import { buildEndCtes } from './end-calls.ts';

/** A person's verdict about a call in doubt. */
export interface DoubtResolution {
  readonly verdict: 'applied' | 'not_applied' | 'retry';
  readonly person: string;
  readonly reason: string;
  readonly answer: UpstreamAnswer | null;
  readonly undo: UndoArguments | null;
  readonly entry: string;
}

/** The call is still in the doubt that the person saw. */
const IS_SAME_DOUBT = `o.txn = $1 and o.fence = $2 and o.state = 'in_doubt'`;
const IS_SAME_ATTEMPT = 'o.attempt = $3 and not o.attempt_open';

/**
 * What both kinds of verdict do. The doubt of a compensation held up an undo task: makes the task due now. A saga closed by
 * hand has no task left.
 */
const JUDGED_CTES = `described as (
        insert into call_events (txn, event) select txn, $6::jsonb from judged
      ), resumed as (
        update undo_work w set due_at = now() from judged j join calls c on c.txn = j.txn
        where w.id in (c.undo_of, c.saga) and c.undo_of is not null and c.txn = $1
      ), logged as (
        insert into audit_queue (entry) select $7 from judged
      )
      select txn from judged`;

const END_DOUBT = `with ${buildEndCtes(`${IS_SAME_DOUBT} and ($8 = 'succeeded' or (${IS_SAME_ATTEMPT}))`, {
  state: '$8::text',
  outcome: `'verdict'`,
  problem: `case when $8 = 'failed' then 'tool_failed' end`,
  detail: '$5',
  evidence: `'person'`,
  leaf: '$10::bytea',
  resolvedBy: '$4',
  answer: '$9',
})}, judged as (
        select txn from ended
      ), undoable as (
        insert into undos as u (txn, args, sealed, reason) select txn, $11, $12, $13 from judged where $11::text is not null or $13::text is not null
        on conflict (txn) do update set args = coalesce(excluded.args, u.args), sealed = coalesce(excluded.sealed, u.sealed),
          reason = coalesce(excluded.reason, u.reason)
      ), ${JUDGED_CTES}`;

const RETRY = `with judged as (
        update open_calls o set
          fence = o.fence + 1,
          -- The verdict retry asserts that nothing happened so far. A call with an upstream key needs no such assertion.
          unresolved = case when (select c.kind = 'key' from calls c where c.txn = o.txn) then o.unresolved else 0 end,
          round_from = o.attempt, round_at = now(), owner_deaths = 0, retry_requested = true, retried_by = $4, detail = $5,
          -- The verdict retry starts again: earlier evidence about the unknown attempts no longer counts.
          disproved_by = null, owner = null, due_at = now()
        where ${IS_SAME_DOUBT} and ${IS_SAME_ATTEMPT}
        returning o.txn
      ), ${JUDGED_CTES}`;

/**
 * Writes a person's verdict. The fence grows, so the former owner can change nothing more. Returns false if the call is no longer
 * in the doubt that the person saw: the fence, the state and (unless the verdict is "applied") the attempt must be unchanged.
 */
export async function recordResolution(db: Database, call: CallRecord, verdict: DoubtResolution): Promise<boolean> {
  const event = {
    at: new Date().toISOString(),
    what: 'verdict',
    verdict: verdict.verdict,
    person: verdict.person,
    reason: verdict.reason,
  };
  const isFinal = verdict.verdict !== 'retry';
  const state = verdict.verdict === 'applied' ? 'succeeded' : 'failed';
  const rows = await db.run<{ txn: string }>({
    name: isFinal ? 'end-doubt' : 'retry-doubt',
    text: isFinal ? END_DOUBT : RETRY,
    values: [
      call.txn,
      call.fence,
      call.attempt,
      verdict.person,
      verdict.reason,
      JSON.stringify(event),
      verdict.entry,
      ...(isFinal
        ? [
            state,
            verdict.answer === null ? null : JSON.stringify(verdict.answer),
            hashLeaf(verdict.entry),
            verdict.undo?.args ?? null,
            verdict.undo?.sealed ?? null,
            verdict.undo?.reason ?? null,
          ]
        : []),
    ],
  });
  return rows.length === 1;
}

/** Whether all processes that owned this call and lost it have certainly ended. An ended process never sends again. */
export async function areSendersGone(db: Database, txn: string): Promise<boolean> {
  const rows = await db.run<{ gone: boolean }>({
    name: 'are-senders-gone',
    text: `select coalesce(bool_and(p.ended_at is not null), true) as gone
      from open_calls o join processes p on p.id = any (o.former_owners) where o.txn = $1`,
    values: [txn],
  });
  return rows[0]?.gone ?? true;
}
