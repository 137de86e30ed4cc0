import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import Fastify, { type FastifyInstance } from 'fastify';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { GatewayError } from '../../gateway/domain/errors.ts';
import { sendProblem } from '../../gateway/http/encode.ts';
import { Inflight } from '../../gateway/http/transport/inflight.ts';
import { onRequestEnd } from '../../gateway/http/transport/on-request-end.ts';
import { SessionStreams } from '../../gateway/mcp/streams.ts';

const MOST = 20;

let app: FastifyInstance;
let over: string[];
let arrived: number;
let answerSlow: () => void;
let warnings: string[];
const warned = ({ name }: Error) => warnings.push(name);

beforeEach(async () => {
  [over, arrived, warnings] = [[], 0, []];
  process.on('warning', warned);
  const slow = new Promise<void>((resolve) => {
    answerSlow = resolve;
  });
  app = Fastify();
  app.setErrorHandler((error, request, reply) => sendProblem(reply, error as GatewayError, request.url));
  app.decorateRequest('caller', undefined);
  const inflight = new Inflight(MOST, () => 2);
  inflight.limitTotal(app);
  app.addHook('onRequest', async (request) => {
    request.credentials = {
      bearer: undefined,
      digest: undefined,
      principal: String(request.headers['x-name']),
      tokenResult: undefined,
    };
  });
  inflight.limitPerAgent(app);
  app.addHook('preHandler', async (request, reply) => {
    arrived += 1;
    onRequestEnd(request, reply, () => over.push(request.url));
  });
  app.get('/v1/slow', () => slow);
  app.get('/v1/quick', async () => 'quick');
  const streams = new SessionStreams();
  app.get('/v1/listen', async (_request, reply) => (streams.open('agent', 'session', reply) ? reply : 'too many'));
  await app.listen({ host: '127.0.0.1', port: 0 });
});
afterEach(async () => {
  answerSlow();
  app.server.closeAllConnections();
  await app.close();
  process.off('warning', warned);
  expect(warnings).toEqual([]);
});

/** All of them at once, on one connection. */
async function ask(name: string, ...paths: readonly string[]): Promise<Socket & { heard: () => string }> {
  const socket = connect({ host: '127.0.0.1', port: (app.server.address() as AddressInfo).port });
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes;
  });
  await once(socket, 'connect');
  socket.write(paths.map((path) => `GET ${path} HTTP/1.1\r\nhost: a\r\nx-name: ${name}\r\n\r\n`).join(''));
  return Object.assign(socket, { heard: () => text });
}

const statuses = (text: string) => [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => Number(status));
const many = (count: number, path: string) => Array.from({ length: count }, () => path);

describe('requests that wait for their turn on one connection', () => {
  it('are each over once, when their answer is out', async () => {
    const socket = await ask('a', '/v1/slow', ...many(8, '/v1/quick'));
    await expect.poll(() => arrived).toBe(9);
    expect(over).toEqual([]);
    answerSlow();
    await expect.poll(() => over.length).toBe(9);
    await expect.poll(() => statuses(socket.heard())).toEqual(many(9, '').map(() => 200));
    socket.resetAndDestroy();
    await once(socket, 'close');
    expect(over).toHaveLength(9);
  });

  it('are each over once, when their connection is gone', async () => {
    const socket = await ask('a', '/v1/slow', ...many(8, '/v1/quick'));
    await expect.poll(() => arrived).toBe(9);
    socket.resetAndDestroy();
    await expect.poll(() => over.length).toBe(9);
    answerSlow();
    const next = await ask('a', '/v1/quick');
    await expect.poll(() => statuses(next.heard())).toEqual([200]);
    await expect.poll(() => over.length).toBe(10);
  });

  it('give back what they took of all requests, and of their agent’s half, when their connection is gone', async () => {
    for (const name of ['a', 'b']) {
      const socket = await ask(name, '/v1/slow', ...many(MOST, '/v1/quick'));
      await expect.poll(() => arrived).toBe(MOST / 2);
      socket.resetAndDestroy();
      await expect.poll(() => over.length).toBe(MOST / 2);
      [over, arrived] = [[], 0];
    }
    const socket = await ask('a', '/v1/slow', ...many(MOST / 2, '/v1/quick'));
    await expect.poll(() => arrived).toBe(MOST / 2);
    answerSlow();
    await expect.poll(() => statuses(socket.heard())).toEqual([...many(MOST / 2, '').map(() => 200), 429]);
  });

  it('give back the places of streams, if that is what they are, when their connection is gone', async () => {
    for (let at = 0; at < 8; at += 1) {
      const socket = await ask('a', '/v1/slow', ...many(8, '/v1/listen'));
      await expect.poll(() => arrived).toBe(9 * (at + 1));
      socket.resetAndDestroy();
      await expect.poll(() => over.length).toBe(9 * (at + 1));
    }
    const socket = await ask('a', '/v1/listen');
    await expect.poll(() => socket.heard()).toContain('listening');
  });

  it('are over at once for whoever asks too late', async () => {
    let told = 0;
    app.server.once('request', (request, response) => {
      response.once('close', () =>
        onRequestEnd({ raw: request } as never, { raw: response } as never, () => (told += 1)),
      );
    });
    const socket = await ask('a', '/v1/quick');
    await expect.poll(() => told).toBe(1);
    await expect.poll(() => statuses(socket.heard())).toEqual([200]);
  });
});
