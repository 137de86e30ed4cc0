const REPORT_EVERY_MS = 2_000;

export interface BatchCounts {
  /** Rows moved since the migration began, by all replicas that worked on it. */
  readonly moved: number;
  /** All rows as counted when the migration began; undefined if the migration does not declare how to count. */
  readonly total: number | undefined;
}

/** Logs how far a batched migration has come: after the first batch, then at most every two seconds, and at the end. */
export class MigrationProgress {
  readonly #title: string;
  readonly #log: (line: string) => void;
  readonly #now: () => number;
  /** The first report of this process. The speed is measured from here. */
  #first: { readonly at: number; readonly moved: number } | undefined;
  #reportedAt = Number.NEGATIVE_INFINITY;

  constructor(title: string, log: (line: string) => void, now: () => number = () => performance.now()) {
    this.#title = title;
    this.#log = log;
    this.#now = now;
  }

  report({ moved, total }: BatchCounts): void {
    const at = this.#now();
    this.#first ??= { at, moved };
    if (at - this.#reportedAt < REPORT_EVERY_MS) return;
    this.#reportedAt = at;
    const speed = (moved - this.#first.moved) / (at - this.#first.at);
    this.#log(`Migration ${this.#title}: ${describeProgress(moved, total, speed)}.`);
  }

  /** Says that the migration is complete, if this process has reported any progress. */
  finish(): void {
    if (this.#first !== undefined) this.#log(`Migration ${this.#title} is complete.`);
  }
}

/** `speed` is in rows per millisecond; it is not a positive number before the second report. */
function describeProgress(moved: number, total: number | undefined, speed: number): string {
  if (total === undefined) return `${formatCount(moved)} rows`;
  // Others may have added rows after the count.
  const all = Math.max(moved, total);
  const share = `${formatCount(moved)} of about ${formatCount(all)} rows (${Math.floor((100 * moved) / all)} %)`;
  return speed > 0 && moved < all ? `${share}, about ${formatDuration((all - moved) / speed)} left` : share;
}

function formatCount(count: number): string {
  return count.toLocaleString('en-US');
}

function formatDuration(ms: number): string {
  const seconds = Math.ceil(ms / 1_000);
  return seconds < 120 ? `${seconds} s` : `${Math.ceil(seconds / 60)} min`;
}
