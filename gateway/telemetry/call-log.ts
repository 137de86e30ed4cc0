import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from 'pino';
import { buildAuditEntry } from '../domain/audit/audit.ts';
import type { JsonObject } from '../domain/json.ts';
import { enqueueAuditEntry } from '../ledger/audit/audit-queue.ts';
import type { Database } from '../ledger/db.ts';

const AGAIN_MS = 1_000;

/**
 * What happens to the process itself goes into the log too: its boots and its policies. Policies take force in memory, with
 * or without the ledger, so their leaves wait here, in order, until the ledger takes them; a crash before that loses them,
 * and the boot that follows says which version is in force.
 */
export class CallLog {
  readonly #db: Database;
  readonly #log: Logger;
  readonly #stopping = new AbortController();
  #last: Promise<void> = Promise.resolve();
  #gaveUp = false;

  constructor(db: Database, log: Logger) {
    this.#db = db;
    this.#log = log;
  }

  write(what: string, fields: JsonObject): void {
    const entry = buildAuditEntry(what, fields);
    this.#last = this.#last.then(() => this.#insist(entry));
  }

  /** Resolves when everything so far is written. */
  written(): Promise<void> {
    return this.#last;
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#last;
  }

  async #insist(entry: string): Promise<void> {
    while (!this.#gaveUp) {
      try {
        return await enqueueAuditEntry(this.#db, entry);
      } catch (error) {
        this.#log.warn({ err: String(error), entry }, 'the audit log did not take an entry');
        this.#gaveUp = this.#stopping.signal.aborted;
        await sleep(AGAIN_MS, undefined, { signal: this.#stopping.signal, ref: false }).catch(() => {});
      }
    }
  }
}
