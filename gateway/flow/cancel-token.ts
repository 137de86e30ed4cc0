/** Tells waiting code to stop waiting. Lighter than an AbortSignal, because every request has one. */
export class CancelToken {
  #isCancelled = false;
  readonly #listeners: (() => void)[] = [];

  get isCancelled(): boolean {
    return this.#isCancelled;
  }

  /** Called when the caller hangs up, among others. Ends the waiting for an answer, never the call. */
  cancel(): void {
    this.#isCancelled = true;
    for (const listener of this.#listeners.splice(0)) listener();
  }

  onCancel(listener: () => void): void {
    if (this.#isCancelled) listener();
    else this.#listeners.push(listener);
  }

  removeListener(listener: () => void): void {
    const index = this.#listeners.indexOf(listener);
    if (index >= 0) this.#listeners.splice(index, 1);
  }
}

/** The value of the promise, or undefined once the time is up or a token is cancelled. */
export function withTimeout<T>(
  promise: Promise<T>,
  ms: number,
  token?: CancelToken,
  otherToken?: CancelToken,
): Promise<T | undefined> {
  if (ms <= 0 || token?.isCancelled === true || otherToken?.isCancelled === true) return Promise.resolve(undefined);
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      token?.removeListener(giveUp);
      otherToken?.removeListener(giveUp);
    };
    const giveUp = () => {
      end();
      resolve(undefined);
    };
    const timer = setTimeout(giveUp, ms);
    token?.onCancel(giveUp);
    otherToken?.onCancel(giveUp);
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

/** Sleeps, but ends early when one of the tokens is cancelled. */
export function sleepUnlessCancelled(ms: number, ...tokens: readonly (CancelToken | undefined)[]): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      for (const token of tokens) token?.removeListener(end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    for (const token of tokens) token?.onCancel(end);
  });
}
