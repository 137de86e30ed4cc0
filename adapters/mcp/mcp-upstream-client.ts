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

/** A session that was silent this long may be gone: a write first makes sure, for then it cannot tell "gone" from "done". */
const SESSION_IDLE_MS = 10_000;

/** What one request to a server asks for and how. */
export interface McpUpstreamRequest {
  readonly id: string;
  readonly method: string;
  readonly params: JsonObject;
  readonly headers?: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly mostBytes?: number;
  readonly freshConnection?: boolean;
  readonly maySend?: () => boolean;
  /** How it is said; absent: as its follower speaks, or in the newer way. */
  readonly manner?: McpClientProfile | undefined;
  readonly follower?: ProgressListener | undefined;
}

/** A way of speaking that the server took: with a session of its own, or without any. */
interface McpSession {
  readonly session?: Readonly<Record<string, string>>;
  readonly capabilities: JsonObject;
  usedAt: number;
}

/** Within which a server asks back. */
interface ServerRequestScope {
  readonly tongue: McpSession;
  readonly follower: ProgressListener | undefined;
  /** How many answers are being made or are on their way. */
  answering: number;
}

type SessionResult = { readonly tongue: McpSession } | Extract<ExchangeResult, { as: 'not_sent' }>;

/**
 * An MCP server as its client sees it. It is spoken to as whoever asks speaks: an old client needs a session in which the
 * server can ask back, a new one brings everything with each request. For anybody else the newer way is taken, if the
 * server knows it.
 */
export class McpUpstreamClient {
  readonly #transport: McpTransport;
  readonly #legacySessions = new Map<string, Promise<SessionResult>>();
  /** What the server asks outside any exchange. */
  readonly #unsolicitedScope: ServerRequestScope = {
    tongue: { session: {}, capabilities: {}, usedAt: 0 },
    follower: undefined,
    answering: 0,
  };
  #modernSession: Promise<SessionResult | 'unknown'> | undefined;
  #onChange: (method: string, params: JsonObject) => void = () => {};

  constructor(wire: McpTransport) {
    this.#transport = wire;
    wire.onUnasked((message) => this.#handleUnsolicited(message));
    wire.onRestart(() => this.#dropAllSessions());
  }

  /** Told when the server says that one of its lists, or a resource, is not what it was. */
  onChangeNotification(told: (method: string, params: JsonObject) => void): void {
    this.#onChange = told;
  }

  async request(asked: McpUpstreamRequest): Promise<ExchangeResult> {
    const until = performance.now() + asked.timeoutMs;
    const found = await this.#openSession(asked);
    if (!('tongue' in found)) return found;
    const { tongue } = found;
    const timeoutMs = Math.max(1, Math.round(until - performance.now()));
    // What is sent with hardly any time left for its answer would only be doubted.
    if (asked.method === 'tools/call' && timeoutMs < asked.timeoutMs / 2)
      return { as: 'not_sent', detail: 'the server took too long to be greeted' };
    tongue.usedAt = performance.now();
    const ended = await this.#transport.exchange(this.#buildMessage({ ...asked, timeoutMs }, tongue));
    tongue.usedAt = performance.now();
    if (tongue.session === undefined || !isSessionGone(ended)) return ended;
    this.#dropSession(tongue);
    return { ...ended, sessionGone: ended.status === 404 };
  }

  /** What the server says it can do. Undefined: it cannot be reached. */
  async capabilities(timeoutMs: number): Promise<JsonObject | undefined> {
    const found = await this.#openSession({ id: randomUUID(), method: 'ping', params: {}, timeoutMs });
    return 'tongue' in found ? found.tongue.capabilities : undefined;
  }

  /** Listens for news of the server, by whichever way it gives them, for at most so long. */
  async listen(notifications: JsonObject, reachMs: number, lastsMs: number): Promise<void> {
    const asked = { id: randomUUID(), method: 'subscriptions/listen', params: { notifications }, timeoutMs: reachMs };
    const found = await this.#openSession(asked);
    if (!('tongue' in found)) return;
    const lasting = { ...asked, timeoutMs: lastsMs, mostBytes: MAX_MESSAGE_BYTES };
    // News are short, and there may be hundreds of such streams.
    const outgoing = { ...this.#buildMessage(lasting, found.tongue), mostEventBytes: MAX_CONTROL_BYTES };
    if (found.tongue.session === undefined) await this.#transport.exchange(outgoing);
    else await this.#transport.listen(outgoing);
  }

  async isModern(timeoutMs: number): Promise<boolean> {
    const found = await this.#discoverModern(timeoutMs);
    return found !== 'unknown' && 'tongue' in found;
  }

  close(): Promise<void> {
    return this.#transport.close();
  }

  async #openSession(asked: McpUpstreamRequest): Promise<SessionResult> {
    const manner = asked.manner ?? asked.follower;
    if (manner?.era === 'legacy') {
      const session = await this.#openLegacySession(asked, manner.capabilities);
      if ('tongue' in session) return session;
    }
    const modern = await this.#discoverModern(asked.timeoutMs);
    if (modern !== 'unknown') return modern;
    const session = await this.#openLegacySession(asked, {});
    // It knows neither way: perhaps it was not itself when it was asked, so it is asked once more next time.
    if (!('tongue' in session)) this.#modernSession = undefined;
    return session;
  }

  /** Whether the server knows the newer way; it is asked once, and again only if it could not be reached. */
  async #discoverModern(timeoutMs: number): Promise<SessionResult | 'unknown'> {
    const asked = { id: randomUUID(), method: 'server/discover', params: {}, timeoutMs };
    this.#modernSession ??= this.#transport
      .exchange(this.#buildMessage(asked, { capabilities: {}, usedAt: 0 }))
      .then((ended): SessionResult | 'unknown' => {
        if (ended.as === 'not_sent') return ended;
        const result = ended.as === 'answered' ? ended.response['result'] : undefined;
        if (!isJsonObject(result)) return isRefusal(ended) ? 'unknown' : toNotSent(ended);
        const versions = result['supportedVersions'];
        if (!Array.isArray(versions) || !versions.includes(MODERN_PROTOCOL_VERSION)) return 'unknown';
        return { tongue: { capabilities: toObject(result['capabilities']), usedAt: performance.now() } };
      });
    const found = await this.#modernSession;
    if (found !== 'unknown' && !('tongue' in found)) this.#modernSession = undefined;
    return found;
  }

  /** One session for each set of things that clients can do, so that a server only ever asks what somebody can answer. */
  async #openLegacySession(asked: McpUpstreamRequest, wanted: JsonObject): Promise<SessionResult> {
    const capabilities = this.#transport.hasHeaders ? wanted : {};
    const name = Object.keys(capabilities).sort().join(' ');
    let session = this.#legacySessions.get(name);
    if (session !== undefined) {
      const found = await session;
      if ('tongue' in found && (await this.#isAlive(found.tongue, asked))) return found;
      if (this.#legacySessions.get(name) === session) this.#legacySessions.delete(name);
      session = this.#legacySessions.get(name);
    }
    if (session === undefined) {
      session = this.#initialize(capabilities, asked.timeoutMs);
      this.#legacySessions.set(name, session);
    }
    const found = await session;
    if (!('tongue' in found) && this.#legacySessions.get(name) === session) this.#legacySessions.delete(name);
    return found;
  }

  async #isAlive(tongue: McpSession, { method, timeoutMs }: McpUpstreamRequest): Promise<boolean> {
    if (method !== 'tools/call' || performance.now() - tongue.usedAt < SESSION_IDLE_MS) return true;
    const ping = { id: randomUUID(), method: 'ping', params: {}, timeoutMs };
    const ended = await this.#transport.exchange(this.#buildMessage(ping, tongue));
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
    const session = {
      ...(typeof id === 'string' ? { 'mcp-session-id': id } : {}),
      'mcp-protocol-version': typeof version === 'string' ? version : LEGACY_PROTOCOL_VERSION,
    };
    const initialized = { jsonrpc: '2.0', method: 'notifications/initialized' };
    await this.#transport.exchange({ ...DEFAULT_MESSAGE_OPTIONS, message: initialized, headers: session, timeoutMs });
    return { tongue: { session, capabilities: toObject(result['capabilities']), usedAt: performance.now() } };
  }

  #buildMessage(asked: McpUpstreamRequest, tongue: McpSession): OutgoingMessage {
    const { id, method, follower } = asked;
    const isModern = tongue.session === undefined;
    const params = isModern ? addRequestMeta(asked.params, asked.manner ?? follower) : asked.params;
    const conversation = { tongue, follower, answering: 0 };
    return {
      ...DEFAULT_MESSAGE_OPTIONS,
      message: { jsonrpc: '2.0', id, method, params },
      headers: { ...(isModern ? buildModernHeaders(method, params) : tongue.session), ...asked.headers },
      timeoutMs: asked.timeoutMs,
      mostBytes: asked.mostBytes ?? MAX_CONTROL_BYTES,
      freshConnection: asked.freshConnection ?? false,
      maySend: asked.maySend ?? (() => true),
      heard: (message) => {
        if (typeof message['method'] !== 'string') return;
        const said = toObject(message['params']);
        if (message['id'] !== undefined) void this.#replyToServer(message, conversation);
        else if (CHANGE_NOTIFICATIONS.has(message['method']))
          this.#onChange(message['method'], pickNotificationParams(said));
        else follower?.tell(message['method'], said);
      },
    };
  }

  /** The server asks back. Whoever follows the call answers; where nobody does, the server hears no. */
  async #replyToServer(question: JsonObject, conversation: ServerRequestScope): Promise<void> {
    const { id = null, method } = question;
    const { tongue, follower } = conversation;
    // A server can ask faster than it takes answers, and each that waits is memory here.
    if (conversation.answering >= MAX_PENDING_REPLIES) return;
    conversation.answering += 1;
    try {
      const reply = await answerServerRequest(String(method), toObject(question['params']), follower);
      const message = { jsonrpc: '2.0', id, ...reply };
      await this.#transport.exchange({ ...DEFAULT_MESSAGE_OPTIONS, message, headers: tongue.session ?? {} });
    } catch {
      // Nobody waits for this: what cannot be said (nested too deep, for one) the server does not hear.
    } finally {
      conversation.answering -= 1;
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

  #dropSession(tongue: McpSession): void {
    for (const [name, session] of this.#legacySessions) {
      void session.then((found) => {
        if ('tongue' in found && found.tongue === tongue) this.#legacySessions.delete(name);
      });
    }
  }
}

/** Of what is said for the protocol's sake: greetings, pings, what comes back for an answer of ours. */
const MAX_CONTROL_BYTES = 1024 * 1024;

const DEFAULT_MESSAGE_OPTIONS: Omit<OutgoingMessage, 'message'> = {
  headers: {},
  timeoutMs: 10_000,
  mostBytes: MAX_CONTROL_BYTES,
  freshConnection: false,
  maySend: () => true,
  heard: () => {},
};

async function answerServerRequest(
  method: string,
  params: JsonObject,
  follower: ProgressListener | undefined,
): Promise<JsonObject> {
  if (method === 'ping') return { result: {} };
  if (method === 'roots/list' && follower === undefined) return { result: { roots: [] } };
  try {
    if (follower === undefined) throw new Error('nobody follows this call');
    return { result: await follower.ask(method, params) };
  } catch (error) {
    if (method === 'elicitation/create') return { result: { action: 'cancel' } };
    return { error: { code: -32603, message: `the client cannot be asked: ${(error as Error).message}` } };
  }
}

const CHANGE_NOTIFICATIONS = new Set([
  'notifications/tools/list_changed',
  'notifications/prompts/list_changed',
  'notifications/resources/list_changed',
  'notifications/resources/updated',
]);

/** News go to many clients: nothing of what a server may have put beside them does. */
function pickNotificationParams({ uri }: JsonObject): JsonObject {
  return typeof uri === 'string' ? { uri } : {};
}

/** The server answered, and what it said is no: it knows the request, or at least that it does not. */
function isRefusal(ended: ExchangeResult): boolean {
  if (ended.as === 'answered') return true;
  return (
    ended.as === 'status' && ended.status < 500 && ended.status !== 401 && ended.status !== 403 && ended.status !== 429
  );
}

function isSessionGone(ended: ExchangeResult): ended is Extract<ExchangeResult, { as: 'status' }> {
  return ended.as === 'status' && (ended.status === 404 || ended.status === 400);
}

function toNotSent(ended: ExchangeResult): Extract<ExchangeResult, { as: 'not_sent' }> {
  return { as: 'not_sent', detail: `no MCP server could be greeted: ${describeHandshakeFailure(ended)}` };
}

function describeHandshakeFailure(ended: ExchangeResult): string {
  if (ended.as === 'status') return `it answered ${ended.status}`;
  if (ended.as !== 'answered') return ended.detail;
  const error = toObject(ended.response['error']);
  return typeof error['message'] === 'string' ? error['message'] : 'it answered something else';
}

export function toObject(value: Json | undefined): JsonObject {
  return isJsonObject(value) ? value : {};
}
