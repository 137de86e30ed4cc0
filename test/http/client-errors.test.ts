import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ClientErrorResponder } from '../../gateway/http/transport/client-errors.ts';
import { drainBody } from '../../gateway/http/transport/drain-body.ts';

let server: Server;
let sockets: Socket[];
/** URLs of requests whose body was read completely, and a function that answers each of them. */
let handled: string[];
let finish: (() => void)[];

/** Opens a connection that the client never closes. */
async function openConnection(): Promise<{
  socket: Socket;
  received: () => string;
  closed: Promise<void>;
  receivedAll: Promise<void>;
}> {
  const closed = new Promise<void>((resolve) => {
    server.once('connection', (accepted) => accepted.once('close', () => resolve()));
  });
  const socket = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', allowHalfOpen: true });
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes;
  });
  socket.on('error', () => {}); // These clients write to connections that the server has closed.
  sockets.push(socket);
  await once(socket, 'connect');
  // Bytes that the server sent before it closed may still arrive.
  const receivedAll = new Promise<void>((resolve) => {
    socket.once('end', resolve).once('close', () => resolve());
  });
  return { socket, received: () => text, closed, receivedAll };
}

beforeEach(async () => {
  sockets = [];
  handled = [];
  finish = [];
  const options = { requestTimeout: 300, headersTimeout: 200, connectionsCheckingInterval: 50 };
  server = createServer(options, (request, response) => {
    if (request.url === '/refused') response.writeHead(401).end();
    if (request.url === '/last') response.writeHead(200, { connection: 'close', 'content-length': 0 }).end();
    request.resume().on('end', () => {
      handled.push(request.url ?? '');
      finish.push(() => response.end('done'));
      server.emit('handled');
    });
  });
  const responder = new ClientErrorResponder();
  responder.watch(server);
  drainBody(server);
  server.on('clientError', (error, socket) => responder.answer(error, socket as Socket));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
});
afterEach(async () => {
  for (const socket of sockets) socket.destroy();
  server.closeAllConnections();
  server.close();
});

describe('a request that Node cannot parse', () => {
  it.each([
    ['bytes that are not HTTP', 'what is this\r\n\r\n', 400, 'never'],
    ['headers that are too long', `GET / HTTP/1.1\r\nx: ${'x'.repeat(100_000)}`, 431, 'never'],
    ['headers that never end', 'GET / HTTP/1.1\r\n', 408, 'same_key'],
    ['a body that never arrives', 'POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n', 408, 'same_key'],
  ])('is answered with a problem document: %s', async (_name, bytes, status, retry) => {
    const { socket, received } = await openConnection();
    socket.write(bytes);
    await once(socket, 'end');
    const [head, body] = received().split('\r\n\r\n');
    expect(head).toMatch(new RegExp(`^HTTP/1.1 ${status} [A-Z]`));
    expect(JSON.parse(body ?? '')).toMatchObject({ status, code: 'malformed', retry, instance: '/' });
  });

  it.each([
    ['/waiting', 'keep-alive'],
    ['/refused', 'keep-alive'],
    ['/refused', 'close'],
  ])('does not keep its connection open while the caller sends single bytes: %s, %s', async (path, connection) => {
    const { socket, closed } = await openConnection();
    const head = `POST ${path} HTTP/1.1\r\nhost: a\r\nconnection: ${connection}`;
    socket.write(`${head}\r\ncontent-length: 1000000\r\n\r\n`);
    const interval = setInterval(() => socket.write('x'), 20);
    await closed;
    clearInterval(interval);
  });

  it('is not handled after a response with Connection: close', async () => {
    const { socket, received, closed } = await openConnection();
    socket.write('GET /last HTTP/1.1\r\nhost: a\r\n\r\nPOST /more HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab');
    await once(socket, 'data');
    expect(received()).toMatch(/^HTTP\/1.1 200 /);
    socket.write('cd');
    await closed;
    expect(handled).toEqual(['/last']);
  });

  it('is not handled if the rest of its body arrives after the timeout', async () => {
    const { socket, received, closed } = await openConnection();
    socket.write('POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab');
    await once(socket, 'data');
    expect(received()).toMatch(/^HTTP\/1.1 408 /);
    socket.write('cd');
    await closed;
    expect(handled).toEqual([]);
  });

  it('is not handled if the rest of its headers arrives after the timeout', async () => {
    const { socket, received, closed } = await openConnection();
    socket.write('GET /late HTTP/1.1\r\n');
    await once(socket, 'data');
    expect(received()).toMatch(/^HTTP\/1.1 408 /);
    socket.write('host: a\r\n\r\n');
    await closed;
    expect(handled).toEqual([]);
  });

  it.each(['what is this\r\n\r\n', 'GET /late HTTP/1.1\r\n'])(
    'is not answered in place of an earlier request that is still running: %j',
    async (bytes) => {
      const { socket, received, receivedAll } = await openConnection();
      const handling = once(server, 'handled');
      socket.write('GET /first HTTP/1.1\r\nhost: a\r\n\r\n');
      await handling;
      socket.write(bytes);
      await receivedAll;
      expect([handled, received()]).toEqual([['/first'], '']);
    },
  );

  it('that is partly read is not answered in place of an earlier request that is still running', async () => {
    const { socket, received, receivedAll } = await openConnection();
    const handling = once(server, 'handled');
    socket.write('GET /first HTTP/1.1\r\nhost: a\r\n\r\n');
    await handling;
    const begun = once(server, 'request');
    socket.write('POST /second HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n');
    await begun;
    socket.write('this is no chunk\r\n');
    await receivedAll;
    expect([handled, received()]).toEqual([['/first'], '']);
  });

  it('that is partly read is answered if no other request is running', async () => {
    const { socket, received } = await openConnection();
    socket.write('POST /only HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\nthis is no chunk\r\n');
    await once(socket, 'end');
    expect([handled, received().slice(0, 13)]).toEqual([[], 'HTTP/1.1 400 ']);
  });

  it('is answered after an earlier request that was answered', async () => {
    const { socket, received } = await openConnection();
    const handling = once(server, 'handled');
    socket.write('GET /first HTTP/1.1\r\nhost: a\r\n\r\n');
    await handling;
    const answered = once(socket, 'data');
    finish[0]?.();
    await answered;
    socket.write('what is this\r\n\r\n');
    await once(socket, 'end');
    expect(received()).toMatch(/^HTTP\/1.1 200 OK[\s\S]*HTTP\/1.1 400 Bad Request/);
  });
});
