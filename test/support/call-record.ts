import { randomUUID } from 'node:crypto';
import { createCallRecord, type NewCallFields } from '../../gateway/domain/calls/call-record.ts';
import type { OpenCallPatch, SettlementPatch } from '../../gateway/ledger/calls/call-patches.ts';
import type { NewCall } from '../../gateway/ledger/calls/claim.ts';

/** A new call, and its txn at hand. */
export interface TestCall extends NewCall {
  readonly txn: string;
}

export type TestCallFields = NewCallFields & Omit<NewCall, 'record'>;

/** A call as a claim writes it, for tests that call the ledger directly. */
export function buildNewCall(owner: string, changes: Partial<TestCallFields> = {}): TestCall {
  const { dueInMs = null, undoTries = null, entry = '{}', ...fields } = changes;
  const record = createCallRecord({
    txn: randomUUID(),
    agent: 'a',
    tool: 't',
    key: 'k',
    identity: 'key',
    fingerprint: Buffer.alloc(32, 1),
    kind: 'none',
    fence: 1,
    state: 'sending',
    owner,
    policyVersion: 'v',
    rule: 'r',
    args: '{}',
    ...fields,
  });
  return { txn: record.txn, record, dueInMs, undoTries, entry };
}

/** An update of a call that `buildNewCall` built: its first attempt is closed, and the owner keeps it. */
export function buildUpdate(txn: string, changes: Partial<OpenCallPatch> = {}): OpenCallPatch {
  return {
    txn,
    fence: 1,
    updateNumber: 1,
    state: 'sending',
    attempt: 1,
    attemptOpen: false,
    unresolved: 0,
    unknownSinceMs: null,
    parked: null,
    detail: null,
    event: null,
    undo: null,
    attemptDetail: null,
    disprovedBy: null,
    entry: '{}',
    ...changes,
  };
}

/** The settlement of a call that `buildNewCall` built: its first attempt was answered. */
export function buildSuccess(txn: string, changes: Partial<SettlementPatch> = {}): SettlementPatch {
  return {
    txn,
    fence: 1,
    updateNumber: 1,
    isEvidence: false,
    state: 'succeeded',
    unknownSinceMs: null,
    outcome: 'answered',
    problem: null,
    detail: null,
    answer: null,
    evidence: 'answer',
    resolvedBy: null,
    leaf: Buffer.alloc(32),
    undo: null,
    entry: '{}',
    ...changes,
  };
}
