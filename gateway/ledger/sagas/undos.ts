import { GatewayError } from '../../domain/errors.ts';
import type { Saga, SagaStep, UndoState } from '../../domain/sagas/saga.ts';
import type { Database } from '../db.ts';
import { GroupCommit } from '../group-commit.ts';
import { readSteps, type StepDetail } from './saga-steps.ts';
import { readSagas } from './sagas.ts';
import { addUndoTask, type UndoTask } from './undo-tasks.ts';

const BATCH = { maxBatch: 64, maxInFlight: 2 };

export interface UndoMark {
  readonly txn: string;
  readonly from: UndoState;
  /** The try that this is about: a mark that comes late applies to nothing. */
  readonly tries: number;
  readonly to: UndoState;
  readonly reason: string | null;
  /** When a `due` undo may be tried. */
  readonly inMs: number;
  readonly entry: string;
}

/** A saga with its steps, or (without a saga) a call that is undone by itself. */
export interface UndoTarget {
  readonly saga: Saga | undefined;
  readonly steps: readonly SagaStep[];
}

/** Reads and marks what is to be undone, for many rollbacks at once. */
export class UndoStore {
  readonly #db: Database;
  readonly #marks: GroupCommit<UndoMark, boolean>;
  readonly #reads: GroupCommit<UndoTask, UndoTarget>;
  readonly #outlines: GroupCommit<UndoTask, UndoTarget>;

  constructor(db: Database) {
    this.#db = db;
    this.#marks = new GroupCommit({ ...BATCH, run: (marks) => this.#markAll(marks) });
    this.#reads = new GroupCommit({ ...BATCH, run: (work) => this.#readAll(work, 'whole') });
    this.#outlines = new GroupCommit({ ...BATCH, run: (work) => this.#readAll(work, 'outline') });
  }

  /** False: somebody else moved it on. */
  mark(mark: UndoMark): Promise<boolean> {
    return this.#marks.submit(mark);
  }

  read(id: string, of: UndoTask['of'] = 'saga'): Promise<UndoTarget> {
    return this.#reads.submit({ id, of });
  }

  /**
   * Enough to tell what to do next, which is asked after every move: that a step's undo has arguments and a tool, and not what
   * they are. Those may be megabytes a step, and are read with the one step that is started.
   */
  readOutline(id: string, of: UndoTask['of']): Promise<UndoTarget> {
    return this.#outlines.submit({ id, of });
  }

  /** One call is to be undone by itself. What failed before is tried again; what is under way or done stays so. */
  async beginUndo(
    txn: string,
    args: { readonly text: string; readonly sealed: Buffer | null } | undefined,
    entry: string,
  ): Promise<void> {
    await this.#db.transaction(async (tx) => {
      const [call] = await tx.run<{ undo_state: UndoState; undo_args: string | null; open: boolean }>({
        name: 'lock-undoable',
        text: `select c.undo_state, c.undo_args, u.txn is not null and u.settled_at is null as open
          from calls c left join calls u on u.txn = c.undo_txn where c.txn = $1 and c.state = 'succeeded' for update of c`,
        values: [txn],
      });
      if (call === undefined) throw new GatewayError('conflict', 'Only what succeeded can be undone.', { txn });
      if (
        call.undo_state !== 'none' &&
        call.undo_state !== 'failed' &&
        !(call.undo_state === 'due' && args !== undefined)
      )
        return;
      if (call.undo_args === null && args === undefined)
        throw new GatewayError('conflict', 'The arguments of its undo are not known: give them as "args".', { txn });
      await tx.run({
        name: 'begin-undo',
        text: `update calls set undo_state = $2, undo_from = undo_tries, undo_since = now(), undo_due_at = null, undo_reason = null,
            undo_args = coalesce($3, undo_args), undo_sealed = case when $3::text is null then undo_sealed else $4 end
          where txn = $1`,
        values: [
          txn,
          call.undo_state === 'failed' && call.open ? 'running' : 'due',
          args?.text ?? null,
          args?.sealed ?? null,
        ],
      });
      await addUndoTask(tx, txn, 'call');
      await tx.run({ name: 'log-entry', text: 'insert into audit_queue (entry) values ($1)', values: [entry] });
    });
  }

  async #markAll(marks: readonly UndoMark[]): Promise<boolean[]> {
    const rows = [...marks].sort((a, b) => (a.txn < b.txn ? -1 : 1));
    const column = <T>(pick: (mark: UndoMark) => T) => rows.map(pick);
    const moved = await this.#db.run<{ txn: string }>({
      name: 'mark-undos',
      text: `with incoming as (
          select * from unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::text[], $6::float8[], $7::text[])
            as t(txn, from_state, tries, to_state, reason, in_ms, entry)
        ), marked as (
          update calls c set undo_state = i.to_state, undo_reason = i.reason,
            undo_since = case when i.to_state = 'due' then coalesce(c.undo_since, now()) else c.undo_since end,
            undo_due_at = case when i.to_state = 'due' then now() + i.in_ms * interval '1 ms' end
          from incoming i where c.txn = i.txn and c.undo_state = i.from_state and c.undo_tries = i.tries
          returning c.txn, i.entry
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
      ],
    });
    const done = new Set(moved.map((row) => row.txn));
    return marks.map((mark) => done.has(mark.txn));
  }

  async #readAll(work: readonly UndoTask[], extent: StepDetail): Promise<UndoTarget[]> {
    const sagas = work.filter(({ of }) => of === 'saga').map(({ id }) => id);
    const calls = work.filter(({ of }) => of === 'call').map(({ id }) => id);
    const found = new Map((sagas.length === 0 ? [] : await readSagas(this.#db, sagas)).map((saga) => [saga.id, saga]));
    const steps = await readSteps(this.#db, sagas, calls, extent);
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
    return work.map(({ id, of }) => {
      if (of === 'saga') return { saga: found.get(id), steps: bySaga.get(id) ?? [] };
      const step = byTxn.get(id);
      return { saga: undefined, steps: step === undefined ? [] : [{ ...step, ordinal: 1, dependsOn: [] }] };
    });
  }
}
