import { GatewayError } from '../../domain/errors.ts';
import { recordTaint, type TaintExposure } from '../controls/taints.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { groupByDatabase } from '../group-commit.ts';

/** Every refused call with a key reads aliases. A flood of refusals must not take all connections. */
const BATCH = { maxBatch: 128, maxInFlight: 2 };

/** The request of an agent to join a call that another agent has already made under a shared key. */
export interface JoinRequest {
  readonly txn: string;
  readonly agent: string;
  /** The txn that the agent's own key would give if the tool had no shared key. */
  readonly alias: string | undefined;
  /** The scopes that joining taints, because the agent may now read the result. */
  readonly exposure: TaintExposure | undefined;
  readonly entry: string;
}

/** Adds an agent to the participants of a call, if the call still exists. For the call's own agent it only binds the key. */
export async function joinCall(db: Database, { txn, agent, alias, exposure, entry }: JoinRequest): Promise<void> {
  await db.transaction(async (tx) => {
    const hasCall = await insertJoin(tx, txn, agent, entry);
    if (alias !== undefined && hasCall) await bindAlias(tx, alias, txn);
    if (exposure !== undefined) await recordTaint(tx, exposure);
  });
}

/**
 * Records the join and its audit entry once. Returns whether the call exists. The key-share lock keeps the call from being
 * released meanwhile. The call is locked before its alias, in the order of a release, so the two never wait in a circle.
 */
async function insertJoin(tx: Tx, txn: string, agent: string, entry: string): Promise<boolean> {
  const calls = await tx.run<{ txn: string }>({
    name: 'join-call',
    text: `with call as (
          select txn, agent from calls where txn = $1 for key share
        ), joined as (
          insert into joins (txn, agent) select txn, $2 from call where agent <> $2 on conflict do nothing returning txn
        ), logged as (
          insert into audit_queue (entry) select $3 from joined
        )
        select txn from call`,
    values: [txn, agent, entry],
  });
  return calls.length === 1;
}

/**
 * Binds a caller's own key to a call that is identified by a shared key. Refuses a key that is bound to another call, or is the
 * key of a call. `on conflict do update` without a change returns the existing binding, even one that has just committed. Two
 * different calls that bring one key at the same instant may both be admitted; each still runs once.
 */
export async function bindAlias(tx: Tx, alias: string, txn: string): Promise<void> {
  const rows = await tx.run<{ txn: string }>({
    name: 'bind-alias',
    text: `insert into aliases (alias, txn) select $1, $2 where not exists (select 1 from calls where txn = $1)
      on conflict (alias) do update
        -- Replaces the binding to a call that was released meanwhile.
        set txn = case when exists (select 1 from calls c where c.txn = aliases.txn) then aliases.txn else excluded.txn end
      returning txn`,
    values: [alias, txn],
  });
  if (rows[0]?.txn !== txn)
    throw new GatewayError('key_reused', 'This key belongs to another call. Use a new key for a new call.');
}

/** Finds the call that a key is bound to as an alias. Reads a snapshot: `bindAlias` decides again under a lock. */
export const findAliasedTxn = groupByDatabase<string, string | undefined>(BATCH, async (db, aliases) => {
  const rows = await db.run<{ alias: string; txn: string }>({
    name: 'find-aliased',
    text: 'select alias, txn from aliases where alias = any($1::uuid[])',
    values: [[...new Set(aliases)]],
  });
  const found = new Map(rows.map(({ alias, txn }) => [alias, txn]));
  return aliases.map((alias) => found.get(alias));
});

export interface JoinedAgent {
  readonly agent: string;
  readonly at: Date;
}

/** Lists the agents that joined a call, the earliest first. Joins are never removed while the call exists. */
export async function listJoinedAgents(db: Queryable, txn: string): Promise<readonly JoinedAgent[]> {
  return db.run<JoinedAgent>({
    name: 'list-joined-agents',
    text: 'select agent, joined_at as at from joins where txn = $1 order by joined_at, agent',
    values: [txn],
  });
}

/** Whether an agent joined a call. A join is permanent while the call exists. */
export async function hasJoined(db: Queryable, txn: string, agent: string): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'has-joined',
    text: 'select txn from joins where txn = $1 and agent = $2',
    values: [txn, agent],
  });
  return rows.length === 1;
}
