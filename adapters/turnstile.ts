/** Lets so many through at once; others queue, not without end and not for ever. */
export class Turnstile {
  readonly #most: number;
  readonly #mostWaiting: number;
  readonly #waiting = new Set<() => void>();
  #inside = 0;

  constructor(most: number, mostWaiting = most * 16) {
    this.#most = most;
    this.#mostWaiting = mostWaiting;
  }

  /** The way out, or nothing when the queue is full or the time is up; a promise of it for whoever must wait. */
  enter(patienceMs: number): (() => void) | undefined | Promise<(() => void) | undefined> {
    if (this.#inside < this.#most) {
      this.#inside += 1;
      return this.#leave();
    }
    return this.#waiting.size >= this.#mostWaiting ? undefined : this.#queue(patienceMs);
  }

  async #queue(patienceMs: number): Promise<(() => void) | undefined> {
    const turn = await new Promise<boolean>((resolve) => {
      const called = () => {
        clearTimeout(timer);
        resolve(true);
      };
      const timer = setTimeout(() => {
        this.#waiting.delete(called);
        resolve(false);
      }, patienceMs);
      this.#waiting.add(called);
    });
    return turn ? this.#leave() : undefined;
  }

  #leave(): () => void {
    let left = false;
    return () => {
      if (left) return;
      left = true;
      const [next] = this.#waiting;
      if (next === undefined) this.#inside -= 1;
      else {
        // The place is handed on: nobody who comes now can slip in between.
        this.#waiting.delete(next);
        next();
      }
    };
  }
}
