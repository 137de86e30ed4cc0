import { setTimeout as sleep } from 'node:timers/promises';
import { Client, type Dispatcher, Pool } from 'undici';
import { GatheredBytes } from '../gateway/domain/gathered-bytes.ts';
import type { JsonObject } from '../gateway/domain/json.ts';
import type { Upstream } from '../gateway/domain/policy.ts';
import { connector, PrivateAddressError } from './connect.ts';
import { type Ended, MOST_ANSWERS, type Outgoing, readMessage, type Wire, type WireHeaders } from './mcp-wire.ts';
import { EventReader } from './sse.ts';

const DEFAULT_RETRY_MS = 1_000;
const LEAST_RETRY_MS = 50;
const NEWLINE = 10;

/**
 * Connections are bounded, each kind for itself: a call that waits for the server must not keep from it the answer that it
 * waits for, nor may those who listen or read keep others from calling.
 */
type Lane = 'calls' | 'asks' | 'answers' | 'listening';
/** What is said before a call can be made goes its way. */
const CALLS = new Set(['tools/call', 'server/discover', 'initialize', 'notifications/initialized', 'ping']);
const SPARE = 4;
const MOST_ASKS = 64;
/** The adapter watches fewer resources than this. */
const MOST_LISTENING = 512;

/** MCP over Streamable HTTP: one POST a message, its answer as JSON or as a stream that ends with it. No redirects. */
export class HttpWire implements Wire {
  readonly hasHeaders = true;
  readonly #upstream: Upstream;
  readonly #url: URL;
  readonly #options: Client.Options;
  readonly #lanes: Readonly<Record<Lane, Pool>>;

  constructor(upstream: Upstream, url: string) {
    this.#upstream = upstream;
    this.#url = new URL(url);
    this.#options = {
      connect: connector(upstream.allowPrivate, upstream.timeoutMs),
      headersTimeout: 0,
      bodyTimeout: 0,
      pipelining: 1,
    };
    const pool = (connections: number) => new Pool(this.#url.origin, { ...this.#options, connections });
    this.#lanes = {
      calls: pool(upstream.concurrency + SPARE),
      asks: pool(MOST_ASKS),
      answers: pool(MOST_ANSWERS),
      listening: pool(MOST_LISTENING),
    };
  }

  async exchange(outgoing: Outgoing): Promise<Ended> {
    if (!outgoing.freshConnection) return this.#post(this.#lanes[laneOf(outgoing.message)], outgoing);
    const client = new Client(this.#url.origin, this.#options);
    try {
      return await this.#post(client, outgoing);
    } finally {
      // Whatever happened is decided; nothing of this connection may linger.
      void client.destroy().catch(() => {});
    }
  }

  async listen(outgoing: Omit<Outgoing, 'message'>): Promise<void> {
    const until = performance.now() + outgoing.timeoutMs;
    await this.#send(this.#lanes.listening, 'GET', { ...outgoing, message: {} }, null, until);
  }

  onUnasked(): void {}

  onRestart(): void {}

  async close(): Promise<void> {
    await Promise.all(Object.values(this.#lanes).map((pool) => pool.destroy()));
  }

  async #post(dispatcher: Dispatcher, outgoing: Outgoing): Promise<Ended> {
    const until = performance.now() + outgoing.timeoutMs;
    const body = JSON.stringify(outgoing.message);
    let exchange = await this.#send(dispatcher, 'POST', outgoing, body, until);
    // A server may end the stream before the answer and expect its client back: to listen, not to ask again.
    while (exchange.lastEventId !== undefined && exchange.ended.as === 'lost') {
      const pauseMs = Math.max(exchange.retryMs ?? DEFAULT_RETRY_MS, LEAST_RETRY_MS);
      if (performance.now() + pauseMs >= until) break;
      await sleep(pauseMs);
      const headers = { ...outgoing.headers, 'last-event-id': exchange.lastEventId };
      const again = { ...outgoing, headers, maySend: () => true };
      const listening = await this.#send(this.#lanes[laneOf(outgoing.message)], 'GET', again, null, until);
      if (listening.ended.as !== 'answered' && listening.lastEventId === undefined) break;
      exchange = listening;
    }
    return exchange.ended;
  }

  #send(
    dispatcher: Dispatcher,
    method: 'POST' | 'GET',
    outgoing: Outgoing,
    body: string | null,
    until: number,
  ): Promise<Exchange> {
    return new Promise((resolve) => {
      const exchange = new Exchange(outgoing, until - performance.now(), () => resolve(exchange));
      const headers = {
        accept: method === 'GET' ? 'text/event-stream' : 'application/json, text/event-stream',
        ...(body === null ? {} : { 'content-type': 'application/json' }),
        'user-agent': 'oncegate',
        ...outgoing.headers,
        ...this.#upstream.headers,
      };
      const path = this.#url.pathname + this.#url.search;
      try {
        dispatcher.dispatch({ path, method, headers, body, reset: outgoing.freshConnection }, exchange);
      } catch (error) {
        exchange.onResponseError(undefined, error as Error);
      }
    });
  }
}

function laneOf({ method }: JsonObject): Lane {
  if (method === undefined) return 'answers';
  if (method === 'subscriptions/listen') return 'listening';
  return CALLS.has(String(method)) ? 'calls' : 'asks';
}

/** One request and what came back of it. undici calls `onRequestStart` immediately before it writes. */
class Exchange implements Dispatcher.DispatchHandler {
  readonly #outgoing: Outgoing;
  readonly #done: () => void;
  readonly #timer: NodeJS.Timeout;
  readonly #reader = new EventReader();
  #controller: Dispatcher.DispatchController | undefined;
  #ended: Ended | undefined;
  #status = 0;
  #headers: WireHeaders = {};
  #isStream = false;
  /** What came so far is no line of its own: it is looked at again only when it is whole. */
  #isOneMessage = false;
  readonly #body = new GatheredBytes();
  /** Bytes that the server said before the answer. */
  #told = 0;
  lastEventId: string | undefined;

  constructor(outgoing: Outgoing, timeoutMs: number, done: () => void) {
    this.#outgoing = outgoing;
    this.#done = done;
    this.#timer = setTimeout(() => this.#fail(`no answer within ${outgoing.timeoutMs} ms`), Math.max(0, timeoutMs));
  }

  get ended(): Ended {
    return this.#ended ?? { as: 'lost', detail: 'it never ended' };
  }

  get retryMs(): number | undefined {
    return this.#reader.retryMs;
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#ended !== undefined) return controller.abort(new Error('given up before it was sent'));
    if (!this.#outgoing.maySend()) {
      this.#finish({ as: 'not_sent', detail: 'this process lost its right to send', abandoned: true });
      return controller.abort(new Error('not allowed to send any more'));
    }
    this.#controller = controller;
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: WireHeaders): void {
    this.#status = status;
    this.#headers = headers;
    this.#isStream = status === 200 && /^text\/event-stream\b/i.test(String(headers['content-type'] ?? ''));
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (!this.#isStream) return this.#collect(chunk);
    for (const event of this.#reader.read(chunk)) {
      if (event.id !== undefined) this.lastEventId = event.id;
      if (event.data !== '') this.#message(event.data);
    }
    if (this.#reader.held > (this.#outgoing.mostEventBytes ?? this.#outgoing.mostBytes))
      this.#fail('an event is too large');
  }

  /**
   * Whoever is told of it may read it slowly: no call tells more on its way than it may answer, but it is answered all the same.
   * A stream of nothing but news is begun anew instead, or nobody would hear of any for the rest of it.
   */
  #heard(message: JsonObject, text: string): void {
    this.#told += Buffer.byteLength(text);
    if (this.#told <= this.#outgoing.mostBytes) this.#outgoing.heard(message);
    else if (this.#outgoing.mostEventBytes !== undefined) this.#fail('it told enough');
  }

  /** Some servers write one message a line where they should write a stream: what stands before the answer is heard. */
  #collect(chunk: Buffer): void {
    if (this.#body.length + chunk.length > this.#outgoing.mostBytes) return this.#fail(this.#tooLarge());
    this.#body.add(chunk);
    if (this.#isOneMessage || chunk.at(-1) !== NEWLINE) return;
    const bytes = this.#body.take();
    const lines = bytes.toString('utf8').trimEnd().split('\n');
    const messages = lines.map(readMessage);
    this.#isOneMessage = !messages.every((message) => message !== undefined && 'method' in message);
    if (this.#isOneMessage) return this.#body.add(bytes);
    messages.forEach((message, i) => {
      if (message !== undefined) this.#heard(message, lines[i] ?? '');
    });
  }

  onResponseEnd(): void {
    if (this.#isStream) return this.#fail('the stream ended before the answer');
    const text = this.#body.take().toString('utf8');
    const message = readMessage(text);
    if (message !== undefined && this.#isAnswer(message)) return this.#answer(message);
    this.#finish({ as: 'status', status: this.#status, text, headers: this.#headers });
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    this.#fail(error.message || error.name, error instanceof PrivateAddressError);
  }

  #message(data: string): void {
    const message = readMessage(data);
    if (message === undefined || this.#ended !== undefined) return;
    if (!this.#isAnswer(message)) return this.#heard(message, data);
    if (Buffer.byteLength(data) > this.#outgoing.mostBytes) return this.#fail(this.#tooLarge());
    this.#answer(message);
    // Nothing more is expected of this stream.
    this.#controller?.abort(new Error('answered'));
  }

  #tooLarge(): string {
    return `the answer is larger than ${this.#outgoing.mostBytes} bytes`;
  }

  #answer(response: JsonObject): void {
    this.#finish({ as: 'answered', response, headers: this.#headers });
  }

  /** An error without an id answers the only request there is here, unless the HTTP status says what became of that. */
  #isAnswer(message: JsonObject): boolean {
    const { id } = this.#outgoing.message;
    if (id === undefined || 'method' in message) return false;
    return message['id'] === id || (this.#status === 200 && 'error' in message && (message['id'] ?? null) === null);
  }

  #fail(detail: string, refusedHere = false): void {
    if (this.#controller === undefined)
      return this.#finish({ as: 'not_sent', detail, ...(refusedHere ? { refusedHere } : {}) });
    if (this.#status === 0 || this.#isStream) this.#finish({ as: 'lost', detail });
    else this.#finish({ as: 'status', status: this.#status, text: '', headers: this.#headers });
    this.#controller.abort(new Error(detail));
  }

  #finish(ended: Ended): void {
    if (this.#ended !== undefined) return;
    this.#ended = ended;
    clearTimeout(this.#timer);
    this.#body.take();
    this.#done();
  }
}
