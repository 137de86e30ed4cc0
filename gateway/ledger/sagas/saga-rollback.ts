import { buildAuditEntry, hashLeaf } from '../../domain/audit/audit.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import { computePlanDigest } from '../../domain/sagas/plan-digest.ts';
import type { Saga } from '../../domain/sagas/saga.ts';
import { endHeldCall } from '../approvals/approvals.ts';
import { requireCurrentEpoch } from '../controls/runs.ts';
import type { Database, Tx } from '../db.ts';
import { readSteps } from './saga-steps.ts';
import { describeSagaState, lockSaga, type SagaChange, updateSaga } from './sagas.ts';
import { addUndoTask, removeUndoTask } from './undo-tasks.ts';

export interface RollbackRequest {
  readonly id: string;
  /** The savepoint to go back to; undefined: everything is undone. */
  readonly to: string | undefined;
  readonly reason: string;
  /** `agent`, `ttl`, or a person's name. */
  readonly by: string;
  /** A person's word also takes a parked saga up again. */
  readonly canResumeParked: boolean;
  /** The run in which it is asked for, and the epoch that the agent holds. */
  readonly runEpoch?: RunEpoch | undefined;
  /** Of the plan that a person was shown; undefined: whatever is to be undone now. */
  readonly digest?: string | undefined;
  readonly entry: string;
}

/**
 * Closes a saga to new steps, withdraws those that wait for people, and recalls those that are open: nothing more of them
 * is sent, except to find out. Everything else a rollback does can be done by any process afterwards. Answers the
 * steps that may be on their way to the wire at this moment.
 */
export async function closeSagaForRollback(db: Database, order: RollbackRequest): Promise<readonly string[]> {
  return db.transaction(async (tx) => {
    if (order.runEpoch !== undefined) await requireCurrentEpoch(tx, order.runEpoch);
    const saga = await lockSaga(tx, order.id);
    const keep = findKeepOrdinal(saga, order.to);
    if (isRollbackInProgress(saga, keep, order)) return recallOpenSteps(tx, order.id, keep, order.reason);
    if (order.digest !== undefined && (await isRepeatedRollback(tx, saga, keep, order.digest)))
      // Back at its savepoint it may have new steps, which are none of that rollback's.
      return saga.state === 'open' ? [] : recallOpenSteps(tx, order.id, keep, order.reason);
    await updateSaga(tx, order.id, {
      state: 'rolling_back',
      reason: order.reason,
      by: order.by,
      keep,
      entry: order.entry,
    });
    await tx.run({
      name: 'note-plan',
      text: 'update sagas set plan = $2 where id = $1',
      values: [order.id, order.digest ?? null],
    });
    await tx.run({
      name: 'drop-savepoints',
      text: 'delete from savepoints where saga = $1 and after > $2',
      values: [order.id, keep],
    });
    if (saga.state === 'parked') await retryFailedUndos(tx, order.id);
    await addUndoTask(tx, order.id, 'saga');
    return recallOpenSteps(tx, order.id, keep, order.reason);
  });
}

/**
 * Whether the rollback that was shown under this digest is the last one that was begun, and is asked for again. If it is
 * neither that nor what would be undone now, it is refused. Steps are claimed under the saga's lock, which is held here:
 * what is compared is what is then undone.
 */
async function isRepeatedRollback(tx: Tx, saga: Saga, keep: number, digest: string): Promise<boolean> {
  if (computePlanDigest(saga, await readSteps(tx, [saga.id], []), keep) === digest) return false;
  const begun = await tx.run({
    name: 'begun-plan',
    text: 'select 1 from sagas where id = $1 and plan = $2',
    values: [saga.id, digest],
  });
  if (begun.length > 0) return true;
  throw new GatewayError(
    'conflict',
    'Nothing was rolled back by this: what would be undone now is not what the plan with this digest showed. Look at a new plan.',
  );
}

function findKeepOrdinal(saga: Saga, to: string | undefined): number {
  if (to === undefined) return -1;
  const savepoint = saga.savepoints.find(({ name }) => name === to);
  if (savepoint !== undefined) return savepoint.after;
  const names = saga.savepoints.map(({ name }) => JSON.stringify(name)).join(', ') || 'none';
  throw new GatewayError(
    'not_found',
    `There is no savepoint ${JSON.stringify(to)} to go back to; there are: ${names}.`,
  );
}

/** Whether the very same is being done, or done, already. What cannot be done any more is refused. */
function isRollbackInProgress(saga: Saga, keep: number, { to, canResumeParked: again }: RollbackRequest): boolean {
  const isAsFar = saga.keep !== null && saga.keep <= keep;
  if (saga.state === 'rolled_back' && to === undefined) return true;
  if (saga.state === 'rolling_back' && saga.keep === keep) return true;
  if ((saga.state === 'rolling_back' || saga.state === 'parked') && saga.keep !== null && saga.keep < keep)
    throw new GatewayError('conflict', 'It is being rolled back further than that already.');
  if (saga.state === 'parked' && isAsFar && !again) return true;
  if (saga.state === 'open' || saga.state === 'rolling_back' || saga.state === 'parked') return false;
  throw new GatewayError('saga_closed', `It cannot be rolled back: it ${describeSagaState(saga)}.`);
}

/** What a person wants tried again: undos that failed start a new round, unless the last one may still act. */
async function retryFailedUndos(tx: Tx, id: string): Promise<void> {
  await tx.run({
    name: 'retry-undos',
    text: `update calls c set undo_state = case when u.txn is not null and u.settled_at is null then 'running' else 'due' end,
        undo_from = c.undo_tries, undo_since = now(), undo_due_at = null, undo_reason = null
      from calls f left join calls u on u.txn = f.undo_txn
      where f.saga = $1 and c.txn = f.txn and c.undo_state = 'failed' and c.undo_args is not null`,
    values: [id],
  });
}

/**
 * In the order in which votes lock: approvals, who looks after a call, the call. A step on the wire is left to its end; one
 * between two attempts, or approved and not yet sent, ends here.
 */
async function recallOpenSteps(tx: Tx, id: string, keep: number, reason: string): Promise<readonly string[]> {
  const why = `its saga is rolled back: ${reason}`;
  await cancelHeldSteps(tx, id, keep, why);
  await tx.run({
    name: 'lock-open-steps',
    text: 'select txn from calls where saga = $1 and ordinal > $2 and settled_at is null order by txn for update',
    values: [id, keep],
  });
  const open = await tx.run<{ txn: string; idle: boolean; state: string; attempt_open: boolean }>({
    name: 'recall-steps',
    text: `update calls set recalled = true where saga = $1 and ordinal > $2 and settled_at is null
      returning txn, state, attempt_open, not attempt_open and unresolved = 0 as idle`,
    values: [id, keep],
  });
  for (const { txn, state } of open.filter((step) => step.idle)) {
    const as = state === 'sending' || state === 'in_doubt' ? 'failed' : 'cancelled';
    const entry = buildAuditEntry(`call_${as}`, { txn, why });
    await tx.run({
      name: 'end-recalled',
      text: `with ended as (
          update calls set state = $2, fence = fence + 1, settled_at = now(), outcome = 'no_effect', problem = $3, detail = $4, evidence = 'gateway', leaf = $5
          where txn = $1 returning txn
        ), closed as (
          delete from open_calls o using ended e where o.txn = e.txn
        )
        insert into audit_queue (entry) select $6 from ended`,
      values: [txn, as, as === 'failed' ? 'saga_closed' : 'cancelled', why, hashLeaf(entry), entry],
    });
  }
  return open.filter((step) => step.attempt_open).map((step) => step.txn);
}

/** Held steps of a saga that takes no more: one that only waits for its time would leave by itself. */
async function cancelHeldSteps(tx: Tx, id: string, keep: number, why: string): Promise<void> {
  const held = await tx.run<{ txn: string }>({
    name: 'held-steps',
    text: `select txn from calls where saga = $1 and ordinal > $2 and state = 'held' order by txn`,
    values: [id, keep],
  });
  for (const { txn } of held)
    await endHeldCall(tx, txn, 'cancelled', why, buildAuditEntry('call_cancelled', { txn, why }));
}

/** A person takes a parked rollback up again. Steps that they waive no longer hold up what they rest on. */
export async function resumeSaga(
  db: Database,
  id: string,
  change: { readonly waive: readonly string[]; readonly by: string; readonly reason: string; readonly entry: string },
): Promise<void> {
  await db.transaction(async (tx) => {
    const saga = await lockSaga(tx, id);
    if (saga.keep === null && saga.state === 'parked')
      throw new GatewayError('conflict', 'It was parked by its ttl and never rolled back: roll it back, or close it.');
    if (saga.state !== 'parked' && saga.state !== 'rolling_back')
      throw new GatewayError(
        'conflict',
        `Only a parked saga can be taken up again; this one ${describeSagaState(saga)}.`,
      );
    const waived = await tx.run<{ txn: string }>({
      name: 'waive-steps',
      text: 'update calls set waived = true where saga = $1 and ordinal is not null and txn = any($2::uuid[]) returning txn',
      values: [id, change.waive],
    });
    const unknown = change.waive.filter((txn) => !waived.some((step) => step.txn === txn));
    if (unknown.length > 0) throw new GatewayError('not_found', `${unknown.join(', ')}: no step of this saga.`);
    if (saga.state === 'rolling_back' && waived.length === 0) return;
    await updateSaga(tx, id, { state: 'rolling_back', reason: change.reason, by: change.by, entry: change.entry });
    await retryFailedUndos(tx, id);
    await addUndoTask(tx, id, 'saga');
  });
}

/** A person has seen to a parked saga by hand: the gateway does nothing more about it. */
export async function closeSaga(
  db: Database,
  id: string,
  change: { readonly by: string; readonly reason: string; readonly entry: string },
): Promise<void> {
  await db.transaction(async (tx) => {
    const saga = await lockSaga(tx, id);
    if (saga.state === 'closed') return;
    if (saga.state !== 'parked')
      throw new GatewayError(
        'conflict',
        `Only a parked saga can be closed by hand; this one ${describeSagaState(saga)}.`,
      );
    await updateSaga(tx, id, { state: 'closed', ...change });
    await cancelHeldSteps(tx, id, -1, `its saga was closed: ${change.reason}`);
    await removeUndoTask(tx, id);
  });
}

/**
 * Where a rollback got to. False: it is somewhere else by now, or is to go further back than it was when it was read. A parked
 * one is looked at again now and then: a doubt may have been resolved.
 */
export async function transitionSaga(
  db: Database,
  { id, state, keep }: Pick<Saga, 'id' | 'state' | 'keep'>,
  change: Omit<SagaChange, 'keep'> & { readonly recheckInMs: number | null },
): Promise<boolean> {
  return db.transaction(async (tx) => {
    const saga = await lockSaga(tx, id);
    if (saga.state !== state || saga.keep !== keep) return false;
    // Read before another rollback of the same reach began: that one has steps of its own to undo.
    if ((change.state === 'open' || change.state === 'rolled_back') && (await hasMoreToUndo(tx, id, keep ?? -1)))
      return false;
    // Back at its savepoint it is as if no rollback had been.
    await updateSaga(tx, id, { ...change, ...(change.state === 'open' ? { keep: null } : {}) });
    if (state === 'open' && change.state === 'parked')
      await cancelHeldSteps(tx, id, -1, `its saga is parked: ${change.reason}`);
    if (change.state === 'open' && saga.expiresAt !== null)
      await tx.run({
        name: 'time-saga',
        text: 'update undo_work set due_at = $2 where id = $1',
        values: [id, saga.expiresAt],
      });
    else if (change.recheckInMs === null) await removeUndoTask(tx, id);
    else await addUndoTask(tx, id, 'saga', change.recheckInMs);
    return true;
  });
}

async function hasMoreToUndo(tx: Tx, id: string, keep: number): Promise<boolean> {
  const rows = await tx.run({
    name: 'more-to-undo',
    text: `select txn from calls where saga = $1 and ordinal > $2 and (settled_at is null or undo_state not in ('done', 'skipped')) limit 1`,
    values: [id, keep],
  });
  return rows.length > 0;
}
