import type { Settlement } from '../../domain/attempts/settlement.ts';
import type { CallEvent, CallSummary } from '../../domain/calls/call-record.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import type { JsonObject } from '../../domain/json.ts';
import { sanitize } from '../../domain/sanitize.ts';
import type { CallUpdate } from '../../ledger/calls/calls.ts';
import type { Job } from './job.ts';

/** The fields that a job and a stored call share. A job has `unknownSince` on the monotonic clock; a stored call has a Date. */
type OwnedCallState = Pick<
  Job,
  | 'txn'
  | 'fence'
  | 'updateNumber'
  | 'state'
  | 'attempt'
  | 'attemptOpen'
  | 'unresolved'
  | 'attemptDetail'
  | 'disprovedBy'
> & {
  readonly unknownSince: number | Date | null;
};

/** An update that changes nothing yet. Callers override the fields that change. */
export function buildBaseUpdate(call: OwnedCallState): Omit<CallUpdate, 'entry'> {
  return {
    txn: call.txn,
    fence: call.fence,
    updateNumber: call.updateNumber + 1,
    isEvidence: false,
    state: call.state,
    attempt: call.attempt,
    attemptOpen: call.attemptOpen,
    unresolved: call.unresolved,
    unknownSinceMs: computeMsSinceUnknown(call),
    custody: 'keep',
    dueInMs: null,
    outcome: null,
    problem: null,
    detail: null,
    answer: null,
    evidence: null,
    resolvedBy: null,
    leaf: null,
    event: null,
    undo: null,
    attemptDetail: call.attemptDetail,
    disprovedBy: call.disprovedBy,
  };
}

/** The update that ends a call. One literal is faster than a spread of `buildBaseUpdate`, and every call needs this update. */
export function buildClosingUpdate(
  job: Job,
  settlement: Settlement,
  { detail, answer, leaf, entry }: Pick<CallUpdate, 'detail' | 'answer' | 'leaf' | 'entry'>,
): CallUpdate {
  const isSuccess = settlement.state === 'succeeded';
  return {
    txn: job.txn,
    fence: job.fence,
    updateNumber: job.updateNumber + 1,
    isEvidence: isSuccess && settlement.isObservationOnly !== true,
    state: settlement.state,
    attempt: job.attempt,
    attemptOpen: false,
    unresolved: 0,
    unknownSinceMs: computeMsSinceUnknown(job),
    custody: 'close',
    dueInMs: null,
    outcome: settlement.outcome,
    problem: settlement.problem ?? null,
    detail,
    answer,
    evidence: settlement.evidence,
    resolvedBy: null,
    leaf,
    event: null,
    undo: isSuccess ? job.undoArguments : null,
    attemptDetail: job.attemptDetail,
    disprovedBy: job.disprovedBy,
    entry,
  };
}

function computeMsSinceUnknown({ unknownSince }: OwnedCallState): number | null {
  return typeof unknownSince === 'number' ? performance.now() - unknownSince : null;
}

type ReportedFields = Pick<CallSummary, 'answer' | 'outcome' | 'problem' | 'detail' | 'leaf'>;

/** The summary of a call that this process ended. Has the members of `summarizeCall` in the same order, for one V8 shape. */
export function toCallSummary(job: Job, state: CallState, reported: ReportedFields, pursued: boolean): CallSummary {
  return {
    txn: job.txn,
    agent: job.agent,
    tool: job.tool.name,
    identity: job.identity,
    fingerprint: job.fingerprint,
    run: job.run,
    attempt: job.attempt,
    saga: job.saga,
    state,
    answer: reported.answer,
    outcome: reported.outcome,
    problem: reported.problem,
    detail: reported.detail,
    leaf: reported.leaf,
    pursued,
    hold: null,
  };
}

/** An entry for the timeline of a call, with the time of now. */
export function buildCallEvent(what: string, detail: JsonObject): CallEvent {
  const members = Object.entries(detail).map(([name, value]) => [
    name,
    typeof value === 'string' ? sanitize(value) : value,
  ]);
  return { ...Object.fromEntries(members), what, at: new Date().toISOString() };
}
