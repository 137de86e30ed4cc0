/** Somebody who may go away while an answer is made for them. Lighter than an AbortSignal: every request has one. */
export class CancelToken {
  #gone = false;
  #whenGone: (() => void)[] = [];

  get gone(): boolean {
    return this.#gone;
  }

  /** They hung up: it ends the waiting for an answer, never the call. */
  hangUp(): void {
    this.#gone = true;
    for (const told of this.#whenGone.splice(0)) told();
  }

  onGone(told: () => void): void {
    if (this.#gone) told();
    else this.#whenGone.push(told);
  }

  /** It need not be told any more. */
  forget(told: () => void): void {
    const at = this.#whenGone.indexOf(told);
    if (at >= 0) this.#whenGone.splice(at, 1);
  }
}

/** What is waited for, or nothing once the time is up or one of them has gone. */
export function withTimeout<T>(
  promise: Promise<T>,
  ms: number,
  caller?: CancelToken,
  other?: CancelToken,
): Promise<T | undefined> {
  if (ms <= 0 || caller?.gone === true || other?.gone === true) return Promise.resolve(undefined);
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      caller?.forget(giveUp);
      other?.forget(giveUp);
    };
    const giveUp = () => {
      end();
      resolve(undefined);
    };
    const timer = setTimeout(giveUp, ms);
    caller?.onGone(giveUp);
    other?.onGone(giveUp);
    promise.then(
      (value) => {
        end();
        resolve(value);
      },
      (error: unknown) => {
        end();
        reject(error);
      },
    );
  });
}

/** Some time, or less if one of them goes away meanwhile. */
export function sleepUnlessCancelled(ms: number, ...callers: readonly (CancelToken | undefined)[]): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      for (const caller of callers) caller?.forget(end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    for (const caller of callers) caller?.onGone(end);
  });
}
