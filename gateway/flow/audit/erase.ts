import { buildAuditEntry, sha256Hex } from '../../domain/audit/audit.ts';
import type { Call } from '../../domain/calls/call.ts';
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

/** Whose payloads are erased. A subject is a text: every call that has it as a value anywhere in its arguments. */
export interface ErasureScope {
  readonly of: 'agent' | 'saga' | 'txn' | 'subject';
  readonly value: string;
}

export interface ErasureResult {
  readonly erased: number;
  /** Calls in scope that cannot be erased yet: they are open, may still be undone, or their saga is not over. */
  readonly open: readonly string[];
  /** Runs in scope that are not over: what was kept in them is still there. */
  readonly openRuns: readonly string[];
  /** Calls whose sealed arguments this gateway cannot open, so that nobody knows whether the subject is in them. */
  readonly unreadable: readonly string[];
  /** Where to go on; null when all was looked at. */
  readonly cursor: string | null;
}

const PAGE_SIZE = 200;
/** Whoever asks is answered within a while, and goes on with the cursor. */
const MAX_DURATION_MS = 10_000;

/**
 * Erases payloads before their time. What remains are tombstones and the log, which holds digests only, goes on verifying,
 * and says who erased what and why. It is answered when no process remembers any of it. A crash half-way leaves some erased
 * and the rest not: asked again, it goes on.
 */
export async function eraseScope(
  services: Services,
  scope: ErasureScope,
  hand: Operator,
  from: string | undefined,
): Promise<ErasureResult> {
  if (from !== undefined && !isCursor(from))
    throw new GatewayError('malformed', 'The cursor is not one that this API gave out.');
  const { station: ctx } = services;
  const open: string[] = [];
  const unreadable: string[] = [];
  let erased = 0;
  let cursor: string | null | undefined = from;
  const until = performance.now() + MAX_DURATION_MS;
  do {
    const page = await listCandidates(ctx, scope, cursor);
    const live = page.items.filter((call) => call.erasedAt === null);
    const chosen = live.filter((call) => isInScope(ctx, scope, call, unreadable));
    const gone = await eraseCalls(
      ctx.db,
      chosen.map((call) => ({ txn: call.txn, entry: buildErasedEntry(call, scope, hand) })),
    );
    erased += gone.length;
    open.push(...chosen.map(({ txn }) => txn).filter((txn) => !gone.includes(txn)));
    cursor = page.cursor;
  } while (cursor !== null && performance.now() < until);
  if (scope.of === 'saga') await eraseSaga(ctx.db, scope.value);
  if (scope.of === 'agent' && cursor === null) await eraseAgent(ctx.db, scope.value);
  const openRuns = scope.of === 'agent' ? await listUnfinishedRuns(ctx.db, scope.value, PAGE_SIZE) : [];
  const done = { ...toLoggedScope(scope), person: hand.person, reason: hand.reason, erased, open: open.length };
  await ctx.switches.broadcastChange(buildAuditEntry('erasure', done));
  return { erased, open, openRuns, unreadable, cursor };
}

async function listCandidates(ctx: Context, { of, value }: ErasureScope, cursor: string | undefined | null) {
  if (of === 'txn') {
    const call = await ctx.calls.read(value);
    // What was sent to undo it holds what it was about, each time that was tried.
    const tries = call === undefined ? [] : listUndoTxns(ctx, call);
    const undos = await Promise.all(tries.map((txn) => ctx.calls.read(txn)));
    return { items: [call, ...undos].filter((found) => found !== undefined), cursor: null };
  }
  const filter = { limit: PAGE_SIZE, cursor: cursor ?? undefined };
  return listCalls(ctx.db, of === 'subject' ? filter : { ...filter, [of]: value });
}

/** Every try is a call of its own, and the call itself names only the last. */
function listUndoTxns({ deployment }: Context, { agent, txn, undoTries }: Call): string[] {
  return Array.from({ length: undoTries }, (_, generation) =>
    deriveTxnId(deployment, agent, { by: 'undo', of: txn, generation }),
  );
}

function isInScope(ctx: Context, { of, value }: ErasureScope, call: Call, unreadable: string[]): boolean {
  if (of !== 'subject') return true;
  try {
    return containsValue(readExactArgs(ctx.sealingKey, call), value);
  } catch {
    unreadable.push(call.txn);
    return false;
  }
}

/** All of them, also what the tool redacts. */
function readExactArgs(key: Buffer, call: Call): Json {
  if (call.sealed !== null) return (JSON.parse(decrypt(key, call.txn, call.sealed)) as Payload).args;
  return call.args === null ? null : (JSON.parse(call.args) as Json);
}

function containsValue(value: Json, text: string): boolean {
  if (typeof value === 'string' || typeof value === 'number') return String(value) === text;
  if (Array.isArray(value)) return value.some((item: Json) => containsValue(item, text));
  return isJsonObject(value) && Object.values(value).some((item) => containsValue(item, text));
}

function buildErasedEntry({ txn, agent, tool }: Call, scope: ErasureScope, { person, reason }: Operator): string {
  return buildAuditEntry('call_erased', { txn, agent, tool, ...toLoggedScope(scope), person, reason });
}

/** The log is for ever: who is to be forgotten is not written into it, only what that hashes to. */
function toLoggedScope({ of, value }: ErasureScope) {
  return { scope: of === 'subject' ? `subject:sha256:${sha256Hex(value)}` : `${of}:${value}` };
}
