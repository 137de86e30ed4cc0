import { GatewayError } from '../domain/errors.ts';
import type { Fence, OpenCall, Run } from '../domain/run.ts';
import type { Database, Queryable, Tx } from './db.ts';
import { before } from './lists.ts';
import { taintColumn } from './taints.ts';
import { withdrawOlder } from './withdraw.ts';

/** A read has no effect that could land. */
const OPEN_BELOW = (epoch: string) => `from open_calls o join calls c on c.txn = o.txn
  where o.run = r.id and c.epoch < ${epoch} and c.kind <> 'read' and c.settled_at is null`;

/** A call is a sign of life too, and its row tells: nothing is written for it. */
const LAST_SEEN = `greatest(r.taken_at, r.heartbeat_at, r.checkpoint_at,
  (select c.created_at from calls c where c.run = r.id order by c.created_at desc, c.txn desc limit 1))`;

const RUN_COLUMNS = `r.id, r.agent, r.name, r.epoch, r.created_at as "createdAt", r.taken_at as "takenAt", s.seen as "lastSeenAt",
  r.ttl_ms as "ttlMs", r.ended_at as "endedAt", r.checkpoint_at as "checkpointAt",
  coalesce(r.ended_at is null and s.seen + r.ttl_ms * interval '1 ms' < now(), false) as abandoned,
  (select count(*)::int ${OPEN_BELOW('r.epoch')}) as "openCount",
  ${taintColumn('run', 'r.id')}`;
const RUNS = `runs r cross join lateral (select ${LAST_SEEN} as seen) s`;

export interface Take {
  readonly id: string;
  readonly agent: string;
  readonly name: string;
  readonly key: string | null;
  /** Null: as it was. */
  readonly ttlMs: number | null;
  readonly entryOf: (epoch: number, withdrawn: readonly string[]) => string;
}

export interface Taken {
  readonly epoch: number;
  /** The same key took it before, and nobody has since. */
  readonly isRepeat: boolean;
}

/**
 * Takes a run, or takes it over: raises its epoch and withdraws what older epochs have not sent. A claim locks the same row
 * while it is written, so once this is committed no claim of an older epoch commits any more.
 */
export async function takeRun(db: Database, take: Take): Promise<Taken> {
  return db.transaction(async (tx) => {
    await tx.run({
      name: 'make-run',
      text: 'insert into runs (id, agent, name) values ($1, $2, $3) on conflict (id) do nothing',
      values: [take.id, take.agent, take.name],
    });
    const { epoch: before, ended } = await lockRun(tx, take.id);
    const earlier = take.key === null ? undefined : await takenBefore(tx, take.id, take.key);
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
    const withdrawn = await withdrawOlder(tx, { run: take.id, epoch });
    await log(tx, take.entryOf(epoch, withdrawn));
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

async function takenBefore(tx: Tx, run: string, key: string): Promise<number | undefined> {
  const [row] = await tx.run<{ epoch: number }>({
    name: 'taken-before',
    text: 'select epoch from run_takes where run = $1 and key = $2',
    values: [run, key],
  });
  return row?.epoch;
}

/** Why a holder may do nothing (more) in this run; undefined: it may. */
export function whyFenced(
  run: { readonly epoch: number; readonly ended: boolean },
  { epoch }: Pick<Fence, 'epoch'>,
): string | undefined {
  if (epoch < run.epoch) return `Epoch ${epoch} is over: the run was taken since, and is in epoch ${run.epoch}.`;
  if (epoch > run.epoch) return `There is no epoch ${epoch} yet: the run is in epoch ${run.epoch}.`;
  return run.ended ? 'The run is finished. Take it again to go on.' : undefined;
}

/** Refuses whatever the transaction does, unless it is done in the run's current epoch. Before anything else is locked. */
export async function requireHolder(tx: Tx, { run, epoch }: Fence): Promise<void> {
  const why = whyFenced(await lockRun(tx, run), { epoch });
  if (why !== undefined) throw new GatewayError('fenced', why);
}

/** Does something as the holder of a run: nothing of it is done in any but the current epoch. */
async function asHolder(db: Database, fence: Fence, work: (tx: Tx) => Promise<void>): Promise<void> {
  await db.transaction(async (tx) => {
    await requireHolder(tx, fence);
    await work(tx);
  });
}

/** Whatever the holder wants its successor to know. */
export function saveCheckpoint(db: Database, fence: Fence, checkpoint: string, entry: string): Promise<void> {
  return asHolder(db, fence, async (tx) => {
    await tx.run({
      name: 'save-checkpoint',
      text: 'update runs set checkpoint = $2, checkpoint_at = now() where id = $1',
      values: [fence.run, checkpoint],
    });
    await log(tx, entry);
  });
}

export function noteHeartbeat(db: Database, fence: Fence): Promise<void> {
  return asHolder(db, fence, async (tx) => {
    await tx.run({
      name: 'note-heartbeat',
      text: 'update runs set heartbeat_at = now() where id = $1',
      values: [fence.run],
    });
  });
}

/** Its holder is done with it. Again is fine. */
export async function endRun(db: Database, { run, epoch }: Fence, entry: string): Promise<void> {
  await db.transaction(async (tx) => {
    const now = await lockRun(tx, run);
    if (now.ended && now.epoch === epoch) return;
    const why = whyFenced(now, { epoch });
    if (why !== undefined) throw new GatewayError('fenced', why);
    await tx.run({ name: 'end-run', text: 'update runs set ended_at = now() where id = $1', values: [run] });
    await log(tx, entry);
  });
}

/** A person ends a run that nobody looks after: whoever held it is fenced, and what it locked for itself is free. Again is fine. */
export async function endRunByHand(db: Database, id: string, entryOf: Take['entryOf']): Promise<void> {
  await db.transaction(async (tx) => {
    const run = await lockRun(tx, id);
    if (run.ended) return;
    const epoch = run.epoch + 1;
    await tx.run({
      name: 'end-run-by-hand',
      text: 'update runs set epoch = $2, ended_at = now() where id = $1',
      values: [id, epoch],
    });
    await log(tx, entryOf(epoch, await withdrawOlder(tx, { run: id, epoch })));
  });
}

export async function readRun(db: Queryable, id: string): Promise<Run | undefined> {
  const [run] = await db.run<Run>({
    name: 'read-run',
    text: `select ${RUN_COLUMNS} from ${RUNS} where r.id = $1`,
    values: [id],
  });
  return run;
}

/** The checkpoint as JSON text; apart from the rest, because it may be large. */
export async function readCheckpoint(db: Queryable, id: string): Promise<string | null> {
  const [row] = await db.run<{ checkpoint: string | null }>({
    name: 'read-checkpoint',
    text: 'select checkpoint from runs where id = $1',
    values: [id],
  });
  return row?.checkpoint ?? null;
}

/** Calls of epochs before this one that may still land, the oldest first, `limit` of them at most. */
export function openBelow(db: Queryable, { run, epoch }: Fence, limit: number): Promise<readonly OpenCall[]> {
  return db.run<OpenCall>({
    name: 'open-below',
    text: `select c.txn, c.tool, c.state, c.epoch, c.created_at as "createdAt"
      from (select $1::uuid as id) r cross join lateral (select c.* ${OPEN_BELOW('$2::int')}) c
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
        from ${RUNS}
        where ${filter.agent === undefined ? '$1::text is null' : 'r.agent = $1::text'}
          and ${before('r.created_at', 'r.id', '$3', '$4')}
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

async function log(tx: Tx, entry: string): Promise<void> {
  await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
}
