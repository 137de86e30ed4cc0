import { buildAuditEntry, sha256Hex } from '../../domain/audit/audit.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import { decrypt } from '../../domain/calls/encryption.ts';
import { deriveTxnId } from '../../domain/calls/txn-id.ts';
import { GatewayError } from '../../domain/errors.ts';
import { isJsonObject, type Json } from '../../domain/json.ts';
import { isCursor, listCalls } from '../../ledger/calls/list-calls.ts';
import { eraseAgent, eraseCalls, eraseSaga, listUnfinishedRuns } from '../../ledger/calls/retention.ts';
import type { Services } from '../calls/execute-call.ts';
import type { Payload } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import type { Operator } from '../controls/freezes-and-breakers.ts';

/** Selects the calls whose payloads are erased. The scope `subject` selects calls with that text as a value of an argument. */
export interface ErasureScope {
  readonly of: 'agent' | 'saga' | 'txn' | 'subject';
  readonly value: string;
}

export interface ErasureResult {
  readonly erased: number;
  /** Calls in scope that cannot be erased yet: they are open, may still be undone, or their saga has not ended. */
  readonly open: readonly string[];
  /** Runs in scope that have not ended. Their checkpoints remain. */
  readonly openRuns: readonly string[];
  /** Calls whose arguments this gateway cannot decrypt. They may contain the subject. */
  readonly unreadable: readonly string[];
  /** Where to continue; null when every call in scope was visited. */
  readonly cursor: string | null;
}

const PAGE_SIZE = 200;
/** One request erases for at most this long. The caller continues with the cursor. */
const MAX_DURATION_MS = 10_000;

/**
 * Erases payloads before their retention ends. Tombstones remain, and so does the audit log: it holds digests only, still
 * verifies, and records who erased what and why. This returns when no replica caches any of the payloads.
 *
 * A crash here leaves some payloads erased and others not; repeating the request erases the rest.
 */
export async function eraseScope(
  services: Services,
  scope: ErasureScope,
  operator: Operator,
  from: string | undefined,
): Promise<ErasureResult> {
  if (from !== undefined && !isCursor(from))
    throw new GatewayError('malformed', 'The cursor is invalid. Use the cursor of the previous page.');
  const { ctx } = services;
  const open: string[] = [];
  const unreadable: string[] = [];
  let erased = 0;
  let cursor: string | null | undefined = from;
  const deadline = performance.now() + MAX_DURATION_MS;
  do {
    const page = await listCandidates(ctx, scope, cursor);
    const live = page.items.filter((call) => call.erasedAt === null);
    const chosen = live.filter((call) => isInScope(ctx, scope, call, unreadable));
    const erasedTxns = await eraseCalls(
      ctx.db,
      chosen.map((call) => ({ txn: call.txn, entry: buildErasedEntry(call, scope, operator) })),
    );
    erased += erasedTxns.length;
    open.push(...chosen.map(({ txn }) => txn).filter((txn) => !erasedTxns.includes(txn)));
    cursor = page.cursor;
  } while (cursor !== null && performance.now() < deadline);
  if (scope.of === 'saga') await eraseSaga(ctx.db, scope.value);
  if (scope.of === 'agent' && cursor === null) await eraseAgent(ctx.db, scope.value);
  const openRuns = scope.of === 'agent' ? await listUnfinishedRuns(ctx.db, scope.value, PAGE_SIZE) : [];
  const { person, reason } = operator;
  const summary = { ...toLoggedScope(scope), person, reason, erased, open: open.length };
  await ctx.controlFlags.broadcastChange(buildAuditEntry('erasure', summary));
  return { erased, open, openRuns, unreadable, cursor };
}

async function listCandidates(ctx: Context, { of, value }: ErasureScope, cursor: string | undefined | null) {
  if (of === 'txn') {
    const call = await ctx.calls.read(value);
    // Every compensation of the call contains its data too.
    const undoTxns = call === undefined ? [] : listUndoTxns(ctx, call);
    const undos = await Promise.all(undoTxns.map((txn) => ctx.calls.read(txn)));
    return { items: [call, ...undos].filter((found) => found !== undefined), cursor: null };
  }
  const filter = { limit: PAGE_SIZE, cursor: cursor ?? undefined };
  return listCalls(ctx.db, of === 'subject' ? filter : { ...filter, [of]: value });
}

/** The txns of all compensations of a call. Each try is a call of its own, and the undone call stores only the last txn. */
function listUndoTxns({ deployment }: Context, { agent, txn, undoTries }: CallRecord): string[] {
  return Array.from({ length: undoTries }, (_, generation) =>
    deriveTxnId(deployment, agent, { by: 'undo', of: txn, generation }),
  );
}

function isInScope(ctx: Context, { of, value }: ErasureScope, call: CallRecord, unreadable: string[]): boolean {
  if (of !== 'subject') return true;
  try {
    return containsValue(readExactArgs(ctx.sealingKey, call), value);
  } catch {
    unreadable.push(call.txn);
    return false;
  }
}

/** The arguments, including the redacted ones. */
function readExactArgs(key: Buffer, call: CallRecord): Json {
  if (call.sealed !== null) return (JSON.parse(decrypt(key, call.txn, call.sealed)) as Payload).args;
  return call.args === null ? null : (JSON.parse(call.args) as Json);
}

function containsValue(value: Json, text: string): boolean {
  if (typeof value === 'string' || typeof value === 'number') return String(value) === text;
  if (Array.isArray(value)) return value.some((item: Json) => containsValue(item, text));
  return isJsonObject(value) && Object.values(value).some((item) => containsValue(item, text));
}

function buildErasedEntry({ txn, agent, tool }: CallRecord, scope: ErasureScope, { person, reason }: Operator): string {
  return buildAuditEntry('call_erased', { txn, agent, tool, ...toLoggedScope(scope), person, reason });
}

/** The audit log is permanent, so it holds only the hash of an erased subject. */
function toLoggedScope({ of, value }: ErasureScope) {
  return { scope: of === 'subject' ? `subject:sha256:${sha256Hex(value)}` : `${of}:${value}` };
}
