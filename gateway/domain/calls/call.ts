import type { StoredRequest, UpstreamAnswer } from '../attempts/adapter.ts';
import type { ErrorCode } from '../errors.ts';
import type { Json } from '../json.ts';
import type { StoredUndo, UndoState } from '../sagas/saga.ts';
import type { CallState } from './call-state.ts';

/** How a repeat is harmless: `once.by` of a write tool, or `read`. */
export type CallKind = 'read' | 'key' | 'idempotent' | 'probe' | 'none';

/** What stood behind the end of a call. */
export type Evidence = 'answer' | 'late_answer' | 'same_key' | 'probe' | 'person' | 'gateway';

/** One entry of a call's timeline beyond what its columns tell. */
export interface CallEvent {
  readonly at: string;
  readonly what: string;
  readonly [detail: string]: Json;
}

/** What a held call waits for: people, until it expires; or its time, when it leaves by itself. */
export interface Hold {
  readonly kind: 'approval' | 'delay';
  readonly until: Date;
  /** As PostgreSQL counts it. */
  readonly leftMs: number;
}

/** A call as the ledger tells it. */
export interface Call {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly key: string | null;
  readonly identity: 'key' | 'business' | 'shared' | 'repeat' | 'undo' | 'random';
  readonly fingerprint: Buffer;
  readonly kind: CallKind;
  readonly state: CallState;
  /** Grows with every change of hands; whoever holds an older one can change nothing. */
  readonly fence: number;
  /** Counts the changes made under fences: a change that comes late, because its connection did, applies to nothing. */
  readonly step: number;
  readonly attempt: number;
  /** The newest attempt's outcome is not recorded: it may be on the wire, or its sender died. */
  readonly attemptOpen: boolean;
  /** Closed attempts that may have had an effect. */
  readonly unresolved: number;
  /** The first attempt of the present round: a person's "retry" starts a new round. */
  readonly roundFrom: number;
  readonly ownerDeaths: number;
  readonly createdAt: Date;
  readonly firstSentAt: Date | null;
  readonly roundAt: Date;
  /** When the newest unknown attempt became unknown: `settles` counts from here. */
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
  readonly deliveredAt: Date | null;
  readonly erasedAt: Date | null;
  readonly leaf: Buffer | null;
  readonly contradiction: string | null;
  readonly events: readonly CallEvent[];
  /** The saga it is a step of (then it has an ordinal), or whose step it undoes. */
  readonly saga: string | null;
  readonly ordinal: number | null;
  /** Its saga is rolled back: nothing more of it is sent, except to find out about what was. */
  readonly recalled: boolean;
  /** The run it was made in, and the epoch its agent held then. */
  readonly run: string | null;
  readonly epoch: number | null;
  /** Its run was taken over: nothing more of it is sent, and of a `idempotent` call not even to find out. */
  readonly fenced: boolean;
  /** Grows with every taking of locks; null: it locked nothing. */
  readonly lockToken: number | null;
  readonly undo: StoredUndo | null;
  /** The arguments of its undo as JSON, once the outcome is known; where something is redacted, only as they may be shown. */
  readonly undoArgs: string | null;
  readonly undoSealed: Buffer | null;
  /** What was observed before it was sent, as JSON. */
  readonly before: string | null;
  readonly undoState: UndoState;
  readonly undoReason: string | null;
  readonly undoTxn: string | null;
  readonly undoTries: number;
  /** Of a compensation: the call it undoes. */
  readonly undoOf: string | null;
  /** While it is held. */
  readonly hold: Hold | null;
  /** Who looks after an open call: a process, the clock, or (neither) a person. */
  readonly owner: string | null;
  readonly dueAt: Date | null;
  /** PostgreSQL's time when this was read: ages are differences to it, never to a gateway's clock. */
  readonly readAt: Date;
}

/** What became of the first one's rules, run or saga is not for others to know: to them it was withdrawn. */
const PRIVATE_PROBLEMS = new Set<ErrorCode>(['denied', 'fenced', 'saga_closed']);

export function hidePrivateProblem<T extends Pick<Call, 'saga' | 'problem' | 'detail'>>(call: T): T {
  if (call.problem === null || !PRIVATE_PROBLEMS.has(call.problem)) return { ...call, saga: null };
  const detail = 'whoever asked for it first could not go through with it; nothing was sent';
  return { ...call, saga: null, problem: 'cancelled', detail };
}

/** A call as it is told to an agent that only joined it: saga, run, locks and undo are the first one's affair. */
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

/** As much of a call as an answer tells. */
export type CallSummary = Pick<
  Call,
  | 'txn'
  | 'agent'
  | 'tool'
  | 'identity'
  | 'state'
  | 'attempt'
  | 'answer'
  | 'outcome'
  | 'problem'
  | 'detail'
  | 'leaf'
  | 'saga'
> & {
  /** In doubt, but the gateway itself is still finding out. */
  readonly pursued: boolean;
  readonly hold?: Hold | null;
};

export function summarizeCall(call: Call): CallSummary {
  return {
    txn: call.txn,
    agent: call.agent,
    tool: call.tool,
    identity: call.identity,
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
