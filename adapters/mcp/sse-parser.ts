import { createParser } from 'eventsource-parser';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';

const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;
/** A line with its end. A carriage return at the end of the text may be half of a line's end, so it ends no line yet. */
const WHOLE_LINE = /[^\r\n]*(?:\r\n|\n|\r(?!$))/y;
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
 * chunks cost far more than their bytes. The package gets only whole lines, and limits the data of unfinished events.
 */
export class SseParser {
  readonly #maxEventBytes: number;
  readonly #decoder = new TextDecoder('utf-8');
  readonly #unfinishedLine = new ByteAccumulator();
  #events: ServerSentEvent[] = [];
  #retryMs: number | undefined;
  #hasOverflowed = false;
  /** The begin of a line whose end has not arrived. */
  #rest = '';
  /** Whether the unfinished event has an `id` line, and whether it has a `data` line. */
  #hasId = false;
  #hasData = false;
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
    return this.#hasOverflowed || this.#rest.length + this.#unfinishedLine.length > this.#maxEventBytes;
  }

  /** Returns the events that end in this chunk. */
  parse(chunk: Uint8Array): ServerSentEvent[] {
    if (this.isTooLarge) return [];
    this.#unfinishedLine.append(chunk);
    if (!chunk.includes(LINE_FEED) && !chunk.includes(CARRIAGE_RETURN)) return [];
    this.#feedLines(this.#rest + this.#decoder.decode(this.#unfinishedLine.take(), { stream: true }));
    const events = this.#events;
    this.#events = [];
    return events;
  }

  #feedLines(text: string): void {
    WHOLE_LINE.lastIndex = 0;
    let end = 0;
    for (let match = WHOLE_LINE.exec(text); match !== null && !this.#hasOverflowed; match = WHOLE_LINE.exec(text)) {
      end = WHOLE_LINE.lastIndex;
      this.#feedLine(match[0]);
    }
    this.#rest = text.slice(end);
  }

  /**
   * The package drops an event without data. Its id still counts, because a server sends it so that its client can resume a
   * broken stream. So such an event gets an empty `data` line.
   */
  #feedLine(line: string): void {
    if (/^[\r\n]/.test(line)) {
      if (this.#hasId && !this.#hasData) this.#parser.feed('data:\n');
      this.#hasId = false;
      this.#hasData = false;
    } else if (/^id[:\r\n]/.test(line)) this.#hasId ||= !line.includes('\0');
    else if (/^data[:\r\n]/.test(line)) this.#hasData = true;
    this.#parser.feed(line);
  }
}
