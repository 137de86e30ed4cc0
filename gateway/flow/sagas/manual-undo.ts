import { buildAuditEntry } from '../../domain/audit/audit.ts';
import type { Call } from '../../domain/calls/call.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { JsonObject } from '../../domain/json.ts';
import { closeSaga, resumeSaga } from '../../ledger/sagas/sagas.ts';
import type { Services } from '../calls/execute-call.ts';
import { readCall } from '../calls/own-calls.ts';
import { decodePayload } from '../calls/payload.ts';
import { findArgumentRefusal } from '../calls/refuse.ts';
import { type CancelToken, sleepUnlessCancelled } from '../cancel-token.ts';
import { readSaga, type SagaWithSteps } from './sagas.ts';
import { encodeUndoArguments } from './undo.ts';

const POLL_INTERVAL_MS = 50;

export interface ManualAction {
  readonly person: string;
  readonly reason: string;
}

/** A person has one call undone, outside any rollback. Again is fine; what failed before is tried again. */
export async function requestUndo(
  services: Services,
  txn: string,
  args: JsonObject | undefined,
  deed: ManualAction,
): Promise<Call> {
  const { station: ctx } = services;
  const call = await readCall(services, txn, undefined);
  if (call.undoState === 'done' || call.undoState === 'running') return call;
  await refuseIfNotUndoable(services, call);
  const entry = buildAuditEntry('undo_asked', { txn, agent: call.agent, tool: call.tool, ...deed });
  await ctx.undos.beginUndo(txn, encodeGivenArgs(services, call, args), entry);
  services.rollbacks.wake({ id: txn, of: 'call' });
  return readCall(services, txn, undefined);
}

async function refuseIfNotUndoable({ station: ctx }: Services, call: Call): Promise<void> {
  const { txn, state, undo, outcome } = call;
  const refuse = (detail: string) => new GatewayError('conflict', detail, { txn, state });
  if (state !== 'succeeded') throw refuse(`Only what succeeded can be undone; this call is ${state}.`);
  if (call.erasedAt !== null) throw refuse('It is past its retention: what its undo needs is gone.');
  if (call.kind === 'read' || outcome === 'already_satisfied' || outcome === 'input_required')
    throw refuse('It changed nothing: there is nothing to undo.');
  if (undo?.tool === undefined)
    throw refuse(undo === null ? 'Its contract names no undo.' : `Its contract says that its undo is ${undo.kind}.`);
  if (call.saga === null || call.ordinal === null) return;
  const { saga } = await readSaga(ctx, call.saga, undefined);
  if (saga.state === 'open' || saga.state === 'rolling_back')
    throw refuse(`It is a step of saga ${saga.id}, which is ${saga.state}: roll the saga back.`);
}

/** Arguments that a person gives because they could not be made from the outcome. */
function encodeGivenArgs(services: Services, call: Call, args: JsonObject | undefined) {
  if (args === undefined) return undefined;
  const { station: ctx } = services;
  const { tools } = ctx.policies();
  const undoTool = tools.get(call.undo?.tool ?? '');
  const unfit = undoTool === undefined ? undefined : findArgumentRefusal(undoTool, args);
  if (unfit !== undefined) throw unfit;
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
  const kept = encodeUndoArguments(ctx.sealingKey, tool, undoTool, scope, args);
  return { text: kept.args ?? '{}', sealed: kept.sealed };
}

/** A person takes a parked rollback up again; `waive` names steps that are no longer waited for. */
export async function resumeRollback(
  services: Services,
  id: string,
  waive: readonly string[],
  deed: ManualAction,
): Promise<SagaWithSteps> {
  const { station: ctx } = services;
  await readSaga(ctx, id, undefined);
  const entry = buildAuditEntry('saga_resumed', { saga: id, waive: [...waive], ...deed });
  await resumeSaga(ctx.db, id, { waive, by: deed.person, reason: deed.reason, entry });
  services.rollbacks.wake({ id, of: 'saga' });
  return readSaga(ctx, id, undefined);
}

/** A person has seen to a parked saga by hand. */
export async function closeParkedSaga(services: Services, id: string, deed: ManualAction): Promise<SagaWithSteps> {
  const { station: ctx } = services;
  await readSaga(ctx, id, undefined);
  const entry = buildAuditEntry('saga_closed', { saga: id, ...deed });
  await closeSaga(ctx.db, id, { by: deed.person, reason: deed.reason, entry });
  return readSaga(ctx, id, undefined);
}

/** Waits until the undo of a call comes to rest or the patience ends. */
export async function awaitUndo(services: Services, txn: string, patienceMs: number, caller: CancelToken): Promise<Call> {
  const until = performance.now() + patienceMs;
  for (;;) {
    const call = await readCall(services, txn, undefined);
    const left = until - performance.now();
    if (
      (call.undoState !== 'due' && call.undoState !== 'running') ||
      left <= 0 ||
      caller.gone ||
      services.dispatch.shutdownToken.gone
    )
      return call;
    await sleepUnlessCancelled(Math.min(POLL_INTERVAL_MS, left), caller, services.dispatch.shutdownToken);
  }
}
