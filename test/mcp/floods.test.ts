import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { McpAdapter } from '../../adapters/mcp/mcp-adapter.ts';
import { McpHttpTransport } from '../../adapters/mcp/mcp-http-transport.ts';
import { McpStdioTransport } from '../../adapters/mcp/mcp-stdio-transport.ts';
import { MAX_PENDING_REPLIES, type OutgoingMessage } from '../../adapters/mcp/mcp-transport.ts';
import { McpUpstreamClient } from '../../adapters/mcp/mcp-upstream-client.ts';
import type { Json } from '../../gateway/domain/json.ts';
import type { Upstream } from '../../gateway/domain/policy.ts';
import { pollUntil } from '../support/poll.ts';

const PING = '{"jsonrpc":"2.0","id":1,"method":"ping"}';
const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0)) await clean();
});

describe('an upstream MCP server over HTTP', () => {
  /** Connects a client to a server that answers requests with `answer` and leaves replies unanswered. */
  async function connectToServer(answer: (message: { id: Json; method: string }, response: ServerResponse) => void) {
    const read = async (request: IncomingMessage) => JSON.parse(Buffer.concat(await request.toArray()).toString());
    let pendingReplies = 0;
    const server: Server = createServer(async (request, response) => {
      const message = await read(request);
      if (message.method === undefined) pendingReplies += 1;
      else if (message.method !== 'server/discover') answer(message, response);
      else response.end(JSON.stringify(result(message.id, { supportedVersions: ['2026-07-28'], capabilities: {} })));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`;
    const upstream = { url, allowPrivate: true, timeoutMs: 5_000, headers: {}, concurrency: 2 } as unknown as Upstream;
    const client = new McpUpstreamClient(new McpHttpTransport(upstream, url));
    cleanups.push(() => {
      server.closeAllConnections();
      server.close();
      return client.close();
    });
    return { client, pendingReplies: () => pendingReplies };
  }
  const result = (id: Json, value: Json) => ({ jsonrpc: '2.0', id, result: value });

  it('that sends endless requests gets a bounded number of replies, and its call completes', async () => {
    const { client, pendingReplies } = await connectToServer(({ id }, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(`data: ${PING}\n\n`.repeat(5_000));
      // The server answers only when the maximum number of replies is pending.
      const isFull = () => pendingReplies() >= MAX_PENDING_REPLIES;
      void pollUntil(isFull).then(() => response.write(`data: ${JSON.stringify(result(id, {}))}\n\n`));
    });
    const request = { id: 'a', method: 'tools/call', params: {}, timeoutMs: 5_000 };
    expect(await client.request(request)).toMatchObject({ as: 'answered' });
    await expect.poll(pendingReplies).toBe(MAX_PENDING_REPLIES);
    await sleep(300);
    expect(pendingReplies()).toBe(MAX_PENDING_REPLIES);
  });

  it('that sends an endless event is disconnected', async () => {
    let sent = 0;
    const { client } = await connectToServer((_message, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const more = () => {
        sent += 50_000;
        if (!response.destroyed) response.write(`data: ${'x'.repeat(50_000)}\n`, more);
      };
      more();
    });
    const startedAt = performance.now();
    await client.listen({}, 5_000, 20_000);
    expect(performance.now() - startedAt).toBeLessThan(10_000);
    expect(sent).toBeLessThan(20_000_000);
  });

  const progress = JSON.stringify({
    jsonrpc: '2.0',
    method: 'notifications/progress',
    params: { message: 'x'.repeat(9_000) },
  });
  it.each([
    ['as a stream', 'text/event-stream', (text: string) => `data: ${text}\n\n`],
    ['line by line', 'application/json', (text: string) => `${text}\n`],
  ])('that sends endless progress, %s, is read only up to the size limit of an answer', async (_, type, written) => {
    const { client } = await connectToServer(async ({ id }, response) => {
      response.writeHead(200, { 'content-type': type });
      for (let i = 0; i < 1_000; i += 10)
        await new Promise((resolve) => response.write(written(progress).repeat(10), resolve));
      // The answer comes in its own chunk after a pause, as a server that works would send it.
      setTimeout(() => response.end(written(JSON.stringify(result(id, {})))), 100);
    });
    let messageCount = 0;
    const tell = () => {
      messageCount += 1;
    };
    const ask = () => Promise.reject(new Error('No question is expected.'));
    const listener = { era: 'modern', capabilities: {}, meta: {}, tell, ask } as const;
    const request = { id: 'a', method: 'tools/call', params: {}, timeoutMs: 20_000, maxBytes: 1_000_000, listener };
    expect(await client.request(request)).toMatchObject({ as: 'answered' });
    expect(messageCount).toBeGreaterThan(100);
    expect(messageCount).toBeLessThan(120);
  });

  it.each([
    ['as a stream', 'text/event-stream', 'lost', (text: string) => `data: ${text}\n\n`],
    ['as plain JSON', 'application/json', 'status', (text: string) => text],
  ])('that exceeds the size limit of an answer, %s, counts as unanswered', async (_, type, as, written) => {
    const { client } = await connectToServer(({ id }, response) => {
      response.writeHead(200, { 'content-type': type });
      response.end(written(JSON.stringify(result(id, { text: 'ä'.repeat(5_010) }))));
    });
    const request = { id: 'a', method: 'tools/call', params: {}, timeoutMs: 20_000, maxBytes: 10_000 };
    expect(await client.request(request)).toMatchObject({ as });
  });

  it('that sends very many notifications is asked for a new stream, so that later notifications arrive', async () => {
    const { client } = await connectToServer((_message, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const more = () => response.destroyed || response.write(`data: ${progress}\n\n`.repeat(500), more);
      more();
    });
    const startedAt = performance.now();
    await client.listen({}, 5_000, 50_000);
    expect(performance.now() - startedAt).toBeLessThan(40_000);
  });

  it('can be called while all its resource reads hang', async () => {
    const { client } = await connectToServer(({ id, method }, response) => {
      if (method === 'tools/call') response.end(JSON.stringify(result(id, {})));
    });
    const request = { params: {}, timeoutMs: 5_000 };
    for (let i = 0; i < 200; i += 1) void client.request({ ...request, id: `r${i}`, method: 'resources/read' });
    expect(await client.request({ ...request, id: 'c', method: 'tools/call' })).toMatchObject({ as: 'answered' });
  });
});

describe('a legacy MCP server over HTTP', () => {
  const INITIALIZED = { result: { protocolVersion: '2025-11-25', capabilities: {} } };

  /** An adapter for a server that answers each subscription with `subscribed`. */
  async function createAdapter(
    subscribed: (uri: string) => object,
    initialized: object = INITIALIZED,
    secrets: string[] = [],
  ) {
    const answers: Record<string, (params: { uri: string }) => object> = {
      initialize: () => initialized,
      'resources/subscribe': ({ uri }) => subscribed(uri),
    };
    const server: Server = createServer(async (request, response) => {
      const { id, method, params } = JSON.parse(Buffer.concat(await request.toArray()).toString());
      if (id === undefined) return void response.writeHead(202).end();
      const answer = answers[method]?.(params) ?? { error: { code: -32601, message: 'no such method' } };
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ jsonrpc: '2.0', id, ...answer }));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`;
    const upstream = { name: 'u', url, allowPrivate: true, timeoutMs: 5_000, headers: {}, secrets, concurrency: 2 };
    const adapter = new McpAdapter(upstream as unknown as Upstream, Buffer.alloc(32));
    cleanups.push(() => {
      server.closeAllConnections();
      server.close();
      return adapter.close();
    });
    return adapter;
  }

  it('that refuses to initialize is quoted briefly, without its credential', async () => {
    const secret = 'of-the-gateway-alone';
    const longText = `${'x'.repeat(940)}${secret}\0${'y'.repeat(500_000)}`;
    const adapter = await createAdapter(() => ({}), { error: { code: -32603, message: longText } }, [secret]);
    const message = await adapter.request('resources/list', {}).catch((error: Error) => error.message);
    expect(message).toMatch(/^u: the MCP handshake failed: x+\[redacted\]\uFFFDy*$/);
    expect(String(message).length).toBeLessThan(1_100);
  });

  it('gets a bounded number of resource subscriptions', async () => {
    const subscribedUris = new Set<string>();
    const adapter = await createAdapter((uri) => {
      subscribedUris.add(uri);
      return { result: {} };
    });
    await Promise.all(Array.from({ length: 400 }, (_, i) => adapter.subscribeToResource(`notes://${i}`)));
    expect(subscribedUris.size).toBe(256);
  });

  it('that refuses a subscription is asked again on the next request', async () => {
    let requestCount = 0;
    const adapter = await createAdapter(() => {
      requestCount += 1;
      return requestCount === 1 ? { error: { code: -32603, message: 'not now' } } : { result: {} };
    });
    await expect(adapter.subscribeToResource('notes://1')).rejects.toThrow('not now');
    await adapter.subscribeToResource('notes://1');
    await adapter.subscribeToResource('notes://1');
    expect(requestCount).toBe(2);
  });
});

const LARGE = 'x'.repeat(1_000_000);

describe('an MCP server over stdio', () => {
  const createTransport = (script: string) => {
    const transport = new McpStdioTransport([process.execPath, '-e', script], {});
    cleanups.push(() => transport.close());
    return transport;
  };
  const outgoing = (id: string, text = ''): OutgoingMessage => ({
    message: { jsonrpc: '2.0', id, method: 'tools/call', params: { text } },
    headers: {},
    timeoutMs: 20_000,
    maxBytes: 1_000_000,
    freshConnection: false,
    maySend: () => true,
    onMessage: () => {},
  });

  it('that sends endless requests without reading gets a bounded number of replies', async () => {
    const pings = 200_000;
    const transport = createTransport(`
      let request = '', answers = 0;
      const count = (chunk) => { answers += String(chunk).split('"result":{}').length - 1; };
      const answerCall = () => console.log(JSON.stringify({ jsonrpc: '2.0', id: JSON.parse(request).id, result: { answers } }));
      process.stdin.once('data', (chunk) => {
        process.stdin.pause();
        request = String(chunk).split('\\n')[0];
        const pings = ${JSON.stringify(`${PING}\n`)}.repeat(${pings / 100});
        let left = 100;
        const flood = () => {
          if (left-- > 0) return process.stdout.write(pings, flood);
          process.stdin.on('data', count).resume();
          // A second is enough to read all replies; nothing marks the last one.
          setTimeout(answerCall, 1000);
        };
        flood();
      });`);
    new McpUpstreamClient(transport);
    const answered = await transport.exchange(outgoing('a'));
    const { answers } = (answered as unknown as { response: { result: { answers: number } } }).response.result;
    expect(answers).toBeGreaterThan(0);
    expect(answers).toBeLessThan(pings / 10);
  });

  it('that sends endless progress is read only up to the size limit of an answer', async () => {
    const transport = createTransport(`
      process.stdin.once('data', () => {
        const params = { progressToken: 'a', message: 'x'.repeat(9_000) };
        const progress = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/progress', params }) + '\\n';
        process.stdout.write(progress.repeat(1_000));
        console.log('{"jsonrpc":"2.0","id":"a","result":{}}');
      });`);
    let messageCount = 0;
    const countMessage = () => {
      messageCount += 1;
    };
    expect(await transport.exchange({ ...outgoing('a'), onMessage: countMessage })).toMatchObject({ as: 'answered' });
    expect(messageCount).toBeGreaterThan(100);
    expect(messageCount).toBeLessThan(120);
  });

  it('with an invalid command gets no message', async () => {
    const transport = new McpStdioTransport(['no\0program'], {});
    expect(await transport.exchange(outgoing('a'))).toMatchObject({ as: 'not_sent' });
  });

  it('that does not read gets a bounded number of bytes, and is killed in the end', async () => {
    const transport = createTransport('setInterval(() => {}, 1000)');
    const sent = Array.from({ length: 5 }, (_, i) => transport.exchange(outgoing(`m${i}`, LARGE)));
    const more = Array.from({ length: 15 }, (_, i) =>
      transport.exchange({ ...outgoing(`n${i}`, LARGE), timeoutMs: 400 }),
    );
    for (const one of more)
      expect(await one).toMatchObject({ as: 'not_sent', detail: expect.stringContaining('does not read') });
    const first = await Promise.race([sent[0], 'is on its way']);
    expect(first).toBe('is on its way');
    const queued = transport.exchange(outgoing('queued', LARGE));
    const later = performance.now() + 11_000;
    const clock = vi.spyOn(performance, 'now').mockReturnValue(later);
    await transport.exchange(outgoing('later')).finally(() => clock.mockRestore());
    expect(await sent[0]).toMatchObject({ as: 'lost', detail: expect.stringContaining('SIGKILL') });
    expect(await queued).toMatchObject({ as: 'not_sent', detail: expect.stringContaining('ended') });
  });

  it('that reads gets every message, however many are sent at once', async () => {
    const transport = createTransport(`
      require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
        const { id, params } = JSON.parse(line);
        console.log(JSON.stringify({ jsonrpc: '2.0', id, result: { length: params.text.length } }));
      });`);
    const ids = Array.from({ length: 40 }, (_, i) => `m${i}`);
    const all = await Promise.all(ids.map((id) => transport.exchange(outgoing(id, LARGE))));
    for (const [i, one] of all.entries())
      expect(one).toMatchObject({ as: 'answered', response: { id: ids[i], result: { length: LARGE.length } } });
  });

  it('that reads late gets the queued messages that can still be answered in time', async () => {
    // Nothing can tell the server process when to read, so it waits a second.
    const transport = createTransport(`
      setTimeout(() => require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
        console.log(JSON.stringify({ jsonrpc: '2.0', id: JSON.parse(line).id, result: {} }));
      }), 1_000);`);
    const sent = Array.from({ length: 5 }, (_, i) => transport.exchange(outgoing(`m${i}`, LARGE)));
    let sendChecks = 0;
    const maySend = () => {
      sendChecks += 1;
      return true;
    };
    const queued = transport.exchange({ ...outgoing('queued', LARGE), maySend });
    expect(sendChecks).toBe(0);
    for (const one of [...sent, queued]) expect(await one).toMatchObject({ as: 'answered' });
    expect(sendChecks).toBe(1);
  });
});
