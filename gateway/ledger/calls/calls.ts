import type { CallRecord } from '../../domain/calls/call-record.ts';
import { GatewayError, LedgerError } from '../../domain/errors.ts';
import { requestApproval } from '../approvals/approvals.ts';
import { type LockConflict, takeLocks } from '../controls/locks.ts';
import { recordTaint } from '../controls/taints.ts';
import type { Database, Queryable, Statement } from '../db.ts';
import { GroupCommit } from '../group-commit.ts';
import { encodeClaims, encodeSettlements, encodeUpdates, type RowTypeOids, readRowTypeOids } from './call-batches.ts';
import { CALL_COLUMNS, CALLS_JOINED, type CallRow, toCallRecord } from './call-columns.ts';
import { appendCallEvents } from './call-events.ts';
import type { OpenCallPatch, SettlementPatch } from './call-patches.ts';
import {
  CLAIM_CALLS,
  CLAIM_IN_RUN_OR_SAGA,
  CLAIM_UNDOS,
  getWriteStatement,
  type WriteResult,
} from './call-statements.ts';
import {
  CLAIM_TAKEN,
  CLAIM_WON,
  type ClaimGuards,
  type ClaimResult,
  type NewCall,
  type StaleDecision,
} from './claim.ts';
import { lockAndReadHistory } from './history.ts';
import { bindAlias } from './joins.ts';
import { chargeLimits, type LimitExceeded } from './limits.ts';

/** Two batches in flight, so that batches grow large; further items wait. See docs/adr/0008-group-commit.md. */
const BATCH = { maxBatch: 128, maxInFlight: 2 };
/** Claims under the same limit wait for the same row lock. They wait in this queue, so they do not occupy connections. */
const LIMIT_QUEUE = { maxBatch: 1, maxInFlight: 2 };

interface GuardedClaim {
  readonly newCall: NewCall;
  readonly guards: ClaimGuards;
}

/** One item of a batch: a claim, an update or a settlement. */
interface LedgerWrite {
  readonly claim: NewCall | undefined;
  readonly update: OpenCallPatch | undefined;
  readonly settlement: SettlementPatch | undefined;
}

/** What a batch writes, by txn: each txn once. */
interface WriteBatch {
  readonly claims: Map<string, NewCall>;
  readonly updates: Map<string, OpenCallPatch>;
  readonly settlements: Map<string, SettlementPatch>;
}

/** Claims, updates, settles and reads calls, in batches. */
export class CallStore {
  readonly #db: Database;
  /** A claim yields a `ClaimResult`, an update or a settlement a boolean. */
  readonly #writes: GroupCommit<LedgerWrite, ClaimResult | boolean>;
  readonly #runOrSagaClaims: GroupCommit<NewCall, ClaimResult>;
  readonly #undoClaims: GroupCommit<NewCall, ClaimResult>;
  readonly #reads: GroupCommit<string, CallRecord | undefined>;
  /** Queues of guarded claims by limit, agent or tool. Policies name finitely many, so the map stays small. */
  readonly #guardedQueues = new Map<string, GroupCommit<GuardedClaim, ClaimResult | GatewayError>>();
  #rowTypeOids: Promise<RowTypeOids> | undefined;

  constructor(db: Database, onBatch: (size: number, waiting: number) => void = () => {}) {
    this.#db = db;
    this.#writes = new GroupCommit({ ...BATCH, onBatch, run: (writes) => this.#writeAll(writes) });
    this.#runOrSagaClaims = new GroupCommit({ ...BATCH, run: (newCalls) => this.#claimAll(newCalls) });
    this.#undoClaims = new GroupCommit({ ...BATCH, run: (newCalls) => this.#claimAll(newCalls) });
    this.#reads = new GroupCommit({ ...BATCH, shouldFailTogether: true, run: (txns) => this.#readAll(txns) });
  }

  /**
   * Commits an intent before anything is sent. A call without guards shares one statement with others. Guards lock further rows,
   * such as a limit's bucket, and may refuse. So a guarded call gets its own transaction: the others neither wait for its locks
   * nor share its refusal. Calls of a run or saga, and compensations, lock rows too and go in batches of their own.
   */
  claim(newCall: NewCall, guards?: ClaimGuards): Promise<ClaimResult> {
    const { record } = newCall;
    if (guards !== undefined) return this.#queueFor(record, guards).submit({ newCall, guards }).then(throwIfRefused);
    if (record.undoOf !== null) return this.#undoClaims.submit(newCall);
    if (isBoundToRunOrSaga(record)) return this.#runOrSagaClaims.submit(newCall);
    return this.#writes.submit({ claim: newCall, update: undefined, settlement: undefined }) as Promise<ClaimResult>;
  }

  /** A queue for each limit: an agent far beyond its limit must not occupy every connection and stall the other agents. */
  #queueFor({ agent, tool }: CallRecord, guards: ClaimGuards): GroupCommit<GuardedClaim, ClaimResult | GatewayError> {
    if (guards.history !== undefined) return this.#getQueue(`history/${agent}`);
    const name = guards.charges[0]?.bucket ?? `${guards.locks === undefined ? 'pending' : tool}:${agent}`;
    return this.#getQueue(name);
  }

  #getQueue(name: string): GroupCommit<GuardedClaim, ClaimResult | GatewayError> {
    let queue = this.#guardedQueues.get(name);
    if (queue === undefined) {
      const run = (items: readonly GuardedClaim[]) =>
        Promise.all(items.map((item) => this.#claimGuarded(item.newCall, item.guards)));
      queue = new GroupCommit({ ...LIMIT_QUEUE, run });
      this.#guardedQueues.set(name, queue);
    }
    return queue;
  }

  /** Updates an open call. Returns false if the call has ended or another process owns it. */
  update(patch: OpenCallPatch): Promise<boolean> {
    return this.#writes.submit({ claim: undefined, update: patch, settlement: undefined }) as Promise<boolean>;
  }

  /** Ends a call. Returns false if the call has ended otherwise, or if another process owns it and the patch is no evidence. */
  settle(patch: SettlementPatch): Promise<boolean> {
    return this.#writes.submit({ claim: undefined, update: undefined, settlement: patch }) as Promise<boolean>;
  }

  read(txn: string): Promise<CallRecord | undefined> {
    return this.#reads.submit(txn);
  }

  /**
   * Claims one call with its guards, in one transaction: a refusal by any guard rolls everything back. Returns a refusal instead
   * of throwing it, because a thrown error would fail every claim in the same queue.
   */
  async #claimGuarded(newCall: NewCall, guards: ClaimGuards): Promise<ClaimResult | GatewayError> {
    const { txn, agent, tool } = newCall.record;
    try {
      // Before the transaction, because this takes a connection of its own.
      await this.#loadRowTypeOids();
      return await this.#db.transaction(async (tx) => {
        // Claim first: a concurrent claim of the same txn waits here, and a claim that loses is charged to no limit.
        const [won] = await this.#claimAll([newCall], tx);
        if (won?.kind !== 'won') return CLAIM_TAKEN;
        if (guards.alias !== undefined) await bindAlias(tx, guards.alias, txn);
        if (guards.exposure !== undefined) await recordTaint(tx, guards.exposure);
        if (guards.history !== undefined) {
          const { queries, isDecisionUnchanged } = guards.history;
          const history = await lockAndReadHistory(tx, { agent, queries, exceptTxn: txn });
          if (!isDecisionUnchanged(history)) throw new ClaimRefused({ kind: 'stale_decision', history });
        }
        const exceeded = await chargeLimits(tx, txn, guards.charges);
        if (exceeded !== undefined) throw new ClaimRefused(exceeded);
        const locks = guards.locks === undefined ? undefined : await takeLocks(tx, guards.locks);
        if (locks?.kind === 'lock_conflict') throw new ClaimRefused(locks);
        if (guards.approval !== undefined) await requestApproval(tx, txn, agent, tool, guards.approval);
        if (guards.events !== undefined) await appendCallEvents(tx, txn, guards.events);
        return locks === undefined ? CLAIM_WON : { kind: 'won', lockToken: locks.token };
      });
    } catch (error) {
      if (error instanceof ClaimRefused) return error.refusal;
      if (error instanceof GatewayError) return error;
      throw error;
    }
  }

  /** Claims calls of one kind: plain calls, calls of a run or saga, or compensations. Each txn once; the first claim wins. */
  async #claimAll(newCalls: readonly NewCall[], db: Queryable = this.#db): Promise<ClaimResult[]> {
    const sample = newCalls[0]?.record;
    const statement =
      sample?.undoOf != null
        ? CLAIM_UNDOS
        : sample !== undefined && isBoundToRunOrSaga(sample)
          ? CLAIM_IN_RUN_OR_SAGA
          : CLAIM_CALLS;
    const claims = new Map<string, NewCall>();
    for (const newCall of newCalls) addIfAbsent(claims, newCall.record.txn, newCall);
    const values = [encodeClaims([...claims.values()], await this.#loadRowTypeOids())];
    const [written] = await db.run<WriteResult>({ ...statement, values });
    const won = parseTxns(written?.claimed);
    return newCalls.map((newCall) => toClaimResult(claims, newCall, won));
  }

  /** Writes claims, updates and settlements as one statement. Each txn once; the first claim wins, and later patches wait. */
  async #writeAll(writes: readonly LedgerWrite[]): Promise<(ClaimResult | boolean | Promise<boolean>)[]> {
    const batch: WriteBatch = { claims: new Map(), updates: new Map(), settlements: new Map() };
    const { claims, updates, settlements } = batch;
    for (const { claim, update, settlement } of writes) {
      if (claim !== undefined) addIfAbsent(claims, claim.record.txn, claim);
      if (update !== undefined && !settlements.has(update.txn)) addIfAbsent(updates, update.txn, update);
      if (settlement !== undefined && !updates.has(settlement.txn))
        addIfAbsent(settlements, settlement.txn, settlement);
    }
    const [written] = await this.#db.run<WriteResult>(await this.#buildWrite(batch));
    const won = parseTxns(written?.claimed);
    const updated = parseTxns(written?.updated);
    const ended = parseTxns(written?.ended);
    return writes.map(({ claim, update, settlement }) => {
      if (claim !== undefined) return toClaimResult(claims, claim, won);
      // A second patch of the same call goes into a later batch.
      if (update !== undefined)
        return updates.get(update.txn) === update ? updated.has(update.txn) : this.update(update);
      if (settlement === undefined) return false;
      const isWritten = settlements.get(settlement.txn) === settlement;
      return isWritten ? ended.has(settlement.txn) : this.settle(settlement);
    });
  }

  async #buildWrite({ claims, updates, settlements }: WriteBatch): Promise<Statement> {
    const oids = await this.#loadRowTypeOids();
    const statement = getWriteStatement({
      hasClaims: claims.size > 0,
      hasUpdates: updates.size > 0,
      hasSettlements: settlements.size > 0,
      hasUndos: [...settlements.values()].some(({ undo }) => undo !== null),
    });
    const values: Buffer[] = [];
    if (claims.size > 0) values.push(encodeClaims([...claims.values()], oids));
    if (updates.size > 0) values.push(encodeUpdates([...updates.values()], oids));
    if (settlements.size > 0) values.push(encodeSettlements([...settlements.values()], oids));
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
function isBoundToRunOrSaga({ saga, run }: CallRecord): boolean {
  return saga !== null || run !== null;
}

/** Dedupes by txn within a batch; the first item wins. */
function addIfAbsent<T>(first: Map<string, T>, txn: string, item: T): void {
  if (!first.has(txn)) first.set(txn, item);
}

function throwIfRefused(result: ClaimResult | GatewayError): ClaimResult {
  if (result instanceof GatewayError) throw result;
  return result;
}

function toClaimResult(claims: ReadonlyMap<string, NewCall>, newCall: NewCall, won: ReadonlySet<string>): ClaimResult {
  const { txn } = newCall.record;
  return claims.get(txn) === newCall && won.has(txn) ? CLAIM_WON : CLAIM_TAKEN;
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
