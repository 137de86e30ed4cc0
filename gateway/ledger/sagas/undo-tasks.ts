import type { Queryable, Tx } from '../db.ts';

/** A saga or a single call that the undo worker checks when it is due. */
export interface UndoTask {
  readonly id: string;
  readonly of: 'saga' | 'call';
}

/** Schedules a task, or reschedules an existing one. Two requests leave one task, due at the later request's time. */
export async function addUndoTask(tx: Tx, id: string, of: UndoTask['of'], inMs = 0): Promise<void> {
  await tx.run({
    name: 'add-undo-task',
    text: `insert into undo_work (id, of, due_at) values ($1, $2, now() + $3 * interval '1 ms')
      on conflict (id) do update set due_at = excluded.due_at`,
    values: [id, of, inMs],
  });
}

/**
 * Removes a finished task. The worker that took the task set `due_at` to a later time. If the task is due already, a later
 * request has rescheduled it, and the condition keeps it.
 */
export async function removeUndoTask(db: Queryable, id: string): Promise<void> {
  await db.run({
    name: 'remove-undo-task',
    text: 'delete from undo_work where id = $1 and due_at > clock_timestamp()',
    values: [id],
  });
}

/**
 * Takes due tasks for `claimMs`. If the taker dies, they are due again after that time. `skip locked` gives each task to one
 * taker.
 */
export function claimUndoTasks(db: Queryable, limit: number, claimMs: number): Promise<readonly UndoTask[]> {
  return db.run<UndoTask>({
    name: 'claim-undo-tasks',
    text: `update undo_work w set due_at = now() + $2 * interval '1 ms'
      from (select id from undo_work where due_at <= now() order by due_at limit $1 for update skip locked) d
      where w.id = d.id returning w.id, w.of`,
    values: [limit, claimMs],
  });
}

/** Reschedules a task, unless a later request made it due meanwhile. */
export async function postponeUndoTask(db: Queryable, id: string, inMs: number): Promise<void> {
  await db.run({
    name: 'postpone-undo-task',
    text: `update undo_work set due_at = now() + $2 * interval '1 ms' where id = $1 and due_at > now()`,
    values: [id, inMs],
  });
}
