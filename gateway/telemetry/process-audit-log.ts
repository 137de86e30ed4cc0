import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import { buildAuditEntry } from '../domain/audit/audit.ts';
import type { JsonObject } from '../domain/json.ts';
import { enqueueAuditEntry } from '../ledger/audit/audit-queue.ts';
import type { Database } from '../ledger/db.ts';

const RETRY_DELAY_MS = 1_000;

/**
 * Writes events of the process itself to the audit log: its boots and its policies. Policies take effect in memory, even
 * without the ledger, so their entries wait here, in order, until the ledger accepts them. A crash before that loses the
 * entries; the entry of the next boot names the version in force.
 */
export class ProcessAuditLog {
  readonly #db: Database;
  readonly #log: Logger;
  readonly #stopping = new AbortController();
  #lastWrite: Promise<void> = Promise.resolve();
  #hasGivenUp = false;

  constructor(db: Database, log: Logger) {
    this.#db = db;
    this.#log = log;
  }

  write(what: string, fields: JsonObject): void {
    const entry = buildAuditEntry(what, fields);
    this.#lastWrite = this.#lastWrite.then(() => this.#retryUntilWritten(entry));
  }

  /** Resolves when all entries so far are written. */
  waitUntilWritten(): Promise<void> {
    return this.#lastWrite;
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#lastWrite;
  }

  async #retryUntilWritten(entry: string): Promise<void> {
    while (!this.#hasGivenUp) {
      try {
        return await enqueueAuditEntry(this.#db, entry);
      } catch (error) {
        this.#log.warn({ err: String(error), entry }, 'The gateway could not write an audit log entry.');
        this.#hasGivenUp = this.#stopping.signal.aborted;
        await sleep(RETRY_DELAY_MS, undefined, { signal: this.#stopping.signal, ref: false }).catch(() => {});
      }
    }
  }
}
