import { setTimeout as sleep } from 'node:timers/promises';

export interface PollOptions {
  readonly withinMs?: number;
  readonly everyMs?: number;
  /** What the error says beside the value that was read last. */
  readonly explain?: () => string;
}

/** Reads until the value is right, and returns it. Without `isRight`, any truthy value is right. */
export async function pollUntil<T>(
  read: () => T | Promise<T>,
  isRight: (value: T) => boolean = Boolean,
  { withinMs = 30_000, everyMs = 25, explain = () => '' }: PollOptions = {},
): Promise<T> {
  for (const until = performance.now() + withinMs; ; await sleep(everyMs)) {
    const value = await read();
    if (isRight(value)) return value;
    if (performance.now() > until)
      throw new Error(`Still not right after ${withinMs} ms: ${JSON.stringify(value)}. ${explain()}`);
  }
}
