import type { ServerResponse } from 'node:http';
import type { FastifyReply } from 'fastify';
import type { JsonObject } from '../domain/json.ts';
import { onRequestEnd } from '../http/transport/on-request-end.ts';

const KEEP_ALIVE_MS = 15_000;
const MAX_SESSIONS = 1_024;
/** Per agent, so that one agent cannot use up the streams of others. */
const MAX_STREAMS_PER_AGENT = 64;
const MAX_URIS_PER_SESSION = 256;
/** A client that falls behind is disconnected, to bound memory. */
const MAX_UNREAD_BYTES = 1_048_576;

interface StreamSession {
  readonly agent: string;
  readonly uris: Set<string>;
  streams: ServerResponse[];
}

/**
 * Notifications to clients of older revisions: a list changed, or a subscribed resource. This process keeps a session only while it
 * has an open stream or a subscription.
 */
export class SessionStreams {
  readonly #sessions = new Map<string, StreamSession>();

  /** Opens the answer as an event stream. Returns false when the agent or the process is at its limit. */
  open(agent: string, session: string, reply: FastifyReply): boolean {
    const entry = this.#countStreams(agent) < MAX_STREAMS_PER_AGENT ? this.#getOrCreate(agent, session) : undefined;
    if (entry === undefined) return false;
    reply.hijack();
    const { raw } = reply;
    raw.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache', 'x-accel-buffering': 'no' });
    raw.write(': listening\n\n');
    const keepAlive = setInterval(() => raw.write(': still here\n\n'), KEEP_ALIVE_MS);
    entry.streams.push(raw);
    onRequestEnd(reply.request, reply, () => {
      clearInterval(keepAlive);
      entry.streams = entry.streams.filter((each) => each !== raw);
      if (entry.streams.length === 0 && entry.uris.size === 0) this.#sessions.delete(session);
    });
    return true;
  }

  subscribe(agent: string, session: string, uri: string): boolean {
    const entry = this.#getOrCreate(agent, session);
    if (entry === undefined || entry.uris.size >= MAX_URIS_PER_SESSION) return false;
    entry.uris.add(uri);
    return true;
  }

  unsubscribe(agent: string, session: string, uri: string): void {
    this.#getOrCreate(agent, session)?.uris.delete(uri);
  }

  /** Notifies every session; resource updates only go to their subscribers. */
  notify(method: string, params: JsonObject): void {
    const { uri } = params;
    const message = JSON.stringify({ jsonrpc: '2.0', method, ...(uri === undefined ? {} : { params }) });
    for (const { uris, streams } of this.#sessions.values()) {
      if (method === 'notifications/resources/updated' && !uris.has(String(uri))) continue;
      for (const stream of streams) {
        stream.write(`event: message\ndata: ${message}\n\n`);
        if (stream.writableLength > MAX_UNREAD_BYTES) stream.destroy();
      }
    }
  }

  close(): void {
    for (const { streams } of this.#sessions.values()) for (const stream of streams) stream.end();
  }

  #countStreams(agent: string): number {
    const own = [...this.#sessions.values()].filter((entry) => entry.agent === agent);
    return own.reduce((count, { streams }) => count + streams.length, 0);
  }

  /** Undefined for a session of another agent. At the limit, the oldest session without a stream is dropped. */
  #getOrCreate(agent: string, session: string): StreamSession | undefined {
    const known = this.#sessions.get(session);
    if (known !== undefined) return known.agent === agent ? known : undefined;
    if (this.#sessions.size >= MAX_SESSIONS) {
      const idle = [...this.#sessions].find(([, { streams }]) => streams.length === 0);
      if (idle === undefined) return undefined;
      this.#sessions.delete(idle[0]);
    }
    const entry: StreamSession = { agent, uris: new Set(), streams: [] };
    this.#sessions.set(session, entry);
    return entry;
  }
}
