import type { StoredRequest, UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import {
  type CallRecord,
  type ClaimedFields,
  createCallRecord,
  type Hold,
  type NewCallFields,
} from '../../domain/calls/call-record.ts';
import type { StoredUndo } from '../../domain/sagas/saga.ts';
import type { RowValueType } from '../row-array.ts';
import type { OpenCallPatch, SettlementPatch, UndoArguments } from './call-patches.ts';

/**
 * The columns of a call, once for reading and writing. A call is spread over four tables:
 *
 * - `calls` (c): the intent, written by the claim. Only its payload is ever erased.
 * - `open_calls` (o): the state of an unfinished call. Updated in place, and deleted when the call ends.
 * - `settlements` (r): the final answer, written once. A call has either an open row or a settlement.
 * - `undos` (u): how the call is undone, once something is known about it.
 *
 * A new field of the intent needs a field of `CallRecord`, a line in `INTENT_COLUMNS`, and a migration that adds the column and a
 * new type for the rows of claims: a replica of the version before still sends the old one. A test compares this file with the
 * migrated schema.
 */
export const CALLS_JOINED = `calls c left join open_calls o on o.txn = c.txn left join settlements r on r.txn = c.txn
  left join undos u on u.txn = c.txn`;

/** A column that batches write. The field has the same name in the record or patch that the batch carries. */
export interface WrittenColumn<Field, Decoded = Field> {
  readonly column: string;
  /** The name of the value in the rows of the batch, if it differs from the column name. */
  readonly row?: string;
  /** How the value travels. Enums, JSON and `uuid[]` travel as text. */
  readonly type: RowValueType;
  /** The type of the column, if the value travels as another one. */
  readonly cast?: string;
  readonly encode?: (field: Field) => string | null;
  readonly decode?: (value: string | null) => Decoded;
  /** Computes the new value of a column that is not simply replaced. `i` is the row of the batch, `o` the row of the table. */
  readonly set?: string;
}

/** Columns by the field that is written into each. */
export type ColumnTable = Readonly<Record<string, WrittenColumn<never, unknown>>>;

const asJson = <Value>(column: string) => ({
  column,
  type: 'text' as const,
  encode: (value: Value | null) => (value === null ? null : JSON.stringify(value)),
  decode: parseJson<Value>,
});

/** The composite type of the rows of claims. */
export const CLAIM_ROW_TYPE = 'claim_row';

/** The columns of `calls` that a claim writes. */
export const INTENT_COLUMNS = {
  txn: { column: 'txn', type: 'uuid' },
  agent: { column: 'agent', type: 'text' },
  tool: { column: 'tool', type: 'text' },
  key: { column: 'key', type: 'text' },
  identity: { column: 'identity', type: 'text', cast: 'call_identity' },
  fingerprint: { column: 'fingerprint', type: 'bytea' },
  kind: { column: 'kind', type: 'text', cast: 'call_kind' },
  keyLifetimeMs: { column: 'key_lifetime_ms', type: 'float8' },
  policyVersion: { column: 'policy_version', type: 'text' },
  rule: { column: 'rule', type: 'text' },
  args: { column: 'args', type: 'text' },
  request: asJson<StoredRequest>('request'),
  sealed: { column: 'sealed', type: 'bytea' },
  saga: { column: 'saga', type: 'uuid' },
  dependsOn: { column: 'depends_on', type: 'text', cast: 'uuid[]', encode: encodeArray },
  undo: asJson<StoredUndo>('undo'),
  undoOf: { column: 'undo_of', type: 'uuid' },
  run: { column: 'run', type: 'uuid' },
  epoch: { column: 'epoch', type: 'int4' },
} as const satisfies { readonly [Field in keyof ClaimedFields]: WrittenColumn<ClaimedFields[Field]> };

/** The columns of `open_calls` that a patch writes. */
export const OPEN_COLUMNS = {
  state: { column: 'state', type: 'text', cast: 'open_state' },
  attempt: { column: 'attempt', type: 'int4' },
  attemptOpen: { column: 'attempt_open', type: 'bool' },
  unresolved: { column: 'unresolved', type: 'int4' },
  unknownSinceMs: {
    column: 'unknown_since',
    row: 'unknown_ms',
    type: 'float8',
    set: `coalesce(now() - i.unknown_ms * interval '1 ms', o.unknown_since)`,
  },
  detail: { column: 'detail', type: 'text' },
  attemptDetail: { column: 'attempt_detail', type: 'text' },
  disprovedBy: { column: 'disproved_by', type: 'text' },
} as const satisfies { readonly [Field in keyof OpenCallPatch]?: WrittenColumn<OpenCallPatch[Field]> };

/** The columns of `settlements` that a settlement writes. The open row contributes the others: see `KEPT_COLUMNS`. */
export const SETTLEMENT_COLUMNS = {
  state: { column: 'state', type: 'text', cast: 'final_state' },
  outcome: { column: 'outcome', type: 'text' },
  problem: { column: 'problem', type: 'text' },
  detail: { column: 'detail', type: 'text' },
  answer: asJson<UpstreamAnswer>('answer'),
  evidence: { column: 'evidence', type: 'text', cast: 'call_evidence' },
  resolvedBy: { column: 'resolved_by', type: 'text' },
  leaf: { column: 'leaf', type: 'bytea' },
} as const satisfies { readonly [Field in keyof SettlementPatch]?: WrittenColumn<SettlementPatch[Field]> };

/** The columns of `undos` that a patch or a settlement adds to. */
export const UNDO_COLUMNS = {
  before: { column: 'before', row: 'undo_before', type: 'text' },
  args: { column: 'args', row: 'undo_args', type: 'text' },
  sealed: { column: 'sealed', row: 'undo_sealed', type: 'bytea' },
  reason: { column: 'reason', row: 'undo_reason', type: 'text' },
} as const satisfies { readonly [Field in keyof UndoArguments]: WrittenColumn<UndoArguments[Field]> };

/** The columns of `open_calls` that the settlement keeps. */
export const KEPT_COLUMNS = 'first_sent_at, unknown_since, lock_token, attempt, owner_deaths, retried_by';

/** A subquery instead of a join, so that only held calls pay for it. */
const HOLD_SQL = `case when o.state = 'held' then (
  select jsonb_build_object('kind', case when a.leaves_at is null then 'approval' else 'delay' end, 'until', a.expires_at,
    'left_ms', extract(epoch from a.expires_at - now()) * 1000) from approvals a where a.txn = c.txn) end`;

/** Only an open call needs its approval, so only an open call pays for this subquery. */
const APPROVED_SQL = `o.txn is not null and exists (
  select 1 from approvals a where a.txn = c.txn and a.state in ('approved', 'unopposed'))`;

/** Where a field of a call is read. `decode` turns the value that `pg` returns into the field; without it they are the same. */
interface FieldSource<Field> {
  readonly sql: string;
  readonly decode?: (value: never) => Field;
}

type SourceOf<Column> = Column extends { readonly decode: infer Decode }
  ? { readonly sql: string; readonly decode: Decode }
  : { readonly sql: string };

/** The columns that are written can also be read, from the table with this alias. */
function readFrom<Columns extends ColumnTable>(
  alias: string,
  columns: Columns,
): { readonly [Field in keyof Columns]: SourceOf<Columns[Field]> } {
  const sources = Object.entries(columns).map(([field, column]) => {
    const sql = `${alias}.${column.column}`;
    return [field, column.decode === undefined ? { sql } : { sql, decode: column.decode }];
  });
  return Object.fromEntries(sources) as { readonly [Field in keyof Columns]: SourceOf<Columns[Field]> };
}

/** A field that the open row has until the call ends, and the settlement from then on. */
const ofOpenOrEnded = (column: string) => ({ sql: `coalesce(r.${column}, o.${column})` });
/** A field that only an open call has. `ended` is its value afterwards. */
const ofOpen = (column: string, ended: string) => ({ sql: `coalesce(o.${column}, ${ended})` });

/** The fields of a call and where each is read. The compiler refuses a field without a source. */
export const CALL_FIELDS = {
  ...readFrom('c', INTENT_COLUMNS),
  createdAt: { sql: 'c.created_at' },
  ordinal: { sql: 'c.ordinal' },
  erasedAt: { sql: 'c.erased_at' },

  ...readFrom('r', SETTLEMENT_COLUMNS),
  settledAt: { sql: 'r.settled_at' },

  state: { sql: 'coalesce(r.state::text, o.state::text)' },
  attempt: ofOpenOrEnded('attempt'),
  ownerDeaths: ofOpenOrEnded('owner_deaths'),
  firstSentAt: ofOpenOrEnded('first_sent_at'),
  unknownSince: ofOpenOrEnded('unknown_since'),
  lockToken: { sql: 'coalesce(r.lock_token, o.lock_token)::float8' },
  detail: ofOpenOrEnded('detail'),
  retriedBy: ofOpenOrEnded('retried_by'),

  owner: { sql: 'o.owner' },
  dueAt: { sql: 'o.due_at' },
  fence: ofOpen('fence', '0'),
  updateNumber: ofOpen('update_number', '0'),
  attemptOpen: ofOpen('attempt_open', 'false'),
  unresolved: ofOpen('unresolved', '0'),
  roundFrom: ofOpen('round_from', '0'),
  roundAt: ofOpen('round_at', 'c.created_at'),
  recalled: ofOpen('recalled', 'false'),
  fenced: ofOpen('fenced', 'false'),
  isRetryRequested: ofOpen('retry_requested', 'false'),
  attemptDetail: { sql: 'o.attempt_detail' },
  disprovedBy: { sql: 'o.disproved_by' },
  isApproved: { sql: APPROVED_SQL },
  hold: { sql: HOLD_SQL, decode: decodeHold },

  undoState: { sql: `coalesce(u.state, 'none')` },
  undoReason: { sql: 'u.reason' },
  undoTxn: { sql: 'u.undo_txn' },
  undoTries: { sql: 'coalesce(u.tries, 0)' },
  undoArgs: { sql: 'u.args' },
  undoSealed: { sql: 'u.sealed' },
  before: { sql: 'u.before' },

  readAt: { sql: 'now()' },
} as const satisfies { readonly [Field in keyof CallRecord]-?: FieldSource<CallRecord[Field]> };

type CallFields = typeof CALL_FIELDS;

/** A row as `pg` returns it: each field as its column has it, before it is decoded. */
export type CallRow = {
  readonly [Field in keyof CallFields]: CallFields[Field] extends { readonly decode: (value: infer Raw) => unknown }
    ? Raw
    : CallRecord[Field];
};

/** Use with `from ${CALLS_JOINED}`. */
export const CALL_COLUMNS = Object.entries(CALL_FIELDS)
  .map(([field, { sql }]) => `${sql} as "${field}"`)
  .join(', ');

const DECODERS = Object.entries<FieldSource<unknown>>(CALL_FIELDS).map(
  ([field, { decode }]) => [field as keyof CallRow, decode as ((value: unknown) => unknown) | undefined] as const,
);

/** Fills in a record that has all fields already, so that every record has one V8 shape. */
export function toCallRecord(row: CallRow): CallRecord {
  const call = createCallRecord(BLANK_CALL) as Record<keyof CallRecord, unknown>;
  for (const [field, decode] of DECODERS) call[field] = decode === undefined ? row[field] : decode(row[field]);
  return call as CallRecord;
}

const BLANK_CALL: NewCallFields = {
  txn: '',
  agent: '',
  tool: '',
  identity: 'key',
  fingerprint: Buffer.alloc(0),
  kind: 'none',
  policyVersion: '',
  state: 'held',
  fence: 0,
  owner: null,
};

function encodeArray(items: readonly string[] | null): string | null {
  return items === null ? null : `{${items.join(',')}}`;
}

function parseJson<T>(text: string | null): T | null {
  return text === null ? null : (JSON.parse(text) as T);
}

function decodeHold(hold: { kind: Hold['kind']; until: string; left_ms: number } | null): Hold | null {
  return hold === null ? null : { kind: hold.kind, until: new Date(hold.until), leftMs: Math.max(0, hold.left_ms) };
}
