import type { TaintScope } from '../../domain/controls/taint.ts';
import type { Queryable } from '../db.ts';

/** What an untrusted call exposes. */
export interface TaintExposure {
  readonly agent: string;
  readonly scopes: readonly TaintScope[];
  /** It was made outside of runs: every run of the agent that is not finished is exposed too. */
  readonly isOutsideRuns: boolean;
  readonly txn: string | null;
  readonly tool: string;
  /** The entry of the log for one scope. */
  readonly buildEntry: (scope: TaintScope) => string;
}

/** `tainted` of a run or saga in a list of columns: a `Taint`, or null. */
export function buildTaintColumn(of: 'run' | 'saga', id: string): string {
  const since = `to_char(t.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')`;
  return `(select jsonb_build_object('txn', t.txn, 'tool', t.tool, 'since', ${since})
    from taints t where t.holder = ${id}::text and t.of = '${of}') as tainted`;
}

/**
 * Taints what an untrusted call exposes, if it is not yet: only runs and sagas of the agent itself, whatever it names. In the
 * transaction of its claim, so that no answer of such a tool is ever with an agent that counts as clean.
 */
export async function recordTaint(
  db: Queryable,
  { agent, scopes, isOutsideRuns: loose, txn, tool, buildEntry: entryOf }: TaintExposure,
): Promise<void> {
  const open = loose ? await listCleanUnfinishedRuns(db, agent) : [];
  const all = [...scopes, ...open];
  if (all.length === 0) return;
  await db.run({
    name: 'taint',
    text: `with wish as (
        select * from unnest($1::text[], $2::text[], $3::text[]) as t(of, holder, entry)
      ), marked as (
        insert into taints (of, holder, txn, tool)
        select w.of, w.holder, $4, $5 from wish w
        where w.of = 'agent'
          or (w.of = 'run' and exists (select 1 from runs r where r.id = w.holder::uuid and r.agent = $6))
          or (w.of = 'saga' and exists (select 1 from sagas s where s.id = w.holder::uuid and s.agent = $6))
        order by w.of, w.holder
        on conflict do nothing returning of, holder
      )
      insert into audit_queue (entry) select w.entry from wish w where (w.of, w.holder) in (select m.of, m.holder from marked m)`,
    values: [all.map(({ of }) => of), all.map(({ holder }) => holder), all.map(entryOf), txn, tool, agent],
  });
}

async function listCleanUnfinishedRuns(db: Queryable, agent: string): Promise<readonly TaintScope[]> {
  return db.run<TaintScope>({
    name: 'clean-runs',
    text: `select 'run' as of, r.id::text as holder from runs r where r.agent = $1 and r.ended_at is null
      and not exists (select 1 from taints t where t.holder = r.id::text and t.of = 'run')`,
    values: [agent],
  });
}

export async function isRunOfAgent(db: Queryable, run: string, agent: string): Promise<boolean> {
  const rows = await db.run({
    name: 'is-run-of',
    text: 'select 1 from runs where id = $1 and agent = $2',
    values: [run, agent],
  });
  return rows.length > 0;
}

/** Whether any of these is tainted, or was at the given time. */
export async function isTainted(db: Queryable, scopes: readonly TaintScope[], asOf?: Date): Promise<boolean> {
  const rows = await db.run({
    name: 'is-tainted',
    text: `select 1 from taints t
      where (t.of, t.holder) in (select * from unnest($1::text[], $2::text[])) and ($3::timestamptz is null or t.at <= $3) limit 1`,
    values: [scopes.map(({ of }) => of), scopes.map(({ holder }) => holder), asOf ?? null],
  });
  return rows.length > 0;
}
