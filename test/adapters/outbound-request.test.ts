import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type OutboundRequest, sendOutboundRequest } from '../../adapters/http/outbound-request.ts';

let server: Server;
let url: string;
const paths: string[] = [];

beforeAll(async () => {
  server = createServer((request, response) => {
    paths.push(request.url ?? '');
    if (request.url === '/large') response.end('x'.repeat(5_000));
    else if (request.url === '/half') response.writeHead(200, { 'content-length': '100' }).write('half');
    else if (request.url === '/cut')
      response.writeHead(200, { 'content-length': '100' }).write('half', () => response.destroy());
    else if (request.url === '/away') response.writeHead(302, { location: '/target' }).end();
    else if (request.url === '/fine?a=b') response.end('fine');
    // Any other path is never answered.
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});

const send = (path: string, more: Partial<OutboundRequest> = {}) =>
  sendOutboundRequest({
    url: url + path,
    method: 'GET',
    headers: {},
    allowPrivate: true,
    maxBytes: 1_000,
    timeoutMs: 300,
    ...more,
  });

it('returns status and body, and follows no redirect', async () => {
  expect(await send('/fine?a=b')).toMatchObject({ status: 200, body: 'fine' });
  expect(await send('/away')).toMatchObject({ status: 302 });
  expect(paths).not.toContain('/target');
});

it.each(['/silence', '/half'])('times out: %s', async (path) => {
  const started = performance.now();
  await expect(send(path)).rejects.toThrow();
  expect(performance.now() - started).toBeLessThan(2_000);
});

it('refuses an answer that is cut or too large', async () => {
  await expect(send('/cut')).rejects.toThrow();
  await expect(send('/large')).rejects.toThrow('larger than 1000 bytes');
});

it('connects to a private address only if that is allowed', async () => {
  const before = paths.length;
  await expect(send('/fine?a=b', { allowPrivate: false })).rejects.toThrow('private address');
  await expect(send('/fine?a=b', { allowPrivate: false, url: url.replace('127.0.0.1', 'localhost') })).rejects.toThrow(
    'private address',
  );
  expect(paths.length).toBe(before);
});
