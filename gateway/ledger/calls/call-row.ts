import type { StoredRequest, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { Call, CallEvent, CallKind, Evidence, Hold } from '../../domain/calls/call.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import type { ErrorCode } from '../../domain/errors.ts';
import type { StoredUndo, UndoState } from '../../domain/sagas/saga.ts';

/** A row of `calls` joined with its owner, as `pg` returns it. Only the ledger uses snake_case. */
export interface CallRow {
  txn: string;
  agent: string;
  tool: string;
  key: string | null;
  identity: Call['identity'];
  fingerprint: Buffer;
  kind: CallKind;
  state: CallState;
  fence: number;
  step: number;
  attempt: number;
  attempt_open: boolean;
  unresolved: number;
  round_from: number;
  owner_deaths: number;
  created_at: Date;
  first_sent_at: Date | null;
  round_at: Date;
  unknown_since: Date | null;
  key_lifetime_ms: number | null;
  policy_version: string;
  rule: string | null;
  args: string | null;
  request: string | null;
  sealed: Buffer | null;
  outcome: string | null;
  problem: ErrorCode | null;
  detail: string | null;
  answer: string | null;
  evidence: Evidence | null;
  resolved_by: string | null;
  settled_at: Date | null;
  delivered_at: Date | null;
  erased_at: Date | null;
  leaf: Buffer | null;
  contradiction: string | null;
  attempt_detail: string | null;
  disproved_by: Call['disprovedBy'];
  verdict: Call['verdict'];
  retry_requested: boolean;
  approved: boolean;
  events: CallEvent[];
  saga: string | null;
  ordinal: number | null;
  recalled: boolean;
  run: string | null;
  epoch: number | null;
  fenced: boolean;
  lock_token: number | null;
  undo: string | null;
  undo_args: string | null;
  undo_sealed: Buffer | null;
  before: string | null;
  undo_state: UndoState;
  undo_reason: string | null;
  undo_txn: string | null;
  undo_tries: number;
  undo_of: string | null;
  hold: { kind: Hold['kind']; until: string; left_ms: number } | null;
  owner: string | null;
  due_at: Date | null;
  read_at: Date;
}

/** A subquery instead of a join, so that only held calls pay for it. */
const HOLD_SQL = `case when c.state = 'held' then (
  select jsonb_build_object('kind', case when a.leaves_at is null then 'approval' else 'delay' end, 'until', a.expires_at,
    'left_ms', extract(epoch from a.expires_at - now()) * 1000) from approvals a where a.txn = c.txn) end`;

/** Only an open call needs its approval, so only an open call pays for this subquery. */
const APPROVED_SQL = `c.settled_at is null and exists (
  select 1 from approvals a where a.txn = c.txn and a.state in ('approved', 'unopposed'))`;

/** Use with `from ${CALLS_WITH_OWNER}`. */
export const CALL_COLUMNS = `
  c.txn, c.agent, c.tool, c.key, c.identity, c.fingerprint, c.kind, c.state, c.fence, c.step, c.attempt, c.attempt_open,
  c.unresolved, c.round_from, c.owner_deaths, c.created_at, c.first_sent_at, c.round_at, c.unknown_since,
  c.key_lifetime_ms, c.policy_version, c.rule, c.args, c.request, c.sealed, c.outcome, c.problem, c.detail, c.answer,
  c.evidence, c.resolved_by, c.settled_at, c.delivered_at, c.erased_at, c.leaf, c.contradiction, c.events,
  c.attempt_detail, c.disproved_by, c.verdict, c.retry_requested, ${APPROVED_SQL} as approved,
  c.saga, c.ordinal, c.recalled, c.run, c.epoch, c.fenced, c.lock_token::float8 as lock_token, c.undo, c.undo_args, c.undo_sealed, c.before, c.undo_state, c.undo_reason, c.undo_txn, c.undo_tries, c.undo_of,
  ${HOLD_SQL} as hold, o.owner, o.due_at, now() as read_at`;

export const CALLS_WITH_OWNER = 'calls c left join open_calls o on o.txn = c.txn';

export function toCall(row: CallRow): Call {
  return {
    txn: row.txn,
    agent: row.agent,
    tool: row.tool,
    key: row.key,
    identity: row.identity,
    fingerprint: row.fingerprint,
    kind: row.kind,
    state: row.state,
    fence: row.fence,
    updateNumber: row.step,
    attempt: row.attempt,
    attemptOpen: row.attempt_open,
    unresolved: row.unresolved,
    roundFrom: row.round_from,
    ownerDeaths: row.owner_deaths,
    createdAt: row.created_at,
    firstSentAt: row.first_sent_at,
    roundAt: row.round_at,
    unknownSince: row.unknown_since,
    keyLifetimeMs: row.key_lifetime_ms,
    policyVersion: row.policy_version,
    rule: row.rule,
    args: row.args,
    request: row.request === null ? null : (JSON.parse(row.request) as StoredRequest),
    sealed: row.sealed,
    outcome: row.outcome,
    problem: row.problem,
    detail: row.detail,
    answer: row.answer === null ? null : (JSON.parse(row.answer) as UpstreamAnswer),
    evidence: row.evidence,
    resolvedBy: row.resolved_by,
    settledAt: row.settled_at,
    deliveredAt: row.delivered_at,
    erasedAt: row.erased_at,
    leaf: row.leaf,
    contradiction: row.contradiction,
    attemptDetail: row.attempt_detail,
    disprovedBy: row.disproved_by,
    verdict: row.verdict,
    isRetryRequested: row.retry_requested,
    isApproved: row.approved,
    events: row.events,
    saga: row.saga,
    ordinal: row.ordinal,
    recalled: row.recalled,
    run: row.run,
    epoch: row.epoch,
    fenced: row.fenced,
    lockToken: row.lock_token,
    undo: row.undo === null ? null : (JSON.parse(row.undo) as StoredUndo),
    undoArgs: row.undo_args,
    undoSealed: row.undo_sealed,
    before: row.before,
    undoState: row.undo_state,
    undoReason: row.undo_reason,
    undoTxn: row.undo_txn,
    undoTries: row.undo_tries,
    undoOf: row.undo_of,
    hold:
      row.hold === null
        ? null
        : { kind: row.hold.kind, until: new Date(row.hold.until), leftMs: Math.max(0, row.hold.left_ms) },
    owner: row.owner,
    dueAt: row.due_at,
    readAt: row.read_at,
  };
}
