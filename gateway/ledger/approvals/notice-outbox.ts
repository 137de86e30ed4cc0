import type { Database } from '../db.ts';
import type { ApprovalState, ApprovalVote } from './approvals.ts';

/** A message about an approval that waits to be delivered. */
export interface Notice {
  readonly id: string;
  readonly kind: 'held' | 'approved' | 'rejected' | 'expired' | 'cancelled' | 'unopposed';
  readonly tries: number;
  readonly createdAt: Date;
  /** Written by a trigger on approvals; see migration 11. */
  readonly body: NoticeBody;
}

export interface NoticeBody {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly state: ApprovalState;
  /** Canonical JSON, redacted. */
  readonly shown: string | null;
  readonly groups: readonly string[];
  readonly quorum: number;
  readonly requestedAt: string;
  readonly expiresAt: string;
  /** When the delay ends. Notices of older builds lack it. */
  readonly leavesAt?: string | null;
  readonly decidedAt: string | null;
  readonly votes: readonly Omit<ApprovalVote, 'digest'>[];
}

const MAX_NOTICES_PER_SWEEP = 500;

/**
 * Takes due notices for `claimMs`. If the taker dies, they are due again after that time. `skip locked` gives each notice to
 * one taker, and no row stays locked during the delivery.
 */
export async function claimNotices(db: Database, limit: number, claimMs: number): Promise<readonly Notice[]> {
  const rows = await db.run<Omit<Notice, 'body'> & { body: string }>({
    name: 'claim-notices',
    text: `update notices n set tries = n.tries + 1, due_at = now() + $2 * interval '1 ms'
      from (select id from notices where due_at <= now() order by due_at limit $1 for update skip locked) due
      where n.id = due.id
      returning n.id, n.kind, n.tries, n.body, n.created_at as "createdAt"`,
    values: [limit, claimMs],
  });
  return rows.map((row) => ({ ...row, body: JSON.parse(row.body) as NoticeBody }));
}

/** Deletes a notice that was delivered or is given up. Deleting it twice is harmless. */
export async function deleteNotice(db: Database, id: string): Promise<void> {
  await db.run({ name: 'delete-notice', text: 'delete from notices where id = $1', values: [id] });
}

/** Retries a notice after `delayMs`. Does nothing if another process has taken it since, which raised `tries`. */
export async function postponeNotice(db: Database, { id, tries }: Notice, delayMs: number): Promise<void> {
  await db.run({
    name: 'postpone-notice',
    text: `update notices set due_at = now() + $3 * interval '1 ms' where id = $1 and tries = $2`,
    values: [id, tries, delayMs],
  });
}

/**
 * Deletes notices that are older than the payloads they describe. A process without a webhook also deletes notices that nobody
 * tried for a minute: a replica with a webhook would have tried by then. `skip locked` leaves notices in delivery alone.
 */
export async function deleteOldNotices(
  db: Database,
  payloadsMs: number,
  shouldDeleteUntried: boolean,
): Promise<number> {
  const rows = await db.run<{ id: string }>({
    name: 'delete-old-notices',
    text: `delete from notices where id in (
        select id from notices
        where created_at < now() - $1 * interval '1 ms' or ($2 and tries = 0 and due_at < now() - interval '1 minute')
        order by due_at limit ${MAX_NOTICES_PER_SWEEP} for update skip locked)
      returning id`,
    values: [payloadsMs, shouldDeleteUntried],
  });
  return rows.length;
}
