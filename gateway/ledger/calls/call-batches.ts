import { LedgerError } from '../../domain/errors.ts';
import type { Queryable } from '../db.ts';
import { RowArrayEncoder, type RowColumn, type RowType } from '../row-array.ts';
import {
  CLAIM_ROW_TYPE,
  type ColumnTable,
  INTENT_COLUMNS,
  OPEN_COLUMNS,
  SETTLEMENT_COLUMNS,
  UNDO_COLUMNS,
} from './call-columns.ts';
import type { OpenCallPatch, SettlementPatch } from './call-patches.ts';
import type { NewCall } from './claim.ts';

/** A new call with its order of arrival within the batch: steps of a saga get their ordinals in that order. */
interface PlacedCall {
  readonly newCall: NewCall;
  readonly place: number;
}

/** Reads each column from the field of its name in the part of the item that `pick` finds; null if there is no such part. */
function toRowColumns<Item>(columns: ColumnTable, pick: (item: Item) => object | null): RowColumn<Item>[] {
  return Object.entries(columns).map(([field, { column, row = column, type, encode }]) => {
    const readField = (item: Item) => (pick(item) as Readonly<Record<string, unknown>> | null)?.[field] ?? null;
    const read = encode === undefined ? readField : (item: Item) => encode(readField(item) as never);
    return { name: row, type, read } as RowColumn<Item>;
  });
}

/** A claim: the columns of `calls`, and what `open_calls`, `undos` and the log need. */
export const CLAIM_ROW: RowType<PlacedCall> = {
  type: CLAIM_ROW_TYPE,
  columns: [
    ...toRowColumns(INTENT_COLUMNS, ({ newCall }: PlacedCall) => newCall.record),
    { name: 'state', type: 'text', read: ({ newCall }) => newCall.record.state },
    { name: 'fence', type: 'int4', read: ({ newCall }) => newCall.record.fence },
    { name: 'owner', type: 'uuid', read: ({ newCall }) => newCall.record.owner },
    { name: 'due_ms', type: 'float8', read: ({ newCall }) => newCall.dueInMs },
    { name: 'tries', type: 'int4', read: ({ newCall }) => newCall.undoTries },
    { name: 'place', type: 'int4', read: ({ place }) => place },
    { name: 'entry', type: 'text', read: ({ newCall }) => newCall.entry },
  ],
};

type Patch = OpenCallPatch | SettlementPatch;

/** Which row a patch may change. */
const GUARD_COLUMNS: readonly RowColumn<Patch>[] = [
  { name: 'txn', type: 'uuid', read: (patch) => patch.txn },
  { name: 'fence', type: 'int4', read: (patch) => patch.fence },
  { name: 'update_number', type: 'int4', read: (patch) => patch.updateNumber },
];

/** What a patch adds to `undos` and to the log. */
const ADDED_COLUMNS: readonly RowColumn<Patch>[] = [
  ...toRowColumns(UNDO_COLUMNS, ({ undo }: Patch) => undo),
  { name: 'entry', type: 'text', read: (patch) => patch.entry },
];

/** An update of an open call. */
export const UPDATE_ROW: RowType<OpenCallPatch> = {
  type: 'update_row',
  columns: [
    ...GUARD_COLUMNS,
    ...toRowColumns(OPEN_COLUMNS, (patch: OpenCallPatch) => patch),
    { name: 'parked', type: 'bool', read: ({ parked }) => parked !== null },
    { name: 'due_ms', type: 'float8', read: ({ parked }) => (parked === null ? null : parked.dueInMs) },
    { name: 'event', type: 'text', read: ({ event }) => (event === null ? null : JSON.stringify(event)) },
    ...ADDED_COLUMNS,
  ],
};

/** The end of a call. */
export const SETTLEMENT_ROW: RowType<SettlementPatch> = {
  type: 'settlement_row',
  columns: [
    ...GUARD_COLUMNS,
    { name: 'evident', type: 'bool', read: (patch) => patch.isEvidence },
    { name: 'unknown_ms', type: 'float8', read: (patch) => patch.unknownSinceMs },
    ...toRowColumns(SETTLEMENT_COLUMNS, (patch: SettlementPatch) => patch),
    ...ADDED_COLUMNS,
  ],
};

/** The oids of the composite types. They differ from database to database. */
export interface RowTypeOids {
  readonly claim: number;
  readonly update: number;
  readonly settlement: number;
}

/** Reads the catalogue. A type never changes after its migration, so the answer holds as long as the database exists. */
export async function readRowTypeOids(db: Queryable): Promise<RowTypeOids> {
  const [types] = await db.run<RowTypeOids>({
    name: 'row-types',
    text: `select '${CLAIM_ROW.type}'::regtype::oid as claim, '${UPDATE_ROW.type}'::regtype::oid as update,
      '${SETTLEMENT_ROW.type}'::regtype::oid as settlement`,
    values: [],
  });
  if (types === undefined)
    throw new LedgerError('PostgreSQL returned no oids for the row types of a batch.', { isCommitUnknown: false });
  return types;
}

const CLAIM_ENCODER = new RowArrayEncoder(CLAIM_ROW);
const UPDATE_ENCODER = new RowArrayEncoder(UPDATE_ROW);
const SETTLEMENT_ENCODER = new RowArrayEncoder(SETTLEMENT_ROW);

/** Sorts the rows by txn. Every batch locks rows in this order, so two batches never wait for each other in a circle. */
export function encodeClaims(newCalls: readonly NewCall[], { claim }: RowTypeOids): Buffer {
  const placed = newCalls.map((newCall, place) => ({ newCall, place }));
  placed.sort((a, b) => compareTxns(a.newCall.record, b.newCall.record));
  return CLAIM_ENCODER.encode(placed, claim);
}

/** Sorts the rows by txn, for the same reason. */
export function encodeUpdates(patches: readonly OpenCallPatch[], { update }: RowTypeOids): Buffer {
  return UPDATE_ENCODER.encode(patches.toSorted(compareTxns), update);
}

/** Sorts the rows by txn, for the same reason. */
export function encodeSettlements(patches: readonly SettlementPatch[], { settlement }: RowTypeOids): Buffer {
  return SETTLEMENT_ENCODER.encode(patches.toSorted(compareTxns), settlement);
}

function compareTxns(a: { readonly txn: string }, b: { readonly txn: string }): number {
  return a.txn < b.txn ? -1 : 1;
}
