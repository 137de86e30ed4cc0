import { LedgerError } from '../../domain/errors.ts';
import type { Queryable } from '../db.ts';
import { RowArrayEncoder } from '../row-array.ts';
import type { CallUpdate, Intent } from './calls.ts';

/** The columns of `claim_row` and `change_row`, in their order: see migrations/0015_rows_of_a_batch.sql. */
export const CLAIM_ROW_TYPE = { type: 'claim_row', columns: 26 } as const;
export const CHANGE_ROW_TYPE = { type: 'change_row', columns: 24 } as const;

/** The numbers that the rows' types have in a database. */
export interface RowTypeOids {
  readonly claim: number;
  readonly change: number;
}

export async function readRowTypeOids(db: Queryable): Promise<RowTypeOids> {
  const [types] = await db.run<RowTypeOids>({
    name: 'row-types',
    text: `select '${CLAIM_ROW_TYPE.type}'::regtype::oid as claim, '${CHANGE_ROW_TYPE.type}'::regtype::oid as change`,
    values: [],
  });
  if (types === undefined)
    throw new LedgerError('the ledger does not know the types of its rows', { isCommitUnknown: false });
  return types;
}

const CLAIM_ENCODER = new RowArrayEncoder(CLAIM_ROW_TYPE.columns);
const UPDATE_ENCODER = new RowArrayEncoder(CHANGE_ROW_TYPE.columns);

/** Rows are written in order of their txns, so that two batches never wait for each other. */
export function encodeClaims(first: ReadonlyMap<string, Intent>, type: number): Buffer {
  const intents = [...first.values()];
  const places = intents.map((_, place) => place).sort((a, b) => compareByTxn(intents[a], intents[b]));
  CLAIM_ENCODER.begin();
  for (const place of places) encodeClaim(CLAIM_ENCODER, intents[place] as Intent, place);
  return CLAIM_ENCODER.finish(type);
}

export function encodeUpdates(first: ReadonlyMap<string, CallUpdate>, type: number): Buffer {
  UPDATE_ENCODER.begin();
  for (const change of [...first.values()].sort(compareByTxn)) encodeUpdate(UPDATE_ENCODER, change);
  return UPDATE_ENCODER.finish(type);
}

function compareByTxn(a: { readonly txn: string } | undefined, b: { readonly txn: string } | undefined): number {
  return (a?.txn ?? '') < (b?.txn ?? '') ? -1 : 1;
}

/** `place` is that among the claims of its batch: steps of a saga are numbered in the order they came in. */
function encodeClaim(rows: RowArrayEncoder, intent: Intent, place: number): void {
  const { request, dependsOn, undo, undoes } = intent;
  rows.beginRow();
  rows.writeUuid('txn', intent.txn);
  rows.writeText(intent.agent);
  rows.writeText(intent.tool);
  rows.writeText(intent.key);
  rows.writeText(intent.identity);
  rows.writeBytea(intent.fingerprint);
  rows.writeText(intent.kind);
  rows.writeText(intent.state);
  rows.writeUuid('owner', intent.owner);
  rows.writeFloat8(intent.dueInMs);
  rows.writeFloat8(intent.keyLifetimeMs);
  rows.writeText(intent.policyVersion);
  rows.writeText(intent.rule);
  rows.writeText(intent.args);
  rows.writeText(request === null ? null : JSON.stringify(request));
  rows.writeBytea(intent.sealed);
  rows.writeText(intent.entry);
  rows.writeInt('fence', intent.fence);
  rows.writeUuid('saga', intent.saga);
  rows.writeText(dependsOn === null ? null : `{${dependsOn.join(',')}}`);
  rows.writeText(undo === null ? null : JSON.stringify(undo));
  rows.writeUuid('undo_of', undoes === null ? null : undoes.txn);
  rows.writeInt('tries', undoes === null ? null : undoes.tries);
  rows.writeInt('place', place);
  rows.writeUuid('run', intent.run);
  rows.writeInt('epoch', intent.epoch);
}

function encodeUpdate(rows: RowArrayEncoder, change: CallUpdate): void {
  const { event, undo } = change;
  rows.beginRow();
  rows.writeUuid('txn', change.txn);
  rows.writeInt('fence', change.fence);
  rows.writeBool(change.isEvidence);
  rows.writeText(change.state);
  rows.writeInt('attempt', change.attempt);
  rows.writeBool(change.attemptOpen);
  rows.writeInt('unresolved', change.unresolved);
  rows.writeFloat8(change.unknownSinceMs);
  rows.writeText(change.custody);
  rows.writeFloat8(change.dueInMs);
  rows.writeText(change.outcome);
  rows.writeText(change.problem);
  rows.writeText(change.detail);
  rows.writeText(change.answer);
  rows.writeText(change.evidence);
  rows.writeText(change.resolvedBy);
  rows.writeBytea(change.leaf);
  rows.writeText(event === null ? null : JSON.stringify([event]));
  rows.writeText(change.entry);
  rows.writeInt('step', change.step);
  rows.writeText(undo === null ? null : undo.before);
  rows.writeText(undo === null ? null : undo.args);
  rows.writeBytea(undo === null ? null : undo.sealed);
  rows.writeText(undo === null ? null : undo.reason);
}
