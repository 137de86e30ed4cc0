import type { Settlement } from '../../domain/attempts/settlement.ts';
import type { CallEvent, CallRecord } from '../../domain/calls/call-record.ts';
import type { JsonObject } from '../../domain/json.ts';
import { sanitize } from '../../domain/sanitize.ts';
import type { OpenCallPatch, SettlementPatch } from '../../ledger/calls/call-patches.ts';

/** What changes. Everything else stays as the record has it. */
export type OpenCallChange = Partial<Pick<OpenCallPatch, 'state' | 'detail' | 'parked' | 'event' | 'undo'>> &
  Pick<OpenCallPatch, 'entry'>;

/** The patch that writes the state of an open call, with a change. `unknownSince` is on the monotonic clock of this process. */
export function buildOpenCallPatch(
  record: CallRecord,
  unknownSince: number | null,
  { state = record.state, detail = null, parked = null, event = null, undo = null, entry }: OpenCallChange,
): OpenCallPatch {
  return {
    txn: record.txn,
    fence: record.fence,
    updateNumber: record.updateNumber + 1,
    state,
    attempt: record.attempt,
    attemptOpen: record.attemptOpen,
    unresolved: record.unresolved,
    unknownSinceMs: computeMsSince(unknownSince),
    detail,
    attemptDetail: record.attemptDetail,
    disprovedBy: record.disprovedBy,
    parked,
    event,
    undo,
    entry,
  };
}

/** The patch that ends a call. Only a success has undo arguments. */
export function buildSettlementPatch(
  record: CallRecord,
  unknownSince: number | null,
  settlement: Settlement,
  { detail, answer, leaf, undo, entry }: Pick<SettlementPatch, 'detail' | 'answer' | 'leaf' | 'undo' | 'entry'>,
): SettlementPatch {
  const isSuccess = settlement.state === 'succeeded';
  return {
    txn: record.txn,
    fence: record.fence,
    updateNumber: record.updateNumber + 1,
    isEvidence: isSuccess && settlement.isObservationOnly !== true,
    state: settlement.state,
    unknownSinceMs: computeMsSince(unknownSince),
    outcome: settlement.outcome,
    problem: settlement.problem ?? null,
    detail,
    answer,
    evidence: settlement.evidence,
    resolvedBy: null,
    leaf,
    undo: isSuccess ? undo : null,
    entry,
  };
}

function computeMsSince(time: number | null): number | null {
  return time === null ? null : performance.now() - time;
}

/** An entry for the timeline of a call, with the time of now. */
export function buildCallEvent(what: string, detail: JsonObject): CallEvent {
  const members = Object.entries(detail).map(([name, value]) => [
    name,
    typeof value === 'string' ? sanitize(value) : value,
  ]);
  return { ...Object.fromEntries(members), what, at: new Date().toISOString() };
}
