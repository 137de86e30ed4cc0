import type { StoredRequest } from '../domain/adapter.ts';
import type { Call, CallEvent, Evidence, Kind } from '../domain/call.ts';
import { type ErrorCode, GatewayError, LedgerError } from '../domain/errors.ts';
import type { Past, Question } from '../domain/past.ts';
import type { StoredUndo } from '../domain/saga.ts';
import type { CallState } from '../domain/states.ts';
import { type ApprovalRequest, requestApproval } from './approvals.ts';
import { CALL_COLUMNS, CALLS, type CallRow, toCall } from './call-row.ts';
import { changeRows, claimRows, type RowTypes, readRowTypes } from './call-rows.ts';
import { ADVANCE, CLAIM, CLAIM_AND_ADVANCE, CLAIM_BOUND, CLAIM_UNDOS, type Written } from './calls-sql.ts';
import type { Database, Queryable, Tx } from './db.ts';
import { GroupCommit } from './group-commit.ts';
import { lockPast } from './history.ts';
import { bindAlias } from './joins.ts';
import { type Exceeded, type Spend, spendAll } from './limits.ts';
import { type LockedBy, type LockOrder, takeLocks } from './locks.ts';
import { type Exposure, taint } from './taints.ts';

/** Few and large: what waits meanwhile goes with the next one. See docs/adr/0008-group-commit.md. */
const BATCH = { maxBatch: 128, maxInFlight: 2 };
/** Claims that count against the same limit wait for each other anyway: here, and not each on a connection of its own. */
const LANE = { maxBatch: 1, maxInFlight: 2 };

interface Guarded {
  readonly intent: Intent;
  readonly guards: Guards;
}

/** What T1 writes: the whole intent, committed before the first byte leaves. */
export interface Intent {
  readonly txn: string;
  readonly agent: string;
  readonly tool: string;
  readonly key: string | null;
  readonly identity: Call['identity'];
  readonly fingerprint: Buffer;
  readonly kind: Kind;
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
export interface Guards {
  readonly spends: readonly Spend[];
  readonly approval: ApprovalRequest | undefined;
  readonly locks: LockOrder | undefined;
  /** The caller's own key beside a shared one: it must stand for no other call. */
  readonly alias?: string | undefined;
  /** What the rules asked about the agent's past, and whether they would still say the same. */
  readonly history?: { readonly questions: readonly Question[]; readonly stands: (past: Past) => boolean } | undefined;
  /** What is tainted by this call. */
  readonly exposure?: Exposure | undefined;
  /** What happened before it was claimed, for its timeline. */
  readonly events?: readonly CallEvent[];
}

/** The agent did something since its rules were asked, and they would say something else now. */
export interface Overtaken {
  readonly past: Past;
}

/** Ours, with or without locks; somebody's before; or refused by a limit, a lock or what was done since, and nothing was written. */
export type Claimed = 'won' | { readonly token: number } | 'taken' | Exceeded | LockedBy | Overtaken;

/** A change of an open call. Applied only if the call is still open and, unless it is evidence, the fence still holds. */
export interface Advance {
  readonly txn: string;
  readonly fence: number;
  /** The number of this change: it applies only right after the one before, and is answered the same when it did already. */
  readonly step: number;
  /** An answer of the upstream or of a probe: the truth, whoever holds the call by now. */
  readonly evident: boolean;
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
interface Write {
  readonly claim: Intent | undefined;
  readonly advance: Advance | undefined;
}

export class Calls {
  readonly #db: Database;
  /** Answers as `claim` and `advance` do, whichever was written. */
  readonly #writes: GroupCommit<Write, Claimed | boolean>;
  readonly #bound: GroupCommit<Intent, Claimed>;
  readonly #undos: GroupCommit<Intent, Claimed>;
  readonly #reads: GroupCommit<string, Call | undefined>;
  /** By limit; there are as many as the policies ever named. */
  readonly #lanes = new Map<string, GroupCommit<Guarded, Claimed | GatewayError>>();
  #types: Promise<RowTypes> | undefined;

  constructor(db: Database, onBatch: (size: number, waiting: number) => void = () => {}) {
    this.#db = db;
    this.#writes = new GroupCommit({ ...BATCH, onBatch, run: (writes) => this.#writeAll(writes) });
    this.#bound = new GroupCommit({ ...BATCH, run: (intents) => this.#claimAll(intents) });
    this.#undos = new GroupCommit({ ...BATCH, run: (intents) => this.#claimAll(intents) });
    this.#reads = new GroupCommit({ ...BATCH, allAlike: true, run: (txns) => this.#readAll(txns) });
  }

  /**
   * T1. A call without guards goes with others in one statement. Limits, locks and approvals lock rows of their own (a limit's
   * bucket) and may refuse, so such a call has a transaction for itself: neighbours neither wait for its locks nor share
   * its refusal. Calls of a run lock their run, steps their saga and compensations their step, in batches of their own.
   */
  claim(intent: Intent, guards?: Guards): Promise<Claimed> {
    if (guards !== undefined) return this.#laneOf(intent, guards).submit({ intent, guards }).then(unlessRefused);
    if (intent.undoes !== null) return this.#undos.submit(intent);
    if (isBound(intent)) return this.#bound.submit(intent);
    return this.#writes.submit({ claim: intent, advance: undefined }) as Promise<Claimed>;
  }

  /** One agent that is far beyond its limit must not keep every connection, and so the other agents, waiting. */
  #laneOf(intent: Intent, guards: Guards): GroupCommit<Guarded, Claimed | GatewayError> {
    if (guards.history !== undefined) return this.#laneNamed(`history/${intent.agent}`);
    const name = guards.spends[0]?.bucket ?? `${guards.locks === undefined ? 'pending' : intent.tool}:${intent.agent}`;
    return this.#laneNamed(name);
  }

  #laneNamed(name: string): GroupCommit<Guarded, Claimed | GatewayError> {
    let lane = this.#lanes.get(name);
    if (lane === undefined) {
      const run = (items: readonly Guarded[]) =>
        Promise.all(items.map((item) => this.#claimGuarded(item.intent, item.guards)));
      lane = new GroupCommit({ ...LANE, run });
      this.#lanes.set(name, lane);
    }
    return lane;
  }

  /** T2 and everything between. False: the call is final, or in other hands. */
  advance(change: Advance): Promise<boolean> {
    return this.#writes.submit({ claim: undefined, advance: change }) as Promise<boolean>;
  }

  read(txn: string): Promise<Call | undefined> {
    return this.#reads.submit(txn);
  }

  /** A refusal is an answer: as an error it would be one of the ledger, and refuse whatever waits in the same lane. */
  async #claimGuarded(intent: Intent, guards: Guards): Promise<Claimed | GatewayError> {
    try {
      // Not in there: it takes a connection of its own.
      await this.#rowTypes();
      return await this.#db.transaction(async (tx) => {
        // First: of two claims at once the other waits here, and what is not won costs no limit.
        const [won] = await this.#claimAll([intent], tx);
        if (won !== 'won') return 'taken';
        if (guards.alias !== undefined) await bindAlias(tx, guards.alias, intent.txn);
        if (guards.exposure !== undefined) await taint(tx, guards.exposure);
        if (guards.history !== undefined) {
          const { questions, stands } = guards.history;
          const past = await lockPast(tx, { agent: intent.agent, questions, besides: intent.txn });
          if (!stands(past)) throw new Refused({ past });
        }
        const exceeded = await spendAll(tx, intent.txn, guards.spends);
        if (exceeded !== undefined) throw new Refused(exceeded);
        const held = guards.locks === undefined ? undefined : await takeLocks(tx, guards.locks);
        if (held !== undefined && !('token' in held)) throw new Refused(held);
        if (guards.approval !== undefined)
          await requestApproval(tx, intent.txn, intent.agent, intent.tool, guards.approval);
        if (guards.events !== undefined) await noteEvents(tx, intent.txn, guards.events);
        return held ?? 'won';
      });
    } catch (error) {
      if (error instanceof Refused) return error.why;
      if (error instanceof GatewayError) return error;
      throw error;
    }
  }

  /** Claims of one kind: plain ones, those of a saga or run, or compensations. */
  async #claimAll(intents: readonly Intent[], on: Queryable = this.#db): Promise<Claimed[]> {
    const [some] = intents;
    const statement = some?.undoes != null ? CLAIM_UNDOS : some !== undefined && isBound(some) ? CLAIM_BOUND : CLAIM;
    const first = new Map<string, Intent>();
    for (const intent of intents) keepFirst(first, intent);
    const types = await this.#rowTypes();
    const [written] = await on.run<Written>({ ...statement, values: [claimRows(first, types.claim)] });
    const won = txnsIn(written?.claimed);
    return intents.map((intent) => claimedAs(first.get(intent.txn) === intent && won.has(intent.txn)));
  }

  async #writeAll(writes: readonly Write[]): Promise<(Claimed | boolean | Promise<boolean>)[]> {
    const claims = new Map<string, Intent>();
    const changes = new Map<string, Advance>();
    for (const { claim, advance } of writes) {
      if (claim !== undefined) keepFirst(claims, claim);
      if (advance !== undefined) keepFirst(changes, advance);
    }
    const { name, text } = changes.size === 0 ? CLAIM : claims.size === 0 ? ADVANCE : CLAIM_AND_ADVANCE;
    const types = await this.#rowTypes();
    const values: Buffer[] = [];
    if (claims.size > 0) values.push(claimRows(claims, types.claim));
    if (changes.size > 0) values.push(changeRows(changes, types.change));
    const [written] = await this.#db.run<Written>({ name, text, values });
    const won = txnsIn(written?.claimed);
    const moved = txnsIn(written?.moved);
    return writes.map(({ claim, advance }) => {
      if (claim !== undefined) return claimedAs(claims.get(claim.txn) === claim && won.has(claim.txn));
      if (advance === undefined) return false;
      // Of two changes of one call the second is tried after the first.
      return changes.get(advance.txn) === advance ? moved.has(advance.txn) : this.advance(advance);
    });
  }

  /** The numbers of the rows' types in this database, asked for once. Whoever could not ask has written nothing. */
  #rowTypes(): Promise<RowTypes> {
    this.#types ??= readRowTypes(this.#db).catch((error: unknown) => {
      this.#types = undefined;
      throw new LedgerError(error instanceof Error ? error.message : String(error), false, error);
    });
    return this.#types;
  }

  async #readAll(txns: readonly string[]): Promise<(Call | undefined)[]> {
    const rows = await this.#db.run<CallRow>({
      name: 'read-calls',
      text: `select ${CALL_COLUMNS} from ${CALLS} where c.txn = any($1::uuid[])`,
      values: [[...new Set(txns)]],
    });
    const found = new Map(rows.map((row) => [row.txn, toCall(row)]));
    return txns.map((txn) => found.get(txn));
  }
}

async function noteEvents(tx: Tx, txn: string, events: readonly CallEvent[]): Promise<void> {
  await tx.run({
    name: 'note-events',
    text: 'update calls set events = events || $2::jsonb where txn = $1',
    values: [txn, JSON.stringify(events)],
  });
}

/** Whether it may be claimed only while something else stands. */
function isBound({ saga, run }: Intent): boolean {
  return saga !== null || run !== null;
}

/** One row a txn and batch; a txn twice in one batch is claimed by its first only. */
function keepFirst<T extends { readonly txn: string }>(first: Map<string, T>, item: T): void {
  if (!first.has(item.txn)) first.set(item.txn, item);
}

function unlessRefused(answer: Claimed | GatewayError): Claimed {
  if (answer instanceof GatewayError) throw answer;
  return answer;
}

function claimedAs(ours: boolean): Claimed {
  return ours ? 'won' : 'taken';
}

function txnsIn(text: string | null | undefined): ReadonlySet<string> {
  return new Set(text?.split(' '));
}

/** Ends the transaction of a claim that a limit, somebody's lock or the agent's past refuses. Its code is never told. */
class Refused extends GatewayError {
  readonly why: Exceeded | LockedBy | Overtaken;

  constructor(why: Exceeded | LockedBy | Overtaken) {
    super('conflict', 'a limit is used up, something is locked, or more was done since');
    this.why = why;
  }
}
