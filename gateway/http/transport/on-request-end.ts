import type { Socket } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';

/** Callbacks per connection. One `close` listener per connection serves all its requests. */
const callbacks = new WeakMap<Socket, Set<() => void>>();

/**
 * Runs `then` once when the request ends: the answer was sent, or the connection closed. When a connection closes, Node emits `close`
 * only on the response in progress. Pipelined requests behind it need the `close` event of the socket.
 */
export function onRequestEnd(request: FastifyRequest, reply: FastifyReply, then: () => void): void {
  const { socket } = request.raw;
  if (reply.raw.closed || socket.destroyed) return then();
  const ends = endCallbacksOf(socket);
  const end = () => {
    if (ends.delete(end)) then();
  };
  ends.add(end);
  reply.raw.on('close', end);
}

function endCallbacksOf(socket: Socket): Set<() => void> {
  const known = callbacks.get(socket);
  if (known !== undefined) return known;
  const ends = new Set<() => void>();
  callbacks.set(socket, ends);
  socket.once('close', () => {
    for (const end of ends) end();
  });
  return ends;
}
