import { randomUUID } from 'node:crypto';
import type { McpClientProfile, ProgressListener } from '../../gateway/domain/attempts/adapter.ts';
import { isJsonObject, type Json, type JsonObject } from '../../gateway/domain/json.ts';
import { addRequestMeta, buildModernHeaders, CLIENT_INFO, MODERN_PROTOCOL_VERSION } from './mcp-request-meta.ts';
import {
  type ExchangeResult,
  MAX_MESSAGE_BYTES,
  MAX_PENDING_REPLIES,
  type McpTransport,
  type OutgoingMessage,
} from './mcp-transport.ts';

const LEGACY_PROTOCOL_VERSION = '2025-11-25';

/** A session that was idle for longer may have ended. A tool call then pings the server first, to avoid an unknown outcome. */
const SESSION_IDLE_MS = 10_000;

/** One request to an MCP server. */
export interface McpUpstreamRequest {
  readonly id: string;
  readonly method: string;
  readonly params: JsonObject;
  readonly headers?: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly maxBytes?: number;
  readonly freshConnection?: boolean;
  readonly maySend?: () => boolean;
  /** The profile of the client. The default is the profile of the listener; without a listener, modern MCP. */
  readonly profile?: McpClientProfile | undefined;
  readonly listener?: ProgressListener | undefined;
}

/** The protocol agreed with the server: a legacy session, which has headers, or modern MCP, which has none. */
interface McpSession {
  readonly headers?: Readonly<Record<string, string>>;
  readonly capabilities: JsonObject;
  usedAt: number;
}

/** The exchange in which a server sends requests to the client. */
interface ServerRequestScope {
  readonly session: McpSession;
  readonly listener: ProgressListener | undefined;
  /** The number of replies that are being made or sent. */
  pendingReplies: number;
}

type SessionResult = { readonly session: McpSession } | Extract<ExchangeResult, { as: 'not_sent' }>;

/**
 * A client of an MCP server. It uses the protocol of the calling client: a legacy client needs a session in which the server
 * can send requests; a modern client sends its capabilities with each request, and needs no session. Without a calling client,
 * it uses modern MCP if the server supports it.
 */
export class McpUpstreamClient {
  readonly #transport: McpTransport;
  readonly #legacySessions = new Map<string, Promise<SessionResult>>();
  /** For requests of the server outside any exchange. */
  readonly #unsolicitedScope: ServerRequestScope = {
    session: { headers: {}, capabilities: {}, usedAt: 0 },
    listener: undefined,
    pendingReplies: 0,
  };
  /** `unknown`: the server does not know modern MCP. */
  #modernSession: Promise<SessionResult | 'unknown'> | undefined;
  #onChange: (method: string, params: JsonObject) => void = () => {};

  constructor(transport: McpTransport) {
    this.#transport = transport;
    transport.onUnsolicited((message) => this.#handleUnsolicited(message));
    transport.onRestart(() => this.#dropAllSessions());
  }

  /** Calls the listener when the server notifies of a changed list or resource. */
  onChangeNotification(listener: (method: string, params: JsonObject) => void): void {
    this.#onChange = listener;
  }

  async request(request: McpUpstreamRequest): Promise<ExchangeResult> {
    const deadline = performance.now() + request.timeoutMs;
    const found = await this.#openSession(request);
    if (!('session' in found)) return found;
    const { session } = found;
    const timeoutMs = Math.max(1, Math.round(deadline - performance.now()));
    // A call with little time left for its answer would probably end in doubt, so it is not sent.
    if (request.method === 'tools/call' && timeoutMs < request.timeoutMs / 2)
      return { as: 'not_sent', detail: 'the MCP handshake with the server took too long' };
    session.usedAt = performance.now();
    const ended = await this.#transport.exchange(this.#buildMessage({ ...request, timeoutMs }, session));
    session.usedAt = performance.now();
    if (session.headers === undefined || !mayHaveLostSession(ended)) return ended;
    this.#dropSession(session);
    return { ...ended, sessionGone: ended.status === 404 };
  }

  /** The capabilities of the server; undefined if it cannot be reached. */
  async capabilities(timeoutMs: number): Promise<JsonObject | undefined> {
    const found = await this.#openSession({ id: randomUUID(), method: 'ping', params: {}, timeoutMs });
    return 'session' in found ? found.session.capabilities : undefined;
  }

  /** Listens for notifications of the server, for at most `listenMs`. `connectMs` limits the handshake. */
  async listen(notifications: JsonObject, connectMs: number, listenMs: number): Promise<void> {
    const request: McpUpstreamRequest = {
      id: randomUUID(),
      method: 'subscriptions/listen',
      params: { notifications },
      timeoutMs: connectMs,
    };
    const found = await this.#openSession(request);
    if (!('session' in found)) return;
    const listenRequest: McpUpstreamRequest = { ...request, timeoutMs: listenMs, maxBytes: MAX_MESSAGE_BYTES };
    // Notifications are short, and there may be hundreds of such streams.
    const outgoing: OutgoingMessage = {
      ...this.#buildMessage(listenRequest, found.session),
      maxEventBytes: MAX_CONTROL_BYTES,
    };
    if (found.session.headers === undefined) await this.#transport.exchange(outgoing);
    else await this.#transport.listen(outgoing);
  }

  async isModern(timeoutMs: number): Promise<boolean> {
    const found = await this.#discoverModern(timeoutMs);
    return found !== 'unknown' && 'session' in found;
  }

  close(): Promise<void> {
    return this.#transport.close();
  }

  async #openSession(request: McpUpstreamRequest): Promise<SessionResult> {
    const profile = request.profile ?? request.listener;
    if (profile?.era === 'legacy') {
      const opened = await this.#openLegacySession(request, profile.capabilities);
      if ('session' in opened) return opened;
    }
    const modern = await this.#discoverModern(request.timeoutMs);
    if (modern !== 'unknown') return modern;
    const opened = await this.#openLegacySession(request, {});
    // The server refused both protocols. It may have been starting, so the next request discovers it again.
    if (!('session' in opened)) this.#modernSession = undefined;
    return opened;
  }

  /** Asks once whether the server supports modern MCP, and again only if it could not be reached. */
  async #discoverModern(timeoutMs: number): Promise<SessionResult | 'unknown'> {
    const request = { id: randomUUID(), method: 'server/discover', params: {}, timeoutMs };
    this.#modernSession ??= this.#transport
      .exchange(this.#buildMessage(request, { capabilities: {}, usedAt: 0 }))
      .then((ended): SessionResult | 'unknown' => {
        if (ended.as === 'not_sent') return ended;
        const result = ended.as === 'answered' ? ended.response['result'] : undefined;
        if (!isJsonObject(result)) return isRefusal(ended) ? 'unknown' : toNotSent(ended);
        const versions = result['supportedVersions'];
        if (!Array.isArray(versions) || !versions.includes(MODERN_PROTOCOL_VERSION)) return 'unknown';
        return { session: { capabilities: toObject(result['capabilities']), usedAt: performance.now() } };
      });
    const found = await this.#modernSession;
    if (found !== 'unknown' && !('session' in found)) this.#modernSession = undefined;
    return found;
  }

  /** Opens one session per set of client capabilities, so that a server only sends requests that the client can answer. */
  async #openLegacySession(request: McpUpstreamRequest, clientCapabilities: JsonObject): Promise<SessionResult> {
    // Without headers a message cannot name its session. So all clients share one session, which has no capabilities.
    const capabilities = this.#transport.hasHeaders ? clientCapabilities : {};
    const name = Object.keys(capabilities).sort().join(' ');
    let opening = this.#legacySessions.get(name);
    if (opening !== undefined) {
      const found = await opening;
      if ('session' in found && (await this.#isAlive(found.session, request))) return found;
      if (this.#legacySessions.get(name) === opening) this.#legacySessions.delete(name);
      opening = this.#legacySessions.get(name);
    }
    if (opening === undefined) {
      opening = this.#initialize(capabilities, request.timeoutMs);
      this.#legacySessions.set(name, opening);
    }
    const found = await opening;
    if (!('session' in found) && this.#legacySessions.get(name) === opening) this.#legacySessions.delete(name);
    return found;
  }

  async #isAlive(session: McpSession, { method, timeoutMs }: McpUpstreamRequest): Promise<boolean> {
    if (method !== 'tools/call' || performance.now() - session.usedAt < SESSION_IDLE_MS) return true;
    const ping = { id: randomUUID(), method: 'ping', params: {}, timeoutMs };
    const ended = await this.#transport.exchange(this.#buildMessage(ping, session));
    return ended.as === 'answered' && 'result' in ended.response;
  }

  async #initialize(capabilities: JsonObject, timeoutMs: number): Promise<SessionResult> {
    const params = { protocolVersion: LEGACY_PROTOCOL_VERSION, capabilities, clientInfo: CLIENT_INFO };
    const message = { jsonrpc: '2.0', id: randomUUID(), method: 'initialize', params };
    const ended = await this.#transport.exchange({ ...DEFAULT_MESSAGE_OPTIONS, message, timeoutMs });
    if (ended.as === 'not_sent') return ended;
    const result = ended.as === 'answered' ? ended.response['result'] : undefined;
    if (ended.as !== 'answered' || !isJsonObject(result)) return toNotSent(ended);
    const id = ended.headers['mcp-session-id'];
    const version = result['protocolVersion'];
    const headers = {
      ...(typeof id === 'string' ? { 'mcp-session-id': id } : {}),
      'mcp-protocol-version': typeof version === 'string' ? version : LEGACY_PROTOCOL_VERSION,
    };
    const initialized = { jsonrpc: '2.0', method: 'notifications/initialized' };
    await this.#transport.exchange({ ...DEFAULT_MESSAGE_OPTIONS, message: initialized, headers, timeoutMs });
    return { session: { headers, capabilities: toObject(result['capabilities']), usedAt: performance.now() } };
  }

  #buildMessage(request: McpUpstreamRequest, session: McpSession): OutgoingMessage {
    const { id, method, listener } = request;
    const isModern = session.headers === undefined;
    const params = isModern ? addRequestMeta(request.params, request.profile ?? listener) : request.params;
    const scope: ServerRequestScope = { session, listener, pendingReplies: 0 };
    return {
      ...DEFAULT_MESSAGE_OPTIONS,
      message: { jsonrpc: '2.0', id, method, params },
      headers: { ...(isModern ? buildModernHeaders(method, params) : session.headers), ...request.headers },
      timeoutMs: request.timeoutMs,
      maxBytes: request.maxBytes ?? MAX_CONTROL_BYTES,
      freshConnection: request.freshConnection ?? false,
      maySend: request.maySend ?? (() => true),
      onMessage: (message) => {
        if (typeof message['method'] !== 'string') return;
        const messageParams = toObject(message['params']);
        if (message['id'] !== undefined) void this.#replyToServer(message, scope);
        else if (CHANGE_NOTIFICATIONS.has(message['method']))
          this.#onChange(message['method'], pickNotificationParams(messageParams));
        else listener?.tell(message['method'], messageParams);
      },
    };
  }

  /** Answers a request of the server. The listener of the call answers; without one, the server gets a refusal. */
  async #replyToServer(serverRequest: JsonObject, scope: ServerRequestScope): Promise<void> {
    const { id = null, method } = serverRequest;
    const { session, listener } = scope;
    // A server can send requests faster than it reads replies, and each waiting reply costs memory here.
    if (scope.pendingReplies >= MAX_PENDING_REPLIES) return;
    scope.pendingReplies += 1;
    try {
      const reply = await answerServerRequest(String(method), toObject(serverRequest['params']), listener);
      const message = { jsonrpc: '2.0', id, ...reply };
      await this.#transport.exchange({ ...DEFAULT_MESSAGE_OPTIONS, message, headers: session.headers ?? {} });
    } catch {
      // No caller awaits this. A reply that cannot be sent, for example because it is nested too deep, is dropped.
    } finally {
      scope.pendingReplies -= 1;
    }
  }

  #handleUnsolicited(message: JsonObject): void {
    if (typeof message['method'] !== 'string') return;
    if (message['id'] !== undefined) void this.#replyToServer(message, this.#unsolicitedScope);
    else if (CHANGE_NOTIFICATIONS.has(message['method']))
      this.#onChange(message['method'], pickNotificationParams(toObject(message['params'])));
  }

  #dropAllSessions(): void {
    this.#modernSession = undefined;
    this.#legacySessions.clear();
  }

  #dropSession(dropped: McpSession): void {
    for (const [name, opening] of this.#legacySessions) {
      void opening.then((found) => {
        if ('session' in found && found.session === dropped) this.#legacySessions.delete(name);
      });
    }
  }
}

/** The limit of protocol messages: handshakes, pings, and answers to our replies. */
const MAX_CONTROL_BYTES = 1024 * 1024;

const DEFAULT_MESSAGE_OPTIONS: Omit<OutgoingMessage, 'message'> = {
  headers: {},
  timeoutMs: 10_000,
  maxBytes: MAX_CONTROL_BYTES,
  freshConnection: false,
  maySend: () => true,
  onMessage: () => {},
};

async function answerServerRequest(
  method: string,
  params: JsonObject,
  listener: ProgressListener | undefined,
): Promise<JsonObject> {
  if (method === 'ping') return { result: {} };
  if (method === 'roots/list' && listener === undefined) return { result: { roots: [] } };
  try {
    if (listener === undefined) throw new Error('this call has no client that listens');
    return { result: await listener.ask(method, params) };
  } catch (error) {
    if (method === 'elicitation/create') return { result: { action: 'cancel' } };
    return { error: { code: -32603, message: `the client could not be asked: ${(error as Error).message}` } };
  }
}

const CHANGE_NOTIFICATIONS = new Set([
  'notifications/tools/list_changed',
  'notifications/prompts/list_changed',
  'notifications/resources/list_changed',
  'notifications/resources/updated',
]);

/** Keeps only the URI, because notifications go to many clients and the server may have added anything. */
function pickNotificationParams({ uri }: JsonObject): JsonObject {
  return typeof uri === 'string' ? { uri } : {};
}

/** For an exchange without a valid result: whether the server refused the request because it does not support the method. */
function isRefusal(ended: ExchangeResult): boolean {
  if (ended.as === 'answered') return true;
  return (
    ended.as === 'status' && ended.status < 500 && ended.status !== 401 && ended.status !== 403 && ended.status !== 429
  );
}

/** Status 404 says that the session is gone. Status 400 may have another cause, so it only makes the client open a new session. */
function mayHaveLostSession(ended: ExchangeResult): ended is Extract<ExchangeResult, { as: 'status' }> {
  return ended.as === 'status' && (ended.status === 404 || ended.status === 400);
}

/** The handshake failed, so the request that needed it was not sent, even if the handshake itself was. */
function toNotSent(ended: ExchangeResult): Extract<ExchangeResult, { as: 'not_sent' }> {
  return { as: 'not_sent', detail: `the MCP handshake failed: ${describeHandshakeFailure(ended)}` };
}

function describeHandshakeFailure(ended: ExchangeResult): string {
  if (ended.as === 'status') return `the server answered ${ended.status}`;
  if (ended.as !== 'answered') return ended.detail;
  const error = toObject(ended.response['error']);
  return typeof error['message'] === 'string' ? error['message'] : 'the answer of the server is not a valid result';
}

export function toObject(value: Json | undefined): JsonObject {
  return isJsonObject(value) ? value : {};
}
