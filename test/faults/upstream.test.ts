import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, readFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { beforeEach, describe, expect, it } from 'vitest';
import { useUpstream } from '../support/use-gateway.ts';
import { useResource } from '../support/use-resource.ts';
import { startTcpProxy } from './tcp-proxy.ts';

type Answer = { status: number; headers: http.IncomingHttpHeaders; text: string; json: Record<string, unknown> };
type SendOptions = { body?: unknown; headers?: Record<string, string>; port?: number; signal?: AbortSignal };

const upstream = useUpstream();
beforeEach(() => upstream.reset());

function send(method: string, path: string, { body, headers = {}, port = upstream.port, signal }: SendOptions = {}) {
  return new Promise<Answer>((resolve, reject) => {
    const options = { host: '127.0.0.1', port, method, path, headers, agent: false, ...(signal ? { signal } : {}) };
    const request = http.request(options, (response) => {
      const chunks: Buffer[] = [];
      response.on('error', reject);
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('end', () => {
        const text = Buffer.concat(chunks).toString('utf8');
        const json = text.startsWith('{') ? (JSON.parse(text) as Record<string, unknown>) : {};
        resolve({ status: response.statusCode ?? 0, headers: response.headers, text, json });
      });
    });
    request.on('error', reject);
    request.end(body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body));
  });
}
const order = (id: string, options: SendOptions = {}) => send('POST', '/probed/orders', { body: { id }, ...options });
const mail = (id: string, options: SendOptions = {}) => send('POST', '/none/mail', { body: { id }, ...options });
const charge = (id: string, key: string, amount = 1) =>
  send('POST', '/keyed/charge', { body: { id, amount }, headers: { 'idempotency-key': key } });

describe('the upstream handles requests', () => {
  it('keyed: one effect per key, the same answer to a repeat, and a counted 409 to another body', async () => {
    const first = await charge('a', 'k');
    const again = await charge('a', 'k');
    expect([first.status, again.status]).toEqual([200, 200]);
    expect(again.json).toEqual(first.json);
    expect(again.headers['idempotent-replayed']).toBe('true');
    expect((await charge('a', 'k', 2)).status).toBe(409);
    const report = await upstream.report('a');
    expect(report.count).toBe(1);
    expect(report.mismatches).toEqual([{ id: 'a', key: 'k', request: 3 }]);
    expect((await upstream.requests('a')).map((request) => request.key)).toEqual(['k', 'k', 'k']);
  });

  it('keyed by a body field: one effect per key, the same answer to a repeat, and a 409 to another body', async () => {
    const body = { id: 'f', meta: { key: 'k' } };
    const first = await send('POST', '/keyed-field/charge', { body });
    expect((await send('POST', '/keyed-field/charge', { body })).json).toEqual(first.json);
    expect((await send('POST', '/keyed-field/charge', { body: { ...body, amount: 2 } })).status).toBe(409);
    expect(await upstream.effects('f')).toHaveLength(1);
  });

  it('idempotent: counts every effect and keeps the last state', async () => {
    for (const v of [1, 2, 2]) await send('PUT', '/idempotent/objects/n%201', { body: { v } });
    expect((await send('GET', '/idempotent/objects/n%201')).json).toEqual({ id: 'n 1', object: { v: 2 } });
    expect((await send('DELETE', '/idempotent/objects/n%201')).status).toBe(200);
    expect((await send('DELETE', '/idempotent/objects/n%201')).status).toBe(404);
    expect((await upstream.effects('n 1')).map((entry) => entry.method)).toEqual(['PUT', 'PUT', 'PUT', 'DELETE']);
  });

  it('probed, none, read, echo and status: each counts or reports its effects', async () => {
    expect((await send('GET', '/probed/orders?id=o')).json).toEqual({ found: false, count: 0, order: null });
    await order('o');
    await order('o');
    expect((await send('GET', '/probed/orders?id=o')).json).toMatchObject({ found: true, count: 2, order: { t: 'o' } });
    await mail('m');
    await mail('m');
    expect(await upstream.effects('m')).toHaveLength(2);
    expect((await send('GET', '/read/items/r')).json).toMatchObject({ id: 'r' });
    expect(await upstream.report('r')).toMatchObject({ count: 0, reads: 1 });
    const echo = await send('POST', '/echo', { body: { id: 'e' }, headers: { 'x-a': 'b' } });
    expect(echo.json).toMatchObject({ headers: { 'x-a': 'b' }, body: { id: 'e' } });
    expect(await upstream.effects('e')).toHaveLength(1);
    expect((await send('PATCH', '/status/418?id=s', { body: {} })).status).toBe(418);
    expect((await send('POST', '/status/204')).status).toBe(204);
    expect(await upstream.effects('s')).toEqual([]);
    expect(await upstream.report()).toMatchObject({ count: 5, probes: 2 });
  });
});

describe('a fault plan', () => {
  const probe = async (id: string) => (await send('GET', `/probed/orders?id=${id}`)).json['found'];

  it.each(['drop', 'reset', 'garbage', 'partial'] as const)(
    'applies and then does %s: the effect exists, and the caller gets no answer',
    async (step) => {
      await upstream.plan({ match: { id: 'x' }, do: ['apply', step] });
      await expect(order('x')).rejects.toThrow();
      expect(await upstream.effects('x')).toHaveLength(1);
      await expect(order('y')).resolves.toMatchObject({ status: 200 });
    },
  );

  it('drops without apply: there is no effect', async () => {
    await upstream.plan({ match: { id: 'x' }, do: ['drop'] });
    await expect(order('x')).rejects.toThrow();
    expect(await upstream.effects('x')).toEqual([]);
    expect(await upstream.requests('x')).toHaveLength(1);
  });

  it('answers partial: declares the whole length and sends half of it', async () => {
    await upstream.plan({ do: ['apply', 'partial'] });
    const socket = net.connect(upstream.port, '127.0.0.1');
    socket.write('POST /none/mail?id=p HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n');
    let text = '';
    socket.on('data', (chunk) => (text += chunk));
    await once(socket, 'close');
    const [head = '', body = ''] = text.split('\r\n\r\n');
    const declared = Number(/content-length: (\d+)/i.exec(head)?.[1]);
    expect(head).toMatch(/^HTTP\/1.1 200/);
    expect(body).toHaveLength(declared >> 1);
  });

  it('answers with a status after or before the effect', async () => {
    await upstream.plan({ match: { id: 'x', nth: 2 }, do: ['apply', { reply: 500 }] });
    await upstream.plan({ match: { id: 'x', nth: 3 }, do: [{ reply: 503, body: { why: 'busy' } }] });
    const answers = [await mail('x'), await mail('x'), await mail('x'), await mail('x')];
    expect(answers.map((answer) => answer.status)).toEqual([200, 500, 503, 200]);
    expect(answers[2]?.json).toEqual({ why: 'busy' });
    expect(await upstream.effects('x')).toHaveLength(3);
  });

  it('redirects without an effect', async () => {
    await upstream.plan({ match: { path: '/none/*', method: 'POST' }, do: [{ redirect: '/echo' }] });
    expect(await mail('x')).toMatchObject({ status: 302, headers: { location: '/echo' } });
    expect(await upstream.effects()).toEqual([]);
  });

  it('applies once, n times or always', async () => {
    await upstream.plan({ match: { id: 'a' }, do: [{ reply: 500 }], times: 2 });
    await upstream.plan({ match: { id: 'b' }, do: [{ reply: 500 }], times: 'always' });
    const statuses = async (id: string) => [await mail(id), await mail(id), await mail(id)].map((a) => a.status);
    expect(await statuses('a')).toEqual([500, 500, 200]);
    expect(await statuses('b')).toEqual([500, 500, 500]);
  });

  it('hangs until the caller leaves, and reports that it left', async () => {
    await upstream.plan({ match: { id: 'h' }, do: ['hang'] });
    const controller = new AbortController();
    const answer = mail('h', { signal: controller.signal });
    await upstream.awaitEvent('received:h');
    expect(await upstream.connections()).toMatchObject({ concurrent: 1, maxConcurrent: 1 });
    controller.abort();
    await expect(answer).rejects.toThrow();
    await upstream.awaitEvent('closed:h');
    expect(await upstream.effects('h')).toEqual([]);
  });

  it('applies after the socket is closed', async () => {
    await upstream.plan({ match: { id: 'l' }, do: [{ 'late-apply': 50 }, 'drop'] });
    await expect(order('l')).rejects.toThrow();
    expect(await probe('l')).toBe(false);
    await upstream.awaitEvent('applied:l');
    expect(await probe('l')).toBe(true);
  });

  it('hides an effect from the probe for a while', async () => {
    await upstream.plan({ match: { id: 'z', method: 'POST' }, do: [{ lie: 300 }, 'apply'] });
    await order('z');
    expect(await probe('z')).toBe(false);
    const [effect] = await upstream.effects('z');
    while (Date.now() < (effect?.at ?? 0) + 300) await upstream.connections();
    expect(await probe('z')).toBe(true);
  });

  it('waits until the test releases it', async () => {
    await upstream.plan({ match: { id: 'w' }, do: [{ event: 'in' }, { wait: 'go' }, 'apply', { reply: 201 }] });
    const answer = mail('w');
    await upstream.awaitEvent('in');
    expect(await upstream.effects('w')).toEqual([]);
    await upstream.release('go');
    expect((await answer).status).toBe(201);
    await expect(upstream.awaitEvent('in', 2, 1)).rejects.toThrow('seen 1 of 2 times');
  });

  it('does not wait if its release came first', async () => {
    await upstream.release('go');
    await upstream.plan({ do: [{ wait: 'go' }] });
    expect((await mail('w')).status).toBe(200);
  });

  it('answers with as many bytes as planned', async () => {
    for (const bytes of [0, 9, 10, 3_000_000]) {
      await upstream.plan({ do: [{ big: bytes }] });
      expect((await send('GET', '/read/items/b')).text).toHaveLength(bytes);
    }
  });

  it('kills or stops other processes before it answers', async () => {
    const victim = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { stdio: 'ignore' });
    const exited = once(victim, 'exit');
    const pid = victim.pid ?? -1;
    try {
      await upstream.plan({ match: { id: 's' }, do: ['apply', { stop: pid }] });
      await mail('s');
      expect(readFileSync(`/proc/${pid}/stat`, 'latin1')).toMatch(/\) T /);
    } finally {
      await upstream.plan({ match: { id: 'k' }, do: ['apply', { kill: pid }, { 'kill-all': [pid] }] });
      await mail('k');
    }
    expect(await exited).toEqual([null, 'SIGKILL']);
  });

  it('is refused if it has a mistake', async () => {
    const plans: unknown[] = [{ do: ['explode'] }, { do: [{ kill: 0 }] }, { do: [{ kill: -1 }] }, { do: 'drop' }, 7];
    plans.push(
      { match: { nth: 0 }, do: [] },
      { match: { agent: 'x' }, do: [] },
      { do: [], times: 0 },
      { do: ['delay'] },
    );
    plans.push(
      { do: [{ kill: 4_000_000, signal: 'SIGNOTHING' }] },
      { do: ['toString'] },
      { do: [{ 'kill-all': [1] }] },
    );
    for (const plan of plans) await expect(upstream.plan(plan as never)).rejects.toThrow(/400/);
  });

  it('ends with a reset, and so do requests in flight', async () => {
    await upstream.plan({ match: { id: 'w' }, do: [{ wait: 'never' }, 'apply'] });
    await upstream.plan({ match: { id: 'l' }, do: [{ 'late-apply': 20 }, { reply: 202 }] });
    const waiting = mail('w');
    await upstream.awaitEvent('received:w');
    await mail('l');
    const cut = expect(waiting).rejects.toThrow();
    await upstream.reset();
    await cut;
    await upstream.plan({ do: [{ delay: 40 }] });
    await mail('after');
    expect((await upstream.effects()).map((entry) => entry.id)).toEqual(['after']);
  });
});

describe('the upstream process', () => {
  it('keeps effects, keys, objects and requests when it is killed and restarted', async () => {
    const first = await charge('a', 'k');
    await send('PUT', '/idempotent/objects/o', { body: { v: 1 } });
    await upstream.plan({ match: { id: 'd' }, do: ['apply', { kill: upstream.pid }] });
    await expect(mail('d')).rejects.toThrow();
    const port = upstream.port;
    appendFileSync(upstream.journal, '{"n":4,"id":"torn"'); // a kill in the middle of a write leaves such a line
    await upstream.restart();
    expect(upstream.port).toBe(port);
    expect((await upstream.effects()).map((entry) => entry.id)).toEqual(['a', 'o', 'd']);
    expect((await upstream.requests()).map((request) => request.id)).toEqual(['a', 'o', 'd']);
    expect((await charge('a', 'k')).json).toEqual(first.json);
    expect((await send('GET', '/idempotent/objects/o')).json['object']).toEqual({ v: 1 });
    await mail('after');
    expect((await upstream.effects()).map((entry) => entry.n)).toEqual([1, 2, 3, 4]);
  });

  it('survives input that is not HTTP, not JSON or not complete', async () => {
    const pid = upstream.pid;
    const sendRaw = async (bytes: string) => {
      const socket = net.connect(upstream.port, '127.0.0.1', () => socket.end(bytes));
      socket.on('error', () => {});
      socket.resume();
      await once(socket, 'close');
    };
    await sendRaw('\x00\x01\x02\r\n\r\n');
    await sendRaw('GET http://%zz/ HTTP/1.1\r\nhost: x\r\n\r\n');
    await sendRaw('CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n');
    await sendRaw('POST /none/mail?id=half HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"id":');
    await upstream.awaitEvent('cut:half');
    expect(await upstream.requests('half')).toMatchObject([{ complete: false, bodySha256: null }]);
    for (const body of ['{', 'null', '[]', '7', '"x"', '{"id":{}}', '{"__proto__":{"id":1}}', '{"meta":null}']) {
      for (const path of ['/keyed-field/charge', '/none/mail', '/echo', '/_plan', '/_release']) {
        expect((await send('POST', path, { body })).status).toBeLessThan(500);
      }
    }
    const deep = await send('POST', '/none/mail', {
      body: `{"id":"deep","a":${'['.repeat(200_000)}${']'.repeat(200_000)}}`,
    });
    expect([200, 400, 500]).toContain(deep.status);
    for (const path of [
      '/status/99',
      '/status/abc',
      '/idempotent/objects/%ff',
      '//',
      '/?%%%',
      '/_await?count=-1',
      '/_nothing',
    ]) {
      expect((await send('GET', path)).status).toBeLessThan(500);
    }
    expect((await mail('alive')).status).toBe(200);
    expect(upstream.pid).toBe(pid);
    expect(await upstream.effects('half')).toEqual([]);
  });

  it('numbers connections and does not count control connections', async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    const readOverKeepAlive = () =>
      new Promise<void>((resolve, reject) => {
        const request = http.get(
          { port: upstream.port, host: '127.0.0.1', path: '/read/items/c', agent },
          (response) => {
            response.resume().on('end', resolve);
          },
        );
        request.on('error', reject);
      });
    await readOverKeepAlive();
    await readOverKeepAlive();
    expect((await upstream.requests('c')).map((request) => request.connectionSerial)).toEqual([1, 1]);
    expect(await upstream.connections()).toMatchObject({ total: 1, open: 1 });
    agent.destroy();
    await send('GET', '/read/items/c');
    expect((await upstream.requests('c')).at(-1)?.connectionSerial).toBe(2);
  });
});

describe('the TCP proxy', () => {
  const proxy = useResource(
    () => startTcpProxy({ targetPort: upstream.port }),
    (started) => started.close(),
  );
  beforeEach(() => proxy.pass());
  const mailThroughProxy = (id: string) => mail(id, { port: proxy.port });
  const isMail = (chunk: Buffer) => chunk.includes('/none/mail');

  it('passes bodies that are larger than any buffer', async () => {
    await upstream.plan({ do: [{ big: 20_000_000 }] });
    expect((await send('GET', '/read/items/b', { port: proxy.port })).text).toHaveLength(20_000_000);
    const body = { id: 'big', pad: 'x'.repeat(5_000_000) };
    expect((await send('POST', '/none/mail', { port: proxy.port, body })).status).toBe(200);
    expect(proxy.counters.serverBytes).toBeGreaterThan(20_000_000);
  });

  it('refuses connections, and listens again on the same port', async () => {
    await proxy.refuse();
    await expect(mailThroughProxy('r')).rejects.toThrow('ECONNREFUSED');
    await proxy.pass();
    expect((await mailThroughProxy('r')).status).toBe(200);
  });

  it('cuts open connections', async () => {
    await upstream.plan({ match: { id: 'c' }, do: ['hang'], times: 'always' });
    for (const [i, options] of [{}, { reset: true }].entries()) {
      const answer = expect(mailThroughProxy('c')).rejects.toThrow();
      await upstream.awaitEvent('received:c', i + 1);
      proxy.cut(options);
      await answer;
    }
    await upstream.awaitEvent('closed:c', 2);
    expect(proxy.counters.open).toBe(0);
  });

  it('holds bytes in both directions until resumed', async () => {
    proxy.stall();
    const before = proxy.counters.clientBytes;
    const answer = mailThroughProxy('s');
    while (proxy.counters.clientBytes === before) await upstream.connections();
    expect(await upstream.requests('s')).toEqual([]);
    proxy.resume();
    expect((await answer).status).toBe(200);

    await upstream.plan({ match: { id: 't' }, do: ['apply', { wait: 'stalled' }] });
    const second = mailThroughProxy('t');
    await upstream.awaitEvent('applied:t');
    proxy.stall();
    const answered = proxy.counters.serverBytes;
    await upstream.release('stalled');
    while (proxy.counters.serverBytes === answered) await upstream.connections();
    expect(await Promise.race([second.then(() => 'answered'), upstream.connections().then(() => 'held')])).toBe('held');
    proxy.resume();
    expect((await second).status).toBe(200);
  });

  it('delays chunks in both directions', async () => {
    proxy.delay(40);
    const started = performance.now();
    await mailThroughProxy('d');
    expect(performance.now() - started).toBeGreaterThan(75);
  });

  it('cuts before the chunk, so that the request fails and is not persisted', async () => {
    const cut = proxy.cutAfterClientBytes(isMail, { forward: false });
    await expect(mailThroughProxy('n')).rejects.toThrow();
    expect(await cut).toBe(true);
    expect(await upstream.requests('n')).toEqual([]);
    expect((await mailThroughProxy('n')).status).toBe(200);
  });

  it('cuts after the answer to the chunk, so that the request fails but is persisted', async () => {
    const cut = proxy.cutAfterClientBytes(isMail, { forward: true, answered: (chunk) => chunk.includes('eff_') });
    await expect(mailThroughProxy('p')).rejects.toThrow();
    expect(await cut).toBe(true);
    expect(await upstream.effects('p')).toHaveLength(1);
    expect((await mailThroughProxy('p')).status).toBe(200);
  });

  it('cuts when the server closes instead of answering', async () => {
    await upstream.plan({ match: { id: 'q' }, do: ['apply', 'drop'] });
    const cut = proxy.cutAfterClientBytes(isMail, { forward: true });
    await expect(mailThroughProxy('q')).rejects.toThrow();
    expect(await cut).toBe(true);
  });

  it('counts the bytes of each connection, and pass() disarms a cut', async () => {
    const totals: number[] = [];
    const cut = proxy.cutAfterClientBytes(
      (chunk, total) => {
        totals.push(total - chunk.length);
        return false;
      },
      { forward: false },
    );
    await mailThroughProxy('u');
    expect(totals[0]).toBe(0);
    await proxy.pass();
    expect(await cut).toBe(false);
  });

  it('drops a client if its target does not listen', async () => {
    const untargeted = await startTcpProxy({ targetPort: 1 });
    try {
      await expect(mail('o', { port: untargeted.port })).rejects.toThrow();
      expect(untargeted.counters).toMatchObject({ accepted: 1, open: 0 });
    } finally {
      await untargeted.close();
    }
  });
});
