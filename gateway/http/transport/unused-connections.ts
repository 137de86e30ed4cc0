import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';

/**
 * Node closes the connections that are idle when a server closes, and waits for the others. To it one is not idle on which nothing was
 * ever asked, as browsers open them beforehand, nor one on which a request arrives slowly, also when that was refused already. Any of
 * these would hold up a gateway that is about to end for as long as it may drain, so it closes what owes nobody an answer.
 */
export function closeUnused(app: FastifyInstance): void {
  /** What was last asked on each connection. Of several at once the last is answered last. */
  const last = new Map<Socket, ServerResponse | undefined>();
  app.server.on('connection', (socket: Socket) => {
    last.set(socket, undefined);
    socket.once('close', () => last.delete(socket));
  });
  app.server.on('request', ({ socket }, response) => last.set(socket, response));
  app.addHook('preClose', async () => {
    for (const [socket, response] of last) {
      if (response === undefined || response.writableFinished) socket.destroy();
      else response.once('finish', () => last.get(socket) === response && socket.destroy());
    }
  });
}
