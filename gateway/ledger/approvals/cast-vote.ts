import { hashLeaf } from '../../domain/audit/audit.ts';
import { GatewayError } from '../../domain/errors.ts';
import { insertAuditEntry } from '../audit/audit-queue.ts';
import { beginDelay } from '../calls/delays.ts';
import { buildEndCtes } from '../calls/end-calls.ts';
import type { Database, Tx } from '../db.ts';
import { type Approval, type ApprovalState, readApproval } from './approvals.ts';

export interface NewApprovalVote {
  readonly txn: string;
  readonly person: string;
  readonly verdict: 'approve' | 'reject';
  /** The digest of what the person saw, in hex. The caller has checked that exactly this would run. */
  readonly digest: string;
  readonly reason: string;
  readonly entry: string;
}

/**
 * Writes a vote and, if it decides, the decision. Voters queue for the lock of the approval row, so exactly one of them casts
 * the deciding vote. An approved call is due at once, and any process may take it; a crash right after leaves it due.
 *
 * Locks the approval, then the open call. All code that locks both uses this order.
 */
export async function castVote(db: Database, vote: NewApprovalVote): Promise<Approval> {
  return db.transaction(async (tx) => {
    const locked = await lockApproval(tx, vote.txn);
    if (locked === undefined) throw buildApprovalNotFoundError(vote.txn);
    if (locked.state === 'pending') {
      // A delayed call can be stopped until it is released, even after its delay: a freeze, for example, keeps it held longer.
      if (locked.isExpired && !locked.isDelayed)
        throw new GatewayError('conflict', 'The time to decide on this call is over.', { txn: vote.txn });
      await lockOpenCall(tx, vote.txn);
      const isNew = !(await hasApproved(tx, vote));
      await upsertVote(tx, vote);
      await insertAuditEntry(tx, vote.entry);
      if (vote.verdict === 'reject') await rejectCall(tx, vote);
      else await applyApproval(tx, vote, locked, isNew);
    }
    const approval = await readApproval(tx, vote.txn);
    if (approval === undefined) throw buildApprovalNotFoundError(vote.txn);
    return approval;
  });
}

function buildApprovalNotFoundError(txn: string): GatewayError {
  return new GatewayError('not_found', `There is no approval for call ${txn}.`);
}

interface LockedApproval {
  readonly state: ApprovalState;
  readonly isExpired: boolean;
  readonly quorum: number;
  readonly delayMs: number | null;
  /** The call is released when its delay ends. */
  readonly isDelayed: boolean;
  /** The digest under which the delay began. */
  readonly approvedDigest: string | null;
}

/** Locks the approval until the transaction ends. Votes, cancellation, expiry and release of the call wait here. */
async function lockApproval(tx: Tx, txn: string): Promise<LockedApproval | undefined> {
  const [locked] = await tx.run<LockedApproval>({
    name: 'lock-approval',
    text: `select state, expires_at <= now() as "isExpired", quorum, delay_ms as "delayMs", leaves_at is not null as "isDelayed",
        encode(approved_digest, 'hex') as "approvedDigest" from approvals where txn = $1 for update`,
    values: [txn],
  });
  return locked;
}

/** Locks the open call, so that no takeover comes in between. */
async function lockOpenCall(tx: Tx, txn: string): Promise<void> {
  await tx.run({
    name: 'lock-open-call',
    text: 'select txn from open_calls where txn = $1 for update',
    values: [txn],
  });
}

/** Whether this person has already approved exactly this. Votes change only under the lock of the approval row. */
async function hasApproved(tx: Tx, { txn, person, digest }: NewApprovalVote): Promise<boolean> {
  const rows = await tx.run({
    name: 'has-approved',
    text: `select 1 from votes where txn = $1 and person = $2 and verdict = 'approve' and digest = decode($3, 'hex')`,
    values: [txn, person, digest],
  });
  return rows.length === 1;
}

/** One vote per person: a later vote replaces the earlier one. The approval row is locked, so the newest vote wins. */
async function upsertVote(tx: Tx, { txn, person, verdict, digest, reason }: NewApprovalVote): Promise<void> {
  await tx.run({
    name: 'vote',
    text: `insert into votes (txn, person, verdict, digest, reason) values ($1, $2, $3, decode($4, 'hex'), $5)
      on conflict (txn, person) do update set verdict = excluded.verdict, digest = excluded.digest, reason = excluded.reason, at = now()`,
    values: [txn, person, verdict, digest, reason],
  });
}

/**
 * Counts an approving vote: it releases the call or begins its delay. During the delay one more person can release the call at
 * once. The same person cannot, because a decision that is sent twice must not shorten the delay.
 */
async function applyApproval(
  tx: Tx,
  vote: NewApprovalVote,
  { quorum, delayMs, isDelayed, approvedDigest }: LockedApproval,
  isNew: boolean,
): Promise<void> {
  if (isDelayed && approvedDigest === vote.digest) return isNew ? approveCall(tx, vote) : undefined;
  if ((await countApprovalsFor(tx, vote)) < quorum) return undefined;
  return delayMs === null ? approveCall(tx, vote) : beginDelay(tx, vote, delayMs);
}

/** Counts only votes for this digest: a person who approved something else has not approved this. */
async function countApprovalsFor(tx: Tx, { txn, digest }: NewApprovalVote): Promise<number> {
  const [row] = await tx.run<{ n: number }>({
    name: 'count-votes',
    text: `select count(*)::int as n from votes where txn = $1 and verdict = 'approve' and digest = decode($2, 'hex')`,
    values: [txn, digest],
  });
  return row?.n ?? 0;
}

async function approveCall(tx: Tx, vote: NewApprovalVote): Promise<void> {
  await markApproved(tx, vote);
  await makeApprovedCallReady(tx, vote);
}

/** Closes the approval. The caller holds its lock and has seen it pending. */
async function markApproved(tx: Tx, { txn, digest }: NewApprovalVote): Promise<void> {
  await tx.run({
    name: 'approve',
    text: `update approvals set state = 'approved', approved_digest = decode($2, 'hex'), decided_at = now() where txn = $1`,
    values: [txn, digest],
  });
}

/** Makes the call due for any process. The condition on the state lets only a held call become ready; the fence grows. */
async function makeApprovedCallReady(tx: Tx, { txn, person, reason }: NewApprovalVote): Promise<void> {
  await tx.run({
    name: 'make-ready',
    text: `with ready as (
        update open_calls set state = 'ready', fence = fence + 1, round_at = now(), owner = null, due_at = now()
        where txn = $1 and state = 'held' returning txn
      )
      insert into call_events (txn, event)
      select txn, jsonb_build_object('at', now(), 'what', 'approved', 'person', $2::text, 'reason', $3::text) from ready`,
    values: [txn, person, reason],
  });
}

async function rejectCall(tx: Tx, vote: NewApprovalVote): Promise<void> {
  await markRejected(tx, vote.txn);
  await endRejectedCall(tx, vote);
}

/** Closes the approval. The caller holds its lock and has seen it pending. */
async function markRejected(tx: Tx, txn: string): Promise<void> {
  await tx.run({
    name: 'reject',
    text: `update approvals set state = 'rejected', decided_at = now() where txn = $1`,
    values: [txn],
  });
}

/** Ends the call if it is still held. A person's rejection is the evidence that nothing was sent. */
async function endRejectedCall(tx: Tx, { txn, person, reason, entry }: NewApprovalVote): Promise<void> {
  await tx.run({
    name: 'end-rejected',
    text: `with ${buildEndCtes(`o.txn = $1 and o.state = 'held'`, {
      state: `'rejected'`,
      outcome: `'rejected'`,
      problem: `'rejected'`,
      detail: '$3',
      evidence: `'person'`,
      leaf: '$4::bytea',
      resolvedBy: '$2',
    })}
      select txn from ended`,
    values: [txn, person, `${person} rejected the call: ${reason}`, hashLeaf(entry)],
  });
}
