import type { UpstreamAnswer } from '../../domain/attempts/adapter.ts';
import { buildAuditEntry, sha256Hex } from '../../domain/audit/audit.ts';
import type { Call, CallEvent } from '../../domain/calls/call.ts';
import { canonicalize } from '../../domain/canonical.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Json } from '../../domain/json.ts';
import type { UndoArguments } from '../../ledger/calls/calls.ts';
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
  /** The person vouches that the process which sent it last can send no more. */
  readonly senderIsDead?: boolean;
}

/** A person answers a doubt. The same verdict again is fine; the opposite one, or one about no doubt at all, is refused. */
export async function resolveDoubt(flow: Services, verdict: DoubtVerdict): Promise<Call> {
  const { station } = flow;
  const call = await station.calls.read(verdict.txn);
  if (call === undefined) throw new GatewayError('not_found', `There is no call ${verdict.txn}.`);
  if (call.state !== 'in_doubt' || isBeingRetried(call, verdict)) return confirmEarlierVerdict(call, verdict);
  if (verdict.verdict !== 'applied') await refuseWhileInFlight(station, call, verdict);
  if (verdict.verdict === 'retry') refuseLateRetry(call);
  if (verdict.verdict === 'retry') refuseIfRecalled(call);

  const answer = verdict.verdict === 'applied' ? buildVerdictAnswer(station, call, verdict.result) : null;
  const entry = buildAuditEntry('verdict', {
    txn: call.txn,
    agent: call.agent,
    tool: call.tool,
    person: verdict.person,
    verdict: verdict.verdict,
    reason: verdict.reason,
    ...(answer?.body == null ? {} : { answer: sha256Hex(answer.body) }),
  });
  const undo = verdict.verdict === 'applied' ? buildUndoFromVerdict(station, call, verdict.result ?? null) : null;
  const moved = await recordResolution(station.db, call, { ...verdict, answer, undo, entry });
  wakeRollback(flow, call);
  const now = await station.calls.read(call.txn);
  if (now === undefined) throw new GatewayError('not_found', `There is no call ${verdict.txn}.`);
  return moved ? now : confirmEarlierVerdict(now, verdict);
}

/** What a person says it answered, as an answer may be kept and told. */
function buildVerdictAnswer(station: Context, call: Call, result: Json | undefined): UpstreamAnswer {
  const body = result === undefined ? null : canonicalize(result);
  const answer: UpstreamAnswer = { status: 200, contentType: 'application/json', body, encoding: 'utf8' };
  const tool = station.policies().tools.get(call.tool);
  // Of a tool that redacted, and is gone, nobody knows any more what is secret.
  if (tool === undefined) return call.sealed === null ? answer : { ...answer, body: null };
  const payload = decodePayload(station.sealingKey, call);
  if (typeof payload === 'string') return redactAnswer(tool, answer, {});
  return redactAnswer(tool, answer, payload.args, payload.secrets);
}

/** What a person says it answered is what its undo is made of. */
function buildUndoFromVerdict(station: Context, call: Call, result: Json): UndoArguments | null {
  const tool = station.policies().tools.get(call.tool);
  const payload = decodePayload(station.sealingKey, call);
  if (call.undo?.tool === undefined) return null;
  if (tool === undefined || typeof payload === 'string') {
    const why = tool === undefined ? `the tool ${call.tool} is no longer declared` : payload;
    return { before: null, args: null, sealed: null, reason: `the undo arguments cannot be rendered: ${why}` };
  }
  const before = decodeObservation(station.sealingKey, call);
  return prepareUndoArguments(
    station,
    { txn: call.txn, agent: call.agent, tool, args: payload.args, before, undo: call.undo },
    () => result,
  );
}

/** A rollback may have waited for this step: a late success is undone. */
function wakeRollback(flow: Services, call: Call): void {
  if (call.saga !== null) flow.rollbacks.wake({ id: call.saga, of: 'saga' });
}

function refuseIfRecalled(call: Call): void {
  if (!call.recalled) return;
  const why = call.fenced ? 'Its run was taken over' : 'Its saga is rolled back';
  const detail = `${why}, so it is not sent again. Find out whether it happened and say applied or not_applied.`;
  throw new GatewayError('conflict', detail, { txn: call.txn });
}

function confirmEarlierVerdict(call: Call, verdict: DoubtVerdict): Call {
  const same =
    (verdict.verdict === 'applied' && call.state === 'succeeded') ||
    (verdict.verdict === 'not_applied' && call.state === 'failed');
  if (same && call.evidence === 'person') return call;
  // Whatever came of it since.
  if (verdict.verdict === 'retry' && findLastVerdict(call)?.['verdict'] === 'retry') return call;
  const standing = call.settledAt === null ? `it is ${call.state}` : `it ${call.state} already`;
  throw new GatewayError('conflict', `There is no doubt to answer: ${standing}.`, { txn: call.txn, state: call.state });
}

function findLastVerdict({ events }: Call): CallEvent | undefined {
  return events.findLast(({ what }) => what === 'verdict');
}

/** The same was said of it before, and it is still about to be sent, or on its way. */
function isBeingRetried(call: Call, { verdict }: DoubtVerdict): boolean {
  const last = findLastVerdict(call);
  if (verdict !== 'retry' || last?.['verdict'] !== 'retry') return false;
  return call.attemptOpen || call.events.at(-1) === last;
}

/** "Not applied" and "retry" are only true while nothing more can arrive from an earlier sender. */
async function refuseWhileInFlight(station: Context, call: Call, verdict: DoubtVerdict): Promise<void> {
  if (call.attemptOpen) {
    throw new GatewayError(
      'conflict',
      'The same request is on its way again just now. Ask again when it is answered.',
      {
        txn: call.txn,
        retry: 'after_delay',
      },
    );
  }
  if (verdict.senderIsDead === true || (await areSendersGone(station.db, call.txn))) return;
  throw new GatewayError(
    'conflict',
    'The process that sent this last is not known to be dead: paused, it might still send. Make sure that it is gone, then say so with "senderIsDead": true.',
    { txn: call.txn },
  );
}

function refuseLateRetry(call: Call): void {
  if (call.kind !== 'key' || call.keyLifetimeMs === null || call.firstSentAt === null) return;
  if (call.readAt.getTime() < call.firstSentAt.getTime() + call.keyLifetimeMs) return;
  const detail =
    'The upstream may have forgotten the key: sending again could act twice. Find out whether it happened and say applied or not_applied.';
  throw new GatewayError('conflict', detail, { txn: call.txn });
}
