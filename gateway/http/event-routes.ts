import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import { LogFeed } from '../flow/audit/log-feed.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { EventStream } from './transport/event-stream.ts';
import { identifyPerson } from './transport/identify.ts';
import { onRequestEnd } from './transport/on-request-end.ts';

export const EVENTS_PATH = '/admin/events';
const MAX_STREAMS = 256;
/** Per person, so that forgotten tabs of one person do not lock out others. */
const MAX_STREAMS_PER_PERSON = 32;

/** Live events of the audit log as server-sent events. The id of an event is its index in the log. */
export function eventRoutes(app: FastifyInstance, services: Services): void {
  const context = services.ctx;
  const feed = new LogFeed(context);
  const streams = new Set<EventStream>();
  app.addHook('preClose', async () => {
    for (const stream of streams) stream.end(new GatewayError('unavailable', 'The gateway is shutting down.'));
  });

  // Without this, HEAD would open a stream that sends nothing and never ends.
  app.get(EVENTS_PATH, { exposeHeadRoute: false }, async (request, reply) => {
    const person = identifyPerson(request, context.policies(), 'viewer').name;
    const after = lastEventId(request);
    refuseTooMany(streams, person);
    if (services.dispatch.shutdownToken.isCancelled)
      throw new GatewayError('unavailable', 'The gateway is shutting down.');
    const stream = new EventStream(request, reply, person, () => context.policies());
    streams.add(stream);
    const unregister = () => {
      streams.delete(stream);
      feed.unsubscribe(stream);
    };
    onRequestEnd(request, reply, unregister);
    try {
      await feed.subscribe(stream, after);
      stream.open();
    } catch (error) {
      unregister();
      // An open stream cannot answer an error, so it is cut. The reader reconnects and gets the error then.
      if (!stream.isOpen) throw error;
      reply.raw.destroy();
    }
    return reply;
  });
}

function refuseTooMany(streams: ReadonlySet<EventStream>, person: string): void {
  const own = [...streams].filter((stream) => stream.person === person).length;
  if (own < MAX_STREAMS_PER_PERSON && streams.size < MAX_STREAMS) return;
  const subject = own >= MAX_STREAMS_PER_PERSON ? `${person} has ${own}` : `The gateway has ${streams.size}`;
  throw new GatewayError('rate_limited', `${subject} event streams open, which is the limit. Close some.`, {
    retryAfterSeconds: 5,
  });
}

/** The last event that the reader received, if it says so. */
function lastEventId({ headers }: FastifyRequest): number | undefined {
  const id = headers['last-event-id'];
  if (id === undefined || id === '') return undefined;
  if (typeof id === 'string' && /^\d{1,15}$/.test(id)) return Number(id);
  throw new GatewayError('malformed', 'Last-Event-ID must be an event id of this stream: a whole number, at least 0.');
}
