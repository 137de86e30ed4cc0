import { GatewayError } from '../../domain/errors.ts';
import type { Saga, SagaStep, UndoState } from '../../domain/sagas/saga.ts';
import { insertAuditEntry } from '../audit/audit-queue.ts';
import type { Database, Tx } from '../db.ts';
import { GroupCommit } from '../group-commit.ts';
import { readSteps, type StepDetail } from './saga-steps.ts';
import { readSagas } from './sagas.ts';
import { addUndoTask, type UndoTask } from './undo-tasks.ts';

const BATCH = { maxBatch: 64, maxInFlight: 2 };

/** A transition of the undo of one call. */
export interface UndoMark {
  readonly txn: string;
  readonly from: UndoState;
  /** The number of tries when the undo was read. A late mark has an older number and changes nothing. */
  readonly tries: number;
  readonly to: UndoState;
  readonly reason: string | null;
  /** Set if the undo is `failed` only because its outcome is unknown. */
  readonly doubt: SagaStep['undoDoubt'];
  /** Time until a `due` undo may be tried. */
  readonly inMs: number;
  readonly entry: string;
}

/** A saga with its steps, or a single call as its only step. */
export interface UndoTarget {
  readonly saga: Saga | undefined;
  readonly steps: readonly SagaStep[];
}

/** Arguments that a person or agent gives for an undo, in clear with redactions, and sealed if anything is redacted. */
interface UndoCallArguments {
  readonly text: string;
  readonly sealed: Buffer | null;
}

/** Reads and marks undos, in batches for many rollbacks at once. */
export class UndoStore {
  readonly #db: Database;
  readonly #marks: GroupCommit<UndoMark, boolean>;
  readonly #reads: GroupCommit<UndoTask, UndoTarget>;
  readonly #outlines: GroupCommit<UndoTask, UndoTarget>;

  constructor(db: Database) {
    this.#db = db;
    this.#marks = new GroupCommit({ ...BATCH, run: (marks) => this.#markAll(marks) });
    this.#reads = new GroupCommit({ ...BATCH, run: (tasks) => this.#readAll(tasks, 'whole') });
    this.#outlines = new GroupCommit({ ...BATCH, run: (tasks) => this.#readAll(tasks, 'outline') });
  }

  /** Returns false if another worker has moved the undo on. */
  mark(mark: UndoMark): Promise<boolean> {
    return this.#marks.submit(mark);
  }

  read(id: string, of: UndoTask['of'] = 'saga'): Promise<UndoTarget> {
    return this.#reads.submit({ id, of });
  }

  /**
   * Reads enough to plan the next moves, which happens after every move: whether a step's undo has arguments, but not the
   * arguments. They may be megabytes for each step, and are read for the one step that starts.
   */
  readOutline(id: string, of: UndoTask['of']): Promise<UndoTarget> {
    return this.#outlines.submit({ id, of });
  }

  /** Begins the undo of one call outside of a rollback. A failed undo is tried again; one that is running or done is left alone. */
  async beginUndo(txn: string, args: UndoCallArguments | undefined, entry: string): Promise<void> {
    await this.#db.transaction(async (tx) => {
      const call = await lockUndoableCall(tx, txn);
      if (call === undefined) throw new GatewayError('conflict', 'Only a succeeded call can be undone.', { txn });
      const { undoState } = call;
      const canBegin = undoState === 'none' || undoState === 'failed' || (undoState === 'due' && args !== undefined);
      if (!canBegin) return;
      if (!call.hasUndoArgs && args === undefined)
        throw new GatewayError('conflict', 'The arguments of the undo are not known. Give them as "args".', { txn });
      // The last compensation of a failed undo may still act. Waiting for it avoids a second one.
      await markUndoBegun(tx, txn, undoState === 'failed' && call.isCompensationOpen ? 'running' : 'due', args);
      await addUndoTask(tx, txn, 'call');
      await insertAuditEntry(tx, entry);
    });
  }

  /**
   * Applies marks as compare-and-set: a mark applies only if the undo is still in the state and try that the worker read. So of
   * two workers one wins. Rows are sorted by txn, so that two batches never wait in a circle.
   */
  async #markAll(marks: readonly UndoMark[]): Promise<boolean[]> {
    const rows = [...marks].sort((a, b) => (a.txn < b.txn ? -1 : 1));
    const column = <T>(pick: (mark: UndoMark) => T) => rows.map(pick);
    const applied = await this.#db.run<{ txn: string }>({
      name: 'mark-undos',
      text: `with incoming as (
          select * from unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], $6::float8[], $7::text[], $8::text[])
            as t(txn, from_state, tries, to_state, reason, in_ms, entry, doubt)
        ), begun as (
          -- The undo of a call has no row before its first mark, unless an observation or its arguments are known.
          insert into undos as u (txn, state, reason, doubt, since, due_at)
          select i.txn, i.to_state::undo_state, i.reason, i.doubt, case when i.to_state = 'due' then now() end,
            case when i.to_state = 'due' then now() + i.in_ms * interval '1 ms' end
          from incoming i where i.from_state = 'none' and i.tries = 0
          on conflict (txn) do update set state = excluded.state, reason = excluded.reason, doubt = excluded.doubt,
            since = coalesce(u.since, excluded.since), due_at = excluded.due_at
          where u.state = 'none' and u.tries = 0
          returning u.txn
        ), moved as (
          -- Not an upsert: PostgreSQL checks the new row of an upsert before it finds the old one, which has the txn of the compensation.
          update undos u set state = i.to_state::undo_state, reason = i.reason, doubt = i.doubt,
            since = case when i.to_state = 'due' then coalesce(u.since, now()) else u.since end,
            due_at = case when i.to_state = 'due' then now() + i.in_ms * interval '1 ms' end
          from incoming i where u.txn = i.txn and u.state = i.from_state::undo_state and u.tries = i.tries and i.from_state <> 'none'
          returning u.txn, i.entry
        ), marked as (
          select b.txn, i.entry from begun b join incoming i on i.txn = b.txn union all select txn, entry from moved
        ), logged as (
          insert into audit_queue (entry) select entry from marked
        )
        select txn from marked`,
      values: [
        column((m) => m.txn),
        column((m) => m.from),
        column((m) => m.tries),
        column((m) => m.to),
        column((m) => m.reason),
        column((m) => m.inMs),
        column((m) => m.entry),
        column((m) => m.doubt),
      ],
    });
    const markedTxns = new Set(applied.map((row) => row.txn));
    return marks.map((mark) => markedTxns.has(mark.txn));
  }

  async #readAll(tasks: readonly UndoTask[], detail: StepDetail): Promise<UndoTarget[]> {
    const sagas = tasks.filter(({ of }) => of === 'saga').map(({ id }) => id);
    const calls = tasks.filter(({ of }) => of === 'call').map(({ id }) => id);
    const found = new Map((sagas.length === 0 ? [] : await readSagas(this.#db, sagas)).map((saga) => [saga.id, saga]));
    const steps = await readSteps(this.#db, sagas, calls, detail);
    const bySaga = new Map<string, SagaStep[]>();
    const byTxn = new Map<string, SagaStep>();
    for (const { saga, ...step } of steps) {
      byTxn.set(step.txn, step);
      if (saga === null) continue;
      const list = bySaga.get(saga) ?? [];
      list.push(step);
      bySaga.set(saga, list);
    }
    for (const list of bySaga.values()) list.sort((a, b) => a.ordinal - b.ordinal);
    return tasks.map(({ id, of }) => {
      if (of === 'saga') return { saga: found.get(id), steps: bySaga.get(id) ?? [] };
      const step = byTxn.get(id);
      return { saga: undefined, steps: step === undefined ? [] : [{ ...step, ordinal: 1, dependsOn: [] }] };
    });
  }
}

interface UndoableCall {
  readonly undoState: UndoState;
  readonly hasUndoArgs: boolean;
  /** The last compensation is not settled. */
  readonly isCompensationOpen: boolean;
}

/** Locks the undo of a succeeded call until the transaction ends, so that marks and other requests wait. */
async function lockUndoableCall(tx: Tx, txn: string): Promise<UndoableCall | undefined> {
  await insertUndo(tx, txn);
  const [call] = await tx.run<UndoableCall>({
    name: 'lock-undoable',
    text: `select u.state as "undoState", u.args is not null as "hasUndoArgs",
            exists (select 1 from open_calls o where o.txn = u.undo_txn) as "isCompensationOpen"
          from undos u join settlements r on r.txn = u.txn where u.txn = $1 and r.state = 'succeeded' for update of u`,
    values: [txn],
  });
  return call;
}

/** Gives a succeeded call a row in `undos`, which the next statement locks. Of two requests, the second finds the row. */
async function insertUndo(tx: Tx, txn: string): Promise<void> {
  await tx.run({
    name: 'insert-undo',
    text: `insert into undos (txn) select txn from settlements where txn = $1 and state = 'succeeded' on conflict (txn) do nothing`,
    values: [txn],
  });
}

/** Starts a new round of tries. The caller holds the lock of the call and has checked its undo state. */
async function markUndoBegun(
  tx: Tx,
  txn: string,
  state: 'running' | 'due',
  args: UndoCallArguments | undefined,
): Promise<void> {
  await tx.run({
    name: 'begin-undo',
    text: `update undos set state = $2::undo_state, tries_from = tries, since = now(), due_at = null, reason = null, doubt = null,
            args = coalesce($3, args), sealed = case when $3::text is null then sealed else $4 end
          where txn = $1`,
    values: [txn, state, args?.text ?? null, args?.sealed ?? null],
  });
}
