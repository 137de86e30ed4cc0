import { setTimeout as sleep } from 'node:timers/promises';
import { Client, type Dispatcher, Pool } from 'undici';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';
import type { JsonObject } from '../../gateway/domain/json.ts';
import type { Upstream } from '../../gateway/domain/policy.ts';
import { createConnector, PrivateAddressError } from '../http/guarded-connector.ts';
import {
  type ExchangeResult,
  MAX_PENDING_REPLIES,
  type McpTransport,
  type OutgoingMessage,
  parseMessage,
  type ResponseHeaders,
} from './mcp-transport.ts';
import { SseParser } from './sse-parser.ts';

const DEFAULT_RETRY_MS = 1_000;
const MIN_RETRY_MS = 50;
const NEWLINE = 10;

/**
 * Connections are bounded, each kind for itself: a call that waits for the server must not keep from it the answer that it
 * waits for, nor may those who listen or read keep others from calling.
 */
type PoolName = 'calls' | 'asks' | 'answers' | 'listening';
/** What is said before a call can be made goes its way. */
const CALL_METHODS = new Set(['tools/call', 'server/discover', 'initialize', 'notifications/initialized', 'ping']);
const SPARE_CONNECTIONS = 4;
const MAX_REQUEST_CONNECTIONS = 64;
/** The adapter watches fewer resources than this. */
const MAX_LISTEN_CONNECTIONS = 512;

/** MCP over Streamable HTTP: one POST a message, its answer as JSON or as a stream that ends with it. No redirects. */
export class McpHttpTransport implements McpTransport {
  readonly hasHeaders = true;
  readonly #upstream: Upstream;
  readonly #url: URL;
  readonly #options: Client.Options;
  readonly #pools: Readonly<Record<PoolName, Pool>>;

  constructor(upstream: Upstream, url: string) {
    this.#upstream = upstream;
    this.#url = new URL(url);
    this.#options = {
      connect: createConnector(upstream.allowPrivate, upstream.timeoutMs),
      headersTimeout: 0,
      bodyTimeout: 0,
      pipelining: 1,
    };
    const pool = (connections: number) => new Pool(this.#url.origin, { ...this.#options, connections });
    this.#pools = {
      calls: pool(upstream.concurrency + SPARE_CONNECTIONS),
      asks: pool(MAX_REQUEST_CONNECTIONS),
      answers: pool(MAX_PENDING_REPLIES),
      listening: pool(MAX_LISTEN_CONNECTIONS),
    };
  }

  async exchange(outgoing: OutgoingMessage): Promise<ExchangeResult> {
    if (!outgoing.freshConnection) return this.#post(this.#pools[choosePool(outgoing.message)], outgoing);
    const client = new Client(this.#url.origin, this.#options);
    try {
      return await this.#post(client, outgoing);
    } finally {
      // Whatever happened is decided; nothing of this connection may linger.
      void client.destroy().catch(() => {});
    }
  }

  async listen(outgoing: Omit<OutgoingMessage, 'message'>): Promise<void> {
    const until = performance.now() + outgoing.timeoutMs;
    await this.#send(this.#pools.listening, 'GET', { ...outgoing, message: {} }, null, until);
  }

  onUnasked(): void {}

  onRestart(): void {}

  async close(): Promise<void> {
    await Promise.all(Object.values(this.#pools).map((pool) => pool.destroy()));
  }

  async #post(dispatcher: Dispatcher, outgoing: OutgoingMessage): Promise<ExchangeResult> {
    const until = performance.now() + outgoing.timeoutMs;
    const body = JSON.stringify(outgoing.message);
    let exchange = await this.#send(dispatcher, 'POST', outgoing, body, until);
    // A server may end the stream before the answer and expect its client back: to listen, not to ask again.
    while (exchange.lastEventId !== undefined && exchange.result.as === 'lost') {
      const pauseMs = Math.max(exchange.retryMs ?? DEFAULT_RETRY_MS, MIN_RETRY_MS);
      if (performance.now() + pauseMs >= until) break;
      await sleep(pauseMs);
      const headers = { ...outgoing.headers, 'last-event-id': exchange.lastEventId };
      const again = { ...outgoing, headers, maySend: () => true };
      const listening = await this.#send(this.#pools[choosePool(outgoing.message)], 'GET', again, null, until);
      if (listening.result.as !== 'answered' && listening.lastEventId === undefined) break;
      exchange = listening;
    }
    return exchange.result;
  }

  #send(
    dispatcher: Dispatcher,
    method: 'POST' | 'GET',
    outgoing: OutgoingMessage,
    body: string | null,
    until: number,
  ): Promise<McpHttpExchange> {
    return new Promise((resolve) => {
      const exchange = new McpHttpExchange(outgoing, until - performance.now(), () => resolve(exchange));
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

function choosePool({ method }: JsonObject): PoolName {
  if (method === undefined) return 'answers';
  if (method === 'subscriptions/listen') return 'listening';
  return CALL_METHODS.has(String(method)) ? 'calls' : 'asks';
}

/** One request and what came back of it. undici calls `onRequestStart` immediately before it writes. */
class McpHttpExchange implements Dispatcher.DispatchHandler {
  readonly #request: OutgoingMessage;
  readonly #onDone: () => void;
  readonly #timer: NodeJS.Timeout;
  /** Present if the answer is an event stream. */
  #sseParser: SseParser | undefined;
  #controller: Dispatcher.DispatchController | undefined;
  #result: ExchangeResult | undefined;
  #status = 0;
  #headers: ResponseHeaders = {};
  /** What came so far is no line of its own: it is looked at again only when it is whole. */
  #isSingleMessage = false;
  readonly #body = new ByteAccumulator();
  /** Bytes that the server said before the answer. */
  #notifiedBytes = 0;
  lastEventId: string | undefined;

  constructor(outgoing: OutgoingMessage, timeoutMs: number, done: () => void) {
    this.#request = outgoing;
    this.#onDone = done;
    this.#timer = setTimeout(() => this.#fail(`no answer within ${outgoing.timeoutMs} ms`), Math.max(0, timeoutMs));
  }

  get result(): ExchangeResult {
    return this.#result ?? { as: 'lost', detail: 'it never ended' };
  }

  get retryMs(): number | undefined {
    return this.#sseParser?.retryMs;
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#result !== undefined) return controller.abort(new Error('given up before it was sent'));
    if (!this.#request.maySend()) {
      this.#finish({ as: 'not_sent', detail: 'this process lost its right to send', abandoned: true });
      return controller.abort(new Error('not allowed to send any more'));
    }
    this.#controller = controller;
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: ResponseHeaders): void {
    this.#status = status;
    this.#headers = headers;
    if (status === 200 && /^text\/event-stream\b/i.test(String(headers['content-type'] ?? '')))
      this.#sseParser = new SseParser(this.#request.mostEventBytes ?? this.#request.mostBytes);
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#sseParser === undefined) return this.#collectBody(chunk);
    for (const event of this.#sseParser.parse(chunk)) {
      if (event.id !== undefined) this.lastEventId = event.id;
      if (event.data !== '') this.#handleEvent(event.data);
    }
    if (this.#sseParser.isTooLarge) this.#fail('an event of the stream is too large');
  }

  /**
   * Whoever is told of it may read it slowly: no call tells more on its way than it may answer, but it is answered all the same.
   * A stream of nothing but news is begun anew instead, or nobody would hear of any for the rest of it.
   */
  #notify(message: JsonObject, text: string): void {
    this.#notifiedBytes += Buffer.byteLength(text);
    if (this.#notifiedBytes <= this.#request.mostBytes) this.#request.heard(message);
    else if (this.#request.mostEventBytes !== undefined) this.#fail('it told enough');
  }

  /** Some servers write one message a line where they should write a stream: what stands before the answer is heard. */
  #collectBody(chunk: Buffer): void {
    if (this.#body.length + chunk.length > this.#request.mostBytes) return this.#fail(this.#describeTooLarge());
    this.#body.append(chunk);
    if (this.#isSingleMessage || chunk.at(-1) !== NEWLINE) return;
    const bytes = this.#body.take();
    const lines = bytes.toString('utf8').trimEnd().split('\n');
    const messages = lines.map(parseMessage);
    this.#isSingleMessage = !messages.every((message) => message !== undefined && 'method' in message);
    if (this.#isSingleMessage) return this.#body.append(bytes);
    messages.forEach((message, i) => {
      if (message !== undefined) this.#notify(message, lines[i] ?? '');
    });
  }

  onResponseEnd(): void {
    if (this.#sseParser !== undefined) return this.#fail('the stream ended before the answer');
    const text = this.#body.take().toString('utf8');
    const message = parseMessage(text);
    if (message !== undefined && this.#isResponse(message)) return this.#finishAnswered(message);
    this.#finish({ as: 'status', status: this.#status, text, headers: this.#headers });
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    this.#fail(error.message || error.name, error instanceof PrivateAddressError);
  }

  #handleEvent(data: string): void {
    const message = parseMessage(data);
    if (message === undefined || this.#result !== undefined) return;
    if (!this.#isResponse(message)) return this.#notify(message, data);
    if (Buffer.byteLength(data) > this.#request.mostBytes) return this.#fail(this.#describeTooLarge());
    this.#finishAnswered(message);
    // Nothing more is expected of this stream.
    this.#controller?.abort(new Error('answered'));
  }

  #describeTooLarge(): string {
    return `the answer is larger than ${this.#request.mostBytes} bytes`;
  }

  #finishAnswered(response: JsonObject): void {
    this.#finish({ as: 'answered', response, headers: this.#headers });
  }

  /** An error without an id answers the only request there is here, unless the HTTP status says what became of that. */
  #isResponse(message: JsonObject): boolean {
    const { id } = this.#request.message;
    if (id === undefined || 'method' in message) return false;
    return message['id'] === id || (this.#status === 200 && 'error' in message && (message['id'] ?? null) === null);
  }

  #fail(detail: string, refusedHere = false): void {
    if (this.#controller === undefined)
      return this.#finish({ as: 'not_sent', detail, ...(refusedHere ? { refusedHere } : {}) });
    if (this.#status === 0 || this.#sseParser !== undefined) this.#finish({ as: 'lost', detail });
    else this.#finish({ as: 'status', status: this.#status, text: '', headers: this.#headers });
    this.#controller.abort(new Error(detail));
  }

  #finish(ended: ExchangeResult): void {
    if (this.#result !== undefined) return;
    this.#result = ended;
    clearTimeout(this.#timer);
    this.#body.take();
    this.#onDone();
  }
}
