import { Client, type Dispatcher, Pool } from 'undici';
import type {
  Adapter,
  Outcome,
  PreparedRequest,
  RequestInput,
  SendOptions,
  UpstreamAnswer,
} from '../../gateway/domain/attempts/adapter.ts';
import { classifyAnswer, classifyCutAnswer } from '../../gateway/domain/attempts/classify-answer.ts';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';
import { buildCredentialScrubber, toLatin1 } from '../../gateway/domain/calls/redact.ts';
import type { Tool, Upstream } from '../../gateway/domain/policy.ts';
import { UpstreamIdentity } from '../upstream-identity.ts';
import { createConnector, PrivateAddressError } from './guarded-connector.ts';
import { renderRequest } from './render-request.ts';

/** Sends tool calls to an HTTP upstream. No other module does. Never follows redirects. */
export class HttpAdapter implements Adapter {
  readonly #upstream: Upstream;
  readonly #identity: UpstreamIdentity;
  readonly #origin: string;
  /** Without a trailing slash. */
  readonly #basePath: string;
  readonly #clientOptions: Client.Options;
  /** Whether the upstream has headers, which are mostly credentials. */
  readonly #hasHeaders: boolean;
  readonly #pool: Pool;
  readonly #scrubbers: Scrubbers;

  /** `key` makes the digests that stand for credentials in the ledger. It never leaves this process. */
  constructor(upstream: Upstream, key: Buffer) {
    if (upstream.url === undefined) throw new TypeError(`Upstream ${upstream.name} has no url.`);
    this.#upstream = upstream;
    const { href, origin, pathname } = new URL(upstream.url);
    this.#origin = origin;
    this.#basePath = pathname.endsWith('/') ? pathname.slice(0, -1) : pathname;
    this.#clientOptions = {
      connect: createConnector(upstream.allowPrivate, upstream.timeoutMs),
      // Each call has its own deadline. The timeouts of undici would make the cause of an abort ambiguous.
      headersTimeout: 0,
      bodyTimeout: 0,
      pipelining: 1,
    };
    this.#scrubbers = {
      text: buildCredentialScrubber(upstream.secrets),
      bytes: buildCredentialScrubber(upstream.secrets.map(toLatin1)),
    };
    this.#identity = new UpstreamIdentity(href, this.#scrubbers.text, key);
    this.#hasHeaders = Object.keys(upstream.headers).length > 0;
    this.#pool = new Pool(origin, { ...this.#clientOptions, connections: upstream.concurrency });
  }

  prepare(tool: Tool, input: RequestInput, txn: string): PreparedRequest {
    if (tool.request === undefined) throw new TypeError(`Tool ${tool.name} has no request.`);
    return renderRequest(tool, tool.request, input, txn, this.#identity.written);
  }

  isAt(base: string | undefined): boolean {
    return this.#identity.matches(base);
  }

  send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    if (!this.isAt(request.base)) {
      const detail = `the address of ${this.#upstream.name} changed since the first attempt`;
      return Promise.resolve({ kind: 'not_sent', detail, refusedHere: true });
    }
    return options.freshConnection
      ? this.#sendOnFreshConnection(tool, request, options)
      : this.#dispatch(this.#pool, tool, request, options);
  }

  async #sendOnFreshConnection(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    const client = new Client(this.#origin, this.#clientOptions);
    try {
      return await this.#dispatch(client, tool, request, options);
    } finally {
      // The outcome is decided, so the connection must not stay open.
      void client.destroy().catch(() => {});
    }
  }

  async close(): Promise<void> {
    await this.#pool.destroy();
  }

  #dispatch(dispatcher: Dispatcher, tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    return new Promise((resolve) => {
      const exchange = new HttpExchange(tool, this.#scrubbers, options, resolve);
      try {
        dispatcher.dispatch(
          {
            origin: this.#origin,
            path: this.#basePath + request.path,
            method: request.method as Dispatcher.HttpMethod,
            headers: this.#withCredentials(request.headers),
            body: request.body,
            reset: options.freshConnection,
          },
          exchange,
        );
      } catch (error) {
        exchange.onResponseError(undefined, error as Error);
      }
    });
  }

  #withCredentials(headers: PreparedRequest['headers']): PreparedRequest['headers'] {
    // `Object.assign` is ten times faster than a spread for objects with dynamic keys.
    return this.#hasHeaders ? Object.assign({}, headers, this.#upstream.headers) : headers;
  }
}

/** Replace the credentials of the upstream in its answers: in text, or in bytes read as Latin-1. */
interface Scrubbers {
  readonly text: (text: string) => string;
  readonly bytes: (text: string) => string;
}

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * One request and its answer. Two facts decide the outcome: whether the first byte was sent, and whether a whole answer came
 * back. undici calls `onRequestStart` immediately before it writes; an abort there writes nothing.
 */
class HttpExchange implements Dispatcher.DispatchHandler {
  readonly #tool: Tool;
  readonly #scrubbers: Scrubbers;
  readonly #maySend: () => boolean;
  readonly #timer: NodeJS.Timeout;
  readonly #resolve: (outcome: Outcome) => void;
  #controller: Dispatcher.DispatchController | undefined;
  #isDone = false;
  #status = 0;
  #contentType: string | null = null;
  readonly #body = new ByteAccumulator();

  constructor(tool: Tool, scrubbers: Scrubbers, options: SendOptions, resolve: (outcome: Outcome) => void) {
    this.#tool = tool;
    this.#scrubbers = scrubbers;
    this.#maySend = options.maySend;
    this.#resolve = resolve;
    this.#timer = setTimeout(() => this.#fail(`no answer within ${options.timeoutMs} ms`), options.timeoutMs);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#isDone) return controller.abort(new Error('The call was given up before it was sent.'));
    if (!this.#maySend()) {
      this.#finish({ kind: 'not_sent', detail: 'this replica lost its right to send', abandoned: true });
      return controller.abort(new Error('This replica lost its right to send.'));
    }
    this.#controller = controller;
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    this.#status = status;
    const type = headers['content-type'];
    this.#contentType = (Array.isArray(type) ? type[0] : type) ?? null;
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#body.length + chunk.length > this.#tool.maxResultBytes)
      return this.#fail(`the answer is larger than ${this.#tool.maxResultBytes} bytes`);
    this.#body.append(chunk);
  }

  onResponseEnd(): void {
    try {
      this.#finish(classifyAnswer(this.#tool, this.#buildAnswer()));
    } catch {
      // The error may quote the answer and so a credential. So the detail says only that the answer cannot be read.
      this.#fail('the answer cannot be read');
    }
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    this.#fail(error.message || error.name, error instanceof PrivateAddressError);
  }

  #fail(detail: string, refusedHere = false): void {
    if (this.#controller === undefined)
      return this.#finish({ kind: 'not_sent', detail, ...(refusedHere ? { refusedHere } : {}) });
    if (this.#status === 0) this.#finish({ kind: 'ambiguous', detail });
    else this.#finish(classifyCutAnswer(this.#tool, this.#status, detail));
    this.#controller.abort(new Error(detail));
  }

  #finish(outcome: Outcome): void {
    if (this.#isDone) return;
    this.#isDone = true;
    clearTimeout(this.#timer);
    this.#body.take();
    this.#resolve(outcome);
  }

  /** Builds the answer without the credentials that an upstream echoes. They must not reach the agent, the ledger or a log. */
  #buildAnswer(): UpstreamAnswer {
    const bytes = this.#body.take();
    const status = this.#status;
    const contentType = this.#contentType === null ? null : this.#scrubbers.text(this.#contentType);
    if (bytes.length === 0) return { status, contentType, body: null, encoding: 'utf8' };
    try {
      return { status, contentType, body: this.#scrubbers.text(UTF8.decode(bytes)), encoding: 'utf8' };
    } catch {
      const scrubbed = Buffer.from(this.#scrubbers.bytes(this.#scrubbers.text(bytes.toString('latin1'))), 'latin1');
      return { status, contentType, body: scrubbed.toString('base64'), encoding: 'base64' };
    }
  }
}
