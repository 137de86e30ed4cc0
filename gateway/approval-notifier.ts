import type { Logger } from 'pino';
import { sendOutboundRequest } from '../adapters/http/outbound-request.ts';
import type { Webhook } from './config.ts';
import type { JsonObject } from './domain/json.ts';
import { signBody } from './domain/webhook-signature.ts';
import { claimNotices, deleteNotice, type Notice, postponeNotice } from './ledger/approvals/notice-outbox.ts';
import type { Database } from './ledger/db.ts';

const POLL_INTERVAL_MS = 500;
const BATCH_SIZE = 16;
const SEND_TIMEOUT_MS = 2_000;
/** Longer than a delivery can take. If the process dies, its notice is due again after this time. */
const CLAIM_MS = 10_000;
const BACKOFF = { baseMs: 1_000, maxMs: 3_600_000 };
const MAX_AGE_MS = 24 * 3_600_000;
const MAX_ANSWER_BYTES = 65_536;

/**
 * Sends the notices in the outbox to the approvals webhook of the configuration: at least once, in any order. The
 * delivery id of a notice is the same on every attempt. Without a 2xx answer the notice is sent again later, with
 * growing pauses, and dropped after a day.
 */
export class ApprovalNotifier {
  readonly #db: Database;
  readonly #webhook: Webhook;
  readonly #log: Logger;
  readonly #timer: NodeJS.Timeout;
  #currentPoll: Promise<void> | undefined;
  #stopped = false;

  constructor(db: Database, webhook: Webhook, log: Logger) {
    this.#db = db;
    this.#webhook = webhook;
    this.#log = log;
    this.#timer = setInterval(() => {
      this.#currentPoll ??= this.#deliverDue()
        .catch((error: unknown) =>
          log.warn({ err: String(error) }, 'The notices could not be read; the next poll tries again.'),
        )
        .finally(() => {
          this.#currentPoll = undefined;
        });
    }, POLL_INTERVAL_MS);
    this.#timer.unref();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#currentPoll;
  }

  async #deliverDue(): Promise<void> {
    let claimed: readonly Notice[];
    do {
      claimed = await claimNotices(this.#db, BATCH_SIZE, CLAIM_MS);
      await Promise.all(claimed.map((notice) => this.#deliver(notice)));
    } while (claimed.length === BATCH_SIZE && !this.#stopped);
  }

  async #deliver(notice: Notice): Promise<void> {
    const failure = await sendNotice(this.#webhook, notice);
    if (failure === undefined) return deleteNotice(this.#db, notice.id);
    const { id, kind, tries } = notice;
    const fields = { delivery: id, txn: notice.body.txn, kind, tries, failure };
    if (Date.now() - notice.createdAt.getTime() > MAX_AGE_MS) {
      this.#log.error(fields, 'The approvals webhook did not take a notice for 24 h. The notice is dropped.');
      return deleteNotice(this.#db, id);
    }
    this.#log.warn(fields, 'The approvals webhook did not take a notice. The notice is sent again later.');
    await postponeNotice(this.#db, notice, computeBackoffMs(tries));
  }
}

/** The pause doubles with each try. A random part of up to a quarter is subtracted, so that notices do not arrive all at once. */
function computeBackoffMs(tries: number): number {
  return Math.min(BACKOFF.baseMs * 2 ** Math.min(tries - 1, 30), BACKOFF.maxMs) * (0.75 + Math.random() / 4);
}

async function sendNotice({ url, secret, allowPrivate }: Webhook, notice: Notice): Promise<string | undefined> {
  const body = formatNotice(notice);
  try {
    const { status } = await sendOutboundRequest({
      url,
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'user-agent': 'oncegate',
        'oncegate-delivery': notice.id,
        'oncegate-signature': signBody(secret, body),
      },
      body,
      allowPrivate,
      maxBytes: MAX_ANSWER_BYTES,
      timeoutMs: SEND_TIMEOUT_MS,
    });
    return status >= 200 && status < 300 ? undefined : `it answered ${status}`;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** Builds the same bytes on every attempt. Leaves out the fingerprint in `shown`, because it would help to guess redacted values. */
function formatNotice({ id, kind, body }: Notice): string {
  const { shown: shownText, ...approval } = body;
  const shown = shownText === null ? {} : (JSON.parse(shownText) as JsonObject);
  return JSON.stringify({
    delivery: id,
    kind: `approval.${kind}`,
    ...approval,
    args: shown['args'] ?? null,
    target: shown['target'] ?? null,
    undo: shown['undo'] ?? null,
    rule: shown['rule'] ?? null,
  });
}
