import type { StoredRequest, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import type { Call, Hold } from '../../domain/calls/call.ts';
import type { StoredUndo } from '../../domain/sagas/saga.ts';

/** A subquery instead of a join, so that only held calls pay for it. */
const HOLD_SQL = `case when c.state = 'held' then (
  select jsonb_build_object('kind', case when a.leaves_at is null then 'approval' else 'delay' end, 'until', a.expires_at,
    'left_ms', extract(epoch from a.expires_at - now()) * 1000) from approvals a where a.txn = c.txn) end`;

/** Only an open call needs its approval, so only an open call pays for this subquery. */
const APPROVED_SQL = `c.settled_at is null and exists (
  select 1 from approvals a where a.txn = c.txn and a.state in ('approved', 'unopposed'))`;

/** Where a field of a call comes from. `decode` turns the value that `pg` returns into the field; without it they are the same. */
interface FieldSource<Field> {
  readonly sql: string;
  readonly decode?: (value: never) => Field;
}

/**
 * The fields of a call and their columns: the only place that maps one to the other. The compiler refuses a field without a
 * column, and a test compares the columns with the migrated schema.
 */
export const CALL_FIELDS = {
  txn: { sql: 'c.txn' },
  agent: { sql: 'c.agent' },
  tool: { sql: 'c.tool' },
  key: { sql: 'c.key' },
  identity: { sql: 'c.identity' },
  fingerprint: { sql: 'c.fingerprint' },
  kind: { sql: 'c.kind' },
  state: { sql: 'c.state' },
  fence: { sql: 'c.fence' },
  updateNumber: { sql: 'c.step' },
  attempt: { sql: 'c.attempt' },
  attemptOpen: { sql: 'c.attempt_open' },
  unresolved: { sql: 'c.unresolved' },
  roundFrom: { sql: 'c.round_from' },
  ownerDeaths: { sql: 'c.owner_deaths' },
  createdAt: { sql: 'c.created_at' },
  firstSentAt: { sql: 'c.first_sent_at' },
  roundAt: { sql: 'c.round_at' },
  unknownSince: { sql: 'c.unknown_since' },
  keyLifetimeMs: { sql: 'c.key_lifetime_ms' },
  policyVersion: { sql: 'c.policy_version' },
  rule: { sql: 'c.rule' },
  args: { sql: 'c.args' },
  request: { sql: 'c.request', decode: parseJson<StoredRequest> },
  sealed: { sql: 'c.sealed' },
  outcome: { sql: 'c.outcome' },
  problem: { sql: 'c.problem' },
  detail: { sql: 'c.detail' },
  answer: { sql: 'c.answer', decode: parseJson<UpstreamAnswer> },
  evidence: { sql: 'c.evidence' },
  resolvedBy: { sql: 'c.resolved_by' },
  settledAt: { sql: 'c.settled_at' },
  deliveredAt: { sql: 'c.delivered_at' },
  erasedAt: { sql: 'c.erased_at' },
  leaf: { sql: 'c.leaf' },
  contradiction: { sql: 'c.contradiction' },
  attemptDetail: { sql: 'c.attempt_detail' },
  disprovedBy: { sql: 'c.disproved_by' },
  verdict: { sql: 'c.verdict' },
  isRetryRequested: { sql: 'c.retry_requested' },
  isApproved: { sql: APPROVED_SQL },
  events: { sql: 'c.events' },
  saga: { sql: 'c.saga' },
  ordinal: { sql: 'c.ordinal' },
  recalled: { sql: 'c.recalled' },
  run: { sql: 'c.run' },
  epoch: { sql: 'c.epoch' },
  fenced: { sql: 'c.fenced' },
  lockToken: { sql: 'c.lock_token::float8' },
  undo: { sql: 'c.undo', decode: parseJson<StoredUndo> },
  undoArgs: { sql: 'c.undo_args' },
  undoSealed: { sql: 'c.undo_sealed' },
  before: { sql: 'c.before' },
  undoState: { sql: 'c.undo_state' },
  undoReason: { sql: 'c.undo_reason' },
  undoTxn: { sql: 'c.undo_txn' },
  undoTries: { sql: 'c.undo_tries' },
  undoOf: { sql: 'c.undo_of' },
  hold: { sql: HOLD_SQL, decode: decodeHold },
  owner: { sql: 'o.owner' },
  dueAt: { sql: 'o.due_at' },
  readAt: { sql: 'now()' },
} as const satisfies { readonly [Field in keyof Call]-?: FieldSource<Call[Field]> };

type CallFields = typeof CALL_FIELDS;

/** A row as `pg` returns it: each field as its column has it, before it is decoded. */
export type CallRow = {
  readonly [Field in keyof CallFields]: CallFields[Field] extends { readonly decode: (value: infer Raw) => unknown }
    ? Raw
    : Call[Field];
};

/** Use with `from ${CALLS_WITH_OWNER}`. */
export const CALL_COLUMNS = Object.entries(CALL_FIELDS)
  .map(([field, { sql }]) => `${sql} as "${field}"`)
  .join(', ');

export const CALLS_WITH_OWNER = 'calls c left join open_calls o on o.txn = c.txn';

const DECODERS = Object.entries<FieldSource<unknown>>(CALL_FIELDS).map(
  ([field, { decode }]) => [field as keyof CallRow, decode as ((value: unknown) => unknown) | undefined] as const,
);

export function toCall(row: CallRow): Call {
  const call: Partial<Record<keyof Call, unknown>> = {};
  for (const [field, decode] of DECODERS) call[field] = decode === undefined ? row[field] : decode(row[field]);
  return call as unknown as Call;
}

function parseJson<T>(text: string | null): T | null {
  return text === null ? null : (JSON.parse(text) as T);
}

function decodeHold(hold: { kind: Hold['kind']; until: string; left_ms: number } | null): Hold | null {
  return hold === null ? null : { kind: hold.kind, until: new Date(hold.until), leftMs: Math.max(0, hold.left_ms) };
}
