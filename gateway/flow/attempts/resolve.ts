import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { buildAuditEntry, sha256Hex } from '../../domain/audit/audit.ts';
import type { CallRecord } from '../../domain/calls/call-record.ts';
import { canonicalize } from '../../domain/canonical.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Json } from '../../domain/json.ts';
import type { UndoArguments } from '../../ledger/calls/call-patches.ts';
import { areSendersGone, recordResolution } from '../../ledger/calls/verdicts.ts';
import type { Services } from '../calls/execute-call.ts';
import { decodePayload, redactAnswer } from '../calls/payload.ts';
import type { Context } from '../context.ts';
import { decodeObservation, prepareUndoArguments } from '../sagas/undo.ts';

export interface DoubtVerdict {
  readonly txn: string;
  readonly verdict: 'applied' | 'not_applied' | 'retry';
  readonly result?: Json;
  readonly reason: string;
  readonly person: string;
  /** The person confirms that the process that sent the call last has ended. */
  readonly senderIsDead?: boolean;
}

/** Writes a person's verdict. Repeating it is safe. Another verdict, or a verdict on a call that is not in doubt, is a conflict. */
export async function resolveDoubt(services: Services, verdict: DoubtVerdict): Promise<CallRecord> {
  const { ctx } = services;
  const call = await ctx.calls.read(verdict.txn);
  if (call === undefined) throw new GatewayError('not_found', `There is no call ${verdict.txn}.`);
  if (call.state !== 'in_doubt' || isBeingRetried(call, verdict)) return confirmEarlierVerdict(call, verdict);
  if (verdict.verdict !== 'applied') await refuseWhileInFlight(ctx, call, verdict);
  if (verdict.verdict === 'retry') refuseLateRetry(call);
  if (verdict.verdict === 'retry') refuseIfRecalled(call);

  const answer = verdict.verdict === 'applied' ? buildVerdictAnswer(ctx, call, verdict.result) : null;
  const entry = buildAuditEntry('verdict', {
    txn: call.txn,
    agent: call.agent,
    tool: call.tool,
    person: verdict.person,
    verdict: verdict.verdict,
    reason: verdict.reason,
    ...(answer?.body == null ? {} : { answer: sha256Hex(answer.body) }),
  });
  const undo = verdict.verdict === 'applied' ? buildUndoFromVerdict(ctx, call, verdict.result ?? null) : null;
  const isRecorded = await recordResolution(ctx.db, call, { ...verdict, answer, undo, entry });
  wakeRollback(services, call);
  const now = await ctx.calls.read(call.txn);
  if (now === undefined) throw new GatewayError('not_found', `There is no call ${verdict.txn}.`);
  return isRecorded ? now : confirmEarlierVerdict(now, verdict);
}

/** The result that the person gave, redacted like an answer of the upstream. */
function buildVerdictAnswer(ctx: Context, call: CallRecord, result: Json | undefined): UpstreamAnswer {
  const body = result === undefined ? null : canonicalize(result);
  const answer: UpstreamAnswer = { status: 200, contentType: 'application/json', body, encoding: 'utf8' };
  const tool = ctx.policies().tools.get(call.tool);
  // The tool is gone, and with it the list of what it redacts. Drop the body if the call was redacted.
  if (tool === undefined) return call.sealed === null ? answer : { ...answer, body: null };
  const payload = decodePayload(ctx.sealingKey, call);
  if (typeof payload === 'string') return redactAnswer(tool, answer, {});
  return redactAnswer(tool, answer, payload.args, payload.secrets);
}

/** The undo arguments, built from the result that the person gave. */
function buildUndoFromVerdict(ctx: Context, call: CallRecord, result: Json): UndoArguments | null {
  const tool = ctx.policies().tools.get(call.tool);
  const payload = decodePayload(ctx.sealingKey, call);
  if (call.undo?.tool === undefined) return null;
  if (tool === undefined || typeof payload === 'string') {
    const why = tool === undefined ? `the tool ${call.tool} is no longer declared` : payload;
    return { before: null, args: null, sealed: null, reason: `the undo arguments cannot be rendered: ${why}` };
  }
  const before = decodeObservation(ctx.sealingKey, call);
  return prepareUndoArguments(ctx, { record: call, tool, payload, before }, () => result);
}

/** A rollback may wait for this step, and undoes a late success. */
function wakeRollback(services: Services, call: CallRecord): void {
  if (call.saga !== null) services.rollbacks.wake({ id: call.saga, of: 'saga' });
}

function refuseIfRecalled(call: CallRecord): void {
  if (!call.recalled) return;
  const why = call.fenced ? 'The run of this call was taken over' : 'The saga of this call is rolled back';
  const detail = `${why}, so it is not sent again. Find out whether it took effect and answer applied or not_applied.`;
  throw new GatewayError('conflict', detail, { txn: call.txn });
}

function confirmEarlierVerdict(call: CallRecord, verdict: DoubtVerdict): CallRecord {
  const isSame =
    (verdict.verdict === 'applied' && call.state === 'succeeded') ||
    (verdict.verdict === 'not_applied' && call.state === 'failed');
  if (isSame && call.evidence === 'person') return call;
  // The verdict `retry` is confirmed whatever became of the retry, unless a later verdict ended the doubt.
  if (verdict.verdict === 'retry' && call.retriedBy !== null && call.evidence !== 'person') return call;
  const state = call.settledAt === null ? `is ${call.state}` : `ended as ${call.state}`;
  throw new GatewayError('conflict', `The call is not in doubt, so it needs no verdict: it ${state}.`, {
    txn: call.txn,
    state: call.state,
  });
}

/** Whether the verdict `retry` was given before, and the retry has not led to another doubt. */
function isBeingRetried(call: CallRecord, { verdict }: DoubtVerdict): boolean {
  return verdict === 'retry' && call.isRetryRequested;
}

/** Refuses `not_applied` and `retry` while an earlier sender may still send. */
async function refuseWhileInFlight(ctx: Context, call: CallRecord, verdict: DoubtVerdict): Promise<void> {
  if (call.attemptOpen) {
    throw new GatewayError(
      'conflict',
      'The same request is being sent again now. Give your verdict after it is answered.',
      {
        txn: call.txn,
        retry: 'after_delay',
      },
    );
  }
  if (verdict.senderIsDead === true || (await areSendersGone(ctx.db, call.txn))) return;
  throw new GatewayError(
    'conflict',
    'The process that sent this call last may still be alive, and a paused process could still send. Make sure that it has ended, then repeat the verdict with "senderIsDead": true.',
    { txn: call.txn },
  );
}

function refuseLateRetry(call: CallRecord): void {
  if (call.kind !== 'key' || call.keyLifetimeMs === null || call.firstSentAt === null) return;
  if (call.readAt.getTime() < call.firstSentAt.getTime() + call.keyLifetimeMs) return;
  const detail =
    'The upstream may have forgotten the key, so a retry could act twice. Find out whether the call took effect and answer applied or not_applied.';
  throw new GatewayError('conflict', detail, { txn: call.txn });
}
