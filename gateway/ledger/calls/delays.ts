import type { NewApprovalVote } from '../approvals/cast-vote.ts';
import type { Queryable, Tx } from '../db.ts';

/**
 * Delayed calls. A delayed call is `held` and its approval is `pending`, with the time of its release in `leaves_at`. Until then
 * it can be cancelled, rejected or approved like any held call. PostgreSQL's clock decides.
 */

/**
 * Begins the delay of an approved call. A new approval, after a change of policies, begins the delay anew. The caller holds the
 * locks of the approval and the open call, so no release or expiry comes in between.
 */
export async function beginDelay(
  tx: Tx,
  { txn, digest, person, reason }: NewApprovalVote,
  delayMs: number,
): Promise<void> {
  await tx.run({
    name: 'begin-delay',
    text: `with approved as (
        update approvals set approved_digest = decode($2, 'hex'), leaves_at = now() + $5 * interval '1 ms', expires_at = now() + $5 * interval '1 ms'
        where txn = $1 returning txn, leaves_at
      ), delayed as (
        update open_calls o set owner = null, due_at = a.leaves_at from approved a where o.txn = a.txn and o.state = 'held'
        returning o.txn, o.due_at
      )
      insert into call_events (txn, event)
      select txn, jsonb_build_object('at', now(), 'what', 'approved', 'person', $3::text, 'reason', $4::text, 'leavesAt', due_at) from delayed`,
    values: [txn, digest, person, reason, delayMs],
  });
}

/**
 * Releases a call whose delay is over: the call becomes due for any process, and stays due after a crash. Returns false if a
 * person decided meanwhile. Locks in the order of a vote (approval, open call), so the two never wait in a circle; of
 * two replicas the second finds the approval no longer pending.
 */
export async function releaseDelayed(db: Queryable, txn: string, entry: string): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'release-delayed',
    text: `with locked as materialized (
        select txn from approvals where txn = $1 and state = 'pending' and leaves_at <= now() for update
      ), ready as (
        update open_calls o set state = 'ready', fence = o.fence + 1, round_at = now(), owner = null, due_at = now()
        where o.txn in (select txn from locked) and o.state = 'held' returning o.txn
      ), described as (
        insert into call_events (txn, event) select txn, jsonb_build_object('at', now(), 'what', 'unopposed') from ready
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
