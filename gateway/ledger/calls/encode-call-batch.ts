import { LedgerError } from '../../domain/errors.ts';
import type { Queryable } from '../db.ts';
import { type Column, createRowArrayEncoder, type FinishedRow, type RowWriter } from '../row-array.ts';
import type { CallUpdate, Intent } from './calls.ts';

/** The columns of the composite type `claim_row`, in its order: see migrations/0015_rows_of_a_batch.sql. */
const CLAIM_COLUMNS = [
  ['txn', 'uuid'],
  ['agent', 'text'],
  ['tool', 'text'],
  ['key', 'text'],
  ['identity', 'text'],
  ['fingerprint', 'bytea'],
  ['kind', 'text'],
  ['state', 'text'],
  ['owner', 'uuid'],
  ['due_ms', 'float8'],
  ['lifetime_ms', 'float8'],
  ['policy_version', 'text'],
  ['rule', 'text'],
  ['args', 'text'],
  ['request', 'text'],
  ['sealed', 'bytea'],
  ['entry', 'text'],
  ['fence', 'int4'],
  ['saga', 'uuid'],
  ['depends_on', 'text'],
  ['undo', 'text'],
  ['undo_of', 'uuid'],
  ['tries', 'int4'],
  ['place', 'int4'],
  ['run', 'uuid'],
  ['epoch', 'int4'],
] as const satisfies readonly Column[];

/** The columns of the composite type `change_row_2`, in its order: see migrations/0019_decisions_in_columns.sql. */
const CHANGE_COLUMNS = [
  ['txn', 'uuid'],
  ['fence', 'int4'],
  ['evident', 'bool'],
  ['state', 'text'],
  ['attempt', 'int4'],
  ['attempt_open', 'bool'],
  ['unresolved', 'int4'],
  ['unknown_ms', 'float8'],
  ['custody', 'text'],
  ['due_ms', 'float8'],
  ['outcome', 'text'],
  ['problem', 'text'],
  ['detail', 'text'],
  ['answer', 'text'],
  ['evidence', 'text'],
  ['resolved_by', 'text'],
  ['leaf', 'bytea'],
  ['event', 'text'],
  ['entry', 'text'],
  ['step', 'int4'],
  ['before', 'text'],
  ['undo_args', 'text'],
  ['undo_sealed', 'bytea'],
  ['undo_reason', 'text'],
  ['attempt_detail', 'text'],
  ['disproved_by', 'text'],
] as const satisfies readonly Column[];

/** The composite types. A test compares their columns with the migrated database. */
export const CLAIM_ROW_TYPE = { type: 'claim_row', columns: CLAIM_COLUMNS } as const;
export const CHANGE_ROW_TYPE = { type: 'change_row_2', columns: CHANGE_COLUMNS } as const;

/** The oids of the composite types. They differ from database to database. */
export interface RowTypeOids {
  readonly claim: number;
  readonly change: number;
}

/** Reads the catalogue. A type never changes after its migration, so the answer holds as long as the database exists. */
export async function readRowTypeOids(db: Queryable): Promise<RowTypeOids> {
  const [types] = await db.run<RowTypeOids>({
    name: 'row-types',
    text: `select '${CLAIM_ROW_TYPE.type}'::regtype::oid as claim, '${CHANGE_ROW_TYPE.type}'::regtype::oid as change`,
    values: [],
  });
  if (types === undefined)
    throw new LedgerError(`PostgreSQL returned no oids for ${CLAIM_ROW_TYPE.type} and ${CHANGE_ROW_TYPE.type}.`, {
      isCommitUnknown: false,
    });
  return types;
}

const CLAIM_ENCODER = createRowArrayEncoder(CLAIM_COLUMNS);
const UPDATE_ENCODER = createRowArrayEncoder(CHANGE_COLUMNS);

/** Sorts the rows by txn. Every batch locks rows in this order, so two batches never wait for each other in a circle. */
export function encodeClaims(claims: ReadonlyMap<string, Intent>, oid: number): Buffer {
  const intents = [...claims.values()];
  const positions = intents.map((_, position) => position).sort((a, b) => compareByTxn(intents[a], intents[b]));
  CLAIM_ENCODER.begin();
  for (const position of positions) encodeClaim(CLAIM_ENCODER.beginRow(), intents[position] as Intent, position);
  return CLAIM_ENCODER.finish(oid);
}

/** Sorts the rows by txn, for the same reason. */
export function encodeUpdates(updates: ReadonlyMap<string, CallUpdate>, oid: number): Buffer {
  UPDATE_ENCODER.begin();
  for (const update of [...updates.values()].sort(compareByTxn)) encodeUpdate(UPDATE_ENCODER.beginRow(), update);
  return UPDATE_ENCODER.finish(oid);
}

function compareByTxn(a: { readonly txn: string } | undefined, b: { readonly txn: string } | undefined): number {
  return (a?.txn ?? '') < (b?.txn ?? '') ? -1 : 1;
}

/** `position` is the order of arrival within the batch: steps of a saga get their ordinals in that order. */
function encodeClaim(row: RowWriter<typeof CLAIM_COLUMNS>, intent: Intent, position: number): FinishedRow {
  const { request, dependsOn, undo, undoes } = intent;
  return row
    .writeUuid('txn', intent.txn)
    .writeText('agent', intent.agent)
    .writeText('tool', intent.tool)
    .writeText('key', intent.key)
    .writeText('identity', intent.identity)
    .writeBytea('fingerprint', intent.fingerprint)
    .writeText('kind', intent.kind)
    .writeText('state', intent.state)
    .writeUuid('owner', intent.owner)
    .writeFloat('due_ms', intent.dueInMs)
    .writeFloat('lifetime_ms', intent.keyLifetimeMs)
    .writeText('policy_version', intent.policyVersion)
    .writeText('rule', intent.rule)
    .writeText('args', intent.args)
    .writeText('request', request === null ? null : JSON.stringify(request))
    .writeBytea('sealed', intent.sealed)
    .writeText('entry', intent.entry)
    .writeInt('fence', intent.fence)
    .writeUuid('saga', intent.saga)
    .writeText('depends_on', dependsOn === null ? null : `{${dependsOn.join(',')}}`)
    .writeText('undo', undo === null ? null : JSON.stringify(undo))
    .writeUuid('undo_of', undoes === null ? null : undoes.txn)
    .writeInt('tries', undoes === null ? null : undoes.tries)
    .writeInt('place', position)
    .writeUuid('run', intent.run)
    .writeInt('epoch', intent.epoch);
}

function encodeUpdate(row: RowWriter<typeof CHANGE_COLUMNS>, update: CallUpdate): FinishedRow {
  const { event, undo } = update;
  return row
    .writeUuid('txn', update.txn)
    .writeInt('fence', update.fence)
    .writeBool('evident', update.isEvidence)
    .writeText('state', update.state)
    .writeInt('attempt', update.attempt)
    .writeBool('attempt_open', update.attemptOpen)
    .writeInt('unresolved', update.unresolved)
    .writeFloat('unknown_ms', update.unknownSinceMs)
    .writeText('custody', update.custody)
    .writeFloat('due_ms', update.dueInMs)
    .writeText('outcome', update.outcome)
    .writeText('problem', update.problem)
    .writeText('detail', update.detail)
    .writeText('answer', update.answer)
    .writeText('evidence', update.evidence)
    .writeText('resolved_by', update.resolvedBy)
    .writeBytea('leaf', update.leaf)
    .writeText('event', event === null ? null : JSON.stringify([event]))
    .writeText('entry', update.entry)
    .writeInt('step', update.updateNumber)
    .writeText('before', undo === null ? null : undo.before)
    .writeText('undo_args', undo === null ? null : undo.args)
    .writeBytea('undo_sealed', undo === null ? null : undo.sealed)
    .writeText('undo_reason', undo === null ? null : undo.reason)
    .writeText('attempt_detail', update.attemptDetail)
    .writeText('disproved_by', update.disprovedBy);
}
