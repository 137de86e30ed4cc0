import type { StoredRequest } from '../../domain/attempts/adapter.ts';
import type { Call, CallEvent, CallKind, Evidence } from '../../domain/calls/call.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import type { History, HistoryQuery } from '../../domain/calls/history.ts';
import { type ErrorCode, GatewayError, LedgerError } from '../../domain/errors.ts';
import type { StoredUndo } from '../../domain/sagas/saga.ts';
import { type ApprovalRequest, requestApproval } from '../approvals/approvals.ts';
import { type LockConflict, type LockRequest, takeLocks } from '../controls/locks.ts';
import { recordTaint, type TaintExposure } from '../controls/taints.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { GroupCommit } from '../group-commit.ts';
import { CALL_COLUMNS, CALLS_WITH_OWNER, type CallRow, toCall } from './call-row.ts';
import {
  CLAIM_AND_UPDATE,
  CLAIM_BOUND,
  CLAIM_CALLS,
  CLAIM_UNDOS,
  UPDATE_CALLS,
  type WriteResult,
} from './call-statements.ts';
import { encodeClaims, encodeUpdates, type RowTypeOids, readRowTypeOids } from './encode-call-batch.ts';
import { lockAndReadHistory } from './history.ts';
import { bindAlias } from './joins.ts';
import { chargeLimits, type LimitCharge, type LimitExceeded } from './limits.ts';

/** Few and large: what waits meanwhile goes with the next one. See docs/adr/0008-group-commit.md. */
const BATCH = { maxBatch: 128, maxInFlight: 2 };
/** Claims that count against the same limit wait for each other anyway: here, and not each on a connection of its own. */
const LIMIT_QUEUE = { maxBatch: 1, maxInFlight: 2 };

interface GuardedClaim {
  readonly intent: Intent;
  readonly guards: ClaimGuards;
}

/** What T1 writes: the whole intent, committed before the first byte leaves. */
export interface Intent {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly key: string | null;
  readonly identity: Call['identity'];
  readonly fingerprint: Buffer;
  readonly kind: CallKind;
  /** The first fence, drawn at random: a late word about an earlier claim of the same txn does not fit this one. */
  readonly fence: number;
  /** `sending` opens attempt 1 at once; `ready` looks at the world first; `held` waits for a person until `dueInMs`. */
  readonly state: 'held' | 'ready' | 'sending';
  readonly owner: string | null;
  readonly dueInMs: number | null;
  readonly keyLifetimeMs: number | null;
  readonly policyVersion: string;
  readonly rule: string;
  readonly args: string;
  readonly request: StoredRequest | null;
  readonly sealed: Buffer | null;
  /** The saga it is a step of, or whose step it undoes. */
  readonly saga: string | null;
  /** Null: on all earlier steps. */
  readonly dependsOn: readonly string[] | null;
  /** The run it is made in, and the epoch its agent holds: the claim applies only while that is the current one. */
  readonly run: string | null;
  readonly epoch: number | null;
  readonly undo: StoredUndo | null;
  /** Of a compensation: the call it undoes, which must be due and tried this often so far. */
  readonly undoes: { readonly txn: string; readonly tries: number } | null;
  readonly entry: string;
}

/** What else must hold for a claim, in the same transaction. */
export interface ClaimGuards {
  readonly charges: readonly LimitCharge[];
  readonly approval: ApprovalRequest | undefined;
  readonly locks: LockRequest | undefined;
  /** The caller's own key beside a shared one: it must stand for no other call. */
  readonly alias?: string | undefined;
  /** What the rules asked about the agent's past, and whether they would still say the same. */
  readonly history?:
    | { readonly queries: readonly HistoryQuery[]; readonly isDecisionUnchanged: (past: History) => boolean }
    | undefined;
  /** What is tainted by this call. */
  readonly exposure?: TaintExposure | undefined;
  /** What happened before it was claimed, for its timeline. */
  readonly events?: readonly CallEvent[];
}

/** The agent's history changed after the decision, and its rules now decide differently. */
export interface StaleDecision {
  readonly kind: 'stale_decision';
  readonly history: History;
}

/** This claim wrote the intent. `lockToken` is null when the call locks nothing. */
export interface ClaimWon {
  readonly kind: 'won';
  readonly lockToken: number | null;
}

/** The txn exists already, or its run, saga or undone step refuses the claim. Nothing was written. */
export interface ClaimTaken {
  readonly kind: 'taken';
}

/** What became of a claim. Only `won` wrote something. */
export type ClaimResult = ClaimWon | ClaimTaken | LimitExceeded | LockConflict | StaleDecision;

// Shared constants: a claim without locks allocates no result.
export const CLAIM_WON: ClaimWon = { kind: 'won', lockToken: null };
export const CLAIM_TAKEN: ClaimTaken = { kind: 'taken' };

/** A change of an open call. Applied only if the call is still open and, unless it is evidence, the fence still holds. */
export interface CallUpdate {
  readonly txn: string;
  readonly fence: number;
  /** The number of this change: it applies only right after the one before, and is answered the same when it did already. */
  readonly step: number;
  /** An answer of the upstream or of a probe: the truth, whoever holds the call by now. */
  readonly isEvidence: boolean;
  readonly state: CallState;
  readonly attempt: number;
  readonly attemptOpen: boolean;
  readonly unresolved: number;
  /** How long ago the newest unknown attempt became unknown. */
  readonly unknownSinceMs: number | null;
  /** Who is responsible now: the same owner, nobody because it is final, or the clock (`dueInMs`, null: a person). */
  readonly custody: 'keep' | 'close' | 'park';
  readonly dueInMs: number | null;
  readonly outcome: string | null;
  readonly problem: ErrorCode | null;
  readonly detail: string | null;
  /** The answer as JSON text. */
  readonly answer: string | null;
  readonly evidence: Evidence | null;
  readonly resolvedBy: string | null;
  readonly leaf: Buffer | null;
  readonly event: CallEvent | null;
  readonly undo: UndoArguments | null;
  readonly entry: string;
}

/** What an undo is made of: what was there before, and later its arguments, in clear or sealed; or why there are none. */
export interface UndoArguments {
  readonly before: string | null;
  readonly args: string | null;
  readonly sealed: Buffer | null;
  readonly reason: string | null;
}

/** What goes to the ledger in one batch: T1 of some calls and T2 of others. */
interface LedgerWrite {
  readonly claim: Intent | undefined;
  readonly update: CallUpdate | undefined;
}

export class CallStore {
  readonly #db: Database;
  /** Answers as `claim` and `advance` do, whichever was written. */
  readonly #writes: GroupCommit<LedgerWrite, ClaimResult | boolean>;
  readonly #boundClaims: GroupCommit<Intent, ClaimResult>;
  readonly #undoClaims: GroupCommit<Intent, ClaimResult>;
  readonly #reads: GroupCommit<string, Call | undefined>;
  /** By limit; there are as many as the policies ever named. */
  readonly #guardedQueues = new Map<string, GroupCommit<GuardedClaim, ClaimResult | GatewayError>>();
  #rowTypeOids: Promise<RowTypeOids> | undefined;

  constructor(db: Database, onBatch: (size: number, waiting: number) => void = () => {}) {
    this.#db = db;
    this.#writes = new GroupCommit({ ...BATCH, onBatch, run: (writes) => this.#writeAll(writes) });
    this.#boundClaims = new GroupCommit({ ...BATCH, run: (intents) => this.#claimAll(intents) });
    this.#undoClaims = new GroupCommit({ ...BATCH, run: (intents) => this.#claimAll(intents) });
    this.#reads = new GroupCommit({ ...BATCH, shouldFailTogether: true, run: (txns) => this.#readAll(txns) });
  }

  /**
   * T1. A call without guards goes with others in one statement. Limits, locks and approvals lock rows of their own (a limit's
   * bucket) and may refuse, so such a call has a transaction for itself: neighbours neither wait for its locks nor share
   * its refusal. Calls of a run lock their run, steps their saga and compensations their step, in batches of their own.
   */
  claim(intent: Intent, guards?: ClaimGuards): Promise<ClaimResult> {
    if (guards !== undefined) return this.#queueFor(intent, guards).submit({ intent, guards }).then(throwIfRefused);
    if (intent.undoes !== null) return this.#undoClaims.submit(intent);
    if (isBoundToRunOrSaga(intent)) return this.#boundClaims.submit(intent);
    return this.#writes.submit({ claim: intent, update: undefined }) as Promise<ClaimResult>;
  }

  /** One agent that is far beyond its limit must not keep every connection, and so the other agents, waiting. */
  #queueFor(intent: Intent, guards: ClaimGuards): GroupCommit<GuardedClaim, ClaimResult | GatewayError> {
    if (guards.history !== undefined) return this.#getQueue(`history/${intent.agent}`);
    const name = guards.charges[0]?.bucket ?? `${guards.locks === undefined ? 'pending' : intent.tool}:${intent.agent}`;
    return this.#getQueue(name);
  }

  #getQueue(name: string): GroupCommit<GuardedClaim, ClaimResult | GatewayError> {
    let lane = this.#guardedQueues.get(name);
    if (lane === undefined) {
      const run = (items: readonly GuardedClaim[]) =>
        Promise.all(items.map((item) => this.#claimGuarded(item.intent, item.guards)));
      lane = new GroupCommit({ ...LIMIT_QUEUE, run });
      this.#guardedQueues.set(name, lane);
    }
    return lane;
  }

  /** T2 and everything between. False: the call is final, or in other hands. */
  update(change: CallUpdate): Promise<boolean> {
    return this.#writes.submit({ claim: undefined, update: change }) as Promise<boolean>;
  }

  read(txn: string): Promise<Call | undefined> {
    return this.#reads.submit(txn);
  }

  /** A refusal is an answer: as an error it would be one of the ledger, and refuse whatever waits in the same lane. */
  async #claimGuarded(intent: Intent, guards: ClaimGuards): Promise<ClaimResult | GatewayError> {
    try {
      // Not in there: it takes a connection of its own.
      await this.#loadRowTypeOids();
      return await this.#db.transaction(async (tx) => {
        // First: of two claims at once the other waits here, and what is not won costs no limit.
        const [won] = await this.#claimAll([intent], tx);
        if (won?.kind !== 'won') return CLAIM_TAKEN;
        if (guards.alias !== undefined) await bindAlias(tx, guards.alias, intent.txn);
        if (guards.exposure !== undefined) await recordTaint(tx, guards.exposure);
        if (guards.history !== undefined) {
          const { queries, isDecisionUnchanged } = guards.history;
          const history = await lockAndReadHistory(tx, { agent: intent.agent, queries, exceptTxn: intent.txn });
          if (!isDecisionUnchanged(history)) throw new ClaimRefused({ kind: 'stale_decision', history });
        }
        const exceeded = await chargeLimits(tx, intent.txn, guards.charges);
        if (exceeded !== undefined) throw new ClaimRefused(exceeded);
        const locks = guards.locks === undefined ? undefined : await takeLocks(tx, guards.locks);
        if (locks?.kind === 'lock_conflict') throw new ClaimRefused(locks);
        if (guards.approval !== undefined)
          await requestApproval(tx, intent.txn, intent.agent, intent.tool, guards.approval);
        if (guards.events !== undefined) await appendEvents(tx, intent.txn, guards.events);
        return locks === undefined ? CLAIM_WON : { kind: 'won', lockToken: locks.token };
      });
    } catch (error) {
      if (error instanceof ClaimRefused) return error.why;
      if (error instanceof GatewayError) return error;
      throw error;
    }
  }

  /** Claims of one kind: plain ones, those of a saga or run, or compensations. */
  async #claimAll(intents: readonly Intent[], on: Queryable = this.#db): Promise<ClaimResult[]> {
    const [some] = intents;
    const statement =
      some?.undoes != null ? CLAIM_UNDOS : some !== undefined && isBoundToRunOrSaga(some) ? CLAIM_BOUND : CLAIM_CALLS;
    const first = new Map<string, Intent>();
    for (const intent of intents) addIfAbsent(first, intent);
    const types = await this.#loadRowTypeOids();
    const [written] = await on.run<WriteResult>({ ...statement, values: [encodeClaims(first, types.claim)] });
    const won = parseTxns(written?.claimed);
    return intents.map((intent) => toClaimResult(first.get(intent.txn) === intent && won.has(intent.txn)));
  }

  async #writeAll(writes: readonly LedgerWrite[]): Promise<(ClaimResult | boolean | Promise<boolean>)[]> {
    const claims = new Map<string, Intent>();
    const changes = new Map<string, CallUpdate>();
    for (const { claim, update: advance } of writes) {
      if (claim !== undefined) addIfAbsent(claims, claim);
      if (advance !== undefined) addIfAbsent(changes, advance);
    }
    const { name, text } = changes.size === 0 ? CLAIM_CALLS : claims.size === 0 ? UPDATE_CALLS : CLAIM_AND_UPDATE;
    const types = await this.#loadRowTypeOids();
    const values: Buffer[] = [];
    if (claims.size > 0) values.push(encodeClaims(claims, types.claim));
    if (changes.size > 0) values.push(encodeUpdates(changes, types.change));
    const [written] = await this.#db.run<WriteResult>({ name, text, values });
    const won = parseTxns(written?.claimed);
    const moved = parseTxns(written?.moved);
    return writes.map(({ claim, update: advance }) => {
      if (claim !== undefined) return toClaimResult(claims.get(claim.txn) === claim && won.has(claim.txn));
      if (advance === undefined) return false;
      // Of two changes of one call the second is tried after the first.
      return changes.get(advance.txn) === advance ? moved.has(advance.txn) : this.update(advance);
    });
  }

  /** The numbers of the rows' types in this database, asked for once. Whoever could not ask has written nothing. */
  #loadRowTypeOids(): Promise<RowTypeOids> {
    this.#rowTypeOids ??= readRowTypeOids(this.#db).catch((error: unknown) => {
      this.#rowTypeOids = undefined;
      const text = error instanceof Error ? error.message : String(error);
      throw new LedgerError(text, { isCommitUnknown: false, cause: error });
    });
    return this.#rowTypeOids;
  }

  async #readAll(txns: readonly string[]): Promise<(Call | undefined)[]> {
    const rows = await this.#db.run<CallRow>({
      name: 'read-calls',
      text: `select ${CALL_COLUMNS} from ${CALLS_WITH_OWNER} where c.txn = any($1::uuid[])`,
      values: [[...new Set(txns)]],
    });
    const found = new Map(rows.map((row) => [row.txn, toCall(row)]));
    return txns.map((txn) => found.get(txn));
  }
}

async function appendEvents(tx: Tx, txn: string, events: readonly CallEvent[]): Promise<void> {
  await tx.run({
    name: 'note-events',
    text: 'update calls set events = events || $2::jsonb where txn = $1',
    values: [txn, JSON.stringify(events)],
  });
}

/** Whether it may be claimed only while something else stands. */
function isBoundToRunOrSaga({ saga, run }: Intent): boolean {
  return saga !== null || run !== null;
}

/** One row a txn and batch; a txn twice in one batch is claimed by its first only. */
function addIfAbsent<T extends { readonly txn: string }>(first: Map<string, T>, item: T): void {
  if (!first.has(item.txn)) first.set(item.txn, item);
}

function throwIfRefused(answer: ClaimResult | GatewayError): ClaimResult {
  if (answer instanceof GatewayError) throw answer;
  return answer;
}

function toClaimResult(ours: boolean): ClaimResult {
  return ours ? CLAIM_WON : CLAIM_TAKEN;
}

function parseTxns(text: string | null | undefined): ReadonlySet<string> {
  return new Set(text?.split(' '));
}

/** Ends the transaction of a claim that a limit, somebody's lock or the agent's past refuses. Its code is never told. */
class ClaimRefused extends GatewayError {
  readonly why: LimitExceeded | LockConflict | StaleDecision;

  constructor(why: LimitExceeded | LockConflict | StaleDecision) {
    super('conflict', 'a limit is used up, something is locked, or more was done since');
    this.why = why;
  }
}
