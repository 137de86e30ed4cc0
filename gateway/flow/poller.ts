import { LedgerError } from '../domain/errors.ts';
import type { AppLogger } from './context.ts';

/** Looks for work again and again, one look at a time, and at once when somebody says that there is some. */
export class Poller {
  readonly #what: string;
  readonly #everyMs: number;
  readonly #look: () => Promise<void>;
  readonly #log: AppLogger;
  #timer: NodeJS.Timeout | undefined;
  #looking: Promise<void> | undefined;
  #stopped = false;

  constructor(what: string, everyMs: number, look: () => Promise<void>, log: AppLogger) {
    this.#what = what;
    this.#everyMs = everyMs;
    this.#look = look;
    this.#log = log;
  }

  get stopped(): boolean {
    return this.#stopped;
  }

  start(): void {
    this.#timer = setInterval(() => this.wake(), this.#everyMs);
    this.#timer.unref();
    this.wake();
  }

  /** Looks now, unless a look is under way. */
  wake(): void {
    if (this.#stopped) return;
    this.#looking ??= this.#look()
      .catch((error: unknown) => this.complain(error))
      .finally(() => {
        this.#looking = undefined;
      });
  }

  complain(error: unknown): void {
    const level = error instanceof LedgerError ? 'warn' : 'error';
    this.#log[level]({ err: error instanceof Error ? error.message : error }, `${this.#what} will try again`);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#looking;
  }
}
