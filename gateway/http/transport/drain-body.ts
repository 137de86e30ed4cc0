import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

/**
 * Reads and discards the rest of a refused request before the connection closes. Node closes the connection right after its last
 * answer. Bytes that the client still writes then reset the connection, and the client loses the answer. The request timeout bounds
 * the wait. A server that is closing does not wait.
 */
export function drainBody(server: Server): void {
  const lastResponses = new WeakMap<Socket, ServerResponse>();
  server.on('request', (request, response) => lastResponses.set(request.socket, response));
  server.on('connection', (socket: Socket) => {
    const closeSocket = socket.destroySoon.bind(socket);
    socket.destroySoon = () => {
      const response = lastResponses.get(socket);
      // Wait only if the newest request is answered. Nothing reads a later pipelined request, so its end never comes.
      const isAnswered = response?.writableFinished === true;
      if (isAnswered && !response.req.complete && server.listening) response.req.once('close', closeSocket);
      else closeSocket();
    };
  });
}
