import { AGENT_KEY } from '../../support/gateway.ts';

/** One request, byte for byte; `{wire}` stands for where nothing must arrive. */
export interface Trick {
  readonly name: string;
  readonly request: {
    readonly line: string;
    readonly headers?: readonly string[];
    readonly body?: string;
    /** Other than the one that is right. */
    readonly host?: string | null;
  };
  readonly status: number;
  /** How many requests the service may hear of. */
  readonly sent?: number;
}

const AUTH = `Authorization: Bearer ${AGENT_KEY}`;

export function requestOf({ line, headers = [], body, host = 'gateway' }: Trick['request'], places: { wire: string }) {
  const head = [
    `${line} HTTP/1.1`,
    ...(host === null ? [] : [`Host: ${host}`]),
    AUTH,
    ...(body === undefined ? [] : ['Content-Type: application/json', `Content-Length: ${body.length}`]),
    ...headers,
  ];
  return `${head.join('\r\n')}\r\n\r\n${body ?? ''}`.replaceAll('{wire}', places.wire);
}

const ITEM = 'GET /v1/proxy/world/items/a';
const CHARGE = 'POST /v1/proxy/world/charges';
const BODY = '{"amount":1}';

const path = (name: string, line: string, status = 403): Trick => ({
  name: `the path: ${name}`,
  request: { line },
  status,
});
/** A good request with something beside it that must make no difference. */
const idle = (name: string, ...headers: string[]): Trick => ({
  name: `a header that changes nothing: ${name}`,
  request: { line: ITEM, headers },
  status: 200,
  sent: 1,
});

export const WIRE_TRICKS: readonly Trick[] = [
  path('dots above the upstream', 'GET /v1/proxy/world/../../../admin', 403),
  path('dots inside', 'GET /v1/proxy/world/items/../charges'),
  path('encoded dots', 'GET /v1/proxy/world/items/%2e%2e', 400),
  path('encoded dots and slashes', 'GET /v1/proxy/world/items/%2e%2e%2fadmin', 400),
  path('encoded backslashes', 'GET /v1/proxy/world/items/..%5cadmin', 400),
  path('encoded twice', 'GET /v1/proxy/world/items/%252e%252e%252fadmin', 400),
  path('path parameters', 'GET /v1/proxy/world/items/..;/admin'),
  path('two slashes', 'GET /v1/proxy/world//items/a'),
  path('two slashes before all', 'GET //{wire}/v1/proxy/world/items/a', 404),
  path('an address instead of an upstream', 'GET /v1/proxy/{wire}/items/a'),
  path('a URL instead of an upstream', 'GET /v1/proxy/http:%2f%2f{wire}/items/a'),
  path('a URL instead of a path', 'GET /v1/proxy/world/http://{wire}/', 403),
  path('a NUL', 'GET /v1/proxy/world/items/a%00', 400),
  path('encoded line ends', 'GET /v1/proxy/world/items/a%0d%0aHost:%20{wire}', 400),
  path('broken UTF-8', 'GET /v1/proxy/world/items/%c0%ae%c0%ae', 400),
  path('a query that contradicts it', 'GET /v1/proxy/world/items/a?id=b', 400),
  path('a method that no tool has', 'DELETE /v1/proxy/world/items/a'),
  path('a tool that a rule denies', 'DELETE /v1/proxy/world/admin'),
  { name: 'an absolute URL of somebody else', request: { line: 'GET http://{wire}/' }, status: 200 },
  {
    name: 'an absolute URL with a path of ours',
    request: { line: ITEM.replace('/', 'http://{wire}/') },
    status: 200,
    sent: 1,
  },
  { name: 'an absolute URL with a user', request: { line: 'GET http://x@{wire}/v1/proxy/world/..' }, status: 403 },
  { name: 'CONNECT', request: { line: 'CONNECT {wire}', host: '{wire}' }, status: 0 },
  { name: 'OPTIONS *', request: { line: 'OPTIONS *' }, status: 404 },
  { name: 'TRACE', request: { line: 'TRACE /v1/proxy/world/items/a' }, status: 403 },
  { name: 'another Host', request: { line: ITEM, host: '{wire}' }, status: 200, sent: 1 },
  { name: 'no Host', request: { line: ITEM, host: null }, status: 400 },
  idle('X-Forwarded-*', 'X-Forwarded-Host: {wire}', 'X-Forwarded-For: 127.0.0.1', 'X-Forwarded-Proto: https'),
  idle('Forwarded', 'Forwarded: for=127.0.0.1;host={wire}'),
  idle('X-Original-URL and X-Rewrite-URL', 'X-Original-URL: /admin', 'X-Rewrite-URL: /admin'),
  idle('a method override', 'X-HTTP-Method-Override: DELETE', 'X-HTTP-Method: DELETE', 'X-Method-Override: DELETE'),
  idle('Connection that lists others', 'Connection: keep-alive, authorization, idempotency-key, host'),
  idle('a proxy’s own', 'Proxy-Authorization: Basic eDp5', 'Proxy-Connection: keep-alive', 'Via: 1.1 {wire}'),
  idle('Upgrade to WebSocket', 'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: x'),
  idle('Upgrade to HTTP/2', 'Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABk'),
  idle('Cookie and Referer', 'Cookie: session=admin', 'Referer: http://{wire}/', 'Origin: http://{wire}'),
  idle('the gateway’s own answers', 'Oncegate-Lock-Token: 999', 'Oncegate-Txn: 999', 'Oncegate-State: succeeded'),
  idle('Expect and Trailer', 'Expect: 100-continue', 'Trailer: Authorization', 'TE: trailers'),
  {
    name: 'a charge as it should be',
    request: { line: CHARGE, body: BODY, headers: ['Idempotency-Key: clever-1'] },
    status: 200,
    sent: 1,
  },
  {
    name: 'two keys',
    request: { line: CHARGE, body: BODY, headers: ['Idempotency-Key: a', 'Idempotency-Key: b'] },
    status: 400,
  },
  { name: 'two bearers', request: { line: ITEM, headers: [AUTH] }, status: 400 },
  { name: 'a folded header', request: { line: ITEM, headers: ['X-A: b', ' c'] }, status: 400 },
  { name: 'a space before the colon', request: { line: ITEM, headers: ['X-A : b'] }, status: 400 },
  { name: 'a header with a NUL', request: { line: ITEM, headers: ['X-A: \0'] }, status: 400 },
  { name: 'headers without end', request: { line: ITEM, headers: [`X-A: ${'a'.repeat(100_000)}`] }, status: 431 },
];

/** What a careless reader would take for another request than the gateway does: it is refused, or all of it is one request. */
const HIDDEN = `DELETE /v1/proxy/world/admin HTTP/1.1\r\nHost: gateway\r\n${AUTH}\r\n\r\n`;
const start = (...headers: string[]) =>
  [`${CHARGE} HTTP/1.1`, 'Host: gateway', AUTH, 'Content-Type: application/json', ...headers, '', ''].join('\r\n');

export const UNREADABLE: readonly { readonly name: string; readonly bytes: string; readonly answers?: number }[] = [
  {
    name: 'a length and chunks',
    bytes: `${start('Content-Length: 5', 'Transfer-Encoding: chunked')}0\r\n\r\n${HIDDEN}`,
  },
  {
    name: 'chunks and a length',
    bytes: `${start('Transfer-Encoding: chunked', `Content-Length: ${5 + HIDDEN.length}`)}0\r\n\r\n${HIDDEN}`,
  },
  { name: 'two lengths', bytes: `${start('Content-Length: 0', `Content-Length: ${HIDDEN.length}`)}${HIDDEN}` },
  { name: 'a list of lengths', bytes: `${start(`Content-Length: 0, ${HIDDEN.length}`)}${HIDDEN}` },
  { name: 'a negative length', bytes: `${start('Content-Length: -1')}${HIDDEN}` },
  { name: 'a hexadecimal length', bytes: `${start('Content-Length: 0x10')}${HIDDEN}` },
  { name: 'another coding', bytes: `${start('Transfer-Encoding: xchunked')}0\r\n\r\n${HIDDEN}` },
  { name: 'a coding after chunks', bytes: `${start('Transfer-Encoding: chunked, identity')}0\r\n\r\n${HIDDEN}` },
  { name: 'a coding twice', bytes: `${start('Transfer-Encoding: chunked', 'Transfer-Encoding: x')}0\r\n\r\n${HIDDEN}` },
  { name: 'a chunk longer than it says', bytes: `${start('Transfer-Encoding: chunked')}1\r\nxx\r\n0\r\n\r\n` },
  { name: 'a chunk without end', bytes: `${start('Transfer-Encoding: chunked')}fffffffffffffffff\r\nx` },
  { name: 'bare line feeds', bytes: `${start('X-A: b\nTransfer-Encoding: chunked')}0\r\n\r\n${HIDDEN}` },
  { name: 'HTTP/2', bytes: `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n${HIDDEN}` },
  { name: 'HTTP/0.9', bytes: `GET /v1/proxy/world/items/a\r\n${HIDDEN}` },
  {
    name: 'credentials in a trailer',
    answers: 1,
    bytes: `${start('Transfer-Encoding: chunked').replace(`${AUTH}\r\n`, '')}c\r\n${BODY}\r\n0\r\n${AUTH}\r\n\r\n`,
  },
];

/** Values for a place in a path that would leave it, if some server decoded them once too often. */
export const CLIMBERS = [
  ...[
    '..',
    '.',
    '../admin',
    '..\\admin',
    'x/../../admin',
    '%2e%2e/admin',
    '%2e%2e%2fadmin',
    '..%2fadmin',
    '..%5cadmin',
  ],
  ...['%252e%252e%252fadmin', '..;/admin', 'x/..;a=b/admin', '..?', '..#', '', 'x\0y', 'x\r\nHost: evil.example'],
  ...['x HTTP/1.1\r\nHost: evil.example\r\n\r\nGET /admin', 'x\ny', `x${'y'.repeat(20_000)}`],
];
/** And some that only look so. */
export const STAYERS = [
  ...[
    '//127.0.0.1/x',
    '/admin',
    'http://127.0.0.1/',
    '@127.0.0.1',
    'x@127.0.0.1:80',
    ':80',
    'x?admin=1',
    'x#y',
    'x;y=z',
  ],
  ...[
    '\\\\127.0.0.1\\share',
    'x y',
    '%',
    '%zz',
    '\uff0e\uff0e\uff0fadmin',
    '\u2024\u2024/admin',
    'x\u2028y',
    '*',
    '~',
    '$',
  ],
];
