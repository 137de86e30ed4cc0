import type { JsonObject } from '../domain/json.ts';
import { type EventName, type LogEvent, logEvent } from '../domain/log-event.ts';
import { readHead, readTail } from '../ledger/log-tail.ts';
import { Lookout } from './lookout.ts';
import type { Station } from './station.ts';
import { breakers } from './switching.ts';

const LOOK_EVERY_MS = 400;
const ENTRIES_AT_ONCE = 500;
/** Whoever is further behind than this is told so instead of everything: it has to look at the whole again anyway. */
export const MOST_BEHIND = 10_000;

type Watched = Pick<Station, 'db' | 'log' | 'adapters' | 'switches'>;

export interface Reader {
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
 * process, and not at all while there are none. See docs/adr/0043-events-are-the-log.md.
 */
export class LogFeed {
  readonly #station: Watched;
  /** From which entry on each hears what is new; undefined while it catches up. */
  readonly #readers = new Map<Reader, number | undefined>();
  #position: number | undefined;
  #lookout: Lookout | undefined;
  #breakers = new Map<string, string>();

  constructor(station: Watched) {
    this.#station = station;
  }

  /**
   * Tells a reader everything after the entry at `after`, in order, each once; without it, everything from now on. Resolves when
   * it has caught up. Rejects if the ledger cannot be read; the reader is then forgotten.
   */
  async follow(reader: Reader, after: number | undefined): Promise<void> {
    this.#readers.set(reader, undefined);
    try {
      await this.#start();
      // The log itself, and not how far it was read here: whoever comes from another replica may have heard more already.
      const { size } = await readHead(this.#station.db);
      let next = after === undefined ? size : after + 1;
      if (next > size || size - next > MOST_BEHIND) {
        reader.take([gap(next, size)]);
        next = size;
      }
      for (;;) {
        if (!this.#readers.has(reader)) return;
        // Nothing is awaited between this comparison and what follows it: the next entry is told by whoever moves the position.
        if (next >= (this.#position ?? next)) break;
        const entries = await readTail(
          this.#station.db,
          next,
          Math.min(next + ENTRIES_AT_ONCE, this.#position ?? next),
        );
        if (reader.isWelcome()) reader.take(entries.map(logEvent));
        await reader.ready();
        next = (entries.at(-1)?.index ?? next) + 1;
      }
      this.#readers.set(reader, next);
    } catch (error) {
      this.leave(reader);
      throw error;
    }
  }

  leave(reader: Reader): void {
    this.#readers.delete(reader);
    if (this.#readers.size > 0) return;
    const idle = this.#lookout;
    this.#lookout = undefined;
    this.#position = undefined;
    void idle?.stop();
  }

  /** The first reader has the looking begun. */
  async #start(): Promise<void> {
    if (this.#position !== undefined) return;
    const { size } = await readHead(this.#station.db);
    if (this.#position !== undefined || this.#readers.size === 0) return;
    this.#position = size;
    this.#breakers = this.#breakerStates();
    this.#lookout = new Lookout('the events', LOOK_EVERY_MS, () => this.#look(), this.#station.log);
    this.#lookout.start();
  }

  async #look(): Promise<void> {
    const mine = this.#lookout;
    this.#tell(this.#newBreakers());
    const head = await readHead(this.#station.db);
    if (this.#position === undefined || mine !== this.#lookout) return;
    if (head.size === this.#position) return;
    if (head.size < this.#position || head.size - this.#position > MOST_BEHIND) {
      this.#tell([gap(this.#position, head.size)]);
      this.#position = head.size;
      for (const [reader, from] of this.#readers) if (from !== undefined) this.#readers.set(reader, head.size);
    }
    while (this.#position < head.size) {
      const to = Math.min(this.#position + ENTRIES_AT_ONCE, head.size);
      const entries = await readTail(this.#station.db, this.#position, to);
      if (mine !== this.#lookout || entries.length === 0) return;
      this.#position = (entries.at(-1)?.index ?? 0) + 1;
      this.#tell(entries.map(logEvent));
    }
    this.#tell([unlogged('checkpoint', { size: head.size, at: head.sealedAt?.toISOString() ?? null })]);
  }

  #tell(events: readonly LogEvent[]): void {
    for (const [reader, from] of this.#readers) {
      if (!reader.isWelcome() || from === undefined) continue;
      const news = events.filter(({ id, name }) => id === null || id >= from || name === 'gap');
      if (news.length > 0) reader.take(news);
    }
  }

  #breakerStates(): Map<string, string> {
    return new Map(breakers(this.#station).map(({ upstream, state }) => [upstream, state]));
  }

  /** Breakers that count failures are this process's own and in no log; those that people throw are told by it. */
  #newBreakers(): LogEvent[] {
    const before = this.#breakers;
    this.#breakers = this.#breakerStates();
    const at = new Date().toISOString();
    return [...this.#breakers]
      .filter(([upstream, state]) => before.has(upstream) && before.get(upstream) !== state)
      .map(([upstream, state]) => unlogged('breaker', { what: `breaker_${state}`, upstream, at }));
  }
}

/** Entries that are not told one by one: what was known until now may be wrong, all of it. */
function gap(from: number, to: number): LogEvent {
  return { id: to === 0 ? null : to - 1, name: 'gap', data: { from, to } };
}

function unlogged(name: EventName, data: JsonObject): LogEvent {
  return { id: null, name, data };
}
