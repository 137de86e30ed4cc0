import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import Fastify, { type FastifyInstance } from 'fastify';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { GatewayError } from '../../gateway/domain/errors.ts';
import { sendProblem } from '../../gateway/http/encode.ts';
import { Inflight } from '../../gateway/http/transport/inflight.ts';
import { onRequestEnd } from '../../gateway/http/transport/on-request-end.ts';
import { SessionStreams } from '../../gateway/mcp/streams.ts';

const MAX_INFLIGHT = 20;

let app: FastifyInstance;
let endedUrls: string[];
let arrived: number;
let answerSlow: () => void;
let warnings: string[];
const onWarning = ({ name }: Error) => warnings.push(name);

beforeEach(async () => {
  [endedUrls, arrived, warnings] = [[], 0, []];
  process.on('warning', onWarning);
  const slow = new Promise<void>((resolve) => {
    answerSlow = resolve;
  });
  app = Fastify();
  app.setErrorHandler((error, request, reply) => sendProblem(reply, error as GatewayError, request.url));
  app.decorateRequest('caller', undefined);
  const inflight = new Inflight(MAX_INFLIGHT, () => 2);
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
    onRequestEnd(request, reply, () => endedUrls.push(request.url));
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
  process.off('warning', onWarning);
  expect(warnings).toEqual([]);
});

/** Sends all requests at once, on one connection. */
async function sendPipelined(name: string, ...paths: readonly string[]): Promise<Socket & { received: () => string }> {
  const socket = connect({ host: '127.0.0.1', port: (app.server.address() as AddressInfo).port });
  let text = '';
  socket.on('data', (bytes) => {
    text += bytes;
  });
  await once(socket, 'connect');
  socket.write(paths.map((path) => `GET ${path} HTTP/1.1\r\nhost: a\r\nx-name: ${name}\r\n\r\n`).join(''));
  return Object.assign(socket, { received: () => text });
}

const statuses = (text: string) => [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => Number(status));
const many = (count: number, path: string) => Array.from({ length: count }, () => path);

describe('pipelined requests', () => {
  it('each end once, when the answer is sent', async () => {
    const socket = await sendPipelined('a', '/v1/slow', ...many(8, '/v1/quick'));
    await expect.poll(() => arrived).toBe(9);
    expect(endedUrls).toEqual([]);
    answerSlow();
    await expect.poll(() => endedUrls.length).toBe(9);
    await expect.poll(() => statuses(socket.received())).toEqual(many(9, '').map(() => 200));
    socket.resetAndDestroy();
    await once(socket, 'close');
    expect(endedUrls).toHaveLength(9);
  });

  it('each end once, when the connection closes', async () => {
    const socket = await sendPipelined('a', '/v1/slow', ...many(8, '/v1/quick'));
    await expect.poll(() => arrived).toBe(9);
    socket.resetAndDestroy();
    await expect.poll(() => endedUrls.length).toBe(9);
    answerSlow();
    const next = await sendPipelined('a', '/v1/quick');
    await expect.poll(() => statuses(next.received())).toEqual([200]);
    await expect.poll(() => endedUrls.length).toBe(10);
  });

  it('release their slots of the total and of the agent when the connection closes', async () => {
    for (const name of ['a', 'b']) {
      const socket = await sendPipelined(name, '/v1/slow', ...many(MAX_INFLIGHT, '/v1/quick'));
      await expect.poll(() => arrived).toBe(MAX_INFLIGHT / 2);
      socket.resetAndDestroy();
      await expect.poll(() => endedUrls.length).toBe(MAX_INFLIGHT / 2);
      [endedUrls, arrived] = [[], 0];
    }
    const socket = await sendPipelined('a', '/v1/slow', ...many(MAX_INFLIGHT / 2, '/v1/quick'));
    await expect.poll(() => arrived).toBe(MAX_INFLIGHT / 2);
    answerSlow();
    await expect.poll(() => statuses(socket.received())).toEqual([...many(MAX_INFLIGHT / 2, '').map(() => 200), 429]);
  });

  it('release their stream slots when the connection closes', async () => {
    for (let at = 0; at < 8; at += 1) {
      const socket = await sendPipelined('a', '/v1/slow', ...many(8, '/v1/listen'));
      await expect.poll(() => arrived).toBe(9 * (at + 1));
      socket.resetAndDestroy();
      await expect.poll(() => endedUrls.length).toBe(9 * (at + 1));
    }
    const socket = await sendPipelined('a', '/v1/listen');
    await expect.poll(() => socket.received()).toContain('listening');
  });

  it('that have already ended call a new listener at once', async () => {
    let notified = 0;
    app.server.once('request', (request, response) => {
      response.once('close', () =>
        onRequestEnd({ raw: request } as never, { raw: response } as never, () => (notified += 1)),
      );
    });
    const socket = await sendPipelined('a', '/v1/quick');
    await expect.poll(() => notified).toBe(1);
    await expect.poll(() => statuses(socket.received())).toEqual([200]);
  });
});
