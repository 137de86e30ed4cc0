import type { StoredRequest } from '../../domain/attempts/adapter.ts';
import type { CallEvent, CallKind, CallRecord, Evidence } from '../../domain/calls/call-record.ts';
import type { CallState } from '../../domain/calls/call-state.ts';
import type { History, HistoryQuery } from '../../domain/calls/history.ts';
import { type ErrorCode, GatewayError, LedgerError } from '../../domain/errors.ts';
import type { StoredUndo } from '../../domain/sagas/saga.ts';
import { type ApprovalRequest, requestApproval } from '../approvals/approvals.ts';
import { type LockConflict, type LockRequest, takeLocks } from '../controls/locks.ts';
import { recordTaint, type TaintExposure } from '../controls/taints.ts';
import type { Database, Queryable, Statement } from '../db.ts';
import { GroupCommit } from '../group-commit.ts';
import { encodeClaims, encodeSettlements, encodeUpdates, type RowTypeOids, readRowTypeOids } from './call-batches.ts';
import { CALL_COLUMNS, CALLS_JOINED, type CallRow, toCallRecord } from './call-columns.ts';
import { appendCallEvents } from './call-events.ts';
import {
  CLAIM_CALLS,
  CLAIM_IN_RUN_OR_SAGA,
  CLAIM_UNDOS,
  getWriteStatement,
  type WriteResult,
} from './call-statements.ts';
import { lockAndReadHistory } from './history.ts';
import { bindAlias } from './joins.ts';
import { chargeLimits, type LimitCharge, type LimitExceeded } from './limits.ts';

/** Two batches in flight, so that batches grow large; further items wait. See docs/adr/0008-group-commit.md. */
const BATCH = { maxBatch: 128, maxInFlight: 2 };
/** Claims under the same limit wait for the same row lock. They wait in this queue, so they do not occupy connections. */
const LIMIT_QUEUE = { maxBatch: 1, maxInFlight: 2 };

interface GuardedClaim {
  readonly intent: Intent;
  readonly guards: ClaimGuards;
}

/** The whole intent of a call. The claim commits it before the first byte leaves. */
export interface Intent {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly key: string | null;
  readonly identity: CallRecord['identity'];
  readonly fingerprint: Buffer;
  readonly kind: CallKind;
  /** The first fence. It is random, so that a late update of an earlier, released claim of the same txn does not apply. */
  readonly fence: number;
  /** `sending` opens attempt 1 at once; `ready` observes first; `held` waits for a person or a delay until `dueInMs`. */
  readonly state: 'held' | 'ready' | 'sending';
  readonly owner: string | null;
  readonly dueInMs: number | null;
  readonly keyLifetimeMs: number | null;
  readonly policyVersion: string;
  readonly rule: string;
  readonly args: string;
  readonly request: StoredRequest | null;
  readonly sealed: Buffer | null;
  /** The saga of this step, or of the step that this compensation undoes. */
  readonly saga: string | null;
  /** The txns that this step depends on; null: all earlier steps. */
  readonly dependsOn: readonly string[] | null;
  /** The run of the call and the epoch of its agent. The claim applies only while the epoch is current. */
  readonly run: string | null;
  readonly epoch: number | null;
  readonly undo: StoredUndo | null;
  /** For a compensation: the call to undo. The claim wins only while that undo is due and has had exactly `undoTries` tries. */
  readonly undoOf: string | null;
  readonly undoTries: number | null;
  readonly entry: string;
}

/** The claim guards: conditions that must hold in the transaction of the claim. */
export interface ClaimGuards {
  readonly charges: readonly LimitCharge[];
  readonly approval: ApprovalRequest | undefined;
  readonly locks: LockRequest | undefined;
  /** The txn of the caller's own key beside a shared key. The key must be bound to no other call. */
  readonly alias?: string | undefined;
  /** The history queries of the rules, and whether the decision would be the same with newer answers. */
  readonly history?:
    | { readonly queries: readonly HistoryQuery[]; readonly isDecisionUnchanged: (history: History) => boolean }
    | undefined;
  /** The scopes that this call taints. */
  readonly exposure?: TaintExposure | undefined;
  /** Votes that were cast before the claim, as events for the timeline of the call. */
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

/** An update of an open call. It applies only to an unsettled call and, unless it is evidence, only with the current fence. */
export interface CallUpdate {
  readonly txn: string;
  readonly fence: number;
  /** The number of this update of the row. An update applies only after its predecessor; a repeat of an applied one reports success. */
  readonly updateNumber: number;
  /** An answer of the upstream or of a probe. It is true under any owner, so it applies under any fence. */
  readonly isEvidence: boolean;
  readonly state: CallState;
  readonly attempt: number;
  readonly attemptOpen: boolean;
  readonly unresolved: number;
  /** Age of the newest attempt whose outcome is unknown. */
  readonly unknownSinceMs: number | null;
  /** `keep`: the same owner; `close`: the call is final; `park`: no owner until `dueInMs` (null: until a person decides). */
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
  /** The result of the newest attempt in words; null while it is not known. */
  readonly attemptDetail: string | null;
  readonly disprovedBy: CallRecord['disprovedBy'];
  readonly entry: string;
}

/** The data of an undo: the observed state before the call, the arguments in clear or sealed, or the reason why they are missing. */
export interface UndoArguments {
  readonly before: string | null;
  readonly args: string | null;
  readonly sealed: Buffer | null;
  readonly reason: string | null;
}

/** One item of a batch: a claim or an update. */
interface LedgerWrite {
  readonly claim: Intent | undefined;
  readonly update: CallUpdate | undefined;
}

/** Claims, updates and reads calls, in batches. */
export class CallStore {
  readonly #db: Database;
  /** A claim yields a `ClaimResult`, an update a boolean. */
  readonly #writes: GroupCommit<LedgerWrite, ClaimResult | boolean>;
  readonly #runOrSagaClaims: GroupCommit<Intent, ClaimResult>;
  readonly #undoClaims: GroupCommit<Intent, ClaimResult>;
  readonly #reads: GroupCommit<string, CallRecord | undefined>;
  /** Queues of guarded claims by limit, agent or tool. Policies name finitely many, so the map stays small. */
  readonly #guardedQueues = new Map<string, GroupCommit<GuardedClaim, ClaimResult | GatewayError>>();
  #rowTypeOids: Promise<RowTypeOids> | undefined;

  constructor(db: Database, onBatch: (size: number, waiting: number) => void = () => {}) {
    this.#db = db;
    this.#writes = new GroupCommit({ ...BATCH, onBatch, run: (writes) => this.#writeAll(writes) });
    this.#runOrSagaClaims = new GroupCommit({ ...BATCH, run: (intents) => this.#claimAll(intents) });
    this.#undoClaims = new GroupCommit({ ...BATCH, run: (intents) => this.#claimAll(intents) });
    this.#reads = new GroupCommit({ ...BATCH, shouldFailTogether: true, run: (txns) => this.#readAll(txns) });
  }

  /**
   * Commits an intent before anything is sent. A call without guards shares one statement with others. Guards lock further rows,
   * such as a limit's bucket, and may refuse. So a guarded call gets its own transaction: the others neither wait for its locks
   * nor share its refusal. Calls of a run or saga, and compensations, lock rows too and go in batches of their own.
   */
  claim(intent: Intent, guards?: ClaimGuards): Promise<ClaimResult> {
    if (guards !== undefined) return this.#queueFor(intent, guards).submit({ intent, guards }).then(throwIfRefused);
    if (intent.undoOf !== null) return this.#undoClaims.submit(intent);
    if (isBoundToRunOrSaga(intent)) return this.#runOrSagaClaims.submit(intent);
    return this.#writes.submit({ claim: intent, update: undefined }) as Promise<ClaimResult>;
  }

  /** A queue for each limit: an agent far beyond its limit must not occupy every connection and stall the other agents. */
  #queueFor(intent: Intent, guards: ClaimGuards): GroupCommit<GuardedClaim, ClaimResult | GatewayError> {
    if (guards.history !== undefined) return this.#getQueue(`history/${intent.agent}`);
    const name = guards.charges[0]?.bucket ?? `${guards.locks === undefined ? 'pending' : intent.tool}:${intent.agent}`;
    return this.#getQueue(name);
  }

  #getQueue(name: string): GroupCommit<GuardedClaim, ClaimResult | GatewayError> {
    let queue = this.#guardedQueues.get(name);
    if (queue === undefined) {
      const run = (items: readonly GuardedClaim[]) =>
        Promise.all(items.map((item) => this.#claimGuarded(item.intent, item.guards)));
      queue = new GroupCommit({ ...LIMIT_QUEUE, run });
      this.#guardedQueues.set(name, queue);
    }
    return queue;
  }

  /** Updates or settles a call. Returns false if the call is final or another process owns it. */
  update(update: CallUpdate): Promise<boolean> {
    return this.#writes.submit({ claim: undefined, update }) as Promise<boolean>;
  }

  read(txn: string): Promise<CallRecord | undefined> {
    return this.#reads.submit(txn);
  }

  /**
   * Claims one call with its guards, in one transaction: a refusal by any guard rolls everything back. Returns a refusal instead
   * of throwing it, because a thrown error would fail every claim in the same queue.
   */
  async #claimGuarded(intent: Intent, guards: ClaimGuards): Promise<ClaimResult | GatewayError> {
    try {
      // Before the transaction, because this takes a connection of its own.
      await this.#loadRowTypeOids();
      return await this.#db.transaction(async (tx) => {
        // Claim first: a concurrent claim of the same txn waits here, and a claim that loses is charged to no limit.
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
        if (guards.events !== undefined) await appendCallEvents(tx, intent.txn, guards.events);
        return locks === undefined ? CLAIM_WON : { kind: 'won', lockToken: locks.token };
      });
    } catch (error) {
      if (error instanceof ClaimRefused) return error.refusal;
      if (error instanceof GatewayError) return error;
      throw error;
    }
  }

  /** Claims intents of one kind: plain calls, calls of a run or saga, or compensations. Each txn once; the first intent wins. */
  async #claimAll(intents: readonly Intent[], db: Queryable = this.#db): Promise<ClaimResult[]> {
    const [sample] = intents;
    const statement =
      sample?.undoOf != null
        ? CLAIM_UNDOS
        : sample !== undefined && isBoundToRunOrSaga(sample)
          ? CLAIM_IN_RUN_OR_SAGA
          : CLAIM_CALLS;
    const claims = new Map<string, Intent>();
    for (const intent of intents) addIfAbsent(claims, intent);
    const values = [encodeClaims([...claims.values()], await this.#loadRowTypeOids())];
    const [written] = await db.run<WriteResult>({ ...statement, values });
    const won = parseTxns(written?.claimed);
    return intents.map((intent) => toClaimResult(claims.get(intent.txn) === intent && won.has(intent.txn)));
  }

  /** Writes claims and updates as one statement. Each txn once; the first claim wins, and later updates wait. */
  async #writeAll(writes: readonly LedgerWrite[]): Promise<(ClaimResult | boolean | Promise<boolean>)[]> {
    const claims = new Map<string, Intent>();
    const updates = new Map<string, CallUpdate>();
    for (const { claim, update } of writes) {
      if (claim !== undefined) addIfAbsent(claims, claim);
      if (update !== undefined) addIfAbsent(updates, update);
    }
    const [written] = await this.#db.run<WriteResult>(await this.#buildWrite(claims, [...updates.values()]));
    const won = parseTxns(written?.claimed);
    const updated = parseTxns(written?.updated);
    const ended = parseTxns(written?.ended);
    return writes.map(({ claim, update }) => {
      if (claim !== undefined) return toClaimResult(claims.get(claim.txn) === claim && won.has(claim.txn));
      if (update === undefined) return false;
      // A second update of the same call goes into a later batch.
      if (updates.get(update.txn) !== update) return this.update(update);
      return (update.custody === 'close' ? ended : updated).has(update.txn);
    });
  }

  async #buildWrite(claims: ReadonlyMap<string, Intent>, updates: readonly CallUpdate[]): Promise<Statement> {
    const oids = await this.#loadRowTypeOids();
    const settlements = updates.filter(({ custody }) => custody === 'close');
    const others = settlements.length === updates.length ? [] : updates.filter(({ custody }) => custody !== 'close');
    const statement = getWriteStatement({
      hasClaims: claims.size > 0,
      hasUpdates: others.length > 0,
      hasSettlements: settlements.length > 0,
      hasUndos: settlements.some(({ undo }) => undo !== null),
    });
    const values: Buffer[] = [];
    if (claims.size > 0) values.push(encodeClaims([...claims.values()], oids));
    if (others.length > 0) values.push(encodeUpdates(others, oids));
    if (settlements.length > 0) values.push(encodeSettlements(settlements, oids));
    return { ...statement, values };
  }

  /** Reads the oids once and keeps them. If the read fails, nothing was written, so the commit is never unknown. */
  #loadRowTypeOids(): Promise<RowTypeOids> {
    this.#rowTypeOids ??= readRowTypeOids(this.#db).catch((error: unknown) => {
      this.#rowTypeOids = undefined;
      const text = error instanceof Error ? error.message : String(error);
      throw new LedgerError(text, { isCommitUnknown: false, cause: error });
    });
    return this.#rowTypeOids;
  }

  async #readAll(txns: readonly string[]): Promise<(CallRecord | undefined)[]> {
    const rows = await readCallRows(this.#db, [...new Set(txns)]);
    const found = new Map(rows.map((row) => [row.txn, toCallRecord(row)]));
    return txns.map((txn) => found.get(txn));
  }
}

/** Reads calls in one snapshot and locks nothing. A later update checks the fence that was read here. */
function readCallRows(db: Queryable, txns: readonly string[]): Promise<readonly CallRow[]> {
  return db.run<CallRow>({
    name: 'read-calls',
    text: `select ${CALL_COLUMNS} from ${CALLS_JOINED} where c.txn = any($1::uuid[])`,
    values: [txns],
  });
}

/** Whether the claim depends on an open saga or the current epoch of a run. */
function isBoundToRunOrSaga({ saga, run }: Intent): boolean {
  return saga !== null || run !== null;
}

/** Dedupes by txn within a batch; the first item wins. */
function addIfAbsent<T extends { readonly txn: string }>(first: Map<string, T>, item: T): void {
  if (!first.has(item.txn)) first.set(item.txn, item);
}

function throwIfRefused(result: ClaimResult | GatewayError): ClaimResult {
  if (result instanceof GatewayError) throw result;
  return result;
}

function toClaimResult(ours: boolean): ClaimResult {
  return ours ? CLAIM_WON : CLAIM_TAKEN;
}

function parseTxns(text: string | null | undefined): ReadonlySet<string> {
  return new Set(text?.split(' '));
}

/** Rolls back the transaction of a refused claim. Never leaves this file; its code and message are never shown. */
class ClaimRefused extends GatewayError {
  readonly refusal: LimitExceeded | LockConflict | StaleDecision;

  constructor(refusal: LimitExceeded | LockConflict | StaleDecision) {
    super('conflict', 'A claim guard refused the claim.');
    this.refusal = refusal;
  }
}
