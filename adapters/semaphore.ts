/** Lets so many through at once; others queue, not without end and not for ever. */
export class Semaphore {
  readonly #maxHolders: number;
  readonly #maxWaiters: number;
  readonly #waiters = new Set<() => void>();
  #holders = 0;

  constructor(most: number, mostWaiting = most * 16) {
    this.#maxHolders = most;
    this.#maxWaiters = mostWaiting;
  }

  /** The way out, or nothing when the queue is full or the time is up; a promise of it for whoever must wait. */
  acquire(patienceMs: number): (() => void) | undefined | Promise<(() => void) | undefined> {
    if (this.#holders < this.#maxHolders) {
      this.#holders += 1;
      return this.#createRelease();
    }
    return this.#waiters.size >= this.#maxWaiters ? undefined : this.#waitForRelease(patienceMs);
  }

  async #waitForRelease(patienceMs: number): Promise<(() => void) | undefined> {
    const turn = await new Promise<boolean>((resolve) => {
      const called = () => {
        clearTimeout(timer);
        resolve(true);
      };
      const timer = setTimeout(() => {
        this.#waiters.delete(called);
        resolve(false);
      }, patienceMs);
      this.#waiters.add(called);
    });
    return turn ? this.#createRelease() : undefined;
  }

  #createRelease(): () => void {
    let left = false;
    return () => {
      if (left) return;
      left = true;
      const [next] = this.#waiters;
      if (next === undefined) this.#holders -= 1;
      else {
        // The place is handed on: nobody who comes now can slip in between.
        this.#waiters.delete(next);
        next();
      }
    };
  }
}
