import type { PreparedRequest } from '../domain/adapter.ts';
import type { Call, CallEvent, Evidence, Kind } from '../domain/call.ts';
import { type ErrorCode, GatewayError } from '../domain/errors.ts';
import type { CallState } from '../domain/states.ts';
import { type ApprovalRequest, requestApproval } from './approvals.ts';
import { CALL_COLUMNS, CALLS, type CallRow, toCall } from './call-row.ts';
import type { Database, Queryable } from './db.ts';
import { GroupCommit } from './group-commit.ts';
import { type Exceeded, type Spend, spendAll } from './limits.ts';

const BATCH = { maxBatch: 64, maxInFlight: 4 };
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
  /** `sending` opens attempt 1 at once; `held` waits for a person until `dueInMs`. */
  readonly state: 'held' | 'sending';
  readonly owner: string | null;
  readonly dueInMs: number | null;
  readonly keyLifetimeMs: number | null;
  readonly policyVersion: string;
  readonly rule: string;
  readonly args: string;
  readonly request: PreparedRequest | null;
  readonly sealed: Buffer | null;
  readonly entry: string;
}

/** What else must hold for a claim, in the same transaction. */
export interface Guards {
  readonly spends: readonly Spend[];
  readonly approval: ApprovalRequest | undefined;
}

/** Ours; somebody's before; or a limit is used up and nothing was written. */
export type Claimed = 'won' | 'taken' | Exceeded;

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
  readonly entry: string;
}

export class Calls {
  readonly #db: Database;
  readonly #claims: GroupCommit<Intent, boolean>;
  readonly #advances: GroupCommit<Advance, boolean>;
  readonly #reads: GroupCommit<string, Call | undefined>;
  /** By limit; there are as many as the policies ever named. */
  readonly #lanes = new Map<string, GroupCommit<Guarded, Claimed | GatewayError>>();

  constructor(db: Database) {
    this.#db = db;
    this.#claims = new GroupCommit({ ...BATCH, run: (intents) => this.#claimAll(intents) });
    this.#advances = new GroupCommit({ ...BATCH, run: (changes) => this.#advanceAll(changes) });
    this.#reads = new GroupCommit({ ...BATCH, run: (txns) => this.#readAll(txns) });
  }

  /**
   * T1. A call without guards goes with others in one statement. Guards lock rows of their own (a limit's bucket) and
   * may refuse, so such a call has a transaction for itself: neighbours neither wait for its locks nor share its refusal.
   */
  async claim(intent: Intent, guards?: Guards): Promise<Claimed> {
    if (guards === undefined) return (await this.#claims.submit(intent)) ? 'won' : 'taken';
    const claimed = await this.#laneOf(intent, guards).submit({ intent, guards });
    if (claimed instanceof GatewayError) throw claimed;
    return claimed;
  }

  /** One agent that is far beyond its limit must not keep every connection, and so the other agents, waiting. */
  #laneOf(intent: Intent, guards: Guards): GroupCommit<Guarded, Claimed | GatewayError> {
    const name = guards.spends[0]?.bucket ?? `pending:${intent.agent}`;
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
    return this.#advances.submit(change);
  }

  read(txn: string): Promise<Call | undefined> {
    return this.#reads.submit(txn);
  }

  async #claimGuarded(intent: Intent, guards: Guards): Promise<Claimed | GatewayError> {
    try {
      return await this.#db.transaction(async (tx) => {
        // First: of two claims at once the other waits here, and what is not won costs no limit.
        const [won] = await this.#claimAll([intent], tx);
        if (won !== true) return 'taken';
        const exceeded = await spendAll(tx, intent.txn, guards.spends);
        if (exceeded !== undefined) throw new Refused(exceeded);
        if (guards.approval !== undefined)
          await requestApproval(tx, intent.txn, intent.agent, intent.tool, guards.approval);
        return 'won';
      });
    } catch (error) {
      if (error instanceof Refused) return error.exceeded;
      if (error instanceof GatewayError) return error;
      throw error;
    }
  }

  async #claimAll(intents: readonly Intent[], on: Queryable = this.#db): Promise<boolean[]> {
    // Sorted, so that two batches never wait for each other; a txn twice in one batch is claimed by its first only.
    const first = new Map<string, Intent>();
    for (const intent of intents) if (!first.has(intent.txn)) first.set(intent.txn, intent);
    const rows = [...first.values()].sort((a, b) => (a.txn < b.txn ? -1 : 1));
    const column = <T>(pick: (intent: Intent) => T) => rows.map(pick);
    const claimed = await on.run<{ txn: string }>({
      name: 'claim',
      text: CLAIM,
      values: [
        column((i) => i.txn),
        column((i) => i.agent),
        column((i) => i.tool),
        column((i) => i.key),
        column((i) => i.identity),
        column((i) => i.fingerprint),
        column((i) => i.kind),
        column((i) => i.state),
        column((i) => i.owner),
        column((i) => i.dueInMs),
        column((i) => i.keyLifetimeMs),
        column((i) => i.policyVersion),
        column((i) => i.rule),
        column((i) => i.args),
        column((i) => (i.request === null ? null : JSON.stringify(i.request))),
        column((i) => i.sealed),
        column((i) => i.entry),
        column((i) => i.fence),
      ],
    });
    const won = new Set(claimed.map((row) => row.txn));
    return intents.map((intent) => first.get(intent.txn) === intent && won.has(intent.txn));
  }

  async #advanceAll(changes: readonly Advance[]): Promise<boolean[]> {
    const first = new Map<string, Advance>();
    for (const change of changes) if (!first.has(change.txn)) first.set(change.txn, change);
    const rows = [...first.values()].sort((a, b) => (a.txn < b.txn ? -1 : 1));
    const column = <T>(pick: (change: Advance) => T) => rows.map(pick);
    const moved = await this.#db.run<{ txn: string }>({
      name: 'advance',
      text: ADVANCE,
      values: [
        column((c) => c.txn),
        column((c) => c.fence),
        column((c) => c.evident),
        column((c) => c.state),
        column((c) => c.attempt),
        column((c) => c.attemptOpen),
        column((c) => c.unresolved),
        column((c) => c.unknownSinceMs),
        column((c) => c.custody),
        column((c) => c.dueInMs),
        column((c) => c.outcome),
        column((c) => c.problem),
        column((c) => c.detail),
        column((c) => c.answer),
        column((c) => c.evidence),
        column((c) => c.resolvedBy),
        column((c) => c.leaf),
        column((c) => (c.event === null ? null : JSON.stringify([c.event]))),
        column((c) => c.entry),
        column((c) => c.step),
      ],
    });
    const done = new Set(moved.map((row) => row.txn));
    // Of two changes of one call the second is tried after the first.
    const second = changes.filter((change) => first.get(change.txn) !== change);
    const later = second.length === 0 ? [] : await this.#advanceAll(second);
    return changes.map((change) =>
      first.get(change.txn) === change ? done.has(change.txn) : (later.shift() ?? false),
    );
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

/** Ends the transaction of a claim that a limit refuses. */
class Refused extends GatewayError {
  readonly exceeded: Exceeded;

  constructor(exceeded: Exceeded) {
    super(exceeded.spend.kind === 'rate' ? 'rate_limited' : 'over_budget', 'a limit is used up');
    this.exceeded = exceeded;
  }
}

const CLAIM = `
with incoming as (
  select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[], $9::uuid[],
    $10::float8[], $11::float8[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bytea[], $17::text[], $18::int[])
    as t(txn, agent, tool, key, identity, fingerprint, kind, state, owner, due_ms, lifetime_ms, policy_version, rule, args, request, sealed, entry, fence)
), claimed as (
  insert into calls (txn, agent, tool, key, identity, fingerprint, kind, state, fence, attempt, attempt_open, first_sent_at, key_lifetime_ms,
    policy_version, rule, args, request, sealed)
  select txn, agent, tool, key, identity, fingerprint, kind, state, fence, (state = 'sending')::int, state = 'sending',
    case when state = 'sending' then now() end, lifetime_ms, policy_version, rule, args, request, sealed
  from incoming
  on conflict (txn) do nothing
  returning txn
), opened as (
  insert into open_calls (txn, owner, due_at)
  select i.txn, i.owner, now() + i.due_ms * interval '1 ms' from incoming i join claimed using (txn)
), logged as (
  insert into audit_queue (entry) select i.entry from incoming i join claimed using (txn)
)
select txn from claimed`;

const ADVANCE = `
with incoming as (
  select * from unnest($1::uuid[], $2::int[], $3::bool[], $4::text[], $5::int[], $6::bool[], $7::int[], $8::float8[], $9::text[],
    $10::float8[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::bytea[], $18::text[], $19::text[], $20::int[])
    as t(txn, fence, evident, state, attempt, attempt_open, unresolved, unknown_ms, custody, due_ms, outcome, problem, detail,
      answer, evidence, resolved_by, leaf, event, entry, step)
), moved as (
  update calls c set
    state = i.state,
    step = case when i.evident then c.step + 1 else i.step end,
    attempt = case when i.evident then c.attempt else i.attempt end,
    attempt_open = i.attempt_open,
    unresolved = i.unresolved,
    first_sent_at = coalesce(c.first_sent_at, case when i.attempt_open then now() end),
    unknown_since = coalesce(now() - i.unknown_ms * interval '1 ms', c.unknown_since),
    outcome = i.outcome,
    problem = i.problem,
    detail = i.detail,
    answer = i.answer,
    evidence = case when i.evident and c.fence <> i.fence and i.evidence = 'answer' then 'late_answer' else i.evidence end,
    resolved_by = i.resolved_by,
    leaf = coalesce(i.leaf, c.leaf),
    settled_at = case when i.custody = 'close' then now() end,
    events = case when i.event is null then c.events else c.events || i.event::jsonb end
  from incoming i
  where c.txn = i.txn and c.settled_at is null and (i.evident or (c.fence = i.fence and c.step = i.step - 1))
  returning c.txn, i.custody, i.due_ms, i.entry
), closed as (
  delete from open_calls o using moved m where m.txn = o.txn and m.custody = 'close'
), parked as (
  update open_calls o set owner = null, due_at = now() + m.due_ms * interval '1 ms' from moved m where m.txn = o.txn and m.custody = 'park'
), logged as (
  insert into audit_queue (entry) select entry from moved
)
select txn from moved
union all
select c.txn from calls c join incoming i on c.txn = i.txn where not i.evident and c.fence = i.fence and c.step = i.step`;
