import { type EventName, type LogEvent, toLogEvent } from '../../domain/audit/log-event.ts';
import type { JsonObject } from '../../domain/json.ts';
import { readLogHead, readLogTail } from '../../ledger/audit/log-tail.ts';
import type { Context } from '../context.ts';
import { listBreakers } from '../controls/freezes-and-breakers.ts';
import { Poller } from '../poller.ts';

const POLL_INTERVAL_MS = 400;
const BATCH_SIZE = 500;
/** A subscriber that is further behind gets one `gap` event instead of the entries, and reloads everything. */
export const MAX_LAG_ENTRIES = 10_000;

type FeedContext = Pick<Context, 'db' | 'log' | 'adapters' | 'controlFlags'>;

export interface FeedSubscriber {
  /** Whether the subscriber is still authorized. Checked before each delivery, and several times a second. */
  isAuthorized(): boolean;
  take(events: readonly LogEvent[]): void;
  /** Resolves when the subscriber can take more events, or is gone. The feed waits for it during catch-up. */
  ready(): Promise<void>;
}

/**
 * Publishes new entries of the signed audit log as events. All replicas write into one log, so any replica can serve the
 * events of all. An entry keeps its index, so a subscriber that reconnects continues after its last index and misses nothing.
 *
 * One poller reads for all subscribers of this replica, and stops while there are none. See
 * docs/adr/0043-events-read-from-the-audit-log.md.
 */
export class LogFeed {
  readonly #ctx: FeedContext;
  /** The index from which each subscriber gets new entries; undefined while it catches up. */
  readonly #subscribers = new Map<FeedSubscriber, number | undefined>();
  #position: number | undefined;
  #poller: Poller | undefined;
  #breakers = new Map<string, string>();

  constructor(ctx: FeedContext) {
    this.#ctx = ctx;
  }

  /**
   * Delivers every entry after index `after`, in order and each once; without `after`, every entry from now on. Resolves when
   * the subscriber has caught up. Rejects if the ledger cannot be read; the subscriber is then removed.
   */
  async subscribe(subscriber: FeedSubscriber, after: number | undefined): Promise<void> {
    this.#subscribers.set(subscriber, undefined);
    try {
      await this.#startPolling();
      // Read the head of the log, not the position of this replica: another replica may have delivered more already.
      const { size } = await readLogHead(this.#ctx.db);
      let next = after === undefined ? size : after + 1;
      if (next > size || size - next > MAX_LAG_ENTRIES) {
        subscriber.take([buildGapEvent(next, size)]);
        next = size;
      }
      for (;;) {
        if (!this.#subscribers.has(subscriber)) return;
        // Do not await between this comparison and the registration below: this subscriber would miss the entries of a poll.
        if (next >= (this.#position ?? next)) break;
        const entries = await readLogTail(this.#ctx.db, next, Math.min(next + BATCH_SIZE, this.#position ?? next));
        if (subscriber.isAuthorized()) subscriber.take(entries.map(toLogEvent));
        await subscriber.ready();
        next = (entries.at(-1)?.index ?? next) + 1;
      }
      this.#subscribers.set(subscriber, next);
    } catch (error) {
      this.unsubscribe(subscriber);
      throw error;
    }
  }

  unsubscribe(subscriber: FeedSubscriber): void {
    this.#subscribers.delete(subscriber);
    if (this.#subscribers.size > 0) return;
    const idlePoller = this.#poller;
    this.#poller = undefined;
    this.#position = undefined;
    void idlePoller?.stop();
  }

  /** The first subscriber starts the poller. */
  async #startPolling(): Promise<void> {
    if (this.#position !== undefined) return;
    const { size } = await readLogHead(this.#ctx.db);
    if (this.#position !== undefined || this.#subscribers.size === 0) return;
    this.#position = size;
    this.#breakers = this.#readBreakerStates();
    this.#poller = new Poller('the log feed', POLL_INTERVAL_MS, () => this.#poll(), this.#ctx.log);
    this.#poller.start();
  }

  async #poll(): Promise<void> {
    const poller = this.#poller;
    this.#publish(this.#diffBreakers());
    const head = await readLogHead(this.#ctx.db);
    if (this.#position === undefined || poller !== this.#poller) return;
    if (head.size === this.#position) return;
    if (head.size < this.#position || head.size - this.#position > MAX_LAG_ENTRIES) {
      this.#publish([buildGapEvent(this.#position, head.size)]);
      this.#position = head.size;
      for (const [subscriber, from] of this.#subscribers)
        if (from !== undefined) this.#subscribers.set(subscriber, head.size);
    }
    while (this.#position < head.size) {
      const to = Math.min(this.#position + BATCH_SIZE, head.size);
      const entries = await readLogTail(this.#ctx.db, this.#position, to);
      if (poller !== this.#poller || entries.length === 0) return;
      this.#position = (entries.at(-1)?.index ?? 0) + 1;
      this.#publish(entries.map(toLogEvent));
    }
    this.#publish([buildUnloggedEvent('checkpoint', { size: head.size, at: head.sealedAt?.toISOString() ?? null })]);
  }

  #publish(events: readonly LogEvent[]): void {
    for (const [subscriber, from] of this.#subscribers) {
      if (!subscriber.isAuthorized() || from === undefined) continue;
      const unseen = events.filter(({ id, name }) => id === null || id >= from || name === 'gap');
      if (unseen.length > 0) subscriber.take(unseen);
    }
  }

  #readBreakerStates(): Map<string, string> {
    return new Map(listBreakers(this.#ctx).map(({ upstream, state }) => [upstream, state]));
  }

  /** Events of breakers that this replica opened or closed by itself. The log records only breakers that people opened or closed. */
  #diffBreakers(): LogEvent[] {
    const before = this.#breakers;
    this.#breakers = this.#readBreakerStates();
    const at = new Date().toISOString();
    return [...this.#breakers]
      .filter(([upstream, state]) => before.has(upstream) && before.get(upstream) !== state)
      .map(([upstream, state]) => buildUnloggedEvent('breaker', { what: `breaker_${state}`, upstream, at }));
  }
}

/** Stands for skipped entries. After it, everything that the subscriber knows may be outdated. */
function buildGapEvent(from: number, to: number): LogEvent {
  return { id: to === 0 ? null : to - 1, name: 'gap', data: { from, to } };
}

function buildUnloggedEvent(name: EventName, data: JsonObject): LogEvent {
  return { id: null, name, data };
}
