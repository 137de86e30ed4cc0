import type { PreparedRequest, ProgressListener } from '../../domain/attempts/adapter.ts';
import type { CallProgress } from '../../domain/attempts/next-action.ts';
import type { CallKind, CallRecord } from '../../domain/calls/call-record.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { Tool } from '../../domain/policy.ts';
import type { StoredUndo } from '../../domain/sagas/saga.ts';
import type { Span } from '../../domain/telemetry.ts';
import type { Intent, UndoArguments } from '../../ledger/calls/calls.ts';
import type { Payload, SecretValues } from '../calls/payload.ts';
import { CancelToken } from '../cancel-token.ts';

/**
 * An open call that this process owns: its state in the ledger when it was claimed or taken over, and the changes since.
 * Only the holder of the fence changes the row, so this copy is correct until an update fails.
 */
export interface Job {
  readonly txn: string;
  readonly agent: string;
  readonly identity: CallRecord['identity'];
  readonly fingerprint: Buffer;
  readonly kind: CallKind;
  readonly tool: Tool;
  readonly owner: string;
  readonly fence: number;
  /** The number of the last update of the row. */
  updateNumber: number;
  readonly args: JsonObject;
  readonly request: PreparedRequest;
  /** For a compensation: the values that the undone call redacts. */
  readonly secrets: SecretValues;
  state: CallState;
  attempt: number;
  attemptOpen: boolean;
  unresolved: number;
  readonly roundFrom: number;
  readonly ownerDeaths: number;
  readonly keyLifetimeMs: number | null;
  /** `roundAt`, `firstSentAt` and `unknownSince` are on the monotonic clock of this process, from ages that PostgreSQL measured. */
  readonly roundAt: number;
  firstSentAt: number | null;
  unknownSince: number | null;
  /** The call was held and then approved, or its delay ended. The approval is checked again until something was sent. */
  readonly isApproved: boolean;
  readonly saga: string | null;
  /** For a compensation: the undone call. A compensation runs even if its agent is frozen or gone. */
  readonly undoOf: string | null;
  /** The saga is rolled back or the run taken over: nothing is sent, except to end a doubt. */
  recalled: boolean;
  /** The token of its locks; null while it holds none. */
  lockToken: number | null;
  /** The run was taken over. */
  fenced: boolean;
  readonly run: string | null;
  readonly undo: StoredUndo | null;
  /** The observed state before the first attempt; undefined if there was no observation. */
  before: Json | undefined;
  /** The undo data that the next update stores; null if there is none. */
  undoArguments: UndoArguments | null;
  /** The result of the newest attempt in words; null while it is not known. */
  attemptDetail: string | null;
  /** The evidence that disproved the unknown attempts. */
  disprovedBy: CallRecord['disprovedBy'];
  /** False for an unrecorded read: it is sent like any call, but writes nothing to the ledger. */
  readonly isRecorded: boolean;
  /** Its due time has passed, so the next action needs no wait. */
  readonly isDue: boolean;
  /** The listener of the waiting MCP client, if there is one. */
  readonly progressListener: ProgressListener | undefined;
  /** The span of the caller's request. Recovered and compensating calls have none. */
  readonly span: Span | undefined;
  /** Cancelled when a ledger write fails, so that the caller gets an answer although the call stays open. */
  readonly ledgerFailure: CancelToken;
}

export function resumeJob(
  call: CallRecord,
  tool: Tool,
  payload: Payload,
  before: Json | undefined,
  owner: string,
): Job {
  const toMonotonic = (at: Date | null) =>
    at === null ? null : performance.now() - (call.readAt.getTime() - at.getTime());
  return {
    txn: call.txn,
    agent: call.agent,
    identity: call.identity,
    fingerprint: call.fingerprint,
    kind: call.kind,
    tool,
    owner,
    fence: call.fence,
    updateNumber: call.updateNumber,
    args: payload.args,
    request: payload.request,
    secrets: payload.secrets ?? [],
    state: call.state,
    attempt: call.attempt,
    attemptOpen: call.attemptOpen,
    unresolved: call.unresolved,
    roundFrom: call.roundFrom,
    ownerDeaths: call.ownerDeaths,
    keyLifetimeMs: call.keyLifetimeMs,
    roundAt: toMonotonic(call.roundAt) ?? performance.now(),
    firstSentAt: toMonotonic(call.firstSentAt),
    unknownSince: toMonotonic(call.unknownSince),
    isApproved: call.isApproved,
    saga: call.saga,
    undoOf: call.undoOf,
    recalled: call.recalled,
    fenced: call.fenced,
    lockToken: call.lockToken,
    run: call.run,
    undo: call.undo,
    before,
    undoArguments: null,
    attemptDetail: call.attemptDetail,
    disprovedBy: call.disprovedBy,
    isRecorded: true,
    isDue: true,
    progressListener: undefined,
    span: undefined,
    ledgerFailure: new CancelToken(),
  };
}

/** The part of an intent that its job is built from. */
type JobIntent = Pick<
  Intent,
  | 'txn'
  | 'agent'
  | 'identity'
  | 'fingerprint'
  | 'kind'
  | 'fence'
  | 'state'
  | 'keyLifetimeMs'
  | 'saga'
  | 'undoOf'
  | 'run'
  | 'undo'
>;

/** The job of a claim that was just written. */
export function createJob(
  intent: JobIntent,
  tool: Tool,
  owner: string,
  payload: Payload,
  {
    lockToken,
    isRecorded = true,
    progressListener,
    span,
  }: Pick<Job, 'lockToken'> & Partial<Pick<Job, 'isRecorded' | 'progressListener' | 'span'>>,
): Job {
  const isSending = intent.state === 'sending';
  return {
    txn: intent.txn,
    agent: intent.agent,
    identity: intent.identity,
    fingerprint: intent.fingerprint,
    kind: intent.kind,
    tool,
    owner,
    fence: intent.fence,
    updateNumber: 0,
    args: payload.args,
    request: payload.request,
    secrets: payload.secrets ?? [],
    state: intent.state,
    attempt: isSending ? 1 : 0,
    attemptOpen: isSending,
    unresolved: 0,
    roundFrom: 0,
    ownerDeaths: 0,
    keyLifetimeMs: intent.keyLifetimeMs,
    roundAt: performance.now(),
    firstSentAt: isSending ? performance.now() : null,
    unknownSince: null,
    isApproved: false,
    saga: intent.saga,
    undoOf: intent.undoOf,
    recalled: false,
    fenced: false,
    lockToken,
    run: intent.run,
    undo: intent.undo,
    before: undefined,
    undoArguments: null,
    attemptDetail: null,
    disprovedBy: null,
    isRecorded,
    isDue: false,
    progressListener,
    span,
    ledgerFailure: new CancelToken(),
  };
}

/** A re-send must arrive, not only start, within the lifetime of the key. */
const LIFETIME_MARGIN = { share: 0.1, maxMs: 60_000 };

export function toCallProgress(job: Job): CallProgress {
  const now = performance.now();
  const lifetime = job.keyLifetimeMs ?? Number.POSITIVE_INFINITY;
  const margin = Math.min(lifetime * LIFETIME_MARGIN.share, LIFETIME_MARGIN.maxMs);
  return {
    kind: job.kind,
    attempt: job.attempt,
    roundFrom: job.roundFrom,
    unresolved: job.unresolved,
    ownerDeaths: job.ownerDeaths,
    shouldFailIfUnsent: job.isApproved || job.undoOf !== null,
    recalled: job.recalled,
    fenced: job.fenced,
    isRecordedInDoubt: job.state === 'in_doubt',
    wasObserved: job.before !== undefined,
    wasUnknown: job.unknownSince !== null,
    msInRound: now - job.roundAt,
    msSinceUnknown: job.unknownSince === null ? 0 : now - job.unknownSince,
    msToResend: (job.firstSentAt ?? now) + lifetime - margin - now,
  };
}
