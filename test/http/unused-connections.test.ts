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

/** A caller who neither hangs up nor writes what is missing. */
async function dial(bytes: string): Promise<{ socket: Socket; heard: () => string }> {
  const socket = connect({ port: (app.server.address() as AddressInfo).port, host: '127.0.0.1', allowHalfOpen: true });
  socket.on('error', () => {});
  let text = '';
  socket.on('data', (data) => {
    text += data;
  });
  sockets.push(socket);
  const taken = once(app.server, 'connection');
  socket.write(bytes);
  await taken;
  return { socket, heard: () => text };
}

const half = (path: string, connection: string) =>
  `POST ${path} HTTP/1.1\r\nhost: a\r\nconnection: ${connection}\r\ncontent-length: 1000\r\n\r\nhalf`;

describe('an end', { timeout: 10_000 }, () => {
  it.each([
    ['still writes what was refused, on a connection to be closed', half('/refused', 'close')],
    ['still writes what was refused, on a connection to be kept', half('/refused', 'keep-alive')],
    ['began to ask again', 'GET /refused HTTP/1.1\r\nhost: a\r\n\r\nGET /refused HTT'],
  ])('does not wait for a caller who %s', async (_, bytes) => {
    const { socket, heard } = await dial(bytes);
    await once(socket, 'data');
    expect(heard()).toMatch(/^HTTP\/1.1 401 /);
    await app.close();
  });

  it('does not wait for a caller who has not asked', async () => {
    await dial('GET /slow HT');
    await app.close();
  });

  it('answers whoever still writes, and then waits no longer', async () => {
    const asked = once(app.server, 'request');
    const { socket, heard } = await dial(half('/slowly-refused', 'close'));
    await asked;
    const closed = app.close();
    await expect.poll(() => app.server.listening).toBe(false);
    answerSlow();
    await once(socket, 'data');
    expect(heard()).toMatch(/^HTTP\/1.1 401 /);
    await closed;
  });

  it('waits for what is at work, and answers it', async () => {
    const asked = once(app.server, 'request');
    const { socket, heard } = await dial('GET /slow HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n');
    await asked;
    const closed = app.close();
    await expect.poll(() => app.server.listening).toBe(false);
    answerSlow();
    await once(socket, 'end');
    expect(heard()).toMatch(/^HTTP\/1.1 200 .*done$/s);
    socket.end();
    await closed;
  });
});
