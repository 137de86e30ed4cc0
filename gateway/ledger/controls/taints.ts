import type { TaintScope } from '../../domain/controls/taint.ts';
import type { Queryable } from '../db.ts';

/** The scopes that a call with untrusted content taints. */
export interface TaintExposure {
  readonly agent: string;
  readonly scopes: readonly TaintScope[];
  /** The call was made outside of runs, so it also taints every unfinished run of the agent. */
  readonly isOutsideRuns: boolean;
  readonly txn: string | null;
  readonly tool: string;
  /** Builds the audit entry of one scope. */
  readonly buildEntry: (scope: TaintScope) => string;
}

/** The SQL of the column `tainted` of a run or saga: a `Taint`, or null. */
export function buildTaintColumn(of: 'run' | 'saga', id: string): string {
  const since = `to_char(t.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;
  return `(select jsonb_build_object('txn', t.txn, 'tool', t.tool, 'since', ${since})
    from taints t where t.holder = ${id}::text and t.of = '${of}') as tainted`;
}

/**
 * Taints the exposed scopes, in the transaction of the claim. So an agent that has an answer of an untrusted tool never counts as
 * clean.
 */
export async function recordTaint(db: Queryable, exposure: TaintExposure): Promise<void> {
  const runs = exposure.isOutsideRuns ? await listCleanUnfinishedRuns(db, exposure.agent) : [];
  const scopes = [...exposure.scopes, ...runs];
  if (scopes.length > 0) await insertTaints(db, scopes, exposure);
}

/**
 * Taints the scopes that are still clean, with an audit entry for each. Skips runs and sagas of other agents, even
 * if the exposure names them. Inserts in order of scope, so two claims never wait in a circle; the first taint of a scope is kept.
 */
async function insertTaints(
  db: Queryable,
  scopes: readonly TaintScope[],
  { agent, txn, tool, buildEntry }: TaintExposure,
): Promise<void> {
  await db.run({
    name: 'taint',
    text: `with exposed as (
        select * from unnest($1::text[], $2::text[], $3::text[]) as t(of, holder, entry)
      ), marked as (
        insert into taints (of, holder, txn, tool)
        select w.of, w.holder, $4, $5 from exposed w
        where w.of = 'agent'
          or (w.of = 'run' and exists (select 1 from runs r where r.id = w.holder::uuid and r.agent = $6))
          or (w.of = 'saga' and exists (select 1 from sagas s where s.id = w.holder::uuid and s.agent = $6))
        order by w.of, w.holder
        on conflict do nothing returning of, holder
      )
      insert into audit_queue (entry) select w.entry from exposed w where (w.of, w.holder) in (select m.of, m.holder from marked m)`,
    values: [scopes.map(({ of }) => of), scopes.map(({ holder }) => holder), scopes.map(buildEntry), txn, tool, agent],
  });
}

/** Reads without locking: a second taint of the same run does nothing, and taints are never removed. */
async function listCleanUnfinishedRuns(db: Queryable, agent: string): Promise<readonly TaintScope[]> {
  return db.run<TaintScope>({
    name: 'list-clean-runs',
    text: `select 'run' as of, r.id::text as holder from runs r where r.agent = $1 and r.ended_at is null
      and not exists (select 1 from taints t where t.holder = r.id::text and t.of = 'run')`,
    values: [agent],
  });
}

/** The agent of a run never changes, so no lock is needed. */
export async function isRunOfAgent(db: Queryable, run: string, agent: string): Promise<boolean> {
  const rows = await db.run({
    name: 'is-run-of-agent',
    text: 'select 1 from runs where id = $1 and agent = $2',
    values: [run, agent],
  });
  return rows.length > 0;
}

/** Whether any scope is tainted, or was at the given time. Taints are never removed, so no lock is needed. */
export async function isTainted(db: Queryable, scopes: readonly TaintScope[], asOf?: Date): Promise<boolean> {
  const rows = await db.run({
    name: 'is-tainted',
    text: `select 1 from taints t
      where (t.of, t.holder) in (select * from unnest($1::text[], $2::text[])) and ($3::timestamptz is null or t.at <= $3) limit 1`,
    values: [scopes.map(({ of }) => of), scopes.map(({ holder }) => holder), asOf ?? null],
  });
  return rows.length > 0;
}
