import { type EventName, type LogEvent, toLogEvent } from '../../domain/audit/log-event.ts';
import type { JsonObject } from '../../domain/json.ts';
import { readLogHead, readLogTail } from '../../ledger/audit/log-tail.ts';
import type { Context } from '../context.ts';
import { listBreakers } from '../controls/freezes-and-breakers.ts';
import { Poller } from '../poller.ts';

const POLL_INTERVAL_MS = 400;
const BATCH_SIZE = 500;
/** Whoever is further behind than this is told so instead of everything: it has to look at the whole again anyway. */
export const MAX_LAG_ENTRIES = 10_000;

type FeedContext = Pick<Context, 'db' | 'log' | 'adapters' | 'switches'>;

export interface FeedSubscriber {
  /** Whether it may still hear anything. Asked before each telling, and several times a second. */
  isWelcome(): boolean;
  take(events: readonly LogEvent[]): void;
  /** Resolves when it has room for more, or is gone: while it catches up it is waited for. */
  ready(): Promise<void>;
}

/**
 * What happens, told as it happens: the signed log, read from its end. Every process of the deployment writes into that log
 * and every one can read it, so it does not matter which of them did something and which is being watched; an entry has one
 * place for ever, so a reader who comes back says how far it was and misses nothing. It is read once for all readers of this
 * process, and not at all while there are none. See docs/adr/0043-events-read-from-the-audit-log.md.
 */
export class LogFeed {
  readonly #ctx: FeedContext;
  /** From which entry on each hears what is new; undefined while it catches up. */
  readonly #subscribers = new Map<FeedSubscriber, number | undefined>();
  #position: number | undefined;
  #poller: Poller | undefined;
  #breakers = new Map<string, string>();

  constructor(ctx: FeedContext) {
    this.#ctx = ctx;
  }

  /**
   * Tells a reader everything after the entry at `after`, in order, each once; without it, everything from now on. Resolves when
   * it has caught up. Rejects if the ledger cannot be read; the reader is then forgotten.
   */
  async subscribe(reader: FeedSubscriber, after: number | undefined): Promise<void> {
    this.#subscribers.set(reader, undefined);
    try {
      await this.#startPolling();
      // The log itself, and not how far it was read here: whoever comes from another replica may have heard more already.
      const { size } = await readLogHead(this.#ctx.db);
      let next = after === undefined ? size : after + 1;
      if (next > size || size - next > MAX_LAG_ENTRIES) {
        reader.take([buildGapEvent(next, size)]);
        next = size;
      }
      for (;;) {
        if (!this.#subscribers.has(reader)) return;
        // Nothing is awaited between this comparison and what follows it: the next entry is told by whoever moves the position.
        if (next >= (this.#position ?? next)) break;
        const entries = await readLogTail(this.#ctx.db, next, Math.min(next + BATCH_SIZE, this.#position ?? next));
        if (reader.isWelcome()) reader.take(entries.map(toLogEvent));
        await reader.ready();
        next = (entries.at(-1)?.index ?? next) + 1;
      }
      this.#subscribers.set(reader, next);
    } catch (error) {
      this.unsubscribe(reader);
      throw error;
    }
  }

  unsubscribe(reader: FeedSubscriber): void {
    this.#subscribers.delete(reader);
    if (this.#subscribers.size > 0) return;
    const idle = this.#poller;
    this.#poller = undefined;
    this.#position = undefined;
    void idle?.stop();
  }

  /** The first reader has the looking begun. */
  async #startPolling(): Promise<void> {
    if (this.#position !== undefined) return;
    const { size } = await readLogHead(this.#ctx.db);
    if (this.#position !== undefined || this.#subscribers.size === 0) return;
    this.#position = size;
    this.#breakers = this.#readBreakerStates();
    this.#poller = new Poller('the events', POLL_INTERVAL_MS, () => this.#poll(), this.#ctx.log);
    this.#poller.start();
  }

  async #poll(): Promise<void> {
    const mine = this.#poller;
    this.#publish(this.#diffBreakers());
    const head = await readLogHead(this.#ctx.db);
    if (this.#position === undefined || mine !== this.#poller) return;
    if (head.size === this.#position) return;
    if (head.size < this.#position || head.size - this.#position > MAX_LAG_ENTRIES) {
      this.#publish([buildGapEvent(this.#position, head.size)]);
      this.#position = head.size;
      for (const [reader, from] of this.#subscribers) if (from !== undefined) this.#subscribers.set(reader, head.size);
    }
    while (this.#position < head.size) {
      const to = Math.min(this.#position + BATCH_SIZE, head.size);
      const entries = await readLogTail(this.#ctx.db, this.#position, to);
      if (mine !== this.#poller || entries.length === 0) return;
      this.#position = (entries.at(-1)?.index ?? 0) + 1;
      this.#publish(entries.map(toLogEvent));
    }
    this.#publish([buildUnloggedEvent('checkpoint', { size: head.size, at: head.sealedAt?.toISOString() ?? null })]);
  }

  #publish(events: readonly LogEvent[]): void {
    for (const [reader, from] of this.#subscribers) {
      if (!reader.isWelcome() || from === undefined) continue;
      const news = events.filter(({ id, name }) => id === null || id >= from || name === 'gap');
      if (news.length > 0) reader.take(news);
    }
  }

  #readBreakerStates(): Map<string, string> {
    return new Map(listBreakers(this.#ctx).map(({ upstream, state }) => [upstream, state]));
  }

  /** Breakers that count failures are this process's own and in no log; those that people throw are told by it. */
  #diffBreakers(): LogEvent[] {
    const before = this.#breakers;
    this.#breakers = this.#readBreakerStates();
    const at = new Date().toISOString();
    return [...this.#breakers]
      .filter(([upstream, state]) => before.has(upstream) && before.get(upstream) !== state)
      .map(([upstream, state]) => buildUnloggedEvent('breaker', { what: `breaker_${state}`, upstream, at }));
  }
}

/** Entries that are not told one by one: what was known until now may be wrong, all of it. */
function buildGapEvent(from: number, to: number): LogEvent {
  return { id: to === 0 ? null : to - 1, name: 'gap', data: { from, to } };
}

function buildUnloggedEvent(name: EventName, data: JsonObject): LogEvent {
  return { id: null, name, data };
}
