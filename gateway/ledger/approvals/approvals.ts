import { hashLeaf } from '../../domain/audit/audit.ts';
import { GatewayError } from '../../domain/errors.ts';
import { buildEndCtes } from '../calls/end-calls.ts';
import { lockBucket } from '../calls/limits.ts';
import { buildCursorCondition, buildFittingQuery, toPage } from '../calls/list-calls.ts';
import type { Database, Queryable, Tx } from '../db.ts';

/** `unopposed`: the delay ended and nobody stopped the call. */
export type ApprovalState = 'pending' | 'approved' | 'rejected' | 'expired' | 'cancelled' | 'unopposed';

/** What a held call waits for: votes, its delay, or both. */
export interface ApprovalRequest {
  /** Everything that a person sees, as canonical JSON. */
  readonly shown: string;
  readonly groups: readonly string[];
  readonly quorum: number;
  readonly withinMs: number;
  /** The limit of pending calls of this agent. */
  readonly maxPending: number;
  /** How long the call is delayed after approval; null: not at all. */
  readonly delayMs: number | null;
  /** Null if people must approve. Otherwise the call is released after `withinMs`, if its digest is still this one. */
  readonly releaseDigest: string | null;
}

export interface ApprovalVote {
  readonly person: string;
  readonly verdict: 'approve' | 'reject';
  readonly digest: string;
  readonly reason: string;
  readonly at: string;
}

export interface Approval {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly state: ApprovalState;
  readonly shown: string | null;
  readonly groups: readonly string[];
  readonly quorum: number;
  readonly approvedDigest: string | null;
  readonly requestedAt: Date;
  readonly expiresAt: Date;
  /** How long the call is delayed after approval. */
  readonly delayMs: number | null;
  /** When the delay ends and the call is released; null if no delay has begun. */
  readonly leavesAt: Date | null;
  readonly decidedAt: Date | null;
  readonly votes: readonly ApprovalVote[];
}

/** Records that a call is held. Runs in the transaction of its claim, so a held call always has its approval row. */
export async function requestApproval(
  tx: Tx,
  txn: string,
  agent: string,
  tool: string,
  request: ApprovalRequest,
): Promise<void> {
  if (request.releaseDigest === null) await refuseTooManyPending(tx, agent, request.maxPending);
  await insertApproval(tx, txn, agent, tool, request);
}

/** A delayed call waits for no person, so it does not count. */
async function refuseTooManyPending(tx: Tx, agent: string, maxPending: number): Promise<void> {
  // Claims of the same agent wait for this lock, so each of them counts the ones before it and the limit is exact.
  await lockBucket(tx, `pending:${agent}`);
  if ((await countPendingApprovals(tx, agent)) >= maxPending) {
    throw new GatewayError(
      'rate_limited',
      `${agent} has ${maxPending} calls that wait for approval, which is the limit. Wait until people decide on some of them.`,
      { retryAfterSeconds: 60 },
    );
  }
}

/** Exact only while the caller holds the lock of the agent's bucket. */
async function countPendingApprovals(tx: Tx, agent: string): Promise<number> {
  const [pending] = await tx.run<{ n: number }>({
    name: 'count-pending',
    text: `select count(*)::int as n from approvals where agent = $1 and state = 'pending' and leaves_at is null`,
    values: [agent],
  });
  return pending?.n ?? 0;
}

/** Inserts the approval row. This transaction has just claimed the txn, so no other transaction can insert the same row. */
async function insertApproval(
  tx: Tx,
  txn: string,
  agent: string,
  tool: string,
  { shown, groups, quorum, withinMs, delayMs, releaseDigest }: ApprovalRequest,
): Promise<void> {
  await tx.run({
    name: 'request-approval',
    text: `insert into approvals (txn, agent, tool, shown, groups, quorum, expires_at, delay_ms, leaves_at, approved_digest)
      values ($1, $2, $3, $4, $5, $6, now() + $7 * interval '1 ms', $8, case when $9::text is not null then now() + $7 * interval '1 ms' end,
        decode($9, 'hex'))`,
    values: [txn, agent, tool, shown, groups, quorum, withinMs, delayMs, releaseDigest],
  });
}

const APPROVAL_COLUMNS = `a.txn, a.agent, a.tool, a.state, a.shown, a.groups, a.quorum, encode(a.approved_digest, 'hex') as "approvedDigest",
  a.requested_at as "requestedAt", a.expires_at as "expiresAt", a.delay_ms as "delayMs", a.leaves_at as "leavesAt", a.decided_at as "decidedAt",
  coalesce((select jsonb_agg(jsonb_build_object('person', v.person, 'verdict', v.verdict, 'digest', encode(v.digest, 'hex'),
    'reason', v.reason, 'at', v.at) order by v.at) from votes v where v.txn = a.txn), '[]') as votes`;

/** Reads an approval with its votes in one snapshot. */
export async function readApproval(db: Queryable, txn: string): Promise<Approval | undefined> {
  const rows = await db.run<Approval>({
    name: 'read-approval',
    text: `select ${APPROVAL_COLUMNS} from approvals a where a.txn = $1`,
    values: [txn],
  });
  return rows[0];
}

/** Lists approvals, newest first. The cursor is the position of the last row, so new approvals do not shift the pages. */
export async function listApprovals(
  db: Database,
  state: ApprovalState | undefined,
  cursor: string | undefined,
  limit: number,
): Promise<{ items: readonly Approval[]; cursor: string | null }> {
  const [micros, txn] = cursor?.split('.') ?? [];
  const rows = await db.run<Approval & { position: string; found: number }>({
    name: state === 'pending' ? 'list-pending-approvals' : 'list-approvals',
    text: `with found as materialized (
      select a.txn, a.requested_at, coalesce(octet_length(a.shown), 0) as bytes from approvals a
      where ($1::text is null or a.state = $1)
        and ${buildCursorCondition('a.requested_at', 'a.txn', '$2', '$3')}
        and ${state === 'pending' ? 'a.txn = any (array(select txn from open_calls))' : 'true'}
      order by a.requested_at desc, a.txn desc limit $4
    ), fitting as materialized (${buildFittingQuery('txn', 'requested_at')})
    select ${APPROVAL_COLUMNS}, (extract(epoch from a.requested_at) * 1000000)::bigint || '.' || a.txn as position, f.found
      from fitting f join approvals a on a.txn = f.txn where f.fits order by a.requested_at desc, a.txn desc`,
    values: [state ?? null, micros ?? null, txn ?? null, limit + 1],
  });
  const page = toPage(rows, limit);
  return { items: page.items.map(({ position: _, found: __, ...item }) => item), cursor: page.cursor };
}

/**
 * Ends a held call because its agent withdrew it or nobody decided in time. Returns false if the call is no longer held. Locks
 * in the order of a vote (approval, open call), so that the two never wait in a circle. The `count(*) >= 0` condition is always
 * true; it makes PostgreSQL take the locks in this order.
 */
export async function endHeldCall(
  db: Queryable,
  txn: string,
  endState: 'cancelled' | 'expired',
  detail: string,
  entry: string,
): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'end-held',
    text: `with locked as materialized (
        select txn, leaves_at from approvals where txn = $1 for update
      ), ${buildEndCtes(
        // Does not expire a call that was approved meanwhile and is now in its delay.
        `o.txn = $1 and o.state = 'held' and (select count(*) from locked) >= 0
          and ($2 <> 'expired' or not exists (select 1 from locked where leaves_at is not null))`,
        {
          state: '$2::text',
          outcome: '$2',
          problem: '$2',
          detail: '$3',
          evidence: `'gateway'`,
          leaf: '$4::bytea',
        },
      )}, decided as (
        update approvals a set state = $2, decided_at = now() from ended e where a.txn = e.txn
      ), logged as (
        insert into audit_queue (entry) select $5 from ended
      )
      select txn from ended`,
    values: [txn, endState, detail, hashLeaf(entry), entry],
  });
  return rows.length === 1;
}
