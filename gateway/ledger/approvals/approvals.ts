import { hashLeaf } from '../../domain/audit/audit.ts';
import { GatewayError } from '../../domain/errors.ts';
import { beginDelay } from '../calls/delays.ts';
import { lockBucket } from '../calls/limits.ts';
import { buildCursorCondition, buildFittingQuery, toPage } from '../calls/list-calls.ts';
import type { Database, Queryable, Tx } from '../db.ts';

/** `unopposed`: nobody stopped it while it was delayed, and it left by itself. */
export type ApprovalState = 'pending' | 'approved' | 'rejected' | 'expired' | 'cancelled' | 'unopposed';

/** What a held call waits for. */
export interface ApprovalRequest {
  /** Everything a person is shown, as canonical JSON. */
  readonly shown: string;
  readonly groups: readonly string[];
  readonly quorum: number;
  readonly withinMs: number;
  /** How many of the agent's calls may wait at once. */
  readonly maxPending: number;
  /** How long it is held once people agreed; null: it goes at once. */
  readonly delayMs: number | null;
  /** Nobody must agree: it leaves after `withinMs`, if it still has this digest then. Null: people must. */
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
  /** How long it is held once people agreed. */
  readonly delayMs: number | null;
  /** When it leaves by itself; null: not before people agree. */
  readonly leavesAt: Date | null;
  readonly decidedAt: Date | null;
  readonly votes: readonly ApprovalVote[];
}

/** Written with the claim of the held call. */
export async function requestApproval(
  tx: Tx,
  txn: string,
  agent: string,
  tool: string,
  request: ApprovalRequest,
): Promise<void> {
  const { shown, groups, quorum, withinMs, delayMs, releaseDigest: leavesAs } = request;
  if (leavesAs === null) await refuseTooManyPending(tx, agent, request.maxPending);
  await tx.run({
    name: 'request-approval',
    text: `insert into approvals (txn, agent, tool, shown, groups, quorum, expires_at, delay_ms, leaves_at, approved_digest)
      values ($1, $2, $3, $4, $5, $6, now() + $7 * interval '1 ms', $8, case when $9::text is not null then now() + $7 * interval '1 ms' end,
        decode($9, 'hex'))`,
    values: [txn, agent, tool, shown, groups, quorum, withinMs, delayMs, leavesAs],
  });
}

/** What leaves by itself waits for nobody, and does not count. */
async function refuseTooManyPending(tx: Tx, agent: string, mostPending: number): Promise<void> {
  // Locked like a limit, so that the cap is exact.
  await lockBucket(tx, `pending:${agent}`);
  const [pending] = await tx.run<{ n: number }>({
    name: 'count-pending',
    text: `select count(*)::int as n from approvals where agent = $1 and state = 'pending' and leaves_at is null`,
    values: [agent],
  });
  if ((pending?.n ?? 0) >= mostPending) {
    throw new GatewayError('rate_limited', `${mostPending} calls of ${agent} wait for people already.`, {
      retryAfterSeconds: 60,
    });
  }
}

const APPROVAL_COLUMNS = `a.txn, a.agent, a.tool, a.state, a.shown, a.groups, a.quorum, encode(a.approved_digest, 'hex') as "approvedDigest",
  a.requested_at as "requestedAt", a.expires_at as "expiresAt", a.delay_ms as "delayMs", a.leaves_at as "leavesAt", a.decided_at as "decidedAt",
  coalesce((select jsonb_agg(jsonb_build_object('person', v.person, 'verdict', v.verdict, 'digest', encode(v.digest, 'hex'),
    'reason', v.reason, 'at', v.at) order by v.at) from votes v where v.txn = a.txn), '[]') as votes`;

export async function readApproval(db: { run: Tx['run'] }, txn: string): Promise<Approval | undefined> {
  const rows = await db.run<Approval>({
    name: 'read-approval',
    text: `select ${APPROVAL_COLUMNS} from approvals a where a.txn = $1`,
    values: [txn],
  });
  return rows[0];
}

/** Newest first; the cursor is the position of the last row seen. */
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

export interface NewApprovalVote {
  readonly txn: string;
  readonly person: string;
  readonly verdict: 'approve' | 'reject';
  /** Of what the person saw, in hex; the caller has made sure that it is what would run. */
  readonly digest: string;
  readonly reason: string;
  readonly entry: string;
}

/**
 * Writes a vote and, when it decides, the decision: the row's lock makes one of two voters at once the deciding one. An
 * approved call is due at once, for whichever process looks first; a crash right after leaves it due.
 */
export async function castVote(db: Database, vote: NewApprovalVote): Promise<Approval> {
  return db.transaction(async (tx) => {
    const [locked] = await tx.run<LockedApproval>({
      name: 'lock-approval',
      text: `select state, expires_at <= now() as lapsed, quorum, delay_ms as "delayMs", leaves_at is not null as leaving,
        encode(approved_digest, 'hex') as agreed from approvals where txn = $1 for update`,
      values: [vote.txn],
    });
    if (locked === undefined) throw new GatewayError('not_found', `Nothing waits for a decision under ${vote.txn}.`);
    if (locked.state === 'pending') {
      // What leaves by itself can be stopped for as long as it has not: frozen, for one, it stays.
      if (locked.lapsed && !locked.leaving)
        throw new GatewayError('conflict', 'The time to decide is over.', { txn: vote.txn });
      // Before the call itself, as whoever takes calls over does it.
      await tx.run({
        name: 'lock-open-call',
        text: 'select txn from open_calls where txn = $1 for update',
        values: [vote.txn],
      });
      const isNew = !(await hasApproved(tx, vote));
      await tx.run({
        name: 'vote',
        text: `insert into votes (txn, person, verdict, digest, reason) values ($1, $2, $3, decode($4, 'hex'), $5)
          on conflict (txn, person) do update set verdict = excluded.verdict, digest = excluded.digest, reason = excluded.reason, at = now()`,
        values: [vote.txn, vote.person, vote.verdict, vote.digest, vote.reason],
      });
      await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [vote.entry] });
      if (vote.verdict === 'reject') await rejectCall(tx, vote);
      else await applyApproval(tx, vote, locked, isNew);
    }
    const now = await readApproval(tx, vote.txn);
    if (now === undefined) throw new GatewayError('not_found', `Nothing waits for a decision under ${vote.txn}.`);
    return now;
  });
}

interface LockedApproval {
  readonly state: ApprovalState;
  readonly lapsed: boolean;
  readonly quorum: number;
  readonly delayMs: number | null;
  /** It leaves by itself. */
  readonly leaving: boolean;
  /** The digest it leaves as. */
  readonly agreed: string | null;
}

/**
 * A yes. It lets the call go, or begins its delay. Within the delay one more person is enough to let it go at once; but not
 * one who is known to agree: a decision that is sent twice must not cut the delay short.
 */
async function applyApproval(
  tx: Tx,
  vote: NewApprovalVote,
  { quorum, delayMs, leaving, agreed }: LockedApproval,
  isNew: boolean,
): Promise<void> {
  if (leaving && agreed === vote.digest) return isNew ? approveCall(tx, vote) : undefined;
  if ((await countApprovalsFor(tx, vote)) < quorum) return undefined;
  return delayMs === null ? approveCall(tx, vote) : beginDelay(tx, vote, delayMs);
}

async function hasApproved(tx: Tx, { txn, person, digest }: NewApprovalVote): Promise<boolean> {
  const rows = await tx.run({
    name: 'has-approved',
    text: `select 1 from votes where txn = $1 and person = $2 and verdict = 'approve' and digest = decode($3, 'hex')`,
    values: [txn, person, digest],
  });
  return rows.length === 1;
}

/** Only votes for what is shown now count: whoever approved something else approved something else. */
async function countApprovalsFor(tx: Tx, { txn, digest }: NewApprovalVote): Promise<number> {
  const [row] = await tx.run<{ n: number }>({
    name: 'count-votes',
    text: `select count(*)::int as n from votes where txn = $1 and verdict = 'approve' and digest = decode($2, 'hex')`,
    values: [txn, digest],
  });
  return row?.n ?? 0;
}

async function approveCall(tx: Tx, { txn, digest, person, reason }: NewApprovalVote): Promise<void> {
  await tx.run({
    name: 'approve',
    text: `update approvals set state = 'approved', approved_digest = decode($2, 'hex'), decided_at = now() where txn = $1`,
    values: [txn, digest],
  });
  await tx.run({
    name: 'make-ready',
    text: `with ready as (
        update calls set state = 'ready', fence = fence + 1, round_at = now(), events = events || jsonb_build_array(jsonb_build_object(
          'at', now(), 'what', 'approved', 'person', $2::text, 'reason', $3::text))
        where txn = $1 and state = 'held' returning txn
      )
      update open_calls o set owner = null, due_at = now() from ready r where o.txn = r.txn`,
    values: [txn, person, reason],
  });
}

async function rejectCall(tx: Tx, { txn, person, reason, entry }: NewApprovalVote): Promise<void> {
  await tx.run({
    name: 'reject',
    text: `update approvals set state = 'rejected', decided_at = now() where txn = $1`,
    values: [txn],
  });
  await tx.run({
    name: 'end-rejected',
    text: `with ended as (
        update calls set state = 'rejected', fence = fence + 1, settled_at = now(), outcome = 'rejected', problem = 'rejected', detail = $3,
          evidence = 'person', resolved_by = $2, leaf = $4
        where txn = $1 and state = 'held' returning txn
      )
      delete from open_calls o using ended e where o.txn = e.txn`,
    values: [txn, person, `${person} said no: ${reason}`, hashLeaf(entry)],
  });
}

/**
 * Withdrawn by its agent, or nobody answered in time. False: it is no longer held. Locked in the order of a vote (the
 * approval, who looks after the call, the call): in another they would wait for each other.
 */
export async function endHeldCall(
  db: Queryable,
  txn: string,
  as: 'cancelled' | 'expired',
  detail: string,
  entry: string,
): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'end-held',
    text: `with locked as materialized (
        select txn, leaves_at from approvals where txn = $1 for update
      ), looked_after as materialized (
        select txn from open_calls where txn = $1 and (select count(*) from locked) >= 0 for update
      ), ended as (
        update calls set state = $2, fence = fence + 1, settled_at = now(), outcome = $2, problem = $2, detail = $3, evidence = 'gateway', leaf = $4
        where txn = $1 and state = 'held' and (select count(*) from looked_after) >= 0
          -- Somebody's yes began its delay while it was being ended for lack of one.
          and ($2 <> 'expired' or not exists (select 1 from locked where leaves_at is not null)) returning txn
      ), closed as (
        delete from open_calls o using ended e where o.txn = e.txn
      ), decided as (
        update approvals a set state = $2, decided_at = now() from ended e where a.txn = e.txn
      ), logged as (
        insert into audit_queue (entry) select $5 from ended
      )
      select txn from ended`,
    values: [txn, as, detail, hashLeaf(entry), entry],
  });
  return rows.length === 1;
}
