import { LedgerError } from '../domain/errors.ts';
import type { Advance, Intent } from './calls.ts';
import type { Queryable } from './db.ts';
import { RowArray } from './row-array.ts';

/** The columns of `claim_row` and `change_row`, in their order: see migrations/0015_rows_of_a_batch.sql. */
export const CLAIM_ROW = { type: 'claim_row', columns: 26 } as const;
export const CHANGE_ROW = { type: 'change_row', columns: 24 } as const;

/** The numbers that the rows' types have in a database. */
export interface RowTypes {
  readonly claim: number;
  readonly change: number;
}

export async function readRowTypes(db: Queryable): Promise<RowTypes> {
  const [types] = await db.run<RowTypes>({
    name: 'row-types',
    text: `select '${CLAIM_ROW.type}'::regtype::oid as claim, '${CHANGE_ROW.type}'::regtype::oid as change`,
    values: [],
  });
  if (types === undefined) throw new LedgerError('the ledger does not know the types of its rows', false);
  return types;
}

const CLAIM_ROWS = new RowArray(CLAIM_ROW.columns);
const CHANGE_ROWS = new RowArray(CHANGE_ROW.columns);

/** Rows are written in order of their txns, so that two batches never wait for each other. */
export function claimRows(first: ReadonlyMap<string, Intent>, type: number): Buffer {
  const intents = [...first.values()];
  const places = intents.map((_, place) => place).sort((a, b) => byTxn(intents[a], intents[b]));
  CLAIM_ROWS.begin();
  for (const place of places) writeClaim(CLAIM_ROWS, intents[place] as Intent, place);
  return CLAIM_ROWS.end(type);
}

export function changeRows(first: ReadonlyMap<string, Advance>, type: number): Buffer {
  CHANGE_ROWS.begin();
  for (const change of [...first.values()].sort(byTxn)) writeChange(CHANGE_ROWS, change);
  return CHANGE_ROWS.end(type);
}

function byTxn(a: { readonly txn: string } | undefined, b: { readonly txn: string } | undefined): number {
  return (a?.txn ?? '') < (b?.txn ?? '') ? -1 : 1;
}

/** `place` is that among the claims of its batch: steps of a saga are numbered in the order they came in. */
function writeClaim(rows: RowArray, intent: Intent, place: number): void {
  const { request, dependsOn, undo, undoes } = intent;
  rows.row();
  rows.uuid('txn', intent.txn);
  rows.text(intent.agent);
  rows.text(intent.tool);
  rows.text(intent.key);
  rows.text(intent.identity);
  rows.bytea(intent.fingerprint);
  rows.text(intent.kind);
  rows.text(intent.state);
  rows.uuid('owner', intent.owner);
  rows.float8(intent.dueInMs);
  rows.float8(intent.keyLifetimeMs);
  rows.text(intent.policyVersion);
  rows.text(intent.rule);
  rows.text(intent.args);
  rows.text(request === null ? null : JSON.stringify(request));
  rows.bytea(intent.sealed);
  rows.text(intent.entry);
  rows.int('fence', intent.fence);
  rows.uuid('saga', intent.saga);
  rows.text(dependsOn === null ? null : `{${dependsOn.join(',')}}`);
  rows.text(undo === null ? null : JSON.stringify(undo));
  rows.uuid('undo_of', undoes === null ? null : undoes.txn);
  rows.int('tries', undoes === null ? null : undoes.tries);
  rows.int('place', place);
  rows.uuid('run', intent.run);
  rows.int('epoch', intent.epoch);
}

function writeChange(rows: RowArray, change: Advance): void {
  const { event, undo } = change;
  rows.row();
  rows.uuid('txn', change.txn);
  rows.int('fence', change.fence);
  rows.bool(change.evident);
  rows.text(change.state);
  rows.int('attempt', change.attempt);
  rows.bool(change.attemptOpen);
  rows.int('unresolved', change.unresolved);
  rows.float8(change.unknownSinceMs);
  rows.text(change.custody);
  rows.float8(change.dueInMs);
  rows.text(change.outcome);
  rows.text(change.problem);
  rows.text(change.detail);
  rows.text(change.answer);
  rows.text(change.evidence);
  rows.text(change.resolvedBy);
  rows.bytea(change.leaf);
  rows.text(event === null ? null : JSON.stringify([event]));
  rows.text(change.entry);
  rows.int('step', change.step);
  rows.text(undo === null ? null : undo.before);
  rows.text(undo === null ? null : undo.args);
  rows.bytea(undo === null ? null : undo.sealed);
  rows.text(undo === null ? null : undo.reason);
}
