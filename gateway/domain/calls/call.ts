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

/** A call as the ledger stores it. */
export interface Call {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly key: string | null;
  readonly identity: 'key' | 'business' | 'shared' | 'repeat' | 'undo' | 'random';
  readonly fingerprint: Buffer;
  readonly kind: CallKind;
  readonly state: CallState;
  /** Grows with every change of owner. A write with an older fence changes nothing. */
  readonly fence: number;
  /** Counts the updates of the open row. A late update with an older number changes nothing. */
  readonly updateNumber: number;
  readonly attempt: number;
  /** The outcome of the newest attempt is not recorded: it is in flight, or its sender died. */
  readonly attemptOpen: boolean;
  /** Closed attempts that may have had an effect. */
  readonly unresolved: number;
  /** The number of attempts before the current round. The verdict `retry` of a person starts a new round. */
  readonly roundFrom: number;
  readonly ownerDeaths: number;
  readonly createdAt: Date;
  readonly firstSentAt: Date | null;
  readonly roundAt: Date;
  /** When the newest unknown attempt became unknown. `settles` counts from here. */
  readonly unknownSince: Date | null;
  /** How long after the first send a `key` upstream still knows the key. */
  readonly keyLifetimeMs: number | null;
  readonly policyVersion: string;
  readonly rule: string | null;
  readonly args: string | null;
  readonly request: StoredRequest | null;
  readonly sealed: Buffer | null;
  readonly outcome: string | null;
  readonly problem: ErrorCode | null;
  readonly detail: string | null;
  readonly answer: UpstreamAnswer | null;
  readonly evidence: Evidence | null;
  readonly resolvedBy: string | null;
  readonly settledAt: Date | null;
  readonly erasedAt: Date | null;
  readonly leaf: Buffer | null;
  /** The result of the newest attempt in words; null while it is not known. */
  readonly attemptDetail: string | null;
  /** The evidence that disproved the unknown attempts. */
  readonly disprovedBy: 'probe' | 'observation' | null;
  /** The person whose verdict was `retry`. */
  readonly retriedBy: string | null;
  /** A person asked for a retry, and the retry has not led to another doubt. */
  readonly isRetryRequested: boolean;
  /** An open call that was held and then approved, or whose delay ended. */
  readonly isApproved: boolean;
  /** The saga of a step, or of the step that a compensation undoes. Only a step has an `ordinal`. */
  readonly saga: string | null;
  readonly ordinal: number | null;
  /** The saga is being rolled back or the run was taken over: only requests that resolve an unknown attempt are sent. */
  readonly recalled: boolean;
  /** The run of the call, and the epoch that the agent held. */
  readonly run: string | null;
  readonly epoch: number | null;
  /** The run was taken over. An `idempotent` call then sends nothing at all: a repeat could overwrite data of the successor. */
  readonly fenced: boolean;
  /** The fencing token of its locks: every later grant has a larger one. Null if the call has no locks. */
  readonly lockToken: number | null;
  readonly undo: StoredUndo | null;
  /** The undo arguments as JSON, once the outcome is known. Redacted values are left out. */
  readonly undoArgs: string | null;
  readonly undoSealed: Buffer | null;
  /** The observation before the first send, as JSON. */
  readonly before: string | null;
  readonly undoState: UndoState;
  readonly undoReason: string | null;
  readonly undoTxn: string | null;
  readonly undoTries: number;
  /** For a compensation: the call that it undoes. */
  readonly undoOf: string | null;
  /** Set while the call is held. */
  readonly hold: Hold | null;
  /** An open call has an owner, or a due time, or waits for a person. */
  readonly owner: string | null;
  readonly dueAt: Date | null;
  /** The clock of PostgreSQL at the read. Ages are relative to it, never to the clock of a gateway. */
  readonly readAt: Date;
}

/** Problems that concern the rules, run or saga of the first agent. Agents that joined a shared call see `cancelled` instead. */
const PRIVATE_PROBLEMS = new Set<ErrorCode>(['denied', 'fenced', 'saga_closed']);

export function hidePrivateProblem<T extends Pick<Call, 'saga' | 'problem' | 'detail'>>(call: T): T {
  if (call.problem === null || !PRIVATE_PROBLEMS.has(call.problem)) return { ...call, saga: null };
  const detail = 'the agent that made this call first could not complete it; nothing was sent';
  return { ...call, saga: null, problem: 'cancelled', detail };
}

/** A call as an agent that joined it may see it. Saga, run, locks and undo belong to the first agent, so they are left out. */
export function toJoinerView(call: Call): Call {
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

/** The part of a call that an answer contains. */
export type CallSummary = Pick<
  Call,
  | 'txn'
  | 'agent'
  | 'tool'
  | 'identity'
  | 'fingerprint'
  | 'run'
  | 'state'
  | 'attempt'
  | 'answer'
  | 'outcome'
  | 'problem'
  | 'detail'
  | 'leaf'
  | 'saga'
> & {
  /** The gateway still works on the call. If it is in doubt, the doubt may end without a person. */
  readonly pursued: boolean;
  readonly hold?: Hold | null;
};

export function summarizeCall(call: Call): CallSummary {
  return {
    txn: call.txn,
    agent: call.agent,
    tool: call.tool,
    identity: call.identity,
    fingerprint: call.fingerprint,
    run: call.run,
    attempt: call.attempt,
    saga: call.saga,
    state: call.state,
    answer: call.answer,
    outcome: call.outcome,
    problem: call.problem,
    detail: call.detail,
    leaf: call.leaf,
    pursued: call.owner !== null || call.dueAt !== null,
    hold: call.hold,
  };
}
