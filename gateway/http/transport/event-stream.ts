import { once } from 'node:events';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { LogEvent } from '../../domain/audit/log-event.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Policies } from '../../domain/policy.ts';
import type { FeedSubscriber } from '../../flow/audit/log-feed.ts';
import { problemJson } from '../encode.ts';
import { identifyPerson } from './identify.ts';
import { onRequestEnd } from './on-request-end.ts';

/** The console treats a stream as dead after three silent heartbeats. */
const HEARTBEAT_MS = 5_000;
/** A reader that falls behind is disconnected, to bound memory. It reconnects with its last event id and loses nothing. */
const MAX_UNREAD_BYTES = 1_048_576;

const HEADERS = {
  // The connection ends with the stream: a kept-alive connection would delay a shutdown.
  connection: 'close',
  'content-type': 'text/event-stream',
  'cache-control': 'no-store',
  'x-accel-buffering': 'no',
  'x-content-type-options': 'nosniff',
};

/** A server-sent event stream. It starts with the first event, or once the reader has caught up without one. */
export class EventStream implements FeedSubscriber {
  readonly person: string;
  readonly #request: FastifyRequest;
  readonly #reply: FastifyReply;
  readonly #policies: () => Policies;
  /** The policies that admitted the reader. */
  #admittedBy: Policies;
  readonly #ended = new AbortController();
  #isOpen = false;

  constructor(request: FastifyRequest, reply: FastifyReply, person: string, policies: () => Policies) {
    this.#request = request;
    this.#reply = reply;
    this.person = person;
    this.#policies = policies;
    this.#admittedBy = policies();
    onRequestEnd(request, reply, () => this.#ended.abort());
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  open(): void {
    const { raw } = this.#reply;
    if (this.#isOpen || this.#isGone) return;
    this.#isOpen = true;
    this.#reply.hijack();
    raw.writeHead(200, HEADERS);
    // `retry` makes clients reconnect soon. The comment line makes proxies forward the start of the answer.
    raw.write('retry: 2000\n: listening\n\n');
    const heartbeat = setInterval(() => this.#write(': still here\n\n'), HEARTBEAT_MS);
    this.#ended.signal.addEventListener('abort', () => clearInterval(heartbeat));
  }

  /** Identifies the reader again after a policy change, so that a removed person receives no further events. */
  isAuthorized(): boolean {
    if (this.#isGone || this.#reply.raw.writableEnded) return false;
    const policies = this.#policies();
    if (policies === this.#admittedBy) return true;
    try {
      identifyPerson(this.#request, policies, 'viewer');
      this.#admittedBy = policies;
      return true;
    } catch (error) {
      if (!(error instanceof GatewayError)) throw error;
      this.end(error);
      return false;
    }
  }

  take(events: readonly LogEvent[]): void {
    this.open();
    this.#write(events.map(eventText).join(''));
  }

  async ready(): Promise<void> {
    const { raw } = this.#reply;
    if (!raw.writableNeedDrain || this.#isGone) return;
    await once(raw, 'drain', { signal: this.#ended.signal }).catch(() => {});
  }

  /** Sends the reason as the last event and closes the stream. */
  end(reason: GatewayError): void {
    const { raw } = this.#reply;
    if (!this.#isOpen) return;
    this.#write(eventText({ id: null, name: 'bye', data: problemJson(reason, '/admin/events') }));
    raw.end();
  }

  get #isGone(): boolean {
    return this.#ended.signal.aborted || this.#reply.raw.destroyed;
  }

  #write(text: string): void {
    const { raw } = this.#reply;
    if (this.#isGone || raw.writableEnded) return;
    raw.write(text);
    if (raw.writableLength > MAX_UNREAD_BYTES) raw.destroy();
  }
}

function eventText({ id, name, data }: LogEvent): string {
  return `${id === null ? '' : `id: ${id}\n`}event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
