import { randomUUID } from 'node:crypto';
import type { Follower, Manner } from '../gateway/domain/adapter.ts';
import { isObject, type Json, type JsonObject } from '../gateway/domain/json.ts';
import { IDENTITY, MODERN, modernHeaders, withEnvelope } from './mcp-envelope.ts';
import { type Ended, MOST_ANSWERS, MOST_MESSAGE_BYTES, type Outgoing, type Wire } from './mcp-wire.ts';

const LEGACY = '2025-11-25';

/** A session that was silent this long may be gone: a write first makes sure, for then it cannot tell "gone" from "done". */
const IDLE_MS = 10_000;

/** What one request to a server asks for and how. */
export interface PeerRequest {
  readonly id: string;
  readonly method: string;
  readonly params: JsonObject;
  readonly headers?: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly mostBytes?: number;
  readonly freshConnection?: boolean;
  readonly maySend?: () => boolean;
  /** How it is said; absent: as its follower speaks, or in the newer way. */
  readonly manner?: Manner | undefined;
  readonly follower?: Follower | undefined;
}

/** A way of speaking that the server took: with a session of its own, or without any. */
interface Tongue {
  readonly session?: Readonly<Record<string, string>>;
  readonly capabilities: JsonObject;
  usedAt: number;
}

/** Within which a server asks back. */
interface Conversation {
  readonly tongue: Tongue;
  readonly follower: Follower | undefined;
  /** How many answers are being made or are on their way. */
  answering: number;
}

type Found = { readonly tongue: Tongue } | Extract<Ended, { as: 'not_sent' }>;

/**
 * An MCP server as its client sees it. It is spoken to as whoever asks speaks: an old client needs a session in which the
 * server can ask back, a new one brings everything with each request. For anybody else the newer way is taken, if the
 * server knows it.
 */
export class McpPeer {
  readonly #wire: Wire;
  readonly #sessions = new Map<string, Promise<Found>>();
  /** What the server asks outside any exchange. */
  readonly #aside: Conversation = {
    tongue: { session: {}, capabilities: {}, usedAt: 0 },
    follower: undefined,
    answering: 0,
  };
  #modern: Promise<Found | 'unknown'> | undefined;
  #newsHeard: (method: string, params: JsonObject) => void = () => {};

  constructor(wire: Wire) {
    this.#wire = wire;
    wire.onUnasked((message) => this.#unasked(message));
    wire.onRestart(() => this.#forget());
  }

  /** Told when the server says that one of its lists, or a resource, is not what it was. */
  onNews(told: (method: string, params: JsonObject) => void): void {
    this.#newsHeard = told;
  }

  async request(asked: PeerRequest): Promise<Ended> {
    const until = performance.now() + asked.timeoutMs;
    const found = await this.#tongueFor(asked);
    if (!('tongue' in found)) return found;
    const { tongue } = found;
    const timeoutMs = Math.max(1, Math.round(until - performance.now()));
    // What is sent with hardly any time left for its answer would only be doubted.
    if (asked.method === 'tools/call' && timeoutMs < asked.timeoutMs / 2)
      return { as: 'not_sent', detail: 'the server took too long to be greeted' };
    tongue.usedAt = performance.now();
    const ended = await this.#wire.exchange(this.#outgoing({ ...asked, timeoutMs }, tongue));
    tongue.usedAt = performance.now();
    if (tongue.session === undefined || !sessionIsGone(ended)) return ended;
    this.#forgetSession(tongue);
    return { ...ended, sessionGone: ended.status === 404 };
  }

  /** What the server says it can do. Undefined: it cannot be reached. */
  async capabilities(timeoutMs: number): Promise<JsonObject | undefined> {
    const found = await this.#tongueFor({ id: randomUUID(), method: 'ping', params: {}, timeoutMs });
    return 'tongue' in found ? found.tongue.capabilities : undefined;
  }

  /** Listens for news of the server, by whichever way it gives them, for at most so long. */
  async listen(notifications: JsonObject, reachMs: number, lastsMs: number): Promise<void> {
    const asked = { id: randomUUID(), method: 'subscriptions/listen', params: { notifications }, timeoutMs: reachMs };
    const found = await this.#tongueFor(asked);
    if (!('tongue' in found)) return;
    const lasting = { ...asked, timeoutMs: lastsMs, mostBytes: MOST_MESSAGE_BYTES };
    // News are short, and there may be hundreds of such streams.
    const outgoing = { ...this.#outgoing(lasting, found.tongue), mostEventBytes: MOST_COURTESY_BYTES };
    if (found.tongue.session === undefined) await this.#wire.exchange(outgoing);
    else await this.#wire.listen(outgoing);
  }

  async isModern(timeoutMs: number): Promise<boolean> {
    const found = await this.#discover(timeoutMs);
    return found !== 'unknown' && 'tongue' in found;
  }

  close(): Promise<void> {
    return this.#wire.close();
  }

  async #tongueFor(asked: PeerRequest): Promise<Found> {
    const manner = asked.manner ?? asked.follower;
    if (manner?.era === 'legacy') {
      const session = await this.#session(asked, manner.capabilities);
      if ('tongue' in session) return session;
    }
    const modern = await this.#discover(asked.timeoutMs);
    if (modern !== 'unknown') return modern;
    const session = await this.#session(asked, {});
    // It knows neither way: perhaps it was not itself when it was asked, so it is asked once more next time.
    if (!('tongue' in session)) this.#modern = undefined;
    return session;
  }

  /** Whether the server knows the newer way; it is asked once, and again only if it could not be reached. */
  async #discover(timeoutMs: number): Promise<Found | 'unknown'> {
    const asked = { id: randomUUID(), method: 'server/discover', params: {}, timeoutMs };
    this.#modern ??= this.#wire
      .exchange(this.#outgoing(asked, { capabilities: {}, usedAt: 0 }))
      .then((ended): Found | 'unknown' => {
        if (ended.as === 'not_sent') return ended;
        const result = ended.as === 'answered' ? ended.response['result'] : undefined;
        if (!isObject(result)) return isRefusal(ended) ? 'unknown' : unreachable(ended);
        const versions = result['supportedVersions'];
        if (!Array.isArray(versions) || !versions.includes(MODERN)) return 'unknown';
        return { tongue: { capabilities: objectOr(result['capabilities']), usedAt: performance.now() } };
      });
    const found = await this.#modern;
    if (found !== 'unknown' && !('tongue' in found)) this.#modern = undefined;
    return found;
  }

  /** One session for each set of things that clients can do, so that a server only ever asks what somebody can answer. */
  async #session(asked: PeerRequest, wanted: JsonObject): Promise<Found> {
    const capabilities = this.#wire.hasHeaders ? wanted : {};
    const name = Object.keys(capabilities).sort().join(' ');
    let session = this.#sessions.get(name);
    if (session !== undefined) {
      const found = await session;
      if ('tongue' in found && (await this.#isAlive(found.tongue, asked))) return found;
      if (this.#sessions.get(name) === session) this.#sessions.delete(name);
      session = this.#sessions.get(name);
    }
    if (session === undefined) {
      session = this.#initialize(capabilities, asked.timeoutMs);
      this.#sessions.set(name, session);
    }
    const found = await session;
    if (!('tongue' in found) && this.#sessions.get(name) === session) this.#sessions.delete(name);
    return found;
  }

  async #isAlive(tongue: Tongue, { method, timeoutMs }: PeerRequest): Promise<boolean> {
    if (method !== 'tools/call' || performance.now() - tongue.usedAt < IDLE_MS) return true;
    const ping = { id: randomUUID(), method: 'ping', params: {}, timeoutMs };
    const ended = await this.#wire.exchange(this.#outgoing(ping, tongue));
    return ended.as === 'answered' && 'result' in ended.response;
  }

  async #initialize(capabilities: JsonObject, timeoutMs: number): Promise<Found> {
    const params = { protocolVersion: LEGACY, capabilities, clientInfo: IDENTITY };
    const message = { jsonrpc: '2.0', id: randomUUID(), method: 'initialize', params };
    const ended = await this.#wire.exchange({ ...PLAIN, message, timeoutMs });
    if (ended.as === 'not_sent') return ended;
    const result = ended.as === 'answered' ? ended.response['result'] : undefined;
    if (ended.as !== 'answered' || !isObject(result)) return unreachable(ended);
    const id = ended.headers['mcp-session-id'];
    const version = result['protocolVersion'];
    const session = {
      ...(typeof id === 'string' ? { 'mcp-session-id': id } : {}),
      'mcp-protocol-version': typeof version === 'string' ? version : LEGACY,
    };
    const initialized = { jsonrpc: '2.0', method: 'notifications/initialized' };
    await this.#wire.exchange({ ...PLAIN, message: initialized, headers: session, timeoutMs });
    return { tongue: { session, capabilities: objectOr(result['capabilities']), usedAt: performance.now() } };
  }

  #outgoing(asked: PeerRequest, tongue: Tongue): Outgoing {
    const { id, method, follower } = asked;
    const isModern = tongue.session === undefined;
    const params = isModern ? withEnvelope(asked.params, asked.manner ?? follower) : asked.params;
    const conversation = { tongue, follower, answering: 0 };
    return {
      ...PLAIN,
      message: { jsonrpc: '2.0', id, method, params },
      headers: { ...(isModern ? modernHeaders(method, params) : tongue.session), ...asked.headers },
      timeoutMs: asked.timeoutMs,
      mostBytes: asked.mostBytes ?? MOST_COURTESY_BYTES,
      freshConnection: asked.freshConnection ?? false,
      maySend: asked.maySend ?? (() => true),
      heard: (message) => {
        if (typeof message['method'] !== 'string') return;
        const said = objectOr(message['params']);
        if (message['id'] !== undefined) void this.#answer(message, conversation);
        else if (NEWS.has(message['method'])) this.#newsHeard(message['method'], newsOf(said));
        else follower?.tell(message['method'], said);
      },
    };
  }

  /** The server asks back. Whoever follows the call answers; where nobody does, the server hears no. */
  async #answer(question: JsonObject, conversation: Conversation): Promise<void> {
    const { id = null, method } = question;
    const { tongue, follower } = conversation;
    // A server can ask faster than it takes answers, and each that waits is memory here.
    if (conversation.answering >= MOST_ANSWERS) return;
    conversation.answering += 1;
    try {
      const reply = await answerTo(String(method), objectOr(question['params']), follower);
      const message = { jsonrpc: '2.0', id, ...reply };
      await this.#wire.exchange({ ...PLAIN, message, headers: tongue.session ?? {} });
    } catch {
      // Nobody waits for this: what cannot be said (nested too deep, for one) the server does not hear.
    } finally {
      conversation.answering -= 1;
    }
  }

  #unasked(message: JsonObject): void {
    if (typeof message['method'] !== 'string') return;
    if (message['id'] !== undefined) void this.#answer(message, this.#aside);
    else if (NEWS.has(message['method'])) this.#newsHeard(message['method'], newsOf(objectOr(message['params'])));
  }

  #forget(): void {
    this.#modern = undefined;
    this.#sessions.clear();
  }

  #forgetSession(tongue: Tongue): void {
    for (const [name, session] of this.#sessions) {
      void session.then((found) => {
        if ('tongue' in found && found.tongue === tongue) this.#sessions.delete(name);
      });
    }
  }
}

/** Of what is said for the protocol's sake: greetings, pings, what comes back for an answer of ours. */
const MOST_COURTESY_BYTES = 1024 * 1024;

const PLAIN: Omit<Outgoing, 'message'> = {
  headers: {},
  timeoutMs: 10_000,
  mostBytes: MOST_COURTESY_BYTES,
  freshConnection: false,
  maySend: () => true,
  heard: () => {},
};

async function answerTo(method: string, params: JsonObject, follower: Follower | undefined): Promise<JsonObject> {
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

const NEWS = new Set([
  'notifications/tools/list_changed',
  'notifications/prompts/list_changed',
  'notifications/resources/list_changed',
  'notifications/resources/updated',
]);

/** News go to many clients: nothing of what a server may have put beside them does. */
function newsOf({ uri }: JsonObject): JsonObject {
  return typeof uri === 'string' ? { uri } : {};
}

/** The server answered, and what it said is no: it knows the request, or at least that it does not. */
function isRefusal(ended: Ended): boolean {
  if (ended.as === 'answered') return true;
  return (
    ended.as === 'status' && ended.status < 500 && ended.status !== 401 && ended.status !== 403 && ended.status !== 429
  );
}

function sessionIsGone(ended: Ended): ended is Extract<Ended, { as: 'status' }> {
  return ended.as === 'status' && (ended.status === 404 || ended.status === 400);
}

function unreachable(ended: Ended): Extract<Ended, { as: 'not_sent' }> {
  return { as: 'not_sent', detail: `no MCP server could be greeted: ${greeting(ended)}` };
}

function greeting(ended: Ended): string {
  if (ended.as === 'status') return `it answered ${ended.status}`;
  if (ended.as !== 'answered') return ended.detail;
  const error = objectOr(ended.response['error']);
  return typeof error['message'] === 'string' ? error['message'] : 'it answered something else';
}

export function objectOr(value: Json | undefined): JsonObject {
  return isObject(value) ? value : {};
}
