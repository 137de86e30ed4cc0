import { LedgerError } from '../../domain/errors.ts';
import type { Queryable } from '../db.ts';
import { RowArrayEncoder, type RowColumn, type RowType } from '../row-array.ts';
import { INTENT_COLUMNS, SETTLEMENT_COLUMNS } from './call-columns.ts';
import type { CallUpdate, Intent, UndoArguments } from './calls.ts';

/** An intent with its order of arrival within the batch: steps of a saga get their ordinals in that order. */
interface PlacedIntent {
  readonly intent: Intent;
  readonly place: number;
}

const encodeIntent = {
  request: ({ request }: Intent) => (request === null ? null : JSON.stringify(request)),
  dependsOn: ({ dependsOn }: Intent) => (dependsOn === null ? null : `{${dependsOn.join(',')}}`),
  undo: ({ undo }: Intent) => (undo === null ? null : JSON.stringify(undo)),
} as const;

/** Reads each column from the field of the same name, or as `encoders` says. */
function toRowColumns<Item extends object>(
  columns: Readonly<Record<string, { readonly column: string; readonly type: string }>>,
  encoders: Readonly<Record<string, (item: Item) => unknown>> = {},
): RowColumn<Item>[] {
  return Object.entries(columns).map(([field, { column, type }]) => {
    const read = encoders[field] ?? ((item: Item) => item[field as keyof Item]);
    return { name: column, type, read } as RowColumn<Item>;
  });
}

const INTENT_ROW_COLUMNS = toRowColumns<Intent>(INTENT_COLUMNS, encodeIntent);

/** A claim: the columns of `calls`, and what `open_calls` and the log need. */
export const CLAIM_ROW: RowType<PlacedIntent> = {
  type: 'claim_row',
  columns: [
    ...INTENT_ROW_COLUMNS.map(
      ({ read, ...column }) =>
        ({ ...column, read: ({ intent }: PlacedIntent) => read(intent) }) as RowColumn<PlacedIntent>,
    ),
    { name: 'state', type: 'text', read: ({ intent }) => intent.state },
    { name: 'fence', type: 'int4', read: ({ intent }) => intent.fence },
    { name: 'owner', type: 'uuid', read: ({ intent }) => intent.owner },
    { name: 'due_ms', type: 'float8', read: ({ intent }) => intent.dueInMs },
    { name: 'tries', type: 'int4', read: ({ intent }) => intent.undoTries },
    { name: 'place', type: 'int4', read: ({ place }) => place },
    { name: 'entry', type: 'text', read: ({ intent }) => intent.entry },
  ],
};

/** Which row an update may change. */
const GUARD_COLUMNS: readonly RowColumn<CallUpdate>[] = [
  { name: 'txn', type: 'uuid', read: (update) => update.txn },
  { name: 'fence', type: 'int4', read: (update) => update.fence },
  { name: 'update_number', type: 'int4', read: (update) => update.updateNumber },
];

/** What an update adds to `undos` and to the log. */
const ADDED_COLUMNS: readonly RowColumn<CallUpdate>[] = [
  { name: 'undo_before', type: 'text', read: (update) => readUndo(update, 'before') },
  { name: 'undo_args', type: 'text', read: (update) => readUndo(update, 'args') },
  { name: 'undo_sealed', type: 'bytea', read: (update) => readUndo(update, 'sealed') },
  { name: 'undo_reason', type: 'text', read: (update) => readUndo(update, 'reason') },
  { name: 'entry', type: 'text', read: (update) => update.entry },
];

function readUndo<Part extends keyof UndoArguments>({ undo }: CallUpdate, part: Part): UndoArguments[Part] | null {
  return undo === null ? null : undo[part];
}

/** An update of an open call. */
export const UPDATE_ROW: RowType<CallUpdate> = {
  type: 'update_row',
  columns: [
    ...GUARD_COLUMNS,
    { name: 'state', type: 'text', read: (update) => update.state },
    { name: 'attempt', type: 'int4', read: (update) => update.attempt },
    { name: 'attempt_open', type: 'bool', read: (update) => update.attemptOpen },
    { name: 'unresolved', type: 'int4', read: (update) => update.unresolved },
    { name: 'unknown_ms', type: 'float8', read: (update) => update.unknownSinceMs },
    { name: 'detail', type: 'text', read: (update) => update.detail },
    { name: 'attempt_detail', type: 'text', read: (update) => update.attemptDetail },
    { name: 'disproved_by', type: 'text', read: (update) => update.disprovedBy },
    { name: 'parked', type: 'bool', read: (update) => update.custody === 'park' },
    { name: 'due_ms', type: 'float8', read: (update) => update.dueInMs },
    { name: 'event', type: 'text', read: ({ event }) => (event === null ? null : JSON.stringify(event)) },
    ...ADDED_COLUMNS,
  ],
};

/** The end of a call. */
export const SETTLEMENT_ROW: RowType<CallUpdate> = {
  type: 'settlement_row',
  columns: [
    ...GUARD_COLUMNS,
    { name: 'evident', type: 'bool', read: (update) => update.isEvidence },
    { name: 'unknown_ms', type: 'float8', read: (update) => update.unknownSinceMs },
    ...toRowColumns<CallUpdate>(SETTLEMENT_COLUMNS),
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
export function encodeClaims(intents: readonly Intent[], { claim }: RowTypeOids): Buffer {
  const placed = intents.map((intent, place) => ({ intent, place }));
  placed.sort((a, b) => compareTxns(a.intent, b.intent));
  return CLAIM_ENCODER.encode(placed, claim);
}

/** Sorts the rows by txn, for the same reason. */
export function encodeUpdates(updates: readonly CallUpdate[], { update }: RowTypeOids): Buffer {
  return UPDATE_ENCODER.encode(updates.toSorted(compareTxns), update);
}

/** Sorts the rows by txn, for the same reason. */
export function encodeSettlements(updates: readonly CallUpdate[], { settlement }: RowTypeOids): Buffer {
  return SETTLEMENT_ENCODER.encode(updates.toSorted(compareTxns), settlement);
}

function compareTxns(a: { readonly txn: string }, b: { readonly txn: string }): number {
  return a.txn < b.txn ? -1 : 1;
}
