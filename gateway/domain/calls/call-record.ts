import type { StoredRequest, UpstreamAnswer } from '../attempts/adapter.ts';
import type { ErrorCode } from '../errors.ts';
import type { Json } from '../json.ts';
import type { StoredUndo, UndoState } from '../sagas/saga.ts';
import type { CallState } from './call-state.ts';

/** What makes a repeat harmless: `once.by` of a write tool, or `read`. For `none`, nothing does. */
export type CallKind = 'read' | 'key' | 'idempotent' | 'probe' | 'none';

/** The evidence that ended a call. */
export type Evidence = 'answer' | 'late_answer' | 'same_key' | 'probe' | 'person' | 'gateway';

/** An entry of the timeline of a call, with facts that no column of the ledger stores. */
export interface CallEvent {
  readonly at: string;
  readonly what: string;
  readonly [detail: string]: Json;
}

/** What a held call waits for: an approval, until it expires; or its delay, after which it is sent. */
export interface Hold {
  readonly kind: 'approval' | 'delay';
  readonly until: Date;
  /** By the clock of PostgreSQL. */
  readonly leftMs: number;
}

/** What is to be done, and for whom. The claim writes it before the first byte leaves; later only its payload is erased. */
export interface CallIntent {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  /** The idempotency key of the caller, or the business key as it may be shown. */
  readonly key: string | null;
  /** What the txn is derived from. */
  readonly identity: 'key' | 'business' | 'shared' | 'repeat' | 'undo' | 'random';
  readonly fingerprint: Buffer;
  readonly kind: CallKind;
  readonly createdAt: Date;
  /** How long after the first send a `key` upstream still knows the key. */
  readonly keyLifetimeMs: number | null;
  /** The policies and the rule that allowed the call. */
  readonly policyVersion: string;
  readonly rule: string | null;
  /** The canonical arguments. Redacted if `sealed` has the full payload. */
  readonly args: string | null;
  readonly request: StoredRequest | null;
  /** The encrypted arguments and request of a tool that redacts. */
  readonly sealed: Buffer | null;
  /** When the payload was erased. */
  readonly erasedAt: Date | null;
  /** The saga of a step, or of the step that a compensation undoes. Only a step has an `ordinal`. */
  readonly saga: string | null;
  readonly ordinal: number | null;
  /** The txns that a step depends on; null: all earlier steps. */
  readonly dependsOn: readonly string[] | null;
  /** The run of the call, and the epoch that the agent held. The claim applies only while the epoch is current. */
  readonly run: string | null;
  readonly epoch: number | null;
  readonly undo: StoredUndo | null;
  /** For a compensation: the call that it undoes. A compensation runs even if its agent is frozen or gone. */
  readonly undoOf: string | null;
}

/** How far an open call has come. The last five fields stay when the call ends. */
export interface OpenCall {
  /** An open call has an owner, or a due time, or waits for a person. */
  readonly owner: string | null;
  readonly dueAt: Date | null;
  /** Grows with every change of owner. A write with an older fence changes nothing. */
  readonly fence: number;
  /** Counts the updates of the open row. A late update with an older number changes nothing. */
  readonly updateNumber: number;
  /** The outcome of the newest attempt is not recorded: it is in flight, or its sender died. */
  readonly attemptOpen: boolean;
  /** Closed attempts that may have had an effect. */
  readonly unresolved: number;
  /** The number of attempts before the current round. The verdict `retry` of a person starts a new round. */
  readonly roundFrom: number;
  readonly roundAt: Date;
  /** The result of the newest attempt in words; null while it is not known. */
  readonly attemptDetail: string | null;
  /** The evidence that disproved the unknown attempts. */
  readonly disprovedBy: 'probe' | 'observation' | null;
  /** A person asked for a retry, and the retry has not led to another doubt. */
  readonly isRetryRequested: boolean;
  /** The call was held and then approved, or its delay ended. The approval is checked again until something was sent. */
  readonly isApproved: boolean;
  /** Set while the call is held. */
  readonly hold: Hold | null;
  /** The saga is being rolled back or the run was taken over: only requests that resolve an unknown attempt are sent. */
  readonly recalled: boolean;
  /** The run was taken over. An `idempotent` call then sends nothing at all: a repeat could overwrite data of the successor. */
  readonly fenced: boolean;
  readonly attempt: number;
  readonly ownerDeaths: number;
  readonly firstSentAt: Date | null;
  /** When the newest unknown attempt became unknown. `settles` counts from here. */
  readonly unknownSince: Date | null;
  /** The fencing token of its locks: every later grant has a larger one. Null if the call has no locks. */
  readonly lockToken: number | null;
  /** The person whose verdict was `retry`. */
  readonly retriedBy: string | null;
}

/** The final answer and its evidence; null while the call is open. */
export interface CallSettlement {
  readonly outcome: string | null;
  readonly problem: ErrorCode | null;
  readonly answer: UpstreamAnswer | null;
  readonly evidence: Evidence | null;
  /** The person whose verdict ended the call. */
  readonly resolvedBy: string | null;
  /** The leaf hash of the audit entry that the receipt names. */
  readonly leaf: Buffer | null;
  readonly settledAt: Date | null;
}

/** How the call is undone, as far as that is known. */
export interface CallUndo {
  readonly undoState: UndoState;
  readonly undoReason: string | null;
  /** The newest compensation. */
  readonly undoTxn: string | null;
  readonly undoTries: number;
  /** The undo arguments as JSON, once the outcome is known. Redacted values are left out. */
  readonly undoArgs: string | null;
  readonly undoSealed: Buffer | null;
  /** The observation before the first send, as JSON. */
  readonly before: string | null;
}

/** A call as the ledger stores it. See docs/adr/0049-one-call-record.md. */
export interface CallRecord extends CallIntent, OpenCall, CallSettlement, CallUndo {
  readonly state: CallState;
  /** Why the call is in doubt or ended, in words. */
  readonly detail: string | null;
  /** The clock of PostgreSQL at the read. Ages are relative to it, never to the clock of a gateway. */
  readonly readAt: Date;
}

/** The fields of the intent that PostgreSQL sets. */
type FieldsSetByLedger = 'createdAt' | 'ordinal' | 'erasedAt';
/** What a claim writes of a call. */
export type ClaimedFields = Omit<CallIntent, FieldsSetByLedger>;
type NullableFields<T> = { [Field in keyof T]: null extends T[Field] ? Field : never }[keyof T];

/** The fields of a new call. Every other field has a default, and nullable fields default to null. */
export interface NewCallFields
  extends Omit<ClaimedFields, NullableFields<ClaimedFields>>,
    Partial<Pick<ClaimedFields, NullableFields<ClaimedFields>>> {
  /** `sending` opens attempt 1 at once; `ready` observes first; `held` waits for a person or a delay. */
  readonly state: 'held' | 'ready' | 'sending';
  /** Random, so that a late update of an earlier, released claim of the same txn does not apply. */
  readonly fence: number;
  readonly owner: string | null;
}

/**
 * The record of a call before its claim. PostgreSQL sets the times itself; those here serve only until the record is read. Every
 * record begins here, also one that is read from the ledger: one literal keeps the V8 shape monomorphic.
 */
export function createCallRecord(call: NewCallFields): CallRecord {
  const now = new Date();
  const isSending = call.state === 'sending';
  return {
    txn: call.txn,
    agent: call.agent,
    tool: call.tool,
    key: call.key ?? null,
    identity: call.identity,
    fingerprint: call.fingerprint,
    kind: call.kind,
    createdAt: now,
    keyLifetimeMs: call.keyLifetimeMs ?? null,
    policyVersion: call.policyVersion,
    rule: call.rule ?? null,
    args: call.args ?? null,
    request: call.request ?? null,
    sealed: call.sealed ?? null,
    erasedAt: null,
    saga: call.saga ?? null,
    ordinal: null,
    dependsOn: call.dependsOn ?? null,
    run: call.run ?? null,
    epoch: call.epoch ?? null,
    undo: call.undo ?? null,
    undoOf: call.undoOf ?? null,

    state: call.state,
    detail: null,
    owner: call.owner,
    dueAt: null,
    fence: call.fence,
    updateNumber: 0,
    attemptOpen: isSending,
    unresolved: 0,
    roundFrom: 0,
    roundAt: now,
    attemptDetail: null,
    disprovedBy: null,
    isRetryRequested: false,
    isApproved: false,
    hold: null,
    recalled: false,
    fenced: false,
    attempt: isSending ? 1 : 0,
    ownerDeaths: 0,
    firstSentAt: isSending ? now : null,
    unknownSince: null,
    lockToken: null,
    retriedBy: null,

    outcome: null,
    problem: null,
    answer: null,
    evidence: null,
    resolvedBy: null,
    leaf: null,
    settledAt: null,

    undoState: 'none',
    undoReason: null,
    undoTxn: null,
    undoTries: 0,
    undoArgs: null,
    undoSealed: null,
    before: null,

    readAt: now,
  };
}

/** Whether the gateway still works on an open call. A doubt that it works on may end without a person. */
export function isPursued({ owner, dueAt }: Pick<CallRecord, 'owner' | 'dueAt'>): boolean {
  return owner !== null || dueAt !== null;
}

/** A call without what may be large and what only its execution or its undo needs. */
export function withoutPayload(call: CallRecord): CallRecord {
  return {
    ...call,
    args: null,
    request: null,
    sealed: null,
    undo: null,
    undoArgs: null,
    undoSealed: null,
    before: null,
  };
}

/** Problems that concern the rules, run or saga of the first agent. Agents that joined a shared call see `cancelled` instead. */
const PRIVATE_PROBLEMS = new Set<ErrorCode>(['denied', 'fenced', 'saga_closed']);

export function hidePrivateProblem(call: CallRecord): CallRecord {
  if (call.problem === null || !PRIVATE_PROBLEMS.has(call.problem)) return { ...call, saga: null };
  const detail = 'the agent that made this call first could not complete it; nothing was sent';
  return { ...call, saga: null, problem: 'cancelled', detail };
}

/** A call as an agent that joined it may see it. Saga, run, locks and undo belong to the first agent, so they are left out. */
export function toJoinerView(call: CallRecord): CallRecord {
  return {
    ...hidePrivateProblem(call),
    undo: null,
    undoArgs: null,
    ordinal: null,
    run: null,
    epoch: null,
    lockToken: null,
    undoTxn: null,
    undoReason: null,
  };
}
