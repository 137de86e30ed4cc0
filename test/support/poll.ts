import { setTimeout as sleep } from 'node:timers/promises';

export interface PollOptions {
  readonly withinMs?: number;
  readonly everyMs?: number;
  /** Text for the error, which also shows the last value. */
  readonly explain?: () => string;
}

/** Reads until the value is right, and returns the value. Without `isRight`, any truthy value is right. */
export async function pollUntil<T>(
  read: () => T | Promise<T>,
  isRight: (value: T) => boolean = Boolean,
  { withinMs = 30_000, everyMs = 25, explain = () => '' }: PollOptions = {},
): Promise<T> {
  for (const until = performance.now() + withinMs; ; await sleep(everyMs)) {
    const value = await read();
    if (isRight(value)) return value;
    if (performance.now() > until)
      throw new Error(`The value is not right after ${withinMs} ms: ${JSON.stringify(value)}. ${explain()}`);
  }
}
