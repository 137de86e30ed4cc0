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
   * Its statements wait for no row that somebody has locked. What is refused for the moment (a table is locked) is refused to
   * all then: one by one they would be so too, each after the whole time that a lock is waited for.
   */
  readonly shouldFailTogether?: boolean;
  /** Told how many left together, and how many still wait. */
  readonly onBatch?: (size: number, waiting: number) => void;
  /**
   * Runs one statement for all items, committed when it resolves; answers in the order of the items. An item that must wait
   * for another of the same batch is answered by a promise: what becomes of it is no concern of its neighbours.
   */
  readonly run: (items: readonly Item[]) => Promise<readonly (Result | PromiseLike<Result>)[]>;
}

/**
 * Group commit: what waits in this process goes to PostgreSQL as one statement and one fsync. There is no timer; a lone
 * item leaves at the end of the tick it came in, and a batch grows only while earlier ones are in flight.
 *
 * One item that the database refuses must not refuse its neighbours, so a batch that certainly did not commit is run
 * again one by one. A batch whose commit is unknown is unknown for each of its items.
 */
export class GroupCommit<Item, Result> {
  readonly #options: GroupCommitOptions<Item, Result>;
  #queue: QueuedItem<Item, Result>[] = [];
  #inFlight = 0;
  #scheduled = false;

  constructor(options: GroupCommitOptions<Item, Result>) {
    this.#options = options;
  }

  submit(item: Item): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.#queue.push({ item, resolve, reject });
      if (!this.#scheduled) {
        this.#scheduled = true;
        setImmediate(() => {
          this.#scheduled = false;
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
      const results = await this.#options.run(batch.map((waiting) => waiting.item));
      for (const [i, waiting] of batch.entries()) waiting.resolve(results[i] as Result);
    } catch (error) {
      const isOfOne = isRefusal(error) && (error.isPermanent || this.#options.shouldFailTogether !== true);
      if (batch.length > 1 && isOfOne) {
        for (const waiting of batch) await this.#commit([waiting]);
      } else {
        for (const waiting of batch) waiting.reject(error);
        if (!isOfOne) this.#rejectQueued(error);
      }
    }
  }

  /** The server is gone, or as good as: those that wait behind are owed an answer now, and nothing of theirs was sent to it. */
  #rejectQueued(error: unknown): void {
    const waiting = this.#queue.splice(0);
    const text = error instanceof Error ? error.message : String(error);
    for (const { reject } of waiting) reject(new LedgerError(text, { isCommitUnknown: false, cause: error }));
  }
}

/** One group for each database, for statements that need nothing but it, and wait for nobody: whoever asks knows it already. */
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

/** The server looked at the statement and said no: it lives, and nothing was committed. */
function isRefusal(error: unknown): error is LedgerError {
  return error instanceof LedgerError && !error.isCommitUnknown && error.isRejected;
}
