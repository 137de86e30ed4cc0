import type { ProgressListener } from '../../domain/attempts/adapter.ts';
import type { CallProgress } from '../../domain/attempts/next-action.ts';
import type { CallIntent, CallRecord } from '../../domain/calls/call-record.ts';
import type { ErrorCode } from '../../domain/errors.ts';
import type { Json } from '../../domain/json.ts';
import type { Tool } from '../../domain/policy.ts';
import type { Span } from '../../domain/telemetry.ts';
import type { UndoArguments } from '../../ledger/calls/call-patches.ts';
import type { Payload, SecretValues } from '../calls/payload.ts';
import { CancelToken } from '../cancel-token.ts';

/** How dispatch ended its work on a call. */
export type DispatchResult =
  /** The call is final, or parked in doubt. */
  | { readonly kind: 'reported'; readonly call: CallRecord }
  /** Nothing was sent, and the key can be used again. */
  | { readonly kind: 'released'; readonly code: ErrorCode; readonly detail: string }
  /** Another process owns the call now, or only the ledger knows its state. */
  | { readonly kind: 'elsewhere' };

/** Times of a call on the monotonic clock of this process. For a resumed call, from ages that PostgreSQL measured. */
interface MonotonicTimes {
  readonly roundAt: number;
  firstSentAt: number | null;
  unknownSince: number | null;
}

/**
 * An open call that this process owns and works on. Its state is its record: that of the claim or takeover, with the patches
 * since. Only the holder of the fence changes the row, so the record is correct until a write fails.
 */
export interface InFlightCall {
  /** Changed only by `patchCall`. Its dates stay those of the claim or takeover: the ages of the call count from `times`. */
  readonly record: CallRecord;
  /** This process. The owner of the record becomes null when the call is parked or ends. */
  readonly owner: string;
  readonly tool: Tool;
  /** The arguments and the request in clear. `secrets`: for a compensation, the values that the undone call redacts. */
  readonly payload: Required<Payload>;
  readonly times: MonotonicTimes;
  /** The observed state before the first attempt; undefined if there was no observation. */
  before: Json | undefined;
  /** The undo data that the next patch stores; null if there is none. */
  undoArguments: UndoArguments | null;
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
  /** Exists before the first attempt starts, so that repeats and the shutdown can wait for it. */
  readonly result: Promise<DispatchResult>;
  /** Resolves `result`. Only for `Dispatch`. */
  readonly finish: (result: DispatchResult) => void;
}

/** Changes of a call in flight. Its intent never changes. */
type CallPatch = Partial<Omit<CallRecord, keyof CallIntent | 'readAt'>>;

/** The one way to change the record of a call in flight. */
export function patchCall({ record }: InFlightCall, patch: CallPatch): void {
  Object.assign(record, patch);
}

/** What the claim of a call leaves to be known about its execution. */
export interface NewInFlightCall extends Pick<InFlightCall, 'record' | 'owner' | 'tool' | 'progressListener' | 'span'> {
  readonly payload: Payload;
  readonly isRecorded: boolean;
}

/** Builds the call of a claim that was just written, or of an unrecorded read. */
export function createInFlightCall(call: NewInFlightCall): InFlightCall {
  const now = performance.now();
  const times = { roundAt: now, firstSentAt: call.record.attemptOpen ? now : null, unknownSince: null };
  return buildInFlightCall(call, times, undefined, false);
}

/** Builds a call that this process took over. `before`: the observed state before its first attempt. */
export function resumeInFlightCall(
  record: CallRecord,
  owner: string,
  tool: Tool,
  payload: Payload,
  before: Json | undefined,
): InFlightCall {
  const toMonotonic = (at: Date | null) =>
    at === null ? null : performance.now() - (record.readAt.getTime() - at.getTime());
  const times = {
    roundAt: toMonotonic(record.roundAt) ?? performance.now(),
    firstSentAt: toMonotonic(record.firstSentAt),
    unknownSince: toMonotonic(record.unknownSince),
  };
  const source = { record, owner, tool, payload, isRecorded: true, progressListener: undefined, span: undefined };
  return buildInFlightCall(source, times, before, true);
}

const NO_SECRETS: SecretValues = [];

/** One object literal keeps the V8 shape monomorphic. */
function buildInFlightCall(
  call: NewInFlightCall,
  times: MonotonicTimes,
  before: Json | undefined,
  isDue: boolean,
): InFlightCall {
  const { args, request, secrets = NO_SECRETS } = call.payload;
  let finish = (_: DispatchResult) => {};
  const result = new Promise<DispatchResult>((resolve) => (finish = resolve));
  return {
    record: call.record,
    owner: call.owner,
    tool: call.tool,
    payload: { args, request, secrets },
    times,
    before,
    undoArguments: null,
    isRecorded: call.isRecorded,
    isDue,
    progressListener: call.progressListener,
    span: call.span,
    ledgerFailure: new CancelToken(),
    result,
    finish,
  };
}

/** A re-send must arrive, not only start, within the lifetime of the key. */
const LIFETIME_MARGIN = { share: 0.1, maxMs: 60_000 };

export function toCallProgress({ record, times, before }: InFlightCall): CallProgress {
  const now = performance.now();
  const lifetime = record.keyLifetimeMs ?? Number.POSITIVE_INFINITY;
  const margin = Math.min(lifetime * LIFETIME_MARGIN.share, LIFETIME_MARGIN.maxMs);
  return {
    kind: record.kind,
    attempt: record.attempt,
    roundFrom: record.roundFrom,
    unresolved: record.unresolved,
    ownerDeaths: record.ownerDeaths,
    shouldFailIfUnsent: record.isApproved || record.undoOf !== null,
    recalled: record.recalled,
    fenced: record.fenced,
    isRecordedInDoubt: record.state === 'in_doubt',
    wasObserved: before !== undefined,
    wasUnknown: times.unknownSince !== null,
    msInRound: now - times.roundAt,
    msSinceUnknown: times.unknownSince === null ? 0 : now - times.unknownSince,
    msToResend: (times.firstSentAt ?? now) + lifetime - margin - now,
  };
}
