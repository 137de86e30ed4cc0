import type { OlderOpenCall, Run, RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import { insertAuditEntry } from '../audit/audit-queue.ts';
import { buildCursorCondition } from '../calls/list-calls.ts';
import { withdrawOlderEpochs } from '../calls/withdraw-older-epochs.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { buildTaintColumn } from './taints.ts';

/** Open calls of older epochs that may still have an effect. A read has none. */
const buildOpenInOlderEpochs = (epoch: string) => `from open_calls o join calls c on c.txn = o.txn
  where o.run = r.id and c.epoch < ${epoch} and c.kind <> 'read'`;

/** Every call is a sign of life of its run. The row of the call has the time, so the claim does not update the run. */
const LAST_SEEN_SQL = `greatest(r.taken_at, r.heartbeat_at, r.checkpoint_at,
  (select c.created_at from calls c where c.run = r.id order by c.created_at desc, c.txn desc limit 1))`;

const RUN_COLUMNS = `r.id, r.agent, r.name, r.epoch, r.created_at as "createdAt", r.taken_at as "takenAt", s.seen as "lastSeenAt",
  r.ttl_ms as "ttlMs", r.ended_at as "endedAt", r.checkpoint_at as "checkpointAt",
  coalesce(r.ended_at is null and s.seen + r.ttl_ms * interval '1 ms' < now(), false) as abandoned,
  (select count(*)::int ${buildOpenInOlderEpochs('r.epoch')}) as "openCount",
  ${buildTaintColumn('run', 'r.id')}`;
const RUNS_WITH_LAST_SEEN = `runs r cross join lateral (select ${LAST_SEEN_SQL} as seen) s`;

/** A request to take a run, or to take it over. */
export interface TakeRunRequest {
  readonly id: string;
  readonly agent: string;
  readonly name: string;
  readonly key: string | null;
  /** Null: unchanged. */
  readonly ttlMs: number | null;
  readonly buildEntry: (epoch: number, withdrawn: readonly string[]) => string;
}

export interface TakeRunResult {
  readonly epoch: number;
  /** The key of this request has already taken the current epoch. */
  readonly isRepeat: boolean;
}

/**
 * Takes a run, or takes it over: raises its epoch and withdraws the unsent calls of older epochs. A claim locks the same row while
 * it is written. So after this commit no claim of an older epoch can commit.
 */
export async function takeRun(db: Database, request: TakeRunRequest): Promise<TakeRunResult> {
  const { id, key } = request;
  return db.transaction(async (tx) => {
    await insertRun(tx, request);
    const { epoch: before, isEnded } = await lockRun(tx, id);
    const earlier = key === null ? undefined : await findEpochTakenWithKey(tx, id, key);
    if (earlier !== undefined) {
      if (earlier === before && !isEnded) return { epoch: earlier, isRepeat: true };
      throw new GatewayError(
        'fenced',
        `This key took epoch ${earlier}, which is over: the run is ${isEnded ? 'finished' : `in epoch ${before}`}. Use a new key to take it again.`,
      );
    }
    const epoch = before + 1;
    await raiseEpoch(tx, request, epoch);
    if (key !== null) await recordTakeKey(tx, id, key, epoch);
    const withdrawn = await withdrawOlderEpochs(tx, { run: id, epoch });
    await insertAuditEntry(tx, request.buildEntry(epoch, withdrawn));
    return { epoch, isRepeat: false };
  });
}

/** Creates the run in epoch 0 if it is new. Of two concurrent first takes one inserts; both then wait for its lock in turn. */
async function insertRun(tx: Tx, { id, agent, name }: TakeRunRequest): Promise<void> {
  await tx.run({
    name: 'insert-run',
    text: 'insert into runs (id, agent, name) values ($1, $2, $3) on conflict (id) do nothing',
    values: [id, agent, name],
  });
}

/** Starts the new epoch and reopens an ended run. The caller holds the lock of the run, so epochs are taken one by one. */
async function raiseEpoch(tx: Tx, { id, ttlMs }: TakeRunRequest, epoch: number): Promise<void> {
  await tx.run({
    name: 'raise-epoch',
    text: `update runs set epoch = $2, taken_at = now(), ended_at = null, heartbeat_at = null, ttl_ms = coalesce($3, ttl_ms) where id = $1`,
    values: [id, epoch, ttlMs],
  });
}

/** Remembers which epoch a key took, so that a retry gets the same epoch. The caller holds the lock of the run. */
async function recordTakeKey(tx: Tx, run: string, key: string, epoch: number): Promise<void> {
  await tx.run({
    name: 'record-take-key',
    text: 'insert into run_takes (run, key, epoch) values ($1, $2, $3)',
    values: [run, key, epoch],
  });
}

interface LockedRun {
  readonly agent: string;
  readonly epoch: number;
  readonly isEnded: boolean;
}

/** Locks the run until the transaction ends. Claims of its calls, and other takes, wait for this lock. */
async function lockRun(tx: Tx, id: string): Promise<LockedRun> {
  const [run] = await tx.run<LockedRun>({
    name: 'lock-run',
    text: 'select agent, epoch, ended_at is not null as "isEnded" from runs where id = $1 for update',
    values: [id],
  });
  if (run === undefined) throw new GatewayError('not_found', `There is no run ${id}.`);
  return run;
}

/** The epoch that this key took before. Keys are recorded under the lock of the run, which the caller holds. */
async function findEpochTakenWithKey(tx: Tx, run: string, key: string): Promise<number | undefined> {
  const [row] = await tx.run<{ epoch: number }>({
    name: 'find-epoch-of-key',
    text: 'select epoch from run_takes where run = $1 and key = $2',
    values: [run, key],
  });
  return row?.epoch;
}

/** Why this epoch may do nothing in the run; undefined: it is the current one. */
export function explainFenced(
  run: Pick<LockedRun, 'epoch' | 'isEnded'>,
  { epoch }: Pick<RunEpoch, 'epoch'>,
): string | undefined {
  if (epoch < run.epoch) return `Epoch ${epoch} is over: the run was taken over and is in epoch ${run.epoch}.`;
  if (epoch > run.epoch) return `There is no epoch ${epoch} yet: the run is in epoch ${run.epoch}.`;
  return run.isEnded ? 'The run is finished. Take it again to continue.' : undefined;
}

/** Refuses the transaction unless the epoch is current. Call it before any other lock: the run comes first in the lock order. */
export async function requireCurrentEpoch(tx: Tx, { run, epoch }: RunEpoch): Promise<void> {
  const why = explainFenced(await lockRun(tx, run), { epoch });
  if (why !== undefined) throw new GatewayError('fenced', why);
}

/** Runs `work` under the lock of the run, and only in its current epoch. */
async function runInCurrentEpoch(db: Database, runEpoch: RunEpoch, work: (tx: Tx) => Promise<void>): Promise<void> {
  await db.transaction(async (tx) => {
    await requireCurrentEpoch(tx, runEpoch);
    await work(tx);
  });
}

/** Stores JSON for the successor of the agent in this run. */
export function saveRunCheckpoint(db: Database, runEpoch: RunEpoch, checkpoint: string, entry: string): Promise<void> {
  return runInCurrentEpoch(db, runEpoch, async (tx) => {
    await updateCheckpoint(tx, runEpoch.run, checkpoint);
    await insertAuditEntry(tx, entry);
  });
}

/** Replaces the checkpoint. The run is locked in the current epoch, so an older epoch cannot overwrite a newer one. */
async function updateCheckpoint(tx: Tx, run: string, checkpoint: string): Promise<void> {
  await tx.run({
    name: 'save-checkpoint',
    text: 'update runs set checkpoint = $2, checkpoint_at = now() where id = $1',
    values: [run, checkpoint],
  });
}

/** Records a sign of life. The run is locked in the current epoch, so a fenced agent cannot keep its run alive. */
export function recordHeartbeat(db: Database, runEpoch: RunEpoch): Promise<void> {
  return runInCurrentEpoch(db, runEpoch, async (tx) => {
    await tx.run({
      name: 'record-heartbeat',
      text: 'update runs set heartbeat_at = now() where id = $1',
      values: [runEpoch.run],
    });
  });
}

/** Ends a run for its agent. Ending it twice in the same epoch is harmless. */
export async function endRun(db: Database, { run, epoch }: RunEpoch, entry: string): Promise<void> {
  await db.transaction(async (tx) => {
    const locked = await lockRun(tx, run);
    if (locked.isEnded && locked.epoch === epoch) return;
    const why = explainFenced(locked, { epoch });
    if (why !== undefined) throw new GatewayError('fenced', why);
    await markRunEnded(tx, run);
    await insertAuditEntry(tx, entry);
  });
}

/** Ends the run, which releases its locks by a trigger. The caller holds the lock of the run, so no call is claimed meanwhile. */
async function markRunEnded(tx: Tx, run: string): Promise<void> {
  await tx.run({ name: 'end-run', text: 'update runs set ended_at = now() where id = $1', values: [run] });
}

/** A person ends an abandoned run: its agent is fenced, and the locks of the run are released. Ending it twice is harmless. */
export async function forceEndRun(db: Database, id: string, buildEntry: TakeRunRequest['buildEntry']): Promise<void> {
  await db.transaction(async (tx) => {
    const run = await lockRun(tx, id);
    if (run.isEnded) return;
    const epoch = run.epoch + 1;
    await fenceAndEndRun(tx, id, epoch);
    await insertAuditEntry(tx, buildEntry(epoch, await withdrawOlderEpochs(tx, { run: id, epoch })));
  });
}

/** Ends the run in a new epoch, so the old epoch is fenced. The caller holds the lock of the run. */
async function fenceAndEndRun(tx: Tx, id: string, epoch: number): Promise<void> {
  await tx.run({
    name: 'end-run-by-hand',
    text: 'update runs set epoch = $2, ended_at = now() where id = $1',
    values: [id, epoch],
  });
}

/** Reads a run in one snapshot and locks nothing. Every write checks the epoch again under the lock. */
export async function readRun(db: Queryable, id: string): Promise<Run | undefined> {
  const [run] = await db.run<Run>({
    name: 'read-run',
    text: `select ${RUN_COLUMNS} from ${RUNS_WITH_LAST_SEEN} where r.id = $1`,
    values: [id],
  });
  return run;
}

/** Reads the checkpoint as JSON text. It is separate from `readRun`, because it may be large. */
export async function readRunCheckpoint(db: Queryable, id: string): Promise<string | null> {
  const [row] = await db.run<{ checkpoint: string | null }>({
    name: 'read-checkpoint',
    text: 'select checkpoint from runs where id = $1',
    values: [id],
  });
  return row?.checkpoint ?? null;
}

/** Lists calls of older epochs that may still have an effect, the oldest first. Older epochs start no more calls after a take. */
export function listOlderOpenCalls(
  db: Queryable,
  { run, epoch }: RunEpoch,
  limit: number,
): Promise<readonly OlderOpenCall[]> {
  return db.run<OlderOpenCall>({
    name: 'list-older-open',
    text: `select c.txn, c.tool, c.state, c.epoch, c.created_at as "createdAt"
      from (select $1::uuid as id) r cross join lateral (select c.txn, c.tool, o.state, c.epoch, c.created_at ${buildOpenInOlderEpochs('$2::int')}) c
      order by c.created_at, c.txn limit $3`,
    values: [run, epoch, limit],
  });
}

export interface RunFilter {
  readonly agent?: string | undefined;
  /** True: only runs whose ttl passed without a sign of life. False: only the others. */
  readonly abandoned?: boolean | undefined;
  readonly cursor?: string | undefined;
  readonly limit: number;
}

/** Lists runs, newest first. The cursor is the position of the last row, so new runs do not shift the pages. */
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
