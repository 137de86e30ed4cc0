import { createParser } from 'eventsource-parser';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';

const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;
/** A longer `retry` of a server is ignored. */
const MAX_RETRY_MS = 999_999_999;

/** One event of a `text/event-stream`. */
export interface ServerSentEvent {
  readonly id: string | undefined;
  readonly data: string;
}

/**
 * Parses server-sent events from chunks of bytes, and limits the memory of an unfinished event.
 *
 * This class keeps an unfinished line as bytes, because `eventsource-parser` would keep one string per chunk, and many tiny
 * chunks cost far more than their bytes. The package gets text only when a line ends. The package limits the data of unfinished events.
 */
export class SseParser {
  readonly #maxEventBytes: number;
  readonly #decoder = new TextDecoder('utf-8');
  readonly #unfinishedLine = new ByteAccumulator();
  #events: ServerSentEvent[] = [];
  #retryMs: number | undefined;
  #hasOverflowed = false;
  readonly #parser;

  constructor(maxEventBytes = Number.POSITIVE_INFINITY) {
    this.#maxEventBytes = maxEventBytes;
    this.#parser = createParser({
      maxBufferSize: maxEventBytes,
      onEvent: ({ id, data }) => this.#events.push({ id, data }),
      onRetry: (ms) => {
        if (ms <= MAX_RETRY_MS) this.#retryMs = ms;
      },
      // Unknown fields and invalid values are ignored, as the standard requires.
      onError: ({ type }) => {
        if (type === 'max-buffer-size-exceeded') this.#hasOverflowed = true;
      },
    });
  }

  /** How long the server asks its client to wait before it reconnects, if the server said so. */
  get retryMs(): number | undefined {
    return this.#retryMs;
  }

  /** Whether an unfinished event is larger than the limit. The parser returns no more events then. */
  get isTooLarge(): boolean {
    return this.#hasOverflowed || this.#unfinishedLine.length > this.#maxEventBytes;
  }

  /** Returns the events that end in this chunk. */
  parse(chunk: Uint8Array): ServerSentEvent[] {
    if (this.isTooLarge) return [];
    this.#unfinishedLine.append(chunk);
    if (!chunk.includes(LINE_FEED) && !chunk.includes(CARRIAGE_RETURN)) return [];
    this.#parser.feed(this.#decoder.decode(this.#unfinishedLine.take(), { stream: true }));
    const events = this.#events;
    this.#events = [];
    return events;
  }
}
