import type { Queryable, Tx } from '../db.ts';

export interface UndoTask {
  readonly id: string;
  readonly of: 'saga' | 'call';
}

/** Something is to be undone, or looked at, in so long. */
export async function addUndoTask(tx: Tx, id: string, of: UndoTask['of'], inMs = 0): Promise<void> {
  await tx.run({
    name: 'add-undo-work',
    text: `insert into undo_work (id, of, due_at) values ($1, $2, now() + $3 * interval '1 ms')
      on conflict (id) do update set due_at = excluded.due_at`,
    values: [id, of, inMs],
  });
}

/** Whoever took it has pushed its time ahead: if it is due again, somebody asked for more meanwhile, and it stays. */
export async function removeUndoTask(on: Queryable, id: string): Promise<void> {
  await on.run({
    name: 'drop-undo-work',
    text: 'delete from undo_work where id = $1 and due_at > clock_timestamp()',
    values: [id],
  });
}

/** Takes work that is due. It is the taker's for `forMs`; after that anybody's again. */
export function claimUndoTasks(on: Queryable, limit: number, forMs: number): Promise<readonly UndoTask[]> {
  return on.run<UndoTask>({
    name: 'take-undo-work',
    text: `update undo_work w set due_at = now() + $2 * interval '1 ms'
      from (select id from undo_work where due_at <= now() order by due_at limit $1 for update skip locked) d
      where w.id = d.id returning w.id, w.of`,
    values: [limit, forMs],
  });
}

/** Looks again in so long, unless somebody asked for it earlier meanwhile. */
export async function postponeUndoTask(on: Queryable, id: string, inMs: number): Promise<void> {
  await on.run({
    name: 'postpone-undo-work',
    text: `update undo_work set due_at = now() + $2 * interval '1 ms' where id = $1 and due_at > now()`,
    values: [id, inMs],
  });
}
