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
const ended: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const end of ended.splice(0)) await end();
});

describe('a server over HTTP', () => {
  /** It answers every request as `answer` says, and never takes what it is answered. */
  async function peerOf(answer: (message: { id: Json; method: string }, response: ServerResponse) => void) {
    const read = async (request: IncomingMessage) => JSON.parse(Buffer.concat(await request.toArray()).toString());
    let untaken = 0;
    const server: Server = createServer(async (request, response) => {
      const message = await read(request);
      if (message.method === undefined) untaken += 1;
      else if (message.method !== 'server/discover') answer(message, response);
      else response.end(JSON.stringify(result(message.id, { supportedVersions: ['2026-07-28'], capabilities: {} })));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`;
    const upstream = { url, allowPrivate: true, timeoutMs: 5_000, headers: {}, concurrency: 2 } as unknown as Upstream;
    const peer = new McpUpstreamClient(new McpHttpTransport(upstream, url));
    ended.push(() => {
      server.closeAllConnections();
      server.close();
      return peer.close();
    });
    return { peer, untaken: () => untaken };
  }
  const result = (id: Json, value: Json) => ({ jsonrpc: '2.0', id, result: value });

  it('that asks back without end has a few answers on their way, and its call is answered', async () => {
    const { peer, untaken } = await peerOf(({ id }, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(`data: ${PING}\n\n`.repeat(5_000));
      // Only once as many answers are on their way as may be.
      const isFull = () => untaken() >= MAX_PENDING_REPLIES;
      void pollUntil(isFull).then(() => response.write(`data: ${JSON.stringify(result(id, {}))}\n\n`));
    });
    const asked = { id: 'a', method: 'tools/call', params: {}, timeoutMs: 5_000 };
    expect(await peer.request(asked)).toMatchObject({ as: 'answered' });
    await expect.poll(untaken).toBe(MAX_PENDING_REPLIES);
    await sleep(300);
    expect(untaken()).toBe(MAX_PENDING_REPLIES);
  });

  it('that begins news without an end is not listened to any longer', async () => {
    let sent = 0;
    const { peer } = await peerOf((_message, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const more = () => {
        sent += 50_000;
        if (!response.destroyed) response.write(`data: ${'x'.repeat(50_000)}\n`, more);
      };
      more();
    });
    const began = performance.now();
    await peer.listen({}, 5_000, 20_000);
    expect(performance.now() - began).toBeLessThan(10_000);
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
  ])('that tells of a call without end, %s, is heard as far as its answer may be long', async (_, type, written) => {
    const { peer } = await peerOf(async ({ id }, response) => {
      response.writeHead(200, { 'content-type': type });
      for (let i = 0; i < 1_000; i += 10)
        await new Promise((resolve) => response.write(written(progress).repeat(10), resolve));
      // A chunk of its own, as a server that does something between the two would send it.
      setTimeout(() => response.end(written(JSON.stringify(result(id, {})))), 100);
    });
    let heard = 0;
    const tell = () => {
      heard += 1;
    };
    const ask = () => Promise.reject(new Error('not asked'));
    const listener = { era: 'modern', capabilities: {}, meta: {}, tell, ask } as const;
    const asked = { id: 'a', method: 'tools/call', params: {}, timeoutMs: 20_000, maxBytes: 1_000_000, listener };
    expect(await peer.request(asked)).toMatchObject({ as: 'answered' });
    expect(heard).toBeGreaterThan(100);
    expect(heard).toBeLessThan(120);
  });

  it.each([
    ['as a stream', 'text/event-stream', 'lost', (text: string) => `data: ${text}\n\n`],
    ['as it is', 'application/json', 'status', (text: string) => text],
  ])('that answers more than it may, %s, has not answered', async (_, type, as, written) => {
    const { peer } = await peerOf(({ id }, response) => {
      response.writeHead(200, { 'content-type': type });
      response.end(written(JSON.stringify(result(id, { text: 'ä'.repeat(5_010) }))));
    });
    const asked = { id: 'a', method: 'tools/call', params: {}, timeoutMs: 20_000, maxBytes: 10_000 };
    expect(await peer.request(asked)).toMatchObject({ as });
  });

  it('that told very much news is listened to anew, so that what it tells next is heard', async () => {
    const { peer } = await peerOf((_message, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const more = () => response.destroyed || response.write(`data: ${progress}\n\n`.repeat(500), more);
      more();
    });
    const began = performance.now();
    await peer.listen({}, 5_000, 50_000);
    expect(performance.now() - began).toBeLessThan(40_000);
  });

  it('is called though everything that is read from it hangs', async () => {
    const { peer } = await peerOf(({ id, method }, response) => {
      if (method === 'tools/call') response.end(JSON.stringify(result(id, {})));
    });
    const asked = { params: {}, timeoutMs: 5_000 };
    for (let i = 0; i < 200; i += 1) void peer.request({ ...asked, id: `r${i}`, method: 'resources/read' });
    expect(await peer.request({ ...asked, id: 'c', method: 'tools/call' })).toMatchObject({ as: 'answered' });
  });
});

describe('an older server over HTTP', () => {
  const GREETED = { result: { protocolVersion: '2025-11-25', capabilities: {} } };

  /** It answers each subscription as `subscribed` says. */
  async function adapterOf(subscribed: (uri: string) => object, initialized: object = GREETED, secrets: string[] = []) {
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
    ended.push(() => {
      server.closeAllConnections();
      server.close();
      return adapter.close();
    });
    return adapter;
  }

  it('that does not take a greeting is quoted in a few words, none of them its credential', async () => {
    const secret = 'of-the-gateway-alone';
    const message = `${'x'.repeat(940)}${secret}\0${'y'.repeat(500_000)}`;
    const adapter = await adapterOf(() => ({}), { error: { code: -32603, message } }, [secret]);
    const failed = await adapter.request('resources/list', {}).catch((error: Error) => error.message);
    expect(failed).toMatch(/^u: the MCP handshake failed: x+\[redacted\]\uFFFDy*$/);
    expect(String(failed).length).toBeLessThan(1_100);
  });

  it('is asked to watch a bounded number of resources, however many are wanted at once', async () => {
    const asked = new Set<string>();
    const adapter = await adapterOf((uri) => {
      asked.add(uri);
      return { result: {} };
    });
    await Promise.all(Array.from({ length: 400 }, (_, i) => adapter.subscribeToResource(`notes://${i}`)));
    expect(asked.size).toBe(256);
  });

  it('that did not take a subscription is asked for it again', async () => {
    let times = 0;
    const adapter = await adapterOf(() => {
      times += 1;
      return times === 1 ? { error: { code: -32603, message: 'not now' } } : { result: {} };
    });
    await expect(adapter.subscribeToResource('notes://1')).rejects.toThrow('not now');
    await adapter.subscribeToResource('notes://1');
    await adapter.subscribeToResource('notes://1');
    expect(times).toBe(2);
  });
});

const LARGE = 'x'.repeat(1_000_000);

describe('a server over standard streams', () => {
  const wireOf = (script: string) => {
    const wire = new McpStdioTransport([process.execPath, '-e', script], {});
    ended.push(() => wire.close());
    return wire;
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

  it('that asks back without end, and does not read, has few answers waiting', async () => {
    const pings = 200_000;
    const wire = wireOf(`
      let asked = '', answers = 0;
      const count = (chunk) => { answers += String(chunk).split('"result":{}').length - 1; };
      const tell = () => console.log(JSON.stringify({ jsonrpc: '2.0', id: JSON.parse(asked).id, result: { answers } }));
      process.stdin.once('data', (chunk) => {
        process.stdin.pause();
        asked = String(chunk).split('\\n')[0];
        const pings = ${JSON.stringify(`${PING}\n`)}.repeat(${pings / 100});
        let left = 100;
        const flood = () => {
          if (left-- > 0) return process.stdout.write(pings, flood);
          process.stdin.on('data', count).resume();
          // Time to read all answers that waited: nothing marks the last of them.
          setTimeout(tell, 1000);
        };
        flood();
      });`);
    new McpUpstreamClient(wire);
    const answered = await wire.exchange(outgoing('a'));
    const { answers } = (answered as unknown as { response: { result: { answers: number } } }).response.result;
    expect(answers).toBeGreaterThan(0);
    expect(answers).toBeLessThan(pings / 10);
  });

  it('that tells of a call without end is heard as far as its answer may be long', async () => {
    const wire = wireOf(`
      process.stdin.once('data', () => {
        const params = { progressToken: 'a', message: 'x'.repeat(9_000) };
        const progress = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/progress', params }) + '\\n';
        process.stdout.write(progress.repeat(1_000));
        console.log('{"jsonrpc":"2.0","id":"a","result":{}}');
      });`);
    let heard = 0;
    const told = () => {
      heard += 1;
    };
    expect(await wire.exchange({ ...outgoing('a'), onMessage: told })).toMatchObject({ as: 'answered' });
    expect(heard).toBeGreaterThan(100);
    expect(heard).toBeLessThan(120);
  });

  it('that cannot even be tried to start is not sent to', async () => {
    const wire = new McpStdioTransport(['no\0program'], {});
    expect(await wire.exchange(outgoing('a'))).toMatchObject({ as: 'not_sent' });
  });

  it('that does not read is sent no more than it may keep waiting, and is stopped in the end', async () => {
    const wire = wireOf('setInterval(() => {}, 1000)');
    const sent = Array.from({ length: 5 }, (_, i) => wire.exchange(outgoing(`m${i}`, LARGE)));
    const more = Array.from({ length: 15 }, (_, i) => wire.exchange({ ...outgoing(`n${i}`, LARGE), timeoutMs: 400 }));
    for (const one of more)
      expect(await one).toMatchObject({ as: 'not_sent', detail: expect.stringContaining('does not read') });
    const first = await Promise.race([sent[0], 'is on its way']);
    expect(first).toBe('is on its way');
    const waits = wire.exchange(outgoing('waits', LARGE));
    const later = performance.now() + 11_000;
    const clock = vi.spyOn(performance, 'now').mockReturnValue(later);
    await wire.exchange(outgoing('later')).finally(() => clock.mockRestore());
    expect(await sent[0]).toMatchObject({ as: 'lost', detail: expect.stringContaining('SIGKILL') });
    expect(await waits).toMatchObject({ as: 'not_sent', detail: expect.stringContaining('ended') });
  });

  it('that reads is sent everything, however much is asked of it at once', async () => {
    const wire = wireOf(`
      require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
        const { id, params } = JSON.parse(line);
        console.log(JSON.stringify({ jsonrpc: '2.0', id, result: { length: params.text.length } }));
      });`);
    const ids = Array.from({ length: 40 }, (_, i) => `m${i}`);
    const all = await Promise.all(ids.map((id) => wire.exchange(outgoing(id, LARGE))));
    for (const [i, one] of all.entries())
      expect(one).toMatchObject({ as: 'answered', response: { id: ids[i], result: { length: LARGE.length } } });
  });

  it('that reads late is sent what waited while there still is time for its answer', async () => {
    // The server is a process without a way to tell it when to read: a second is what "late" means here.
    const wire = wireOf(`
      setTimeout(() => require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
        console.log(JSON.stringify({ jsonrpc: '2.0', id: JSON.parse(line).id, result: {} }));
      }), 1_000);`);
    const sent = Array.from({ length: 5 }, (_, i) => wire.exchange(outgoing(`m${i}`, LARGE)));
    let asked = 0;
    const maySend = () => {
      asked += 1;
      return true;
    };
    const waits = wire.exchange({ ...outgoing('waits', LARGE), maySend });
    expect(asked).toBe(0);
    for (const one of [...sent, waits]) expect(await one).toMatchObject({ as: 'answered' });
    expect(asked).toBe(1);
  });
});
