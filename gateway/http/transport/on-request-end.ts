import type { Socket } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';

/** What waits, by connection, for the end of a request on it: however many those are, the connection has one listener. */
const waiting = new WeakMap<Socket, Set<() => void>>();

/**
 * Once, when a request is over, however: its answer is out, or its connection is gone. Of the latter node tells only the response
 * whose turn it is; those that were asked for behind it on the same connection never close.
 */
export function onRequestEnd(request: FastifyRequest, reply: FastifyReply, then: () => void): void {
  const { socket } = request.raw;
  if (reply.raw.closed || socket.destroyed) return then();
  const endings = endingsOn(socket);
  const end = () => {
    if (endings.delete(end)) then();
  };
  endings.add(end);
  reply.raw.on('close', end);
}

function endingsOn(socket: Socket): Set<() => void> {
  const known = waiting.get(socket);
  if (known !== undefined) return known;
  const endings = new Set<() => void>();
  waiting.set(socket, endings);
  socket.once('close', () => {
    for (const end of endings) end();
  });
  return endings;
}
