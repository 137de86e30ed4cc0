import { subscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { HttpAdapter } from '../../adapters/http/http-adapter.ts';
import { McpHttpTransport } from '../../adapters/mcp/mcp-http-transport.ts';
import type { OutgoingMessage } from '../../adapters/mcp/mcp-transport.ts';
import type { Tool, Upstream } from '../../gateway/domain/policy.ts';

const CHUNK_COUNT = 500_000;
const CHUNK = 'ab';
/** A list of the chunks would take two to seven times as much. */
const MAX_HELD_BYTES = 8_000_000;

setFlagsFromString('--expose_gc');
const collectGarbage = runInNewContext('gc') as () => void;
const measureHeldBytes = () => {
  collectGarbage();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
};

/** Bytes that the client has read. Written bytes may still be in flight. */
let received = 0;
subscribe('undici:request:bodyChunkReceived', (message) => {
  received += (message as { chunk: Buffer }).chunk.length;
});

let server: Server;
let begin: (before: string, type: string) => Promise<Socket>;
let upstream: Upstream;

beforeAll(async () => {
  const answering: ((socket: Socket) => void)[] = [];
  server = createServer((socket) => socket.once('data', () => answering.shift()?.(socket))).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  upstream = {
    name: 'u',
    adapter: 'http',
    url: `http://127.0.0.1:${port}/`,
    headers: {},
    secrets: [],
    timeoutMs: 60_000,
    concurrency: 8,
    breaker: { threshold: 0.5, minimum: 10, windowMs: 1_000, cooldownMs: 1_000 },
    allowPrivate: true,
    expose: 'prefixed',
  };
  /** Answers the next request with all chunks, without the end of the answer. */
  begin = async (before, type) => {
    const socket = await new Promise<Socket>((resolve) => answering.push(resolve));
    socket.write(`HTTP/1.1 200 OK\r\ncontent-type: ${type}\r\ntransfer-encoding: chunked\r\n\r\n${before}`);
    const block = `${CHUNK.length}\r\n${CHUNK}\r\n`.repeat(5_000);
    for (let sent = 0; sent < CHUNK_COUNT; sent += 5_000) if (!socket.write(block)) await once(socket, 'drain');
    return socket;
  };
});
afterAll(() => server.close());

const httpAnswer = () => {
  const tool = {
    name: 't',
    upstream: 'u',
    noEffect: new Set(),
    accepted: new Set(),
    maxResultBytes: 4_000_000,
  } as unknown as Tool;
  const request = { method: 'POST', path: '/', headers: {}, body: '{}' };
  const adapter = new HttpAdapter(upstream, Buffer.alloc(32));
  const sent = adapter.send(tool, request, { timeoutMs: 60_000, maySend: () => true, freshConnection: true });
  return sent.then((outcome) => ('answer' in outcome ? outcome.answer?.body?.length : outcome));
};
const mcpAnswer = () => {
  const outgoing: OutgoingMessage = {
    message: { jsonrpc: '2.0', id: 'x', method: 'tools/call' },
    headers: {},
    timeoutMs: 60_000,
    maxBytes: 4_000_000,
    freshConnection: true,
    maySend: () => true,
    onMessage: () => {},
  };
  const exchanged = new McpHttpTransport(upstream, upstream.url ?? '').exchange(outgoing);
  return exchanged.then((ended) => (ended.as === 'status' ? ended.text.length : ended.as));
};
const SSE = 'text/event-stream';

it.each([
  ['of an HTTP tool', 'text/plain', '', httpAnswer, CHUNK_COUNT * CHUNK.length],
  ['of an MCP server', 'application/json', '', mcpAnswer, CHUNK_COUNT * CHUNK.length],
  ['of an MCP server, as a stream', SSE, '6\r\ndata: \r\n', mcpAnswer, 'lost'],
])('an answer %s in tiny chunks needs about as much memory as its bytes', async (_, type, before, ask, expected) => {
  received = 0;
  const [started, writing] = [measureHeldBytes(), begin(before, type)];
  const answer = ask();
  const socket = await writing;
  await expect.poll(() => received, { timeout: 20_000 }).toBeGreaterThanOrEqual(CHUNK_COUNT * CHUNK.length);
  expect(measureHeldBytes() - started).toBeLessThan(MAX_HELD_BYTES);
  socket.end('0\r\n\r\n');
  expect(await answer).toBe(expected);
});
