import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type {
  Adapter,
  Answer,
  Follower,
  Outcome,
  PreparedRequest,
  SendOptions,
  Wish,
} from '../gateway/domain/adapter.ts';
import { canonical } from '../gateway/domain/canonical.ts';
import { isObject, type Json, type JsonObject } from '../gateway/domain/json.ts';
import { legible } from '../gateway/domain/legible.ts';
import { McpError } from '../gateway/domain/mcp-error.ts';
import type { Tool, Upstream } from '../gateway/domain/policy.ts';
import { scrubber } from '../gateway/domain/redact.ts';
import { withoutOurs } from './mcp-envelope.ts';
import { HttpWire } from './mcp-http.ts';
import { McpPeer, objectOr } from './mcp-peer.ts';
import { StdioWire } from './mcp-stdio.ts';
import { type Ended, readMessage } from './mcp-wire.ts';
import { Place } from './place.ts';
import { withField } from './render.ts';

/**
 * Tools of an MCP server. Its answers are kept as `tools/call` results, with a status as HTTP tools have one: 200 for a result,
 * 424 for one that says `isError` (a tool that failed may have done half of it), 400 for a request that the server refused to
 * take, which proves that nothing happened, 500 for an error of the server itself. `noEffect` of a contract may name 424, or
 * bare statuses of HTTP.
 */
export class McpAdapter implements Adapter {
  readonly #upstream: Upstream;
  readonly #peer: McpPeer;
  readonly #place: Place;
  /** Takes its credentials out of what it says. */
  readonly #scrub: (text: string) => string;
  /** Resources that are listened for; the empty name stands for the lists. */
  readonly #watched = new Set<string>();
  #isClosed = false;

  constructor(upstream: Upstream, key: Buffer) {
    this.#upstream = upstream;
    this.#scrub = scrubber(upstream.secrets);
    const { url, command } = upstream;
    this.#place = new Place(url ?? command?.join(' ') ?? '', this.#scrub, key);
    this.#peer = new McpPeer(
      url === undefined ? new StdioWire(command ?? [], upstream.env ?? {}) : new HttpWire(upstream, url),
    );
  }

  prepare(tool: Tool, { args, continuation, trace, manner }: Wish, txn: string): PreparedRequest {
    const { once } = tool;
    const isKeyed = tool.effect === 'write' && once.by === 'key';
    // A look is made in the name of a write: its answer must never pass for that of the write, nor its key for the write's.
    const own = tool.effect === 'read' ? { progressToken: randomUUID() } : { progressToken: txn, [KEY]: txn };
    const params: JsonObject = {
      name: this.#remoteName(tool.name),
      arguments: isKeyed && once.field !== undefined ? withField(args, once.field, txn) : args,
      _meta: { ...own, ...trace },
      ...(continuation?.inputResponses === undefined ? {} : { inputResponses: continuation.inputResponses }),
      ...(continuation?.requestState === undefined ? {} : { requestState: continuation.requestState }),
    };
    const headers = {
      'oncegate-txn': txn,
      ...trace,
      ...(isKeyed && once.header !== undefined ? { [once.header.toLowerCase()]: txn } : {}),
    };
    return {
      base: this.#place.written,
      method: 'tools/call',
      path: String(params['name']),
      headers,
      body: canonical(params),
      ...(manner === undefined ? {} : { manner }),
    };
  }

  isAt(base: string | undefined): boolean {
    return this.#place.is(base);
  }

  async send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome> {
    if (!this.isAt(request.base)) {
      const detail = `${this.#upstream.name} is somewhere else now than when this was first sent`;
      return { kind: 'not_sent', detail, refusedHere: true };
    }
    const { follower } = options;
    const params = JSON.parse(request.body ?? '{}') as JsonObject;
    const ended = await this.#peer.request({
      id: String(objectOr(params['_meta'])['progressToken']),
      method: 'tools/call',
      params: withToken(params, request.headers['oncegate-lock-token']),
      headers: request.headers,
      timeoutMs: options.timeoutMs,
      mostBytes: tool.maxResultBytes,
      freshConnection: options.freshConnection,
      maySend: options.maySend,
      manner: request.manner,
      follower: this.#scrubbing(follower),
    });
    return this.#outcome(tool, ended, tool.redact.length > 0 || options.discreet === true);
  }

  /** Everything else that a client may ask a server. Rejects with an `McpError`. */
  async ask(method: string, params: JsonObject, client?: Follower): Promise<JsonObject> {
    const { timeoutMs } = this.#upstream;
    const follower = this.#scrubbing(client);
    const said = withoutOurs(params);
    const asked = { id: randomUUID(), method, params: said, timeoutMs, follower, mostBytes: MOST_ANSWER_BYTES };
    let ended = await this.#peer.request(asked);
    // Nothing that is asked here does anything: it may be asked again in a new session.
    if (ended.as === 'status' && ended.sessionGone === true) ended = await this.#peer.request(asked);
    if (ended.as !== 'answered') throw new McpError(-32603, `${this.#upstream.name}: ${this.#describe(ended)}`);
    const { result, error } = ended.response;
    if (isObject(result)) return this.#cleaned(result);
    const { code, message, data } = this.#cleaned(objectOr(error));
    throw new McpError(
      typeof code === 'number' ? code : -32603,
      typeof message === 'string' ? message : 'no result and no error',
      data,
    );
  }

  /** Every page of a list. */
  async list(method: string, member: string, follower?: Follower): Promise<JsonObject[]> {
    const items: JsonObject[] = [];
    let size = 0;
    let cursor: Json | undefined;
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const result = await this.ask(method, typeof cursor === 'string' ? { cursor } : {}, follower);
      const found = result[member];
      if (Array.isArray(found)) for (const item of found) if (isObject(item)) items.push(item);
      cursor = result['nextCursor'];
      size += JSON.stringify(result).length;
      if (typeof cursor !== 'string' || items.length > MOST_ITEMS || size > MOST_ANSWER_BYTES) break;
    }
    return items.slice(0, MOST_ITEMS);
  }

  capabilities(): Promise<JsonObject | undefined> {
    return this.#peer.capabilities(this.#upstream.timeoutMs);
  }

  /** Of resources only those that somebody wants to hear of. */
  onNews(told: (method: string, params: JsonObject) => void): void {
    this.#peer.onNews((method, params) => {
      if (method !== 'notifications/resources/updated' || this.#watched.has(String(params['uri'])))
        told(method, this.#cleaned(params));
    });
  }

  /** Hears from a server that can say so when its lists change, until this adapter is closed. */
  async follow(): Promise<void> {
    if (this.#watched.has('')) return;
    this.#watched.add('');
    await this.#listen({ toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true });
  }

  /** Hears of changes of one resource too. */
  async watch(uri: string): Promise<void> {
    if (this.#watched.has(uri) || this.#watched.size >= MOST_WATCHED) return;
    // Before the first wait: however many ask at once, there are no more of them.
    this.#watched.add(uri);
    try {
      if (!(await this.#peer.isModern(this.#upstream.timeoutMs))) await this.ask('resources/subscribe', { uri });
      else void this.#listen({ resourceSubscriptions: [uri] });
    } catch (error) {
      this.#watched.delete(uri);
      throw error;
    }
  }

  async #listen(notifications: JsonObject): Promise<void> {
    while (!this.#isClosed) {
      // Nobody waits for this: a rejection would end the process.
      await this.#peer.listen(notifications, this.#upstream.timeoutMs, LISTEN_MS).catch(() => {});
      await sleep(LISTEN_AGAIN_MS, undefined, { ref: false });
    }
  }

  close(): Promise<void> {
    this.#isClosed = true;
    return this.#peer.close();
  }

  #remoteName(name: string): string {
    return this.#upstream.expose === 'bare' ? name : name.slice(this.#upstream.name.length + 1);
  }

  #outcome(tool: Tool, ended: Ended, discreet: boolean): Outcome {
    switch (ended.as) {
      case 'not_sent':
        return { kind: 'not_sent', ...reasons(ended), detail: this.#describe(ended) };
      case 'lost':
        return { kind: 'ambiguous', detail: this.#describe(ended) };
      case 'status': {
        const answer = this.#answer(ended.status, this.#scrub(ended.text));
        const detail = this.#describe(ended);
        // By the protocol nothing was done. Where a repeat is harmless that need not be believed: it is asked again.
        if (ended.sessionGone === true && isRepeatable(tool)) return { kind: 'ambiguous', detail, answer };
        return tool.noEffect.has(ended.status) || isRefusedByServer(ended)
          ? { kind: 'refused', answer }
          : { kind: 'ambiguous', detail, ...(ended.status >= 200 && ended.status < 300 ? {} : { answer }) };
      }
      case 'answered':
        return this.#read(tool, ended.response, discreet);
    }
  }

  #read(tool: Tool, response: JsonObject, discreet: boolean): Outcome {
    try {
      return this.#answered(tool, response, discreet);
    } catch {
      // It came, but is nested deeper than can be written down, or has an object where a number belongs: that proves nothing.
      return { kind: 'ambiguous', detail: 'the answer cannot be read' };
    }
  }

  #answered(tool: Tool, response: JsonObject, discreet: boolean): Outcome {
    const result = response['result'];
    if (!isObject(result)) {
      const error = objectOr(response['error']);
      const body = this.#scrubbed({ error });
      if (REFUSALS.has(Number(error['code']))) return { kind: 'refused', answer: this.#answer(400, body) };
      const detail = this.#inItsWords('the server answered with an error', error['message'], discreet);
      return this.#failed(tool, this.#answer(500, body), detail);
    }
    if (result['isError'] === true)
      return this.#failed(tool, this.#answer(IS_ERROR, this.#scrubbed(result)), this.#complaint(result, discreet));
    const answer = this.#answer(200, this.#scrubbed(result));
    return result['resultType'] === 'input_required'
      ? { kind: 'ok', answer, wantsInput: true }
      : { kind: 'ok', answer };
  }

  #complaint({ content }: JsonObject, discreet: boolean): string {
    const [first] = Array.isArray(content) ? content : [];
    return this.#inItsWords('the tool says that it failed', isObject(first) ? first['text'] : undefined, discreet);
  }

  /** What the server said beside what it means, unless it might repeat what is redacted. */
  #inItsWords(meaning: string, words: Json | undefined, discreet: boolean): string {
    if (typeof words !== 'string' || words === '' || discreet) return meaning;
    return `${meaning}: ${legible(this.#scrub(words), MOST_WORDS)}`;
  }

  #describe(ended: Exclude<Ended, { as: 'answered' }>): string {
    if (ended.as === 'status') return `the server answered ${ended.status} without a result`;
    // It may quote the server. Cut only after it is scrubbed: half a credential would not be found.
    return legible(this.#scrub(ended.detail), MOST_WORDS);
  }

  /** A read has nothing to be unsure of; of a write only what the contract says proves that nothing happened. */
  #failed(tool: Tool, answer: Answer, detail: string): Outcome {
    const isRefused = tool.noEffect.has(answer.status) || (tool.effect === 'read' && answer.status < 500);
    return isRefused ? { kind: 'refused', answer } : { kind: 'ambiguous', detail, answer };
  }

  #answer(status: number, body: string): Answer {
    return { status, contentType: 'application/json', body: body === '' ? null : body, encoding: 'utf8' };
  }

  #scrubbed(value: JsonObject): string {
    return this.#scrub(JSON.stringify(value));
  }

  #cleaned(value: JsonObject): JsonObject {
    return this.#upstream.secrets.length === 0 ? value : (JSON.parse(this.#scrubbed(value)) as JsonObject);
  }

  #scrubbing(follower: Follower | undefined): Follower | undefined {
    if (follower === undefined || this.#upstream.secrets.length === 0) return follower;
    return {
      ...follower,
      tell: (method, params) => follower.tell(method, this.#cleaned(params)),
      ask: (method, params) => follower.ask(method, this.#cleaned(params)),
    };
  }
}

const KEY = 'oncegate/idempotency-key';

/** The status under which `noEffect` knows a result with `isError`. */
export const IS_ERROR = 424;

/**
 * Errors by which a server says that it did not take the request: it could not read it, does not know the method, the
 * arguments do not fit, its headers disagree, the client lacks something, the revision is unknown, a page must be visited.
 */
const REFUSALS = new Set([-32700, -32600, -32601, -32602, -32020, -32021, -32022, -32042]);
/** A server over standard streams has no headers to find the token of its locks in. */
function withToken(params: JsonObject, token: string | undefined): JsonObject {
  return token === undefined
    ? params
    : { ...params, _meta: { ...objectOr(params['_meta']), 'oncegate/lock-token': token } };
}

/**
 * A server that does not take a request says so with a status and, in the words of the protocol, an error about no request in
 * particular: that it cannot be read, or that there is no such session. A status alone may come from anything on the way, and
 * an error of the server itself may come after the effect.
 */
function isRefusedByServer({ status, text }: Extract<Ended, { as: 'status' }>): boolean {
  const message = status >= 400 && status < 500 ? readMessage(text) : undefined;
  if (message?.['jsonrpc'] !== '2.0' || (message['id'] ?? null) !== null) return false;
  const { code } = objectOr(message['error']);
  if (typeof code !== 'number') return false;
  return REFUSALS.has(code) || (status === 404 && code === NO_SESSION) || (status === 400 && code === BAD_REQUEST);
}

/** As the official servers say it: the session is unknown, or the request names none. */
const NO_SESSION = -32001;
const BAD_REQUEST = -32000;

const MOST_WORDS = 1_000;
const LISTEN_MS = 3_600_000;
const LISTEN_AGAIN_MS = 1_000;
const MOST_WATCHED = 256;
/** Of one answer that is no tool's, and of all pages of a list. */
const MOST_ANSWER_BYTES = 16 * 1024 * 1024;
const MOST_PAGES = 100;
const MOST_ITEMS = 10_000;

function reasons({ abandoned, refusedHere }: Extract<Ended, { as: 'not_sent' }>) {
  return { ...(abandoned === true ? { abandoned } : {}), ...(refusedHere === true ? { refusedHere } : {}) };
}

/** Whether sending it once more does no harm, whatever became of it. */
function isRepeatable({ effect, once }: Tool): boolean {
  return effect === 'read' || once.by === 'key' || once.by === 'nature';
}
