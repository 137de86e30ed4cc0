import { once } from 'node:events';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { LogEvent } from '../../domain/audit/log-event.ts';
import { GatewayError } from '../../domain/errors.ts';
import type { Policies } from '../../domain/policy.ts';
import type { FeedSubscriber } from '../../flow/audit/log-feed.ts';
import { problemJson } from '../encode.ts';
import { identifyPerson } from './identify.ts';
import { onRequestEnd } from './on-request-end.ts';

/** The console takes a stream that is silent for three of these for dead. */
const HEARTBEAT_MS = 5_000;
/** A reader that does not read is cut off: news must not pile up here. It comes back with the id it has, and loses nothing. */
const MOST_UNREAD_BYTES = 1_048_576;

const HEADERS = {
  // With the stream ends its connection: kept for more, it would hold up a gateway that is about to end.
  connection: 'close',
  'content-type': 'text/event-stream',
  'cache-control': 'no-store',
  'x-accel-buffering': 'no',
  'x-content-type-options': 'nosniff',
};

/** One answer that is held open. It begins with the first event, or when its reader has caught up with nothing to tell. */
export class EventStream implements FeedSubscriber {
  readonly person: string;
  readonly #request: FastifyRequest;
  readonly #reply: FastifyReply;
  readonly #policies: () => Policies;
  /** Under these its reader was let in. */
  #admittedBy: Policies;
  readonly #over = new AbortController();
  #isOpen = false;

  constructor(request: FastifyRequest, reply: FastifyReply, person: string, policies: () => Policies) {
    this.#request = request;
    this.#reply = reply;
    this.person = person;
    this.#policies = policies;
    this.#admittedBy = policies();
    onRequestEnd(request, reply, () => this.#over.abort());
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
    // After a break it is soon asked again; the line that follows is what a proxy needs to see the answer begin.
    raw.write('retry: 2000\n: listening\n\n');
    const heartbeat = setInterval(() => this.#write(': still here\n\n'), HEARTBEAT_MS);
    this.#over.signal.addEventListener('abort', () => clearInterval(heartbeat));
  }

  /** Who was let in under other policies is asked for again: a person who was removed, or may look no longer, hears no more. */
  isWelcome(): boolean {
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
    await once(raw, 'drain', { signal: this.#over.signal }).catch(() => {});
  }

  /** The last that its reader hears: why. */
  end(why: GatewayError): void {
    const { raw } = this.#reply;
    if (!this.#isOpen) return;
    this.#write(eventText({ id: null, name: 'bye', data: problemJson(why, '/admin/events') }));
    raw.end();
  }

  get #isGone(): boolean {
    return this.#over.signal.aborted || this.#reply.raw.destroyed;
  }

  #write(text: string): void {
    const { raw } = this.#reply;
    if (this.#isGone || raw.writableEnded) return;
    raw.write(text);
    if (raw.writableLength > MOST_UNREAD_BYTES) raw.destroy();
  }
}

function eventText({ id, name, data }: LogEvent): string {
  return `${id === null ? '' : `id: ${id}\n`}event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
