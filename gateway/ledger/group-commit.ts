import { LedgerError } from '../domain/errors.ts';
import type { Database } from './db.ts';

interface QueuedItem<Item, Result> {
  readonly item: Item;
  readonly resolve: (result: Result | PromiseLike<Result>) => void;
  readonly reject: (error: unknown) => void;
}

export interface GroupCommitOptions<Item, Result> {
  readonly maxBatch: number;
  readonly maxInFlight: number;
  /**
   * Whether a temporary rejection, such as a lock timeout, fails the whole batch instead of retrying item by item. For statements
   * that lock no rows: only a table lock can reject them, and every item would wait for that lock until its timeout.
   */
  readonly shouldFailTogether?: boolean;
  /** Called for each batch with its size and the number of items still queued. */
  readonly onBatch?: (size: number, queued: number) => void;
  /**
   * Runs one statement for all items and resolves after its commit, with the results in the order of the items. An item that
   * must wait for another item of the batch gets a promise as its result, so that its failure does not fail the batch.
   */
  readonly run: (items: readonly Item[]) => Promise<readonly (Result | PromiseLike<Result>)[]>;
}

/**
 * Group commit: the items that wait in this process go to PostgreSQL as one statement and one fsync. There is no timer: a lone
 * item leaves at the end of its tick, and a batch grows only while earlier batches are in flight.
 *
 * A rejected item must not fail the others, so a batch that certainly did not commit runs again item by item. If the commit of
 * a batch is unknown, it is unknown for each item.
 */
export class GroupCommit<Item, Result> {
  readonly #options: GroupCommitOptions<Item, Result>;
  #queue: QueuedItem<Item, Result>[] = [];
  #inFlight = 0;
  #isScheduled = false;

  constructor(options: GroupCommitOptions<Item, Result>) {
    this.#options = options;
  }

  submit(item: Item): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.#queue.push({ item, resolve, reject });
      if (!this.#isScheduled) {
        this.#isScheduled = true;
        setImmediate(() => {
          this.#isScheduled = false;
          this.#flush();
        });
      }
    });
  }

  #flush(): void {
    while (this.#queue.length > 0 && this.#inFlight < this.#options.maxInFlight) {
      const batch = this.#queue.splice(0, this.#options.maxBatch);
      this.#inFlight += 1;
      this.#options.onBatch?.(batch.length, this.#queue.length);
      void this.#commit(batch).finally(() => {
        this.#inFlight -= 1;
        this.#flush();
      });
    }
  }

  async #commit(batch: readonly QueuedItem<Item, Result>[]): Promise<void> {
    try {
      const results = await this.#options.run(batch.map((queued) => queued.item));
      for (const [i, queued] of batch.entries()) queued.resolve(results[i] as Result);
    } catch (error) {
      const canRunAlone = isRejection(error) && (error.isPermanent || this.#options.shouldFailTogether !== true);
      if (batch.length > 1 && canRunAlone) {
        for (const queued of batch) await this.#commit([queued]);
      } else {
        for (const queued of batch) queued.reject(error);
        if (!canRunAlone) this.#rejectQueued(error);
      }
    }
  }

  /** PostgreSQL is unreachable. Fails the queued items now instead of after their own timeouts; none of them was sent. */
  #rejectQueued(error: unknown): void {
    const queued = this.#queue.splice(0);
    const text = error instanceof Error ? error.message : String(error);
    for (const { reject } of queued) reject(new LedgerError(text, { isCommitUnknown: false, cause: error }));
  }
}

/** One group commit for each database, for statements that lock no rows. Callers need no store object, only the database. */
export function groupByDatabase<Item, Result>(
  size: Pick<GroupCommitOptions<Item, Result>, 'maxBatch' | 'maxInFlight'>,
  run: (db: Database, items: readonly Item[]) => Promise<readonly Result[]>,
): (db: Database, item: Item) => Promise<Result> {
  const groups = new WeakMap<Database, GroupCommit<Item, Result>>();
  return (db, item) => {
    let group = groups.get(db);
    if (group === undefined) {
      group = new GroupCommit({ ...size, shouldFailTogether: true, run: (items) => run(db, items) });
      groups.set(db, group);
    }
    return group.submit(item);
  };
}

/** PostgreSQL is reachable, rejected the statement, and committed nothing. */
function isRejection(error: unknown): error is LedgerError {
  return error instanceof LedgerError && !error.isCommitUnknown && error.isRejected;
}
