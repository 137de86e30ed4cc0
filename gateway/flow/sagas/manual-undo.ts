import { buildAuditEntry } from '../../domain/audit/audit.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { closeSaga, resumeSaga } from '../../ledger/sagas/saga-rollback.ts';
import type { Services } from '../calls/execute-call.ts';
import { readCall } from '../calls/own-calls.ts';
import { decodePayload } from '../calls/payload.ts';
import { findArgumentRefusal } from '../calls/refusals.ts';
import { type CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import { readSaga, type SagaWithSteps } from './sagas.ts';
import { encodeUndoArguments } from './undo.ts';

const POLL_INTERVAL_MS = 50;

/** Who acts by hand, and why. */
export interface ManualAction {
  readonly person: string;
  readonly reason: string;
}

/**
 * Undoes one call on a person's request, outside any rollback. Repeating the request is safe; a repeat retries a failed undo.
 */
export async function requestUndo(
  services: Services,
  txn: string,
  args: JsonObject | undefined,
  action: ManualAction,
): Promise<CallRecord> {
  const { ctx } = services;
  const call = await readCall(services, txn, undefined);
  if (call.undoState === 'done' || call.undoState === 'running') return call;
  await refuseIfNotUndoable(services, call);
  const entry = buildAuditEntry('undo_asked', { txn, agent: call.agent, tool: call.tool, ...action });
  await ctx.undos.beginUndo(txn, encodeGivenArgs(services, call, args), entry);
  services.rollbacks.wake({ id: txn, of: 'call' });
  return readCall(services, txn, undefined);
}

async function refuseIfNotUndoable({ ctx }: Services, call: CallRecord): Promise<void> {
  const { txn, tool, state, undo, outcome } = call;
  const refuse = (detail: string) => new GatewayError('conflict', detail, { txn, state });
  if (state !== 'succeeded') throw refuse(`Only a succeeded call can be undone. This call is ${state}.`);
  if (call.erasedAt !== null) throw refuse('The call cannot be undone: retention erased the arguments of its undo.');
  if (call.kind === 'read' || outcome === 'already_satisfied' || outcome === 'input_required')
    throw refuse('The call changed nothing, so there is nothing to undo.');
  if (undo?.tool === undefined)
    throw refuse(`The contract of ${tool} ${undo === null ? 'names no undo' : `declares undo kind ${undo.kind}`}.`);
  if (call.saga === null || call.ordinal === null) return;
  const { saga } = await readSaga(ctx, call.saga, undefined);
  if (saga.state === 'open' || saga.state === 'rolling_back')
    throw refuse(`The call is a step of saga ${saga.id}, which is ${saga.state}. Roll the saga back instead.`);
}

/** Encodes undo arguments that a person gives because the template could not be rendered from the outcome. */
function encodeGivenArgs(services: Services, call: CallRecord, args: JsonObject | undefined) {
  if (args === undefined) return undefined;
  const { ctx } = services;
  const { tools } = ctx.policies();
  const undoTool = tools.get(call.undo?.tool ?? '');
  const refusal = undoTool === undefined ? undefined : findArgumentRefusal(undoTool, args);
  if (refusal !== undefined) throw refusal;
  const tool = tools.get(call.tool);
  const payload = decodePayload(ctx.sealingKey, call);
  if (tool === undefined || typeof payload === 'string') return { text: JSON.stringify(args), sealed: null };
  const scope = {
    txn: call.txn,
    agent: call.agent,
    args: payload.args,
    result: null,
    before: undefined,
    isBeforeSecret: false,
  };
  const encoded = encodeUndoArguments(ctx.sealingKey, tool, undoTool, scope, args);
  return { text: encoded.args ?? '{}', sealed: encoded.sealed };
}

/** Resumes a parked rollback on a person's request. The steps in `waive` no longer block other steps, even if they cannot be undone. */
export async function resumeRollback(
  services: Services,
  id: string,
  waive: readonly string[],
  action: ManualAction,
): Promise<SagaWithSteps> {
  const { ctx } = services;
  await readSaga(ctx, id, undefined);
  const entry = buildAuditEntry('saga_resumed', { saga: id, waive: [...waive], ...action });
  await resumeSaga(ctx.db, id, { waive, by: action.person, reason: action.reason, entry });
  services.rollbacks.wake({ id, of: 'saga' });
  return readSaga(ctx, id, undefined);
}

/** Closes a parked saga that a person repaired by hand. */
export async function closeParkedSaga(services: Services, id: string, action: ManualAction): Promise<SagaWithSteps> {
  const { ctx } = services;
  await readSaga(ctx, id, undefined);
  const entry = buildAuditEntry('saga_closed', { saga: id, ...action });
  await closeSaga(ctx.db, id, { by: action.person, reason: action.reason, entry });
  return readSaga(ctx, id, undefined);
}

/** Waits until the undo of a call has ended, `patienceMs` has passed, or the caller or the gateway is gone. */
export async function awaitUndo(
  services: Services,
  txn: string,
  patienceMs: number,
  cancelToken: CancelToken,
): Promise<CallRecord> {
  const deadline = performance.now() + patienceMs;
  for (;;) {
    const call = await readCall(services, txn, undefined);
    const leftMs = deadline - performance.now();
    const isUndoOpen = call.undoState === 'due' || call.undoState === 'running';
    const { shutdownToken } = services.dispatch;
    if (!isUndoOpen || leftMs <= 0 || cancelToken.isCancelled || shutdownToken.isCancelled) return call;
    await sleepUnlessCancelled(Math.min(POLL_INTERVAL_MS, leftMs), cancelToken, shutdownToken);
  }
}
