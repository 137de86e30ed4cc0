import type { ServerResponse } from 'node:http';
import type { FastifyReply } from 'fastify';
import type { JsonObject } from '../domain/json.ts';
import { onRequestEnd } from '../http/transport/on-request-end.ts';

const KEEP_ALIVE_MS = 15_000;
const MOST_SESSIONS = 1_024;
/** Of one agent: what it takes must not be missing to others. */
const MOST_STREAMS = 64;
const MOST_URIS = 256;
/** A client that does not read what it is told is let go: news must not pile up here. */
const MOST_UNREAD_BYTES = 1_048_576;

interface Listener {
  readonly agent: string;
  readonly uris: Set<string>;
  streams: ServerResponse[];
}

/**
 * What clients of the older revisions hear without having asked: that a list has changed, or a resource they subscribed to.
 * A session is remembered here only while a stream of it is open or it has subscribed, and by this process alone.
 */
export class Streams {
  readonly #listeners = new Map<string, Listener>();

  /** Holds the answer open as a stream. False: there are too many already. */
  open(agent: string, session: string, reply: FastifyReply): boolean {
    const listener = this.#streamsOf(agent) < MOST_STREAMS ? this.#of(agent, session) : undefined;
    if (listener === undefined) return false;
    reply.hijack();
    const { raw } = reply;
    raw.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache', 'x-accel-buffering': 'no' });
    raw.write(': listening\n\n');
    const keepAlive = setInterval(() => raw.write(': still here\n\n'), KEEP_ALIVE_MS);
    listener.streams.push(raw);
    onRequestEnd(reply.request, reply, () => {
      clearInterval(keepAlive);
      listener.streams = listener.streams.filter((each) => each !== raw);
      if (listener.streams.length === 0 && listener.uris.size === 0) this.#listeners.delete(session);
    });
    return true;
  }

  subscribe(agent: string, session: string, uri: string): boolean {
    const listener = this.#of(agent, session);
    if (listener === undefined || listener.uris.size >= MOST_URIS) return false;
    listener.uris.add(uri);
    return true;
  }

  unsubscribe(agent: string, session: string, uri: string): void {
    this.#of(agent, session)?.uris.delete(uri);
  }

  /** Tells everybody whom it concerns. */
  tell(method: string, params: JsonObject): void {
    const { uri } = params;
    const message = JSON.stringify({ jsonrpc: '2.0', method, ...(uri === undefined ? {} : { params }) });
    for (const { uris, streams } of this.#listeners.values()) {
      if (method === 'notifications/resources/updated' && !uris.has(String(uri))) continue;
      for (const stream of streams) {
        stream.write(`event: message\ndata: ${message}\n\n`);
        if (stream.writableLength > MOST_UNREAD_BYTES) stream.destroy();
      }
    }
  }

  close(): void {
    for (const { streams } of this.#listeners.values()) for (const stream of streams) stream.end();
  }

  #streamsOf(agent: string): number {
    const own = [...this.#listeners.values()].filter((listener) => listener.agent === agent);
    return own.reduce((count, { streams }) => count + streams.length, 0);
  }

  /** Another agent that uses the same session is not its owner. The oldest without a stream makes room. */
  #of(agent: string, session: string): Listener | undefined {
    const known = this.#listeners.get(session);
    if (known !== undefined) return known.agent === agent ? known : undefined;
    if (this.#listeners.size >= MOST_SESSIONS) {
      const idle = [...this.#listeners].find(([, { streams }]) => streams.length === 0);
      if (idle === undefined) return undefined;
      this.#listeners.delete(idle[0]);
    }
    const listener: Listener = { agent, uris: new Set(), streams: [] };
    this.#listeners.set(session, listener);
    return listener;
  }
}
