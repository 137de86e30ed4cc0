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
 * Each kind of message has its own pool. Calls that wait for the server must not block the replies for which the server waits,
 * and listeners and reads must not block calls.
 */
type PoolName = 'calls' | 'requests' | 'replies' | 'streams';
/** The handshake uses the pool of the calls, because a call needs it first. */
const CALL_METHODS = new Set(['tools/call', 'server/discover', 'initialize', 'notifications/initialized', 'ping']);
const SPARE_CONNECTIONS = 4;
const MAX_REQUEST_CONNECTIONS = 64;
/** More connections than the adapter ever has subscriptions. */
const MAX_LISTEN_CONNECTIONS = 512;

/** MCP over Streamable HTTP: one POST per message, answered by JSON or by an event stream. Never follows redirects. */
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
      requests: pool(MAX_REQUEST_CONNECTIONS),
      replies: pool(MAX_PENDING_REPLIES),
      streams: pool(MAX_LISTEN_CONNECTIONS),
    };
  }

  async exchange(outgoing: OutgoingMessage): Promise<ExchangeResult> {
    if (!outgoing.freshConnection) return this.#post(this.#pools[choosePool(outgoing.message)], outgoing);
    const client = new Client(this.#url.origin, this.#options);
    try {
      return await this.#post(client, outgoing);
    } finally {
      // The outcome is decided, so the connection must not stay open.
      void client.destroy().catch(() => {});
    }
  }

  async listen(outgoing: Omit<OutgoingMessage, 'message'>): Promise<void> {
    const deadline = performance.now() + outgoing.timeoutMs;
    await this.#send(this.#pools.streams, 'GET', { ...outgoing, message: {} }, null, deadline);
  }

  onUnsolicited(): void {}

  onRestart(): void {}

  async close(): Promise<void> {
    await Promise.all(Object.values(this.#pools).map((pool) => pool.destroy()));
  }

  async #post(dispatcher: Dispatcher, outgoing: OutgoingMessage): Promise<ExchangeResult> {
    const deadline = performance.now() + outgoing.timeoutMs;
    const body = JSON.stringify(outgoing.message);
    let exchange = await this.#send(dispatcher, 'POST', outgoing, body, deadline);
    // A server may end the stream before the answer. The client then reconnects with GET and does not repeat the request.
    while (exchange.lastEventId !== undefined && exchange.result.as === 'lost') {
      const pauseMs = Math.max(exchange.retryMs ?? DEFAULT_RETRY_MS, MIN_RETRY_MS);
      if (performance.now() + pauseMs >= deadline) break;
      await sleep(pauseMs);
      const headers = { ...outgoing.headers, 'last-event-id': exchange.lastEventId };
      const reconnect = { ...outgoing, headers, maySend: () => true };
      const resumed = await this.#send(this.#pools[choosePool(outgoing.message)], 'GET', reconnect, null, deadline);
      if (resumed.result.as !== 'answered' && resumed.lastEventId === undefined) break;
      exchange = resumed;
    }
    return exchange.result;
  }

  #send(
    dispatcher: Dispatcher,
    method: 'POST' | 'GET',
    outgoing: OutgoingMessage,
    body: string | null,
    deadline: number,
  ): Promise<McpHttpExchange> {
    return new Promise((resolve) => {
      const exchange = new McpHttpExchange(outgoing, deadline - performance.now(), () => resolve(exchange));
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
  if (method === undefined) return 'replies';
  if (method === 'subscriptions/listen') return 'streams';
  return CALL_METHODS.has(String(method)) ? 'calls' : 'requests';
}

/** One HTTP request and its answer. undici calls `onRequestStart` immediately before it writes. */
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
  /** The body is one message over several lines, so it is parsed only at its end. */
  #isSingleMessage = false;
  readonly #body = new ByteAccumulator();
  /** The bytes of messages before the answer. */
  #notifiedBytes = 0;
  lastEventId: string | undefined;

  constructor(outgoing: OutgoingMessage, timeoutMs: number, onDone: () => void) {
    this.#request = outgoing;
    this.#onDone = onDone;
    this.#timer = setTimeout(() => this.#fail(`no answer within ${outgoing.timeoutMs} ms`), Math.max(0, timeoutMs));
  }

  get result(): ExchangeResult {
    return this.#result ?? { as: 'lost', detail: 'the exchange has not ended' };
  }

  get retryMs(): number | undefined {
    return this.#sseParser?.retryMs;
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#result !== undefined) return controller.abort(new Error('The exchange was given up before it was sent.'));
    if (!this.#request.maySend()) {
      this.#finish({ as: 'not_sent', detail: 'this replica lost its right to send', abandoned: true });
      return controller.abort(new Error('This replica lost its right to send.'));
    }
    this.#controller = controller;
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: ResponseHeaders): void {
    this.#status = status;
    this.#headers = headers;
    if (status === 200 && /^text\/event-stream\b/i.test(String(headers['content-type'] ?? '')))
      this.#sseParser = new SseParser(this.#request.maxEventBytes ?? this.#request.maxBytes);
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
   * Passes a message on. The client may read slowly, so the messages of one call are limited to the size of its answer; the
   * answer still arrives. A stream of notifications fails at the limit instead, so that the adapter opens a new one.
   */
  #notify(message: JsonObject, text: string): void {
    this.#notifiedBytes += Buffer.byteLength(text);
    if (this.#notifiedBytes <= this.#request.maxBytes) this.#request.onMessage(message);
    else if (this.#request.maxEventBytes !== undefined) this.#fail('the stream reached its size limit');
  }

  /** Some servers write one message per line instead of an event stream. Messages before the answer are passed on. */
  #collectBody(chunk: Buffer): void {
    if (this.#body.length + chunk.length > this.#request.maxBytes) return this.#fail(this.#describeTooLarge());
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
    if (Buffer.byteLength(data) > this.#request.maxBytes) return this.#fail(this.#describeTooLarge());
    this.#finishAnswered(message);
    // The answer is the last message that matters, so close the stream.
    this.#controller?.abort(new Error('answered'));
  }

  #describeTooLarge(): string {
    return `the answer is larger than ${this.#request.maxBytes} bytes`;
  }

  #finishAnswered(response: JsonObject): void {
    this.#finish({ as: 'answered', response, headers: this.#headers });
  }

  /** With status 200, an error without an id answers this request. With any other status, the status tells the outcome. */
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
