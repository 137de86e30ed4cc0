import type { Logger } from 'pino';
import { sendOutboundRequest } from '../adapters/http/outbound-request.ts';
import type { Webhook } from './config.ts';
import type { JsonObject } from './domain/json.ts';
import { signBody } from './domain/webhook-signature.ts';
import { claimNotices, deleteNotice, type Notice, postponeNotice } from './ledger/approvals/notice-outbox.ts';
import type { Database } from './ledger/db.ts';

const LOOK_EVERY_MS = 500;
const AT_ONCE = 16;
const TIMEOUT_MS = 2_000;
/** Longer than a delivery can take: a notice whose carrier died is due again after this. */
const CLAIM_MS = 10_000;
const BACKOFF = { baseMs: 1_000, mostMs: 3_600_000 };
const GIVE_UP_MS = 24 * 3_600_000;
const MOST_ANSWER_BYTES = 65_536;

/**
 * Tells the webhook what waits for people and what became of it: at least once, in no promised order, each notice with a
 * delivery id that stays the same however often it is sent. Any answer but 2xx, and none, means again later.
 */
export class ApprovalNotifier {
  readonly #db: Database;
  readonly #webhook: Webhook;
  readonly #log: Logger;
  readonly #timer: NodeJS.Timeout;
  #round: Promise<void> | undefined;
  #stopped = false;

  constructor(db: Database, webhook: Webhook, log: Logger) {
    this.#db = db;
    this.#webhook = webhook;
    this.#log = log;
    this.#timer = setInterval(() => {
      this.#round ??= this.#deliverDue()
        .catch((error: unknown) => log.warn({ err: String(error) }, 'notices will be looked for again'))
        .finally(() => {
          this.#round = undefined;
        });
    }, LOOK_EVERY_MS);
    this.#timer.unref();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#round;
  }

  async #deliverDue(): Promise<void> {
    let taken: readonly Notice[];
    do {
      taken = await claimNotices(this.#db, AT_ONCE, CLAIM_MS);
      await Promise.all(taken.map((notice) => this.#deliver(notice)));
    } while (taken.length === AT_ONCE && !this.#stopped);
  }

  async #deliver(notice: Notice): Promise<void> {
    const failure = await send(this.#webhook, notice);
    if (failure === undefined) return deleteNotice(this.#db, notice.id);
    const { id, kind, tries } = notice;
    const about = { delivery: id, txn: notice.body.txn, kind, tries, failure };
    if (Date.now() - notice.createdAt.getTime() > GIVE_UP_MS) {
      this.#log.error(about, 'the approvals webhook did not take a notice for 24 h: it is given up');
      return deleteNotice(this.#db, id);
    }
    this.#log.warn(about, 'the approvals webhook did not take a notice; it will be sent again');
    await postponeNotice(this.#db, notice, delayAfter(tries));
  }
}

/** Doubled each time, with a quarter of chance so that a receiver that comes back is not hit by everything at once. */
function delayAfter(tries: number): number {
  return Math.min(BACKOFF.baseMs * 2 ** Math.min(tries - 1, 30), BACKOFF.mostMs) * (0.75 + Math.random() / 4);
}

async function send({ url, secret, allowPrivate }: Webhook, notice: Notice): Promise<string | undefined> {
  const body = noticeText(notice);
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
      maxBytes: MOST_ANSWER_BYTES,
      timeoutMs: TIMEOUT_MS,
    });
    return status >= 200 && status < 300 ? undefined : `it answered ${status}`;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** The same bytes each time. As in the admin API: what stands for redacted values (the fingerprint) is not for others. */
function noticeText({ id, kind, body }: Notice): string {
  const { shown: text, ...approval } = body;
  const shown = text === null ? {} : (JSON.parse(text) as JsonObject);
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
