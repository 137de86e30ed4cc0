import type { OlderOpenCall, Run, RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import { buildCursorCondition } from '../calls/list-calls.ts';
import { withdrawOlderEpochs } from '../calls/withdraw-older-epochs.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { buildTaintColumn } from './taints.ts';

/** A read has no effect that could land. */
const buildOpenInOlderEpochs = (epoch: string) => `from open_calls o join calls c on c.txn = o.txn
  where o.run = r.id and c.epoch < ${epoch} and c.kind <> 'read' and c.settled_at is null`;

/** A call is a sign of life too, and its row tells: nothing is written for it. */
const LAST_SEEN_SQL = `greatest(r.taken_at, r.heartbeat_at, r.checkpoint_at,
  (select c.created_at from calls c where c.run = r.id order by c.created_at desc, c.txn desc limit 1))`;

const RUN_COLUMNS = `r.id, r.agent, r.name, r.epoch, r.created_at as "createdAt", r.taken_at as "takenAt", s.seen as "lastSeenAt",
  r.ttl_ms as "ttlMs", r.ended_at as "endedAt", r.checkpoint_at as "checkpointAt",
  coalesce(r.ended_at is null and s.seen + r.ttl_ms * interval '1 ms' < now(), false) as abandoned,
  (select count(*)::int ${buildOpenInOlderEpochs('r.epoch')}) as "openCount",
  ${buildTaintColumn('run', 'r.id')}`;
const RUNS_WITH_LAST_SEEN = `runs r cross join lateral (select ${LAST_SEEN_SQL} as seen) s`;

export interface TakeRunRequest {
  readonly id: string;
  readonly agent: string;
  readonly name: string;
  readonly key: string | null;
  /** Null: as it was. */
  readonly ttlMs: number | null;
  readonly buildEntry: (epoch: number, withdrawn: readonly string[]) => string;
}

export interface TakeRunResult {
  readonly epoch: number;
  /** The same key took it before, and nobody has since. */
  readonly isRepeat: boolean;
}

/**
 * Takes a run, or takes it over: raises its epoch and withdraws what older epochs have not sent. A claim locks the same row
 * while it is written, so once this is committed no claim of an older epoch commits any more.
 */
export async function takeRun(db: Database, take: TakeRunRequest): Promise<TakeRunResult> {
  return db.transaction(async (tx) => {
    await tx.run({
      name: 'make-run',
      text: 'insert into runs (id, agent, name) values ($1, $2, $3) on conflict (id) do nothing',
      values: [take.id, take.agent, take.name],
    });
    const { epoch: before, ended } = await lockRun(tx, take.id);
    const earlier = take.key === null ? undefined : await findEpochTakenWithKey(tx, take.id, take.key);
    if (earlier !== undefined) {
      if (earlier === before && !ended) return { epoch: earlier, isRepeat: true };
      throw new GatewayError(
        'fenced',
        `This key took epoch ${earlier}, and that is over: the run is ${ended ? 'finished' : `in epoch ${before}`}. To take it again, use a new key.`,
      );
    }
    const epoch = before + 1;
    await tx.run({
      name: 'raise-epoch',
      text: `update runs set epoch = $2, taken_at = now(), ended_at = null, heartbeat_at = null, ttl_ms = coalesce($3, ttl_ms) where id = $1`,
      values: [take.id, epoch, take.ttlMs],
    });
    if (take.key !== null)
      await tx.run({
        name: 'note-take',
        text: 'insert into run_takes (run, key, epoch) values ($1, $2, $3)',
        values: [take.id, take.key, epoch],
      });
    const withdrawn = await withdrawOlderEpochs(tx, { run: take.id, epoch });
    await insertAuditEntry(tx, take.buildEntry(epoch, withdrawn));
    return { epoch, isRepeat: false };
  });
}

/** The run, locked until the transaction ends: no call of it is claimed meanwhile. */
async function lockRun(tx: Tx, id: string): Promise<{ agent: string; epoch: number; ended: boolean }> {
  const [run] = await tx.run<{ agent: string; epoch: number; ended: boolean }>({
    name: 'lock-run',
    text: 'select agent, epoch, ended_at is not null as ended from runs where id = $1 for update',
    values: [id],
  });
  if (run === undefined) throw new GatewayError('not_found', `There is no run ${id}.`);
  return run;
}

async function findEpochTakenWithKey(tx: Tx, run: string, key: string): Promise<number | undefined> {
  const [row] = await tx.run<{ epoch: number }>({
    name: 'taken-before',
    text: 'select epoch from run_takes where run = $1 and key = $2',
    values: [run, key],
  });
  return row?.epoch;
}

/** Why a holder may do nothing (more) in this run; undefined: it may. */
export function explainFenced(
  run: { readonly epoch: number; readonly ended: boolean },
  { epoch }: Pick<RunEpoch, 'epoch'>,
): string | undefined {
  if (epoch < run.epoch) return `Epoch ${epoch} is over: the run was taken since, and is in epoch ${run.epoch}.`;
  if (epoch > run.epoch) return `There is no epoch ${epoch} yet: the run is in epoch ${run.epoch}.`;
  return run.ended ? 'The run is finished. Take it again to go on.' : undefined;
}

/** Refuses whatever the transaction does, unless it is done in the run's current epoch. Before anything else is locked. */
export async function requireCurrentEpoch(tx: Tx, { run, epoch }: RunEpoch): Promise<void> {
  const why = explainFenced(await lockRun(tx, run), { epoch });
  if (why !== undefined) throw new GatewayError('fenced', why);
}

/** Does something as the holder of a run: nothing of it is done in any but the current epoch. */
async function inCurrentEpoch(db: Database, fence: RunEpoch, work: (tx: Tx) => Promise<void>): Promise<void> {
  await db.transaction(async (tx) => {
    await requireCurrentEpoch(tx, fence);
    await work(tx);
  });
}

/** Whatever the holder wants its successor to know. */
export function saveRunCheckpoint(db: Database, fence: RunEpoch, checkpoint: string, entry: string): Promise<void> {
  return inCurrentEpoch(db, fence, async (tx) => {
    await tx.run({
      name: 'save-checkpoint',
      text: 'update runs set checkpoint = $2, checkpoint_at = now() where id = $1',
      values: [fence.run, checkpoint],
    });
    await insertAuditEntry(tx, entry);
  });
}

export function recordHeartbeat(db: Database, fence: RunEpoch): Promise<void> {
  return inCurrentEpoch(db, fence, async (tx) => {
    await tx.run({
      name: 'note-heartbeat',
      text: 'update runs set heartbeat_at = now() where id = $1',
      values: [fence.run],
    });
  });
}

/** Its holder is done with it. Again is fine. */
export async function endRun(db: Database, { run, epoch }: RunEpoch, entry: string): Promise<void> {
  await db.transaction(async (tx) => {
    const now = await lockRun(tx, run);
    if (now.ended && now.epoch === epoch) return;
    const why = explainFenced(now, { epoch });
    if (why !== undefined) throw new GatewayError('fenced', why);
    await tx.run({ name: 'end-run', text: 'update runs set ended_at = now() where id = $1', values: [run] });
    await insertAuditEntry(tx, entry);
  });
}

/** A person ends a run that nobody looks after: whoever held it is fenced, and what it locked for itself is free. Again is fine. */
export async function forceEndRun(db: Database, id: string, entryOf: TakeRunRequest['buildEntry']): Promise<void> {
  await db.transaction(async (tx) => {
    const run = await lockRun(tx, id);
    if (run.ended) return;
    const epoch = run.epoch + 1;
    await tx.run({
      name: 'end-run-by-hand',
      text: 'update runs set epoch = $2, ended_at = now() where id = $1',
      values: [id, epoch],
    });
    await insertAuditEntry(tx, entryOf(epoch, await withdrawOlderEpochs(tx, { run: id, epoch })));
  });
}

export async function readRun(db: Queryable, id: string): Promise<Run | undefined> {
  const [run] = await db.run<Run>({
    name: 'read-run',
    text: `select ${RUN_COLUMNS} from ${RUNS_WITH_LAST_SEEN} where r.id = $1`,
    values: [id],
  });
  return run;
}

/** The checkpoint as JSON text; apart from the rest, because it may be large. */
export async function readRunCheckpoint(db: Queryable, id: string): Promise<string | null> {
  const [row] = await db.run<{ checkpoint: string | null }>({
    name: 'read-checkpoint',
    text: 'select checkpoint from runs where id = $1',
    values: [id],
  });
  return row?.checkpoint ?? null;
}

/** Calls of epochs before this one that may still land, the oldest first, `limit` of them at most. */
export function listOlderOpenCalls(
  db: Queryable,
  { run, epoch }: RunEpoch,
  limit: number,
): Promise<readonly OlderOpenCall[]> {
  return db.run<OlderOpenCall>({
    name: 'open-below',
    text: `select c.txn, c.tool, c.state, c.epoch, c.created_at as "createdAt"
      from (select $1::uuid as id) r cross join lateral (select c.* ${buildOpenInOlderEpochs('$2::int')}) c
      order by c.created_at, c.txn limit $3`,
    values: [run, epoch, limit],
  });
}

export interface RunFilter {
  readonly agent?: string | undefined;
  /** Only those without a sign of life, or only the others. */
  readonly abandoned?: boolean | undefined;
  readonly cursor?: string | undefined;
  readonly limit: number;
}

/** Newest first; the cursor is the position of the last one seen. */
export async function listRuns(
  db: Database,
  filter: RunFilter,
): Promise<{ items: readonly Run[]; cursor: string | null }> {
  const [micros, id] = filter.cursor?.split('.') ?? [];
  const rows = await db.run<Run & { position: string }>({
    name: `list-runs${filter.agent === undefined ? '' : '-of-agent'}${filter.abandoned === true ? '-abandoned' : ''}`,
    text: `select * from (
        select ${RUN_COLUMNS}, (extract(epoch from r.created_at) * 1000000)::bigint || '.' || r.id as position
        from ${RUNS_WITH_LAST_SEEN}
        where ${filter.agent === undefined ? '$1::text is null' : 'r.agent = $1::text'}
          and ${buildCursorCondition('r.created_at', 'r.id', '$3', '$4')}
          ${filter.abandoned === true ? 'and r.ended_at is null and r.ttl_ms is not null' : ''}
        order by r.created_at desc, r.id desc) listed
      where $2::bool is null or abandoned = $2 limit $5`,
    values: [filter.agent ?? null, filter.abandoned ?? null, micros ?? null, id ?? null, filter.limit + 1],
  });
  const items = rows.slice(0, filter.limit);
  return {
    items: items.map(({ position: _, ...run }) => run),
    cursor: rows.length > filter.limit ? (items.at(-1)?.position ?? null) : null,
  };
}

async function insertAuditEntry(tx: Tx, entry: string): Promise<void> {
  await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
}
