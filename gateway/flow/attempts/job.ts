import type { PreparedRequest, ProgressListener } from '../../domain/attempts/adapter.ts';
import type { CallProgress } from '../../domain/attempts/next-step.ts';
import type { Call, CallKind } from '../../domain/calls/call.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { Tool } from '../../domain/policy.ts';
import type { StoredUndo } from '../../domain/sagas/saga.ts';
import type { Span } from '../../domain/telemetry.ts';
import type { Intent, UndoArguments } from '../../ledger/calls/calls.ts';
import type { Payload, SecretValues } from '../calls/payload.ts';
import { CancelToken } from '../cancel-token.ts';

/**
 * An open call in the hands of this process: what the ledger said when it was claimed or taken over, and what happened
 * since. Only the holder of the fence changes these, so they are the truth until an `advance` says otherwise.
 */
export interface Job {
  readonly txn: string;
  readonly agent: string;
  readonly identity: Call['identity'];
  readonly fingerprint: Buffer;
  readonly kind: CallKind;
  readonly tool: Tool;
  readonly owner: string;
  readonly fence: number;
  /** The number of the last change that was made. */
  step: number;
  readonly args: JsonObject;
  readonly request: PreparedRequest;
  /** What must be told nobody though its own tool redacts nothing of it: what it undoes does. */
  readonly secrets: SecretValues;
  state: CallState;
  attempt: number;
  attemptOpen: boolean;
  unresolved: number;
  readonly roundFrom: number;
  readonly ownerDeaths: number;
  readonly keyLifetimeMs: number | null;
  /** Moments on this process's monotonic clock, set from ages that PostgreSQL measured. */
  readonly roundAt: number;
  firstSentAt: number | null;
  unknownSince: number | null;
  /** It was held, and a person or the end of its delay let it go: before anything leaves it is made sure that this still holds. */
  readonly approved: boolean;
  readonly saga: string | null;
  /** Of a compensation: the call it undoes. It runs whatever became of its agent. */
  readonly undoOf: string | null;
  /** Its saga is rolled back: nothing more is sent, except to find out about what was. */
  recalled: boolean;
  /** Of the locks it holds; null while it holds none. */
  lockToken: number | null;
  /** Its run was taken over meanwhile. */
  fenced: boolean;
  readonly run: string | null;
  /** How it is undone, and what of that is known so far. */
  readonly undo: StoredUndo | null;
  before: Json | undefined;
  undoArguments: UndoArguments | null;
  /** What the newest attempt was told, as far as the ledger knew it when this process took the call; undefined: nothing. */
  readonly told: string | undefined;
  /** What found that nothing came of the attempts whose outcome was unknown. */
  disprovedBy: 'probe' | 'look' | undefined;
  /** False for a read whose contract says so: it is carried like any call, and leaves no trace in the ledger. */
  readonly recorded: boolean;
  /** Its time had come: the next step may be taken at once. */
  readonly woken: boolean;
  /** The MCP client that waits for it, if one does. */
  readonly follower: ProgressListener | undefined;
  /** The call that its caller watches; nobody does when it is recovered or compensates. */
  readonly stint: Span | undefined;
  /** Gone when the ledger cannot be told where the call stands: its caller is owed an answer all the same. */
  readonly ledger: CancelToken;
}

export function resumeJob(call: Call, tool: Tool, payload: Payload, before: Json | undefined, owner: string): Job {
  const moment = (at: Date | null) => (at === null ? null : performance.now() - (call.readAt.getTime() - at.getTime()));
  return {
    txn: call.txn,
    agent: call.agent,
    identity: call.identity,
    fingerprint: call.fingerprint,
    kind: call.kind,
    tool,
    owner,
    fence: call.fence,
    step: call.step,
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
    roundAt: moment(call.roundAt) ?? performance.now(),
    firstSentAt: moment(call.firstSentAt),
    unknownSince: moment(call.unknownSince),
    approved: call.events.some(({ what }) => what === 'approved' || what === 'unopposed'),
    saga: call.saga,
    undoOf: call.undoOf,
    recalled: call.recalled,
    fenced: call.fenced,
    lockToken: call.lockToken,
    run: call.run,
    undo: call.undo,
    before,
    undoArguments: null,
    told: lastRecordedDetail(call),
    disprovedBy: recordedDisproof(call),
    recorded: true,
    woken: true,
    follower: undefined,
    stint: undefined,
    ledger: new CancelToken(),
  };
}

/** Who was told something and let go of the call wrote it down; who died with its attempt open could not. */
function lastRecordedDetail({ events, attempt }: Call): string | undefined {
  const ofIt = events.filter((happened) => happened['attempt'] === attempt);
  const told = ofIt.map((happened) => happened['told'] ?? (happened.what === 'attempt_ended' && happened['detail']));
  const newest = told.findLast((words) => typeof words === 'string');
  return newest ?? (ofIt.some(({ what }) => what === 'taken_over') ? 'its sender is gone' : undefined);
}

const DISPROOF_BY_EVENT = new Map<string, Job['disprovedBy']>([
  ['probe_not_applied', 'probe'],
  ['observed_not_satisfied', 'look'],
  // A person who says "retry" vouches for what was unknown until then.
  ['verdict', undefined],
]);

function recordedDisproof({ events }: Call): Job['disprovedBy'] {
  const finding = events.findLast(({ what }) => DISPROOF_BY_EVENT.has(what));
  return finding && DISPROOF_BY_EVENT.get(finding.what);
}

/** As much of an intent as its job is made of. */
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
  | 'undoes'
  | 'run'
  | 'undo'
>;

/** A claim that was just won, as it stands in the ledger. */
export function createJob(
  intent: JobIntent,
  tool: Tool,
  owner: string,
  payload: Payload,
  {
    lockToken,
    recorded = true,
    follower,
    stint,
  }: Pick<Job, 'lockToken'> & Partial<Pick<Job, 'recorded' | 'follower' | 'stint'>>,
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
    step: 0,
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
    approved: false,
    saga: intent.saga,
    undoOf: intent.undoes?.txn ?? null,
    recalled: false,
    fenced: false,
    lockToken,
    run: intent.run,
    undo: intent.undo,
    before: undefined,
    undoArguments: null,
    told: undefined,
    disprovedBy: undefined,
    recorded,
    woken: false,
    follower,
    stint,
    ledger: new CancelToken(),
  };
}

/** A re-send must not only start but arrive while the upstream still knows the key. */
const LIFETIME_MARGIN = { share: 0.1, mostMs: 60_000 };

export function readAttemptFacts(job: Job): CallProgress {
  const now = performance.now();
  const lifetime = job.keyLifetimeMs ?? Number.POSITIVE_INFINITY;
  const margin = Math.min(lifetime * LIFETIME_MARGIN.share, LIFETIME_MARGIN.mostMs);
  return {
    kind: job.kind,
    attempt: job.attempt,
    roundFrom: job.roundFrom,
    unresolved: job.unresolved,
    ownerDeaths: job.ownerDeaths,
    bound: job.approved || job.undoOf !== null,
    recalled: job.recalled,
    fenced: job.fenced,
    isSaid: job.state === 'in_doubt',
    wasObserved: job.before !== undefined,
    wasUnknown: job.unknownSince !== null,
    msInRound: now - job.roundAt,
    msSinceUnknown: job.unknownSince === null ? 0 : now - job.unknownSince,
    msToResend: (job.firstSentAt ?? now) + lifetime - margin - now,
  };
}
