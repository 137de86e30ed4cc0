import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Saga, SagaState } from '../../domain/sagas/saga.ts';
import { insertAuditEntry } from '../audit/audit-queue.ts';
import { buildCursorCondition } from '../calls/list-calls.ts';
import { requireCurrentEpoch } from '../controls/runs.ts';
import { buildTaintColumn } from '../controls/taints.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { removeUndoTask } from './undo-tasks.ts';

const SAGA_COLUMNS = `s.id, s.agent, s.name, s.state, s.reason, s.by, s.keep, s.created_at as "createdAt", s.expires_at as "expiresAt",
  s.on_expire as "onExpire", s.ended_at as "endedAt", coalesce(s.expires_at <= now(), false) as lapsed,
  ${buildTaintColumn('saga', 's.id')},
  coalesce((select jsonb_agg(jsonb_build_object('name', p.name, 'after', p.after) order by p.after, p.at) from savepoints p where p.saga = s.id), '[]') as savepoints`;

/** A saga to open. */
export interface NewSaga {
  readonly id: string;
  readonly agent: string;
  readonly name: string | null;
  readonly key: string | null;
  /** Digest of name, ttl and onExpire. The same key with another digest is refused. */
  readonly requestDigest: Buffer;
  readonly ttlMs: number | null;
  readonly onExpire: 'rollback' | 'park';
  readonly entry: string;
}

export interface OpenedSaga {
  readonly created: boolean;
  /** False: the key opened a saga with another name, ttl or onExpire. */
  readonly isSameRequest: boolean;
}

/** Opens a saga, or finds the one that the same key has opened. In a run, only in its current epoch. */
export async function openSaga(db: Database, saga: NewSaga, runEpoch: RunEpoch | undefined): Promise<OpenedSaga> {
  if (runEpoch === undefined) return insertOrFindSaga(db, saga);
  return db.transaction(async (tx) => {
    await requireCurrentEpoch(tx, runEpoch);
    return insertOrFindSaga(tx, saga);
  });
}

async function insertOrFindSaga(db: Queryable, saga: NewSaga): Promise<OpenedSaga> {
  const opened = await insertSaga(db, saga);
  if (opened !== undefined) return opened;
  // A concurrent request inserted the saga after the snapshot of the statement. A new statement sees it.
  return { created: false, isSameRequest: await isSameRequest(db, saga) };
}

/**
 * Inserts the saga, its ttl task and its audit entry, or reports the existing one. The id derives from the key, so of two
 * concurrent requests the second waits for the first and inserts nothing. It then returns undefined, because its snapshot does
 * not contain the row of the first.
 */
async function insertSaga(db: Queryable, saga: NewSaga): Promise<OpenedSaga | undefined> {
  const [row] = await db.run<OpenedSaga>({
    name: 'open-saga',
    text: `with opened as (
        insert into sagas (id, agent, name, key, asked, expires_at, on_expire)
        values ($1, $2, $3, $4, $5, now() + $6 * interval '1 ms', $7)
        on conflict (id) do nothing returning id, expires_at
      ), timed as (
        insert into undo_work (id, of, due_at) select id, 'saga', expires_at from opened where expires_at is not null
      ), logged as (
        insert into audit_queue (entry) select $8 from opened
      )
      select true as created, true as "isSameRequest" from opened
      union all
      select false, asked = $5 from sagas where id = $1 and not exists (select 1 from opened)`,
    values: [saga.id, saga.agent, saga.name, saga.key, saga.requestDigest, saga.ttlMs, saga.onExpire, saga.entry],
  });
  return row;
}

/** The digest of a saga never changes, so no lock is needed. */
async function isSameRequest(db: Queryable, saga: NewSaga): Promise<boolean> {
  const [row] = await db.run<{ same: boolean }>({
    name: 'is-same-saga-request',
    text: 'select asked = $2 as same from sagas where id = $1',
    values: [saga.id, saga.requestDigest],
  });
  return row?.same ?? false;
}

/** Reads sagas in one snapshot and locks nothing. Every later transition checks the state again under the lock. */
export async function readSagas(db: Queryable, ids: readonly string[]): Promise<readonly Saga[]> {
  return db.run<Saga>({
    name: 'read-sagas',
    text: `select ${SAGA_COLUMNS} from sagas s where s.id = any($1::uuid[])`,
    values: [ids],
  });
}

export interface SagaFilter {
  readonly agent?: string | undefined;
  readonly state?: SagaState | undefined;
  readonly cursor?: string | undefined;
  readonly limit: number;
}

/** Lists sagas, newest first. The cursor is the position of the last row, so new sagas do not shift the pages. */
export async function listSagas(
  db: Database,
  filter: SagaFilter,
): Promise<{ items: readonly (Saga & { stepCount: number })[]; cursor: string | null }> {
  const [micros, id] = filter.cursor?.split('.') ?? [];
  const rows = await db.run<Saga & { stepCount: number; position: string }>({
    name: `list-sagas${filter.agent === undefined ? '' : '-of-agent'}${filter.state === undefined ? '' : '-in-state'}`,
    text: `select ${SAGA_COLUMNS}, (select count(*)::int from calls c where c.saga = s.id and c.ordinal is not null) as "stepCount",
        (extract(epoch from s.created_at) * 1000000)::bigint || '.' || s.id as position
      from sagas s
      where ${filter.agent === undefined ? '$1::text is null' : 's.agent = $1::text'} and ${filter.state === undefined ? '$2::text is null' : 's.state = $2::text'}
        and ${buildCursorCondition('s.created_at', 's.id', '$3', '$4')}
      order by s.created_at desc, s.id desc limit $5`,
    values: [filter.agent ?? null, filter.state ?? null, micros ?? null, id ?? null, filter.limit + 1],
  });
  const items = rows.slice(0, filter.limit);
  return {
    items: items.map(({ position: _, ...saga }) => saga),
    cursor: rows.length > filter.limit ? (items.at(-1)?.position ?? null) : null,
  };
}

/** Locks the saga until the transaction ends. Claims of steps, commits and rollbacks wait for this lock. */
export async function lockSaga(tx: Tx, id: string): Promise<Saga> {
  const [saga] = await tx.run<Saga>({
    name: 'lock-saga',
    text: `select ${SAGA_COLUMNS} from sagas s where s.id = $1 for update`,
    values: [id],
  });
  if (saga === undefined) throw new GatewayError('not_found', `There is no saga ${id}.`);
  return saga;
}

/** A transition of a saga. */
export interface SagaChange {
  readonly state: SagaState;
  readonly reason: string | null;
  readonly by: string;
  /** The ordinal of the last step that a rollback keeps; -1: none; absent: unchanged. */
  readonly keep?: number | null;
  readonly entry: string;
}

/** Writes a transition and its audit entry. The caller holds the lock of the saga and has checked its state. */
export async function updateSaga(tx: Tx, id: string, change: SagaChange): Promise<void> {
  await tx.run({
    name: 'update-saga',
    text: `update sagas set state = $2, reason = $3, by = $4, keep = case when $6 then $5::int else keep end,
        ended_at = case when $2 in ('committed', 'rolled_back', 'closed') then now() end where id = $1`,
    values: [id, change.state, change.reason, change.by, change.keep ?? null, change.keep !== undefined],
  });
  await insertAuditEntry(tx, change.entry);
}

/** Commits a saga, after which it cannot be rolled back. Refuses while a step is open. Committing twice is harmless. */
export async function commitSaga(
  db: Database,
  id: string,
  runEpoch: RunEpoch | undefined,
  entry: string,
): Promise<void> {
  await db.transaction(async (tx) => {
    if (runEpoch !== undefined) await requireCurrentEpoch(tx, runEpoch);
    const saga = await lockSaga(tx, id);
    if (saga.state === 'committed') return;
    if (saga.state !== 'open' || saga.lapsed)
      throw new GatewayError('saga_closed', `The saga cannot be committed: it ${describeSagaState(saga)}.`);
    const open = await listOpenSteps(tx, id);
    if (open.length > 0) {
      const steps = open.map((step) => `${step.txn} is ${step.state}`).join(', ');
      throw new GatewayError('conflict', `The saga has open steps: ${steps}. Wait for them, or roll back.`, {
        retry: 'after_delay',
      });
    }
    await updateSaga(tx, id, { state: 'committed', reason: null, by: 'agent', entry });
    await removeUndoTask(tx, id);
  });
}

/** Lists the first three open steps. The saga is locked, so no new step can be claimed; a settled step never reopens. */
function listOpenSteps(tx: Tx, id: string): Promise<readonly { txn: string; state: string }[]> {
  return tx.run<{ txn: string; state: string }>({
    name: 'list-open-steps',
    text: `select o.txn, o.state from calls c join open_calls o on o.txn = c.txn
      where c.saga = $1 and c.ordinal is not null order by c.ordinal limit 3`,
    values: [id],
  });
}

/** The state as a predicate, for sentences such as "The saga cannot be committed: it …". */
export function describeSagaState(saga: Saga): string {
  if (saga.state === 'open' && saga.lapsed) return 'is past its ttl';
  return saga.state === 'rolling_back' ? 'is being rolled back' : `is ${saga.state}`;
}

/** Creates a savepoint after the last step. A repeat with the same name returns the existing one, so a retry does not move it. */
export async function addSavepoint(
  db: Database,
  id: string,
  name: string,
  runEpoch: RunEpoch | undefined,
  entry: string,
): Promise<{ created: boolean; after: number }> {
  return db.transaction(async (tx) => {
    if (runEpoch !== undefined) await requireCurrentEpoch(tx, runEpoch);
    const saga = await lockSaga(tx, id);
    const known = saga.savepoints.find((savepoint) => savepoint.name === name);
    if (known !== undefined) return { created: false, after: known.after };
    if (saga.state !== 'open' || saga.lapsed)
      throw new GatewayError('saga_closed', `The saga takes no savepoint: it ${describeSagaState(saga)}.`);
    const after = await insertSavepoint(tx, id, name);
    // A concurrent request created it after `lockSaga` had read the savepoints.
    if (after === undefined)
      throw new GatewayError('conflict', 'Another request is creating this savepoint. Send the request again.');
    await insertAuditEntry(tx, entry);
    return { created: true, after };
  });
}

/**
 * Inserts a savepoint after the steps so far, and returns their number. The saga is locked, so no step is numbered in between.
 * Returns undefined if the savepoint exists.
 */
async function insertSavepoint(tx: Tx, id: string, name: string): Promise<number | undefined> {
  const [savepoint] = await tx.run<{ after: number }>({
    name: 'insert-savepoint',
    text: `insert into savepoints (saga, name, after) select id, $2, steps from sagas where id = $1
        on conflict (saga, name) do nothing returning after`,
    values: [id, name],
  });
  return savepoint?.after;
}
