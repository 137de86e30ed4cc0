import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Saga, SagaState } from '../../domain/sagas/saga.ts';
import { buildCursorCondition } from '../calls/list-calls.ts';
import { requireCurrentEpoch } from '../controls/runs.ts';
import { buildTaintColumn } from '../controls/taints.ts';
import type { Database, Queryable, Tx } from '../db.ts';
import { removeUndoTask } from './undo-tasks.ts';

const SAGA_COLUMNS = `s.id, s.agent, s.name, s.state, s.reason, s.by, s.keep, s.created_at as "createdAt", s.expires_at as "expiresAt",
  s.on_expire as "onExpire", s.ended_at as "endedAt", coalesce(s.expires_at <= now(), false) as lapsed,
  ${buildTaintColumn('saga', 's.id')},
  coalesce((select jsonb_agg(jsonb_build_object('name', p.name, 'after', p.after) order by p.after, p.at) from savepoints p where p.saga = s.id), '[]') as savepoints`;

export interface NewSaga {
  readonly id: string;
  readonly agent: string;
  readonly name: string | null;
  readonly key: string | null;
  /** Digest of what was asked for: the same key with other wishes is another saga, and refused. */
  readonly requestDigest: Buffer;
  readonly ttlMs: number | null;
  readonly onExpire: 'rollback' | 'park';
  readonly entry: string;
}

/** Opens a saga, or finds the one that the same key opened before. */
export async function openSaga(
  db: Database,
  saga: NewSaga,
  fence: RunEpoch | undefined,
): Promise<{ created: boolean; isSameRequest: boolean }> {
  if (fence === undefined) return insertSaga(db, saga);
  return db.transaction(async (tx) => {
    await requireCurrentEpoch(tx, fence);
    return insertSaga(tx, saga);
  });
}

async function insertSaga(db: Queryable, saga: NewSaga): Promise<{ created: boolean; isSameRequest: boolean }> {
  const [row] = await db.run<{ created: boolean; same: boolean }>({
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
      select true as created, true as same from opened
      union all
      select false, asked = $5 from sagas where id = $1 and not exists (select 1 from opened)`,
    values: [saga.id, saga.agent, saga.name, saga.key, saga.requestDigest, saga.ttlMs, saga.onExpire, saga.entry],
  });
  if (row !== undefined) return { created: row.created, isSameRequest: row.same };
  // Two at once: the other's row was not visible yet, and is now.
  const [other] = await db.run<{ same: boolean }>({
    name: 'opened-saga',
    text: 'select asked = $2 as same from sagas where id = $1',
    values: [saga.id, saga.requestDigest],
  });
  return { created: false, isSameRequest: other?.same ?? false };
}

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

/** Newest first; the cursor is the position of the last one seen. */
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

/** The saga, locked until the transaction ends: neither steps nor rollbacks come in between. */
export async function lockSaga(tx: Tx, id: string): Promise<Saga> {
  const [saga] = await tx.run<Saga>({
    name: 'lock-saga',
    text: `select ${SAGA_COLUMNS} from sagas s where s.id = $1 for update`,
    values: [id],
  });
  if (saga === undefined) throw new GatewayError('not_found', `There is no saga ${id}.`);
  return saga;
}

export interface SagaChange {
  readonly state: SagaState;
  readonly reason: string | null;
  readonly by: string;
  readonly keep?: number | null;
  readonly entry: string;
}

export async function updateSaga(tx: Tx, id: string, change: SagaChange): Promise<void> {
  await tx.run({
    name: 'change-saga',
    text: `update sagas set state = $2, reason = $3, by = $4, keep = case when $6 then $5::int else keep end,
        ended_at = case when $2 in ('committed', 'rolled_back', 'closed') then now() end where id = $1`,
    values: [id, change.state, change.reason, change.by, change.keep ?? null, change.keep !== undefined],
  });
  await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [change.entry] });
}

/** From now on it cannot be rolled back. Again is fine; with steps that are not over it is refused. */
export async function commitSaga(db: Database, id: string, fence: RunEpoch | undefined, entry: string): Promise<void> {
  await db.transaction(async (tx) => {
    if (fence !== undefined) await requireCurrentEpoch(tx, fence);
    const saga = await lockSaga(tx, id);
    if (saga.state === 'committed') return;
    if (saga.state !== 'open' || saga.lapsed)
      throw new GatewayError('saga_closed', `It cannot be committed: it ${describeSagaState(saga)}.`);
    const open = await tx.run<{ txn: string; state: string }>({
      name: 'open-steps',
      text: 'select txn, state from calls where saga = $1 and ordinal is not null and settled_at is null order by ordinal limit 3',
      values: [id],
    });
    if (open.length > 0) {
      const named = open.map((step) => `${step.txn} is ${step.state}`).join(', ');
      throw new GatewayError('conflict', `It has steps that are not over: ${named}. Wait for them, or roll back.`, {
        retry: 'after_delay',
      });
    }
    await updateSaga(tx, id, { state: 'committed', reason: null, by: 'agent', entry });
    await removeUndoTask(tx, id);
  });
}

export function describeSagaState(saga: Saga): string {
  if (saga.state === 'open' && saga.lapsed) return 'is past its ttl';
  return saga.state === 'rolling_back' ? 'is being rolled back' : `is ${saga.state}`;
}

/** Where a rollback may go back to. The same name again is the same place, so that a retry does not move it. */
export async function addSavepoint(
  db: Database,
  id: string,
  name: string,
  fence: RunEpoch | undefined,
  entry: string,
): Promise<{ created: boolean; after: number }> {
  return db.transaction(async (tx) => {
    if (fence !== undefined) await requireCurrentEpoch(tx, fence);
    const saga = await lockSaga(tx, id);
    const known = saga.savepoints.find((savepoint) => savepoint.name === name);
    if (known !== undefined) return { created: false, after: known.after };
    if (saga.state !== 'open' || saga.lapsed)
      throw new GatewayError('saga_closed', `It takes no savepoint: it ${describeSagaState(saga)}.`);
    const [made] = await tx.run<{ after: number }>({
      name: 'add-savepoint',
      text: `insert into savepoints (saga, name, after) select id, $2, steps from sagas where id = $1
        on conflict (saga, name) do nothing returning after`,
      values: [id, name],
    });
    // Two at once: the other's was not there yet when the saga was read.
    if (made === undefined) throw new GatewayError('conflict', 'It is being made by another request. Ask again.');
    await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
    return { created: true, after: made.after };
  });
}
