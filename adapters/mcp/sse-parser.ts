import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';

const LINE_FEED = 10;
const CARRIAGE_RETURN = 13;

/** One event of a `text/event-stream`. */
export interface ServerSentEvent {
  readonly id: string | undefined;
  readonly data: string;
}

/**
 * Reads server-sent events from bytes as they come, however they are cut. Only what MCP uses: data, id and retry; other
 * fields and comments are passed over.
 */
export class SseParser {
  readonly #decoder = new TextDecoder('utf-8');
  /** The beginning of a line that has not ended, and what came of it since: as bytes, which as many strings would be far more. */
  #partialLine = '';
  readonly #buffer = new ByteAccumulator();
  /** A carriage return at the very end may be half of a line's end: it waits for the next bytes. */
  #endsInCarriageReturn = false;
  #data: string[] = [];
  #dataLength = 0;
  #id: string | undefined;
  #retryMs: number | undefined;

  /** How long the server asks to wait before coming back, if it said so. */
  get retryMs(): number | undefined {
    return this.#retryMs;
  }

  /** How much of an event that has not ended is kept here. */
  get bufferedBytes(): number {
    return this.#partialLine.length + this.#buffer.length + this.#dataLength;
  }

  parse(chunk: Uint8Array): ServerSentEvent[] {
    this.#buffer.append(chunk);
    // A long line is put together once, when it ends: otherwise each chunk of it would cost as much as all before.
    if (!this.#endsInCarriageReturn && !chunk.includes(LINE_FEED) && !chunk.includes(CARRIAGE_RETURN)) return [];
    const rest = this.#partialLine + this.#decoder.decode(this.#buffer.take(), { stream: true });
    this.#endsInCarriageReturn = rest.endsWith('\r');
    const whole = this.#endsInCarriageReturn ? rest.length - 1 : rest.length;
    const lines = rest.slice(0, whole).split(/\r\n|\n|\r/);
    this.#partialLine = (lines.pop() ?? '') + rest.slice(whole);
    return lines.flatMap((line) => this.#parseLine(line));
  }

  #parseLine(line: string): ServerSentEvent[] {
    if (line === '') return this.#emitEvent();
    const colon = line.indexOf(':');
    const field = colon === -1 ? line : line.slice(0, colon);
    const value = colon === -1 ? '' : line.slice(colon + (line[colon + 1] === ' ' ? 2 : 1));
    if (field === 'data') {
      this.#data.push(value);
      this.#dataLength += line.length;
    } else if (field === 'id' && !value.includes('\0')) this.#id = value;
    else if (field === 'retry' && /^\d{1,9}$/.test(value)) this.#retryMs = Number(value);
    return [];
  }

  #emitEvent(): ServerSentEvent[] {
    const data = this.#data.join('\n');
    const event = { id: this.#id, data };
    const isEvent = this.#data.length > 0 || this.#id !== undefined;
    this.#data = [];
    this.#dataLength = 0;
    this.#id = undefined;
    return isEvent ? [event] : [];
  }
}
