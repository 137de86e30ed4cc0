import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type {
  Adapter,
  Outcome,
  PreparedRequest,
  ProgressListener,
  RequestInput,
  SendOptions,
  UpstreamAnswer,
} from '../../gateway/domain/attempts/adapter.ts';
import { classifyAnswer } from '../../gateway/domain/attempts/classify-answer.ts';
import { buildCredentialScrubber } from '../../gateway/domain/calls/redact.ts';
import { canonicalize } from '../../gateway/domain/canonical.ts';
import { isJsonObject, type Json, type JsonObject } from '../../gateway/domain/json.ts';
import { McpError } from '../../gateway/domain/mcp-error.ts';
import type { Tool, Upstream } from '../../gateway/domain/policy.ts';
import { sanitize } from '../../gateway/domain/sanitize.ts';
import { setField } from '../http/render-request.ts';
import { UpstreamIdentity } from '../upstream-identity.ts';
import { McpHttpTransport } from './mcp-http-transport.ts';
import { stripGatewayMeta } from './mcp-request-meta.ts';
import { McpStdioTransport } from './mcp-stdio-transport.ts';
import { type ExchangeResult, parseMessage } from './mcp-transport.ts';
import { McpUpstreamClient, type McpUpstreamRequest, toObject } from './mcp-upstream-client.ts';

/**
 * Sends tool calls to an MCP server. It stores answers as `tools/call` results with a status, as HTTP tools have one:
 *
 * - 200 for a result;
 * - 424 for a result with `isError`, because a failed tool may have done part of its work;
 * - 400 for a request that the server refused, which proves that nothing happened;
 * - 500 for an error of the server itself.
 *
 * `noEffect` of a contract may name 424, or HTTP statuses without a result.
 */
export class McpAdapter implements Adapter {
  readonly #upstream: Upstream;
  readonly #client: McpUpstreamClient;
  readonly #identity: UpstreamIdentity;
  /** Replaces the credentials of the upstream in a text. */
  readonly #scrub: (text: string) => string;
  /** The URIs of subscribed resources. The empty string stands for the lists. */
  readonly #subscriptions = new Set<string>();
  #isClosed = false;

  constructor(upstream: Upstream, key: Buffer) {
    this.#upstream = upstream;
    this.#scrub = buildCredentialScrubber(upstream.secrets);
    const { url, command } = upstream;
    this.#identity = new UpstreamIdentity(url ?? command?.join(' ') ?? '', this.#scrub, key);
    this.#client = new McpUpstreamClient(
      url === undefined
        ? new McpStdioTransport(command ?? [], upstream.env ?? {})
        : new McpHttpTransport(upstream, url),
    );
  }

  prepare(tool: Tool, { args, continuation, trace, clientProfile }: RequestInput, txn: string): PreparedRequest {
    const { once } = tool;
    const isKeyed = tool.effect === 'write' && once.by === 'key';
    // A read that probes or observes has the txn of its write. So a read gets a random progress token and no idempotency key.
    const gatewayMeta =
      tool.effect === 'read' ? { progressToken: randomUUID() } : { progressToken: txn, [IDEMPOTENCY_KEY_META]: txn };
    const params: JsonObject = {
      name: this.#remoteName(tool.name),
      arguments: isKeyed && once.field !== undefined ? setField(args, once.field, txn) : args,
      _meta: { ...gatewayMeta, ...trace },
      ...(continuation?.inputResponses === undefined ? {} : { inputResponses: continuation.inputResponses }),
      ...(continuation?.requestState === undefined ? {} : { requestState: continuation.requestState }),
    };
    const headers = {
      'oncegate-txn': txn,
      ...trace,
      ...(isKeyed && once.header !== undefined ? { [once.header.toLowerCase()]: txn } : {}),
    };
    return {
      base: this.#identity.written,
      method: 'tools/call',
      path: String(params['name']),
      headers,
      body: canonicalize(params),
      ...(clientProfile === undefined ? {} : { manner: clientProfile }),
    };
  }

  isAt(base: string | undefined): boolean {
    return this.#identity.matches(base);
  }

  async send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    if (!this.isAt(request.base)) {
      const detail = `the address of ${this.#upstream.name} changed since the first attempt`;
      return { kind: 'not_sent', detail, refusedHere: true };
    }
    const params = JSON.parse(request.body ?? '{}') as JsonObject;
    const ended = await this.#client.request({
      id: String(toObject(params['_meta'])['progressToken']),
      method: 'tools/call',
      params: addLockToken(params, request.headers['oncegate-lock-token']),
      headers: request.headers,
      timeoutMs: options.timeoutMs,
      maxBytes: tool.maxResultBytes,
      freshConnection: options.freshConnection,
      maySend: options.maySend,
      profile: request.manner,
      listener: this.#scrubListener(options.listener),
    });
    return this.#toOutcome(tool, ended, tool.redact.length > 0 || options.discreet === true);
  }

  /** Sends any other request of a client. Rejects with an `McpError`. */
  async request(method: string, params: JsonObject, listener?: ProgressListener): Promise<JsonObject> {
    const { timeoutMs } = this.#upstream;
    const request: McpUpstreamRequest = {
      id: randomUUID(),
      method,
      params: stripGatewayMeta(params),
      timeoutMs,
      listener: this.#scrubListener(listener),
      maxBytes: MAX_ANSWER_BYTES,
    };
    let ended = await this.#client.request(request);
    // These requests have no effect, so they may be repeated in a new session.
    if (ended.as === 'status' && ended.sessionGone === true) ended = await this.#client.request(request);
    if (ended.as !== 'answered') throw new McpError(-32603, `${this.#upstream.name}: ${this.#describeResult(ended)}`);
    const { result, error } = ended.response;
    if (isJsonObject(result)) return this.#scrubObject(result);
    const { code, message, data } = this.#scrubObject(toObject(error));
    throw new McpError(
      typeof code === 'number' ? code : -32603,
      typeof message === 'string' ? message : 'The answer of the server has neither a result nor an error.',
      data,
    );
  }

  /** Reads all pages of a list, up to the limits. */
  async listAllPages(method: string, member: string, listener?: ProgressListener): Promise<JsonObject[]> {
    const items: JsonObject[] = [];
    let size = 0;
    let cursor: Json | undefined;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const result = await this.request(method, typeof cursor === 'string' ? { cursor } : {}, listener);
      const pageItems = result[member];
      if (Array.isArray(pageItems)) for (const item of pageItems) if (isJsonObject(item)) items.push(item);
      cursor = result['nextCursor'];
      size += JSON.stringify(result).length;
      if (typeof cursor !== 'string' || items.length > MAX_ITEMS || size > MAX_ANSWER_BYTES) break;
    }
    return items.slice(0, MAX_ITEMS);
  }

  capabilities(): Promise<JsonObject | undefined> {
    return this.#client.capabilities(this.#upstream.timeoutMs);
  }

  /** Passes change notifications on. For resources, only those with a subscription. */
  onChangeNotification(listener: (method: string, params: JsonObject) => void): void {
    this.#client.onChangeNotification((method, params) => {
      if (method !== 'notifications/resources/updated' || this.#subscriptions.has(String(params['uri'])))
        listener(method, this.#scrubObject(params));
    });
  }

  /** Subscribes to changes of the lists until this adapter is closed. */
  async subscribeToLists(): Promise<void> {
    if (this.#subscriptions.has('')) return;
    this.#subscriptions.add('');
    await this.#listen({ toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true });
  }

  /** Subscribes to changes of one resource. */
  async subscribeToResource(uri: string): Promise<void> {
    if (this.#subscriptions.has(uri) || this.#subscriptions.size >= MAX_SUBSCRIPTIONS) return;
    // Add before the first await, so that concurrent requests cannot exceed the limit.
    this.#subscriptions.add(uri);
    try {
      if (!(await this.#client.isModern(this.#upstream.timeoutMs))) await this.request('resources/subscribe', { uri });
      else void this.#listen({ resourceSubscriptions: [uri] });
    } catch (error) {
      this.#subscriptions.delete(uri);
      throw error;
    }
  }

  async #listen(notifications: JsonObject): Promise<void> {
    while (!this.#isClosed) {
      // No caller awaits this, so a rejection would end the process.
      await this.#client.listen(notifications, this.#upstream.timeoutMs, LISTEN_MS).catch(() => {});
      await sleep(LISTEN_RETRY_MS, undefined, { ref: false });
    }
  }

  close(): Promise<void> {
    this.#isClosed = true;
    return this.#client.close();
  }

  #remoteName(name: string): string {
    return this.#upstream.expose === 'bare' ? name : name.slice(this.#upstream.name.length + 1);
  }

  #toOutcome(tool: Tool, ended: ExchangeResult, discreet: boolean): Outcome {
    switch (ended.as) {
      case 'not_sent':
        return { kind: 'not_sent', ...pickNotSentReasons(ended), detail: this.#describeResult(ended) };
      case 'lost':
        return { kind: 'ambiguous', detail: this.#describeResult(ended) };
      case 'status': {
        const answer = this.#buildAnswer(ended.status, this.#scrub(ended.text));
        const detail = this.#describeResult(ended);
        // By the protocol, a request of an unknown session had no effect. A call whose repeat is harmless need not trust that.
        if (ended.sessionGone === true && isRepeatable(tool)) return { kind: 'ambiguous', detail, answer };
        return tool.noEffect.has(ended.status) || isRefusedByServer(ended)
          ? { kind: 'refused', answer }
          : { kind: 'ambiguous', detail, ...(ended.status >= 200 && ended.status < 300 ? {} : { answer }) };
      }
      case 'answered':
        return this.#readResponse(tool, ended.response, discreet);
    }
  }

  #readResponse(tool: Tool, response: JsonObject, discreet: boolean): Outcome {
    try {
      return this.#classifyResponse(tool, response, discreet);
    } catch {
      // The answer is nested too deep to serialize, or has an object where a number belongs. That proves nothing.
      return { kind: 'ambiguous', detail: 'the answer cannot be read' };
    }
  }

  #classifyResponse(tool: Tool, response: JsonObject, discreet: boolean): Outcome {
    const result = response['result'];
    if (!isJsonObject(result)) {
      const error = toObject(response['error']);
      const body = this.#serializeScrubbed({ error });
      if (REFUSAL_CODES.has(Number(error['code']))) return { kind: 'refused', answer: this.#buildAnswer(400, body) };
      const detail = this.#quoteServer('the server answered with an error', error['message'], discreet);
      return this.#classifyFailure(tool, this.#buildAnswer(500, body), detail);
    }
    if (result['isError'] === true)
      return this.#classifyFailure(
        tool,
        this.#buildAnswer(IS_ERROR_STATUS, this.#serializeScrubbed(result)),
        this.#describeToolError(result, discreet),
      );
    const answer = this.#buildAnswer(200, this.#serializeScrubbed(result));
    // A tool that asks for input has not done its work, so `failed` is about a later answer.
    return result['resultType'] === 'input_required'
      ? { kind: 'ok', answer, wantsInput: true }
      : classifyAnswer(tool, answer);
  }

  #describeToolError({ content }: JsonObject, discreet: boolean): string {
    const [first] = Array.isArray(content) ? content : [];
    return this.#quoteServer('the tool reported an error', isJsonObject(first) ? first['text'] : undefined, discreet);
  }

  /** Adds the words of the server to a message, unless they may repeat redacted values. */
  #quoteServer(message: string, words: Json | undefined, discreet: boolean): string {
    if (typeof words !== 'string' || words === '' || discreet) return message;
    return `${message}: ${sanitize(this.#scrub(words), MAX_QUOTE_LENGTH)}`;
  }

  #describeResult(ended: Exclude<ExchangeResult, { as: 'answered' }>): string {
    if (ended.as === 'status') return `the server answered ${ended.status} without a result`;
    // The detail may quote the server. Scrub before truncating, because half a credential would not be found.
    return sanitize(this.#scrub(ended.detail), MAX_QUOTE_LENGTH);
  }

  /** A failed read had no effect. A failed write is refused only if the contract says that its status proves no effect. */
  #classifyFailure(tool: Tool, answer: UpstreamAnswer, detail: string): Outcome {
    const isRefused = tool.noEffect.has(answer.status) || (tool.effect === 'read' && answer.status < 500);
    return isRefused ? { kind: 'refused', answer } : { kind: 'ambiguous', detail, answer };
  }

  #buildAnswer(status: number, body: string): UpstreamAnswer {
    return { status, contentType: 'application/json', body: body === '' ? null : body, encoding: 'utf8' };
  }

  #serializeScrubbed(value: JsonObject): string {
    return this.#scrub(JSON.stringify(value));
  }

  #scrubObject(value: JsonObject): JsonObject {
    return this.#upstream.secrets.length === 0 ? value : (JSON.parse(this.#serializeScrubbed(value)) as JsonObject);
  }

  #scrubListener(listener: ProgressListener | undefined): ProgressListener | undefined {
    if (listener === undefined || this.#upstream.secrets.length === 0) return listener;
    return {
      ...listener,
      tell: (method, params) => listener.tell(method, this.#scrubObject(params)),
      ask: (method, params) => listener.ask(method, this.#scrubObject(params)),
    };
  }
}

const IDEMPOTENCY_KEY_META = 'oncegate/idempotency-key';

/** The status of a result with `isError`, for use in `noEffect`. */
export const IS_ERROR_STATUS = 424;

/**
 * Error codes with which a server refuses a request: parse error, invalid request, unknown method, invalid params, header
 * mismatch, missing client capability, unsupported revision, URL elicitation required.
 */
const REFUSAL_CODES = new Set([-32700, -32600, -32601, -32602, -32020, -32021, -32022, -32042]);

/** Adds the lock token to `_meta`, because a server over standard streams gets no headers. */
function addLockToken(params: JsonObject, token: string | undefined): JsonObject {
  return token === undefined
    ? params
    : { ...params, _meta: { ...toObject(params['_meta']), 'oncegate/lock-token': token } };
}

/**
 * Whether the server refused a request with a status and a JSON-RPC error without an id: the request is invalid, or the session
 * is unknown. A status alone may come from a proxy, and an internal error of the server may follow the effect.
 */
function isRefusedByServer({ status, text }: Extract<ExchangeResult, { as: 'status' }>): boolean {
  const message = status >= 400 && status < 500 ? parseMessage(text) : undefined;
  if (message?.['jsonrpc'] !== '2.0' || (message['id'] ?? null) !== null) return false;
  const { code } = toObject(message['error']);
  if (typeof code !== 'number') return false;
  return (
    REFUSAL_CODES.has(code) ||
    (status === 404 && code === NO_SESSION_CODE) ||
    (status === 400 && code === BAD_REQUEST_CODE)
  );
}

/** The codes of the official servers for an unknown session, and for a request without a session. */
const NO_SESSION_CODE = -32001;
const BAD_REQUEST_CODE = -32000;

const MAX_QUOTE_LENGTH = 1_000;
const LISTEN_MS = 3_600_000;
const LISTEN_RETRY_MS = 1_000;
const MAX_SUBSCRIPTIONS = 256;
/** The limit of an answer to a request that is not a tool call, and of all pages of a list. */
const MAX_ANSWER_BYTES = 16 * 1024 * 1024;
const MAX_PAGES = 100;
const MAX_ITEMS = 10_000;

function pickNotSentReasons({ abandoned, refusedHere }: Extract<ExchangeResult, { as: 'not_sent' }>) {
  return { ...(abandoned === true ? { abandoned } : {}), ...(refusedHere === true ? { refusedHere } : {}) };
}

/** Whether a repeat is harmless, whatever the outcome of the first attempt. */
function isRepeatable({ effect, once }: Tool): boolean {
  return effect === 'read' || once.by === 'key' || once.by === 'idempotent';
}
