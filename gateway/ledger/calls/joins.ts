import { GatewayError } from '../../domain/errors.ts';
import { recordTaint, type TaintExposure } from '../controls/taints.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { groupByDatabase } from '../group-commit.ts';

/** Every refused call with a key asks: no flood of those may take all connections. */
const BATCH = { maxBatch: 128, maxInFlight: 2 };

/** An agent asks for what another one asked for before. */
export interface JoinRequest {
  readonly txn: string;
  readonly agent: string;
  /** The txn that the key it brought would have been otherwise. */
  readonly alias: string | undefined;
  /** What is tainted by it: from now on it may ask how the call went. */
  readonly exposure: TaintExposure | undefined;
  readonly entry: string;
}

/** Takes part in a call, if it is still there, once, with its entry in the log. Of the call's own agent only the key is noted. */
export async function joinCall(db: Database, { txn, agent, alias, exposure, entry }: JoinRequest): Promise<void> {
  await db.transaction(async (tx) => {
    const calls = await tx.run<{ txn: string }>({
      name: 'join-call',
      // Locked, and before its key: a claim that is given up meanwhile takes both away, in the same order.
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
    if (alias !== undefined && calls.length === 1) await bindAlias(tx, alias, txn);
    if (exposure !== undefined) await recordTaint(tx, exposure);
  });
}

/**
 * A caller's own key stands for one call, although it does not identify it. Refused when it stands for another one already,
 * or is itself one. Two different calls that bring one key at the same instant may both be let in: each still runs once.
 */
export async function bindAlias(tx: Tx, alias: string, txn: string): Promise<void> {
  const rows = await tx.run<{ txn: string }>({
    name: 'bind-alias',
    // An update that changes nothing answers what is there already, also when it was written a moment ago.
    text: `insert into aliases (alias, txn) select $1, $2 where not exists (select 1 from calls where txn = $1)
      on conflict (alias) do update
        -- One whose call was given up while it was noted stands for nothing.
        set txn = case when exists (select 1 from calls c where c.txn = aliases.txn) then aliases.txn else excluded.txn end
      returning txn`,
    values: [alias, txn],
  });
  if (rows[0]?.txn !== txn)
    throw new GatewayError('key_reused', 'This key belongs to another call. Use a new key for a new call.');
}

/** The call that a key stands for without identifying it. */
export const findAliasedTxn = groupByDatabase<string, string | undefined>(BATCH, async (db, aliases) => {
  const rows = await db.run<{ alias: string; txn: string }>({
    name: 'aliased',
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

/** Who joined a call, the earliest first. */
export async function listJoinedAgents(db: Queryable, txn: string): Promise<readonly JoinedAgent[]> {
  return db.run<JoinedAgent>({
    name: 'joined-by',
    text: 'select agent, joined_at as at from joins where txn = $1 order by joined_at, agent',
    values: [txn],
  });
}

export async function hasJoined(db: Queryable, txn: string, agent: string): Promise<boolean> {
  const rows = await db.run<{ txn: string }>({
    name: 'has-joined',
    text: 'select txn from joins where txn = $1 and agent = $2',
    values: [txn, agent],
  });
  return rows.length === 1;
}
