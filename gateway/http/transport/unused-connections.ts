import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';

/**
 * When the server closes, closes every connection on which no answer is in progress. Node closes idle connections itself.
 * It leaves open connections without any request, which browsers open in advance, and connections whose request arrives
 * slowly. Each would delay the shutdown.
 */
export function closeUnusedConnections(app: FastifyInstance): void {
  /** The newest response per connection. Pipelined responses go out in order, so the newest goes out last. */
  const lastResponses = new Map<Socket, ServerResponse | undefined>();
  app.server.on('connection', (socket: Socket) => {
    lastResponses.set(socket, undefined);
    socket.once('close', () => lastResponses.delete(socket));
  });
  app.server.on('request', ({ socket }, response) => lastResponses.set(socket, response));
  app.addHook('preClose', async () => {
    for (const [socket, response] of lastResponses) {
      if (response === undefined || response.writableFinished) socket.destroy();
      else response.once('finish', () => lastResponses.get(socket) === response && socket.destroy());
    }
  });
}
