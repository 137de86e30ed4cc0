import type { Database } from '../db.ts';
import type { ApprovalState, ApprovalVote } from './approvals.ts';

export interface Notice {
  readonly id: string;
  readonly kind: 'held' | 'approved' | 'rejected' | 'expired' | 'cancelled' | 'unopposed';
  readonly tries: number;
  readonly createdAt: Date;
  /** What the trigger of migration 11 wrote. */
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
  /** When it leaves by itself; not in what older builds wrote. */
  readonly leavesAt?: string | null;
  readonly decidedAt: string | null;
  readonly votes: readonly Omit<ApprovalVote, 'digest'>[];
}

const MAX_NOTICES_PER_SWEEP = 500;

/**
 * Takes notices that are due, for `claimMs`: whoever took one and died leaves it due again after that. No row stays locked
 * while a receiver is being spoken to.
 */
export async function claimNotices(db: Database, most: number, claimMs: number): Promise<readonly Notice[]> {
  const rows = await db.run<Omit<Notice, 'body'> & { body: string }>({
    name: 'take-notices',
    text: `update notices n set tries = n.tries + 1, due_at = now() + $2 * interval '1 ms'
      from (select id from notices where due_at <= now() order by due_at limit $1 for update skip locked) due
      where n.id = due.id
      returning n.id, n.kind, n.tries, n.body, n.created_at as "createdAt"`,
    values: [most, claimMs],
  });
  return rows.map((row) => ({ ...row, body: JSON.parse(row.body) as NoticeBody }));
}

/** It was taken, or nobody will take it any more. */
export async function deleteNotice(db: Database, id: string): Promise<void> {
  await db.run({ name: 'drop-notice', text: 'delete from notices where id = $1', values: [id] });
}

/** Not before `delayMs` from now. Whoever took it again in the meantime (`tries` grew) decides. */
export async function postponeNotice(db: Database, { id, tries }: Notice, delayMs: number): Promise<void> {
  await db.run({
    name: 'put-off-notice',
    text: `update notices set due_at = now() + $3 * interval '1 ms' where id = $1 and tries = $2`,
    values: [id, tries, delayMs],
  });
}

/**
 * Nothing outlives the payloads it tells of. A process without a webhook also drops what nobody tries to deliver: a replica
 * that has one would have tried within a minute, so its notices are left alone.
 */
export async function deleteOldNotices(db: Database, payloadsMs: number, untried: boolean): Promise<number> {
  const rows = await db.run<{ id: string }>({
    name: 'forget-notices',
    text: `delete from notices where id in (
        select id from notices
        where created_at < now() - $1 * interval '1 ms' or ($2 and tries = 0 and due_at < now() - interval '1 minute')
        order by due_at limit ${MAX_NOTICES_PER_SWEEP} for update skip locked)
      returning id`,
    values: [payloadsMs, untried],
  });
  return rows.length;
}
