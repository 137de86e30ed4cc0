import { LedgerError } from '../domain/errors.ts';
import type { AppLogger } from './context.ts';

/** Polls for work at an interval, and at once when woken. Polls never overlap. */
export class Poller {
  readonly #name: string;
  readonly #intervalMs: number;
  readonly #poll: () => Promise<void>;
  readonly #log: AppLogger;
  #timer: NodeJS.Timeout | undefined;
  #polling: Promise<void> | undefined;
  #stopped = false;

  constructor(name: string, intervalMs: number, poll: () => Promise<void>, log: AppLogger) {
    this.#name = name;
    this.#intervalMs = intervalMs;
    this.#poll = poll;
    this.#log = log;
  }

  get isStopped(): boolean {
    return this.#stopped;
  }

  start(): void {
    this.#timer = setInterval(() => this.wake(), this.#intervalMs);
    this.#timer.unref();
    this.wake();
  }

  /** Polls now, unless a poll is running. */
  wake(): void {
    if (this.#stopped) return;
    this.#polling ??= this.#poll()
      .catch((error: unknown) => this.logRetry(error))
      .finally(() => {
        this.#polling = undefined;
      });
  }

  logRetry(error: unknown): void {
    const level = error instanceof LedgerError ? 'warn' : 'error';
    this.#log[level](
      { err: error instanceof Error ? error.message : error },
      `The poller of ${this.#name} failed and tries again.`,
    );
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#polling;
  }
}
