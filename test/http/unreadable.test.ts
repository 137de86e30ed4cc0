import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { ClientErrorResponder } from '../../gateway/http/transport/client-errors.ts';
import { drainBody } from '../../gateway/http/transport/drain-body.ts';

let server: Server;
let sockets: Socket[];
/** Requests that were read to their end, and how each is answered. */
let handled: string[];
let finish: (() => void)[];

/** A caller who never hangs up by itself. */
async function dial(): Promise<{ socket: Socket; heard: () => string; gone: Promise<void>; heardAll: Promise<void> }> {
  const gone = new Promise<void>((resolve) => {
    server.once('connection', (held) => held.once('close', () => resolve()));
  });
  const socket = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', allowHalfOpen: true });
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes;
  });
  socket.on('error', () => {}); // Writing to one who has hung up is what these callers do.
  sockets.push(socket);
  await once(socket, 'connect');
  // What was sent before the server was gone may still be on its way.
  const heardAll = new Promise<void>((resolve) => {
    socket.once('end', resolve).once('close', () => resolve());
  });
  return { socket, heard: () => text, gone, heardAll };
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
  const unreadable = new ClientErrorResponder();
  unreadable.watch(server);
  drainBody(server);
  server.on('clientError', (error, socket) => unreadable.answer(error, socket as Socket));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
});
afterEach(async () => {
  for (const socket of sockets) socket.destroy();
  server.closeAllConnections();
  server.close();
});

describe('a request that node cannot read', () => {
  it.each([
    ['no HTTP', 'what is this\r\n\r\n', 400, 'never'],
    ['headers without end', `GET / HTTP/1.1\r\nx: ${'x'.repeat(100_000)}`, 431, 'never'],
    ['headers that do not come', 'GET / HTTP/1.1\r\n', 408, 'same_key'],
    ['a body that does not come', 'POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n', 408, 'same_key'],
  ])('has a problem for an answer: %s', async (_name, bytes, status, retry) => {
    const { socket, heard } = await dial();
    socket.write(bytes);
    await once(socket, 'end');
    const [head, body] = heard().split('\r\n\r\n');
    expect(head).toMatch(new RegExp(`^HTTP/1.1 ${status} [A-Z]`));
    expect(JSON.parse(body ?? '')).toMatchObject({ status, code: 'malformed', retry, instance: '/' });
  });

  it.each([
    ['/waiting', 'keep-alive'],
    ['/refused', 'keep-alive'],
    ['/refused', 'close'],
  ])('does not keep its connection when the caller drips on for ever: %s, %s', async (path, connection) => {
    const { socket, gone } = await dial();
    const head = `POST ${path} HTTP/1.1\r\nhost: a\r\nconnection: ${connection}`;
    socket.write(`${head}\r\ncontent-length: 1000000\r\n\r\n`);
    const dripping = setInterval(() => socket.write('x'), 20);
    await gone;
    clearInterval(dripping);
  });

  it('is not carried out after an answer that was said to be the last', async () => {
    const { socket, heard, gone } = await dial();
    socket.write('GET /last HTTP/1.1\r\nhost: a\r\n\r\nPOST /more HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab');
    await once(socket, 'data');
    expect(heard()).toMatch(/^HTTP\/1.1 200 /);
    socket.write('cd');
    await gone;
    expect(handled).toEqual(['/last']);
  });

  it('is not carried out after all when the rest of it comes late', async () => {
    const { socket, heard, gone } = await dial();
    socket.write('POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab');
    await once(socket, 'data');
    expect(heard()).toMatch(/^HTTP\/1.1 408 /);
    socket.write('cd');
    await gone;
    expect(handled).toEqual([]);
  });

  it('is not carried out after all when the rest of its head comes late', async () => {
    const { socket, heard, gone } = await dial();
    socket.write('GET /late HTTP/1.1\r\n');
    await once(socket, 'data');
    expect(heard()).toMatch(/^HTTP\/1.1 408 /);
    socket.write('host: a\r\n\r\n');
    await gone;
    expect(handled).toEqual([]);
  });

  it.each(['what is this\r\n\r\n', 'GET /late HTTP/1.1\r\n'])(
    'is not answered in the place of one that is still at work: %j',
    async (bytes) => {
      const { socket, heard, heardAll } = await dial();
      const working = once(server, 'handled');
      socket.write('GET /first HTTP/1.1\r\nhost: a\r\n\r\n');
      await working;
      socket.write(bytes);
      await heardAll;
      expect([handled, heard()]).toEqual([['/first'], '']);
    },
  );

  it('is not answered in the place of one that is still at work when half of it was read', async () => {
    const { socket, heard, heardAll } = await dial();
    const working = once(server, 'handled');
    socket.write('GET /first HTTP/1.1\r\nhost: a\r\n\r\n');
    await working;
    const begun = once(server, 'request');
    socket.write('POST /second HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n');
    await begun;
    socket.write('this is no chunk\r\n');
    await heardAll;
    expect([handled, heard()]).toEqual([['/first'], '']);
  });

  it('is answered when half of it was read, and nothing else is at work', async () => {
    const { socket, heard } = await dial();
    socket.write('POST /only HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\nthis is no chunk\r\n');
    await once(socket, 'end');
    expect([handled, heard().slice(0, 13)]).toEqual([[], 'HTTP/1.1 400 ']);
  });

  it('is answered after one that has its answer', async () => {
    const { socket, heard } = await dial();
    const working = once(server, 'handled');
    socket.write('GET /first HTTP/1.1\r\nhost: a\r\n\r\n');
    await working;
    const answered = once(socket, 'data');
    finish[0]?.();
    await answered;
    socket.write('what is this\r\n\r\n');
    await once(socket, 'end');
    expect(heard()).toMatch(/^HTTP\/1.1 200 OK[\s\S]*HTTP\/1.1 400 Bad Request/);
  });
});
