import type { NewApprovalVote } from '../approvals/approvals.ts';
import type { Queryable, Tx } from '../db.ts';

/**
 * Calls that leave by themselves. A delayed call is `held` and its approval `pending`, with the moment at which it leaves:
 * until then it can be stopped, or let go, as any held call. The clock is PostgreSQL's.
 */

/** People agreed: from now on it only waits for its time. Agreed anew, because the policies changed, it waits anew. */
export async function beginDelay(
  tx: Tx,
  { txn, digest, person, reason }: NewApprovalVote,
  delayMs: number,
): Promise<void> {
  await tx.run({
    name: 'begin-delay',
    text: `with agreed as (
        update approvals set approved_digest = decode($2, 'hex'), leaves_at = now() + $5 * interval '1 ms', expires_at = now() + $5 * interval '1 ms'
        where txn = $1 returning txn, leaves_at
      ), noted as (
        update calls c set events = c.events || jsonb_build_array(jsonb_build_object(
          'at', now(), 'what', 'approved', 'person', $3::text, 'reason', $4::text, 'leavesAt', a.leaves_at))
        from agreed a where c.txn = a.txn and c.state = 'held' returning c.txn, a.leaves_at
      )
      update open_calls o set owner = null, due_at = n.leaves_at from noted n where o.txn = n.txn`,
    values: [txn, digest, person, reason, delayMs],
  });
}

/**
 * Its delay is over and nobody stopped it: it is due, for whichever process looks first. A crash right after leaves it due.
 * False: somebody decided meanwhile. Locked in the order of a vote.
 */
export async function releaseDelayed(db: Queryable, txn: string, entry: string): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'let-go',
    text: `with locked as materialized (
        select txn from approvals where txn = $1 and state = 'pending' and leaves_at <= now() for update
      ), looked_after as materialized (
        select o.txn from open_calls o where o.txn in (select txn from locked) for update
      ), ready as (
        update calls c set state = 'ready', fence = c.fence + 1, round_at = now(),
          events = c.events || jsonb_build_array(jsonb_build_object('at', now(), 'what', 'unopposed'))
        where c.txn in (select txn from looked_after) and c.state = 'held' returning c.txn
      ), due as (
        update open_calls o set owner = null, due_at = now() from ready r where o.txn = r.txn
      ), decided as (
        update approvals a set state = 'unopposed', decided_at = now() from ready r where a.txn = r.txn
      ), logged as (
        insert into audit_queue (entry) select $2 from ready
      )
      select txn from ready`,
    values: [txn, entry],
  });
  return rows.length === 1;
}
