/** Limits the number of holders. Others wait in a queue of limited length, for a limited time. */
export class Semaphore {
  readonly #maxHolders: number;
  readonly #maxWaiters: number;
  readonly #waiters = new Set<() => void>();
  #holders = 0;

  constructor(maxHolders: number, maxWaiters = maxHolders * 16) {
    this.#maxHolders = maxHolders;
    this.#maxWaiters = maxWaiters;
  }

  /**
   * Returns the function that releases the semaphore, or undefined when the queue is full or the time is up. Returns a promise
   * only if the caller must wait.
   */
  acquire(maxWaitMs: number): (() => void) | undefined | Promise<(() => void) | undefined> {
    if (this.#holders < this.#maxHolders) {
      this.#holders += 1;
      return this.#createRelease();
    }
    return this.#waiters.size >= this.#maxWaiters ? undefined : this.#waitForRelease(maxWaitMs);
  }

  async #waitForRelease(maxWaitMs: number): Promise<(() => void) | undefined> {
    const hasAcquired = await new Promise<boolean>((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        resolve(true);
      };
      const timer = setTimeout(() => {
        this.#waiters.delete(wake);
        resolve(false);
      }, maxWaitMs);
      this.#waiters.add(wake);
    });
    return hasAcquired ? this.#createRelease() : undefined;
  }

  #createRelease(): () => void {
    let isReleased = false;
    return () => {
      if (isReleased) return;
      isReleased = true;
      const [next] = this.#waiters;
      if (next === undefined) this.#holders -= 1;
      else {
        // `#holders` stays unchanged: the next waiter gets the permit, and no newcomer can take it.
        this.#waiters.delete(next);
        next();
      }
    };
  }
}
