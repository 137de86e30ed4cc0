import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/**
 * After the last answer of a connection node hangs up, also on a caller who is still writing what was refused already. What that
 * one writes then resets the connection, and the answer is lost before it was read. So the rest of the request is read and
 * forgotten first, for as long as a request may take to arrive; not by a server that is closing, which has no time for it.
 */
export function drainBody(server: Server): void {
  const last = new WeakMap<Socket, ServerResponse>();
  server.on('request', (request, response) => last.set(request.socket, response));
  server.on('connection', (socket: Socket) => {
    const hangUp = socket.destroySoon.bind(socket);
    socket.destroySoon = () => {
      const response = last.get(socket);
      // What was asked after the last answer will have none, and must not be read to its end.
      const isAnswered = response?.writableFinished === true;
      if (isAnswered && !response.req.complete && server.listening) response.req.once('close', hangUp);
      else hangUp();
    };
  });
}
