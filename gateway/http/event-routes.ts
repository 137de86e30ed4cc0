import type { FastifyInstance, FastifyRequest } from 'fastify';
import { GatewayError } from '../domain/errors.ts';
import { LogFeed } from '../flow/audit/log-feed.ts';
import type { Services } from '../flow/calls/execute-call.ts';
import { EventStream } from './transport/event-stream.ts';
import { identifyPerson } from './transport/identify.ts';
import { onRequestEnd } from './transport/on-request-end.ts';

export const EVENTS = '/admin/events';
const MOST_STREAMS = 256;
/** Of one person: tabs that were forgotten must not be missing to others. */
const MOST_OF_ONE = 32;

/** What happens, as it happens: server-sent events, whose ids are places in the signed log. */
export function eventRoutes(app: FastifyInstance, flow: Services): void {
  const { station } = flow;
  const feed = new LogFeed(station);
  const streams = new Set<EventStream>();
  app.addHook('preClose', async () => {
    for (const stream of streams) stream.end(new GatewayError('unavailable', 'The gateway is ending.'));
  });

  // Asked with HEAD it would be a stream that tells nothing and never ends.
  app.get(EVENTS, { exposeHeadRoute: false }, async (request, reply) => {
    const person = identifyPerson(request, station.policies(), 'viewer').name;
    const after = lastEventId(request);
    refuseTooMany(streams, person);
    if (flow.dispatch.shutdownToken.gone) throw new GatewayError('unavailable', 'The gateway is ending.');
    const stream = new EventStream(request, reply, person, () => station.policies());
    streams.add(stream);
    const forget = () => {
      streams.delete(stream);
      feed.unsubscribe(stream);
    };
    onRequestEnd(request, reply, forget);
    try {
      await feed.subscribe(stream, after);
      stream.open();
    } catch (error) {
      forget();
      // What has begun as a stream can only be broken off: its reader comes back, and is told then.
      if (!stream.isOpen) throw error;
      reply.raw.destroy();
    }
    return reply;
  });
}

function refuseTooMany(streams: ReadonlySet<EventStream>, person: string): void {
  const own = [...streams].filter((stream) => stream.person === person).length;
  if (own < MOST_OF_ONE && streams.size < MOST_STREAMS) return;
  const who = own >= MOST_OF_ONE ? `${person} has ${own}` : `There are ${streams.size}`;
  throw new GatewayError('rate_limited', `${who} streams of events open already; close some.`, {
    retryAfterSeconds: 5,
  });
}

/** How far a reader was when it was last here, if it says so. */
function lastEventId({ headers }: FastifyRequest): number | undefined {
  const told = headers['last-event-id'];
  if (told === undefined || told === '') return undefined;
  if (typeof told === 'string' && /^\d{1,15}$/.test(told)) return Number(told);
  throw new GatewayError('malformed', 'Last-Event-ID must be an id that this stream gave out: a number, from 0.');
}
