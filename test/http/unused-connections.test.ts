import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import Fastify, { type FastifyInstance } from 'fastify';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { drainBody } from '../../gateway/http/transport/drain-body.ts';
import { closeUnusedConnections } from '../../gateway/http/transport/unused-connections.ts';

let app: FastifyInstance;
let sockets: Socket[];
let answerSlow: () => void;

beforeEach(async () => {
  sockets = [];
  const slow = new Promise<string>((resolve) => {
    answerSlow = () => resolve('done');
  });
  app = Fastify({ forceCloseConnections: 'idle', return503OnClosing: false });
  app.addHook('onRequest', async (request, reply) => {
    if (request.url === '/slowly-refused') await slow;
    if (request.url.endsWith('refused')) await reply.code(401).send('no');
  });
  app.post('/refused', async () => '');
  app.post('/slowly-refused', async () => '');
  app.get('/slow', () => slow);
  drainBody(app.server);
  closeUnusedConnections(app);
  await app.listen({ host: '127.0.0.1', port: 0 });
});
afterEach(async () => {
  answerSlow();
  for (const socket of sockets) socket.destroy();
  await app.close();
});

/** Opens a connection that the client neither closes nor completes. */
async function openConnection(bytes: string): Promise<{ socket: Socket; received: () => string }> {
  const socket = connect({ port: (app.server.address() as AddressInfo).port, host: '127.0.0.1', allowHalfOpen: true });
  socket.on('error', () => {});
  let text = '';
  socket.on('data', (data) => {
    text += data;
  });
  sockets.push(socket);
  const accepted = once(app.server, 'connection');
  socket.write(bytes);
  await accepted;
  return { socket, received: () => text };
}

const renderPartialRequest = (path: string, connection: string) =>
  `POST ${path} HTTP/1.1\r\nhost: a\r\nconnection: ${connection}\r\ncontent-length: 1000\r\n\r\nhalf`;

describe('a shutdown', { timeout: 10_000 }, () => {
  it.each([
    ['still writes a refused request with Connection: close', renderPartialRequest('/refused', 'close')],
    ['still writes a refused request with Connection: keep-alive', renderPartialRequest('/refused', 'keep-alive')],
    ['began another request', 'GET /refused HTTP/1.1\r\nhost: a\r\n\r\nGET /refused HTT'],
  ])('does not wait for a caller who %s', async (_, bytes) => {
    const { socket, received } = await openConnection(bytes);
    await once(socket, 'data');
    expect(received()).toMatch(/^HTTP\/1.1 401 /);
    await app.close();
  });

  it('does not wait for a caller whose first request is incomplete', async () => {
    await openConnection('GET /slow HT');
    await app.close();
  });

  it('answers a caller who still writes, and then waits no longer', async () => {
    const requested = once(app.server, 'request');
    const { socket, received } = await openConnection(renderPartialRequest('/slowly-refused', 'close'));
    await requested;
    const closed = app.close();
    await expect.poll(() => app.server.listening).toBe(false);
    answerSlow();
    await once(socket, 'data');
    expect(received()).toMatch(/^HTTP\/1.1 401 /);
    await closed;
  });

  it('waits for a running request, and answers it', async () => {
    const requested = once(app.server, 'request');
    const { socket, received } = await openConnection('GET /slow HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n');
    await requested;
    const closed = app.close();
    await expect.poll(() => app.server.listening).toBe(false);
    answerSlow();
    await once(socket, 'end');
    expect(received()).toMatch(/^HTTP\/1.1 200 .*done$/s);
    socket.end();
    await closed;
  });
});
