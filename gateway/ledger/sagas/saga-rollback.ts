import { buildAuditEntry, hashLeaf } from '../../domain/audit/audit.ts';
import type { RunEpoch } from '../../domain/controls/run.ts';
import { GatewayError } from '../../domain/errors.ts';
import { computePlanDigest } from '../../domain/sagas/plan-digest.ts';
import type { Saga } from '../../domain/sagas/saga.ts';
import { endHeldCall } from '../approvals/approvals.ts';
import { buildEndCtes } from '../calls/end-calls.ts';
import { requireCurrentEpoch } from '../controls/runs.ts';
import type { Database, Tx } from '../db.ts';
import { readSteps } from './saga-steps.ts';
import { describeSagaState, lockSaga, type SagaChange, updateSaga } from './sagas.ts';
import { addUndoTask, removeUndoTask } from './undo-tasks.ts';

export interface RollbackRequest {
  readonly id: string;
  /** The savepoint to return to; undefined: all steps are undone. */
  readonly to: string | undefined;
  readonly reason: string;
  /** `agent`, `ttl`, or the name of a person. */
  readonly by: string;
  /** Also resumes a parked rollback. Only a person may do that. */
  readonly canResumeParked: boolean;
  /** The run of the request and the epoch of its agent. */
  readonly runEpoch?: RunEpoch | undefined;
  /** The digest of the plan that the requester confirmed; undefined: any plan is accepted. */
  readonly digest?: string | undefined;
  readonly entry: string;
}

/**
 * Closes a saga to new steps, cancels its held steps, and recalls its open ones: they send nothing more, except to resolve a
 * doubt. Any process can do the rest of the rollback afterwards. Returns the steps that may be about to send at this moment.
 */
export async function closeSagaForRollback(db: Database, request: RollbackRequest): Promise<readonly string[]> {
  const { id, reason, by, digest, entry } = request;
  return db.transaction(async (tx) => {
    if (request.runEpoch !== undefined) await requireCurrentEpoch(tx, request.runEpoch);
    const saga = await lockSaga(tx, id);
    const keep = findKeepOrdinal(saga, request.to);
    if (isRollbackInProgress(saga, keep, request)) return recallOpenSteps(tx, id, keep, reason);
    if (digest !== undefined && (await isRepeatedRollback(tx, saga, keep, digest)))
      // The first rollback ended at its savepoint and reopened the saga. Steps since then do not belong to the repeated rollback.
      return saga.state === 'open' ? [] : recallOpenSteps(tx, id, keep, reason);
    await updateSaga(tx, id, { state: 'rolling_back', reason, by, keep, entry });
    await recordPlanDigest(tx, id, digest);
    await deleteSavepointsAfter(tx, id, keep);
    if (saga.state === 'parked') await retryFailedUndos(tx, id);
    await addUndoTask(tx, id, 'saga');
    return recallOpenSteps(tx, id, keep, reason);
  });
}

/** Remembers the confirmed plan, so that a repeat of the request is recognised. The saga is locked. */
async function recordPlanDigest(tx: Tx, id: string, digest: string | undefined): Promise<void> {
  await tx.run({
    name: 'record-plan-digest',
    text: 'update sagas set plan = $2 where id = $1',
    values: [id, digest ?? null],
  });
}

/** Deletes the savepoints that the rollback passes. Savepoints are created under the same lock of the saga. */
async function deleteSavepointsAfter(tx: Tx, id: string, keep: number): Promise<void> {
  await tx.run({
    name: 'delete-savepoints',
    text: 'delete from savepoints where saga = $1 and after > $2',
    values: [id, keep],
  });
}

/**
 * Whether this request repeats the last rollback, which had the same plan digest. Refuses a digest that matches neither that plan
 * nor the current plan. The caller holds the lock of the saga, so no new step can change the plan after this comparison.
 */
async function isRepeatedRollback(tx: Tx, saga: Saga, keep: number, digest: string): Promise<boolean> {
  if (computePlanDigest(saga, await readSteps(tx, [saga.id], []), keep) === digest) return false;
  if (await isBegunPlan(tx, saga.id, digest)) return true;
  throw new GatewayError(
    'conflict',
    'Nothing was rolled back: the plan has changed since it was shown. Read the new plan and confirm its digest.',
  );
}

/** Compares with the digest of the last rollback. The saga is locked. */
async function isBegunPlan(tx: Tx, id: string, digest: string): Promise<boolean> {
  const rows = await tx.run({
    name: 'is-begun-plan',
    text: 'select 1 from sagas where id = $1 and plan = $2',
    values: [id, digest],
  });
  return rows.length > 0;
}

/** The ordinal of the last step to keep; -1: none. */
function findKeepOrdinal(saga: Saga, to: string | undefined): number {
  if (to === undefined) return -1;
  const savepoint = saga.savepoints.find(({ name }) => name === to);
  if (savepoint !== undefined) return savepoint.after;
  const names = saga.savepoints.map(({ name }) => JSON.stringify(name)).join(', ') || 'none';
  throw new GatewayError('not_found', `The saga has no savepoint ${JSON.stringify(to)}; it has: ${names}.`);
}

/** Whether the same rollback is already in progress or done. Refuses a rollback that is no longer possible. */
function isRollbackInProgress(saga: Saga, keep: number, { to, canResumeParked }: RollbackRequest): boolean {
  const isAsFar = saga.keep !== null && saga.keep <= keep;
  if (saga.state === 'rolled_back' && to === undefined) return true;
  if (saga.state === 'rolling_back' && saga.keep === keep) return true;
  if ((saga.state === 'rolling_back' || saga.state === 'parked') && saga.keep !== null && saga.keep < keep)
    throw new GatewayError('conflict', 'The saga is already being rolled back further than that.');
  if (saga.state === 'parked' && isAsFar && !canResumeParked) return true;
  if (saga.state === 'open' || saga.state === 'rolling_back' || saga.state === 'parked') return false;
  throw new GatewayError('saga_closed', `The saga cannot be rolled back: it ${describeSagaState(saga)}.`);
}

/**
 * Gives failed undos a new round of tries. An undo whose last compensation is still open becomes `running`, not `due`: that
 * compensation may still have an effect, so a second one must not start. `UndoStore.mark` also checks the state before it writes,
 * so neither overwrites the other.
 */
async function retryFailedUndos(tx: Tx, id: string): Promise<void> {
  await tx.run({
    name: 'retry-undos',
    text: `update undos u set
        state = case when exists (select 1 from open_calls o where o.txn = u.undo_txn) then 'running'::undo_state else 'due'::undo_state end,
        tries_from = u.tries, since = now(), due_at = null, reason = null, doubt = null
      from calls c where c.saga = $1 and u.txn = c.txn and u.state = 'failed' and u.args is not null`,
    values: [id],
  });
}

interface RecalledStep {
  readonly txn: string;
  readonly state: string;
  readonly attemptOpen: boolean;
  /** No attempt is open or unknown, so the step certainly had no effect. */
  readonly isIdle: boolean;
}

/**
 * Recalls the open steps after `keep`, and returns those with an open attempt. Idle steps end here. Steps with an open or unknown
 * attempt continue until their outcome is known. Locks in the order of a vote: approvals, open calls.
 */
async function recallOpenSteps(tx: Tx, id: string, keep: number, reason: string): Promise<readonly string[]> {
  const why = `its saga is rolled back: ${reason}`;
  await cancelHeldSteps(tx, id, keep, why);
  await lockOpenSteps(tx, id, keep);
  const open = await markStepsRecalled(tx, id, keep);
  for (const step of open) if (step.isIdle) await endIdleStep(tx, step, why);
  return open.filter((step) => step.attemptOpen).map((step) => step.txn);
}

/** Locks the steps in order of txn, as every batch does. The update that follows would lock them in any order. */
async function lockOpenSteps(tx: Tx, id: string, keep: number): Promise<void> {
  await tx.run({
    name: 'lock-open-steps',
    text: `select o.txn from calls c join open_calls o on o.txn = c.txn where c.saga = $1 and c.ordinal > $2
      order by o.txn for update of o`,
    values: [id, keep],
  });
}

/** Marks the steps as recalled. After the commit, updates refuse new attempts of these steps. The rows are already locked. */
function markStepsRecalled(tx: Tx, id: string, keep: number): Promise<readonly RecalledStep[]> {
  return tx.run<RecalledStep>({
    name: 'recall-steps',
    text: `update open_calls o set recalled = true from calls c where c.txn = o.txn and c.saga = $1 and c.ordinal > $2
      returning o.txn, o.state, o.attempt_open as "attemptOpen", not o.attempt_open and o.unresolved = 0 as "isIdle"`,
    values: [id, keep],
  });
}

/** Ends an idle step without effect, with its audit entry. The row is locked, so the step is still idle. */
async function endIdleStep(tx: Tx, { txn, state }: RecalledStep, why: string): Promise<void> {
  const endState = state === 'sending' || state === 'in_doubt' ? 'failed' : 'cancelled';
  const problem = endState === 'failed' ? 'saga_closed' : 'cancelled';
  const entry = buildAuditEntry(`call_${endState}`, { txn, why });
  await tx.run({
    name: 'end-recalled',
    text: `with ${buildEndCtes('o.txn = $1', {
      state: '$2::text',
      outcome: `'no_effect'`,
      problem: '$3',
      detail: '$4',
      evidence: `'gateway'`,
      leaf: '$5::bytea',
    })}
        insert into audit_queue (entry) select $6 from ended`,
    values: [txn, endState, problem, why, hashLeaf(entry), entry],
  });
}

/** Cancels the held steps of a saga that takes no more steps. A delayed step would otherwise be released later. */
async function cancelHeldSteps(tx: Tx, id: string, keep: number, why: string): Promise<void> {
  for (const txn of await listHeldSteps(tx, id, keep))
    await endHeldCall(tx, txn, 'cancelled', why, buildAuditEntry('call_cancelled', { txn, why }));
}

/** The saga is locked, so it gets no new held steps. `endHeldCall` decides again whether each is still held. */
async function listHeldSteps(tx: Tx, id: string, keep: number): Promise<readonly string[]> {
  const rows = await tx.run<{ txn: string }>({
    name: 'list-held-steps',
    text: `select c.txn from calls c join open_calls o on o.txn = c.txn where c.saga = $1 and c.ordinal > $2 and o.state = 'held'
      order by c.txn`,
    values: [id, keep],
  });
  return rows.map(({ txn }) => txn);
}

/** Resumes a parked rollback for a person. A waived step no longer blocks the steps that it depends on. */
export async function resumeSaga(
  db: Database,
  id: string,
  change: { readonly waive: readonly string[]; readonly by: string; readonly reason: string; readonly entry: string },
): Promise<void> {
  await db.transaction(async (tx) => {
    const saga = await lockSaga(tx, id);
    if (saga.keep === null && saga.state === 'parked')
      throw new GatewayError(
        'conflict',
        'The saga was parked by its ttl and was never rolled back. Roll it back, or close it.',
      );
    if (saga.state !== 'parked' && saga.state !== 'rolling_back')
      throw new GatewayError('conflict', `Only a parked saga can be resumed; this one ${describeSagaState(saga)}.`);
    const waived = await waiveSteps(tx, id, change.waive);
    const unknown = change.waive.filter((txn) => !waived.includes(txn));
    if (unknown.length > 0)
      throw new GatewayError('not_found', `This saga has no step ${unknown.join(', ')}. Nothing was waived.`);
    if (saga.state === 'rolling_back' && waived.length === 0) return;
    await updateSaga(tx, id, { state: 'rolling_back', reason: change.reason, by: change.by, entry: change.entry });
    await retryFailedUndos(tx, id);
    await addUndoTask(tx, id, 'saga');
  });
}

/** Marks steps as waived, and returns those that belong to the saga. A waiver is never taken back, so a repeat is harmless. */
async function waiveSteps(tx: Tx, id: string, txns: readonly string[]): Promise<readonly string[]> {
  const rows = await tx.run<{ txn: string }>({
    name: 'waive-steps',
    text: `insert into undos as u (txn, waived)
      select txn, true from calls where saga = $1 and ordinal is not null and txn = any($2::uuid[]) order by txn
      on conflict (txn) do update set waived = true returning u.txn`,
    values: [id, txns],
  });
  return rows.map(({ txn }) => txn);
}

/** A person has dealt with a parked saga by hand. The gateway does nothing more about it. */
export async function closeSaga(
  db: Database,
  id: string,
  change: { readonly by: string; readonly reason: string; readonly entry: string },
): Promise<void> {
  await db.transaction(async (tx) => {
    const saga = await lockSaga(tx, id);
    if (saga.state === 'closed') return;
    if (saga.state !== 'parked')
      throw new GatewayError('conflict', `Only a parked saga can be closed; this one ${describeSagaState(saga)}.`);
    await updateSaga(tx, id, { state: 'closed', ...change });
    await cancelHeldSteps(tx, id, -1, `its saga was closed: ${change.reason}`);
    await removeUndoTask(tx, id);
  });
}

/**
 * Writes the progress of a rollback. Returns false if the saga has left the state that the caller read, or a rollback now reaches
 * further back. A parked saga is checked again after `recheckInMs`, because its doubt may have been resolved.
 */
export async function transitionSaga(
  db: Database,
  { id, state, keep }: Pick<Saga, 'id' | 'state' | 'keep'>,
  change: Omit<SagaChange, 'keep'> & { readonly recheckInMs: number | null },
): Promise<boolean> {
  return db.transaction(async (tx) => {
    const saga = await lockSaga(tx, id);
    if (saga.state !== state || saga.keep !== keep) return false;
    // The caller may have read the steps during an earlier rollback to the same savepoint. Later steps are not undone yet.
    if ((change.state === 'open' || change.state === 'rolled_back') && (await hasMoreToUndo(tx, id, keep ?? -1)))
      return false;
    // A saga that is open again keeps no trace of the rollback.
    await updateSaga(tx, id, { ...change, ...(change.state === 'open' ? { keep: null } : {}) });
    if (state === 'open' && change.state === 'parked')
      await cancelHeldSteps(tx, id, -1, `its saga is parked: ${change.reason}`);
    if (change.state === 'open' && saga.expiresAt !== null) await scheduleExpiry(tx, id, saga.expiresAt);
    else if (change.recheckInMs === null) await removeUndoTask(tx, id);
    else await addUndoTask(tx, id, 'saga', change.recheckInMs);
    return true;
  });
}

/** Whether a step after `keep` is open or not undone. The saga is locked, so no new step can appear. */
async function hasMoreToUndo(tx: Tx, id: string, keep: number): Promise<boolean> {
  const rows = await tx.run({
    name: 'more-to-undo',
    text: `select c.txn from calls c left join undos u on u.txn = c.txn where c.saga = $1 and c.ordinal > $2
        and (coalesce(u.state not in ('done', 'skipped'), true) or exists (select 1 from open_calls o where o.txn = c.txn)) limit 1`,
    values: [id, keep],
  });
  return rows.length > 0;
}

/** Makes the undo task due when the ttl of the saga ends. The saga is locked, so no rollback needs the task earlier. */
async function scheduleExpiry(tx: Tx, id: string, expiresAt: Date): Promise<void> {
  await tx.run({
    name: 'schedule-saga-expiry',
    text: 'update undo_work set due_at = $2 where id = $1',
    values: [id, expiresAt],
  });
}
