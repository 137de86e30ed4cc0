import { AGENT_KEY } from '../../support/gateway.ts';

/** A request, sent unchanged. `{forbidden}` stands for the address that must not be contacted. */
export interface HttpAttack {
  readonly name: string;
  readonly request: {
    readonly line: string;
    readonly headers?: readonly string[];
    readonly body?: string;
    /** The Host header, if not the right one. Null leaves it out. */
    readonly host?: string | null;
  };
  readonly status: number;
  /** How many requests reach the service. */
  readonly sent?: number;
}

const AUTH = `Authorization: Bearer ${AGENT_KEY}`;

export function renderAttackRequest(
  { line, headers = [], body, host = 'gateway' }: HttpAttack['request'],
  forbiddenHost: string,
) {
  const head = [
    `${line} HTTP/1.1`,
    ...(host === null ? [] : [`Host: ${host}`]),
    AUTH,
    ...(body === undefined ? [] : ['Content-Type: application/json', `Content-Length: ${body.length}`]),
    ...headers,
  ];
  return `${head.join('\r\n')}\r\n\r\n${body ?? ''}`.replaceAll('{forbidden}', forbiddenHost);
}

const ITEM = 'GET /v1/proxy/world/items/a';
const CHARGE = 'POST /v1/proxy/world/charges';
const BODY = '{"amount":1}';

const pathAttack = (name: string, line: string, status = 403): HttpAttack => ({
  name: `the path: ${name}`,
  request: { line },
  status,
});
/** A valid request with extra headers that must not matter. */
const ignoredHeaderAttack = (name: string, ...headers: string[]): HttpAttack => ({
  name: `a header that changes nothing: ${name}`,
  request: { line: ITEM, headers },
  status: 200,
  sent: 1,
});

export const HTTP_ATTACKS: readonly HttpAttack[] = [
  pathAttack('dots above the upstream', 'GET /v1/proxy/world/../../../admin', 403),
  pathAttack('dots inside', 'GET /v1/proxy/world/items/../charges'),
  pathAttack('encoded dots', 'GET /v1/proxy/world/items/%2e%2e', 400),
  pathAttack('encoded dots and slashes', 'GET /v1/proxy/world/items/%2e%2e%2fadmin', 400),
  pathAttack('encoded backslashes', 'GET /v1/proxy/world/items/..%5cadmin', 400),
  pathAttack('encoded twice', 'GET /v1/proxy/world/items/%252e%252e%252fadmin', 400),
  pathAttack('path parameters', 'GET /v1/proxy/world/items/..;/admin'),
  pathAttack('two slashes', 'GET /v1/proxy/world//items/a'),
  pathAttack('two slashes at the start', 'GET //{forbidden}/v1/proxy/world/items/a', 404),
  pathAttack('an address instead of an upstream', 'GET /v1/proxy/{forbidden}/items/a'),
  pathAttack('a URL instead of an upstream', 'GET /v1/proxy/http:%2f%2f{forbidden}/items/a'),
  pathAttack('a URL instead of a path', 'GET /v1/proxy/world/http://{forbidden}/', 403),
  pathAttack('a NUL', 'GET /v1/proxy/world/items/a%00', 400),
  pathAttack('encoded line ends', 'GET /v1/proxy/world/items/a%0d%0aHost:%20{forbidden}', 400),
  pathAttack('broken UTF-8', 'GET /v1/proxy/world/items/%c0%ae%c0%ae', 400),
  pathAttack('a query that contradicts it', 'GET /v1/proxy/world/items/a?id=b', 400),
  pathAttack('a method that no tool has', 'DELETE /v1/proxy/world/items/a'),
  pathAttack('a tool that a rule denies', 'DELETE /v1/proxy/world/admin'),
  { name: 'an absolute URL of another server', request: { line: 'GET http://{forbidden}/' }, status: 200 },
  {
    name: 'an absolute URL with a path of ours',
    request: { line: ITEM.replace('/', 'http://{forbidden}/') },
    status: 200,
    sent: 1,
  },
  { name: 'an absolute URL with a user', request: { line: 'GET http://x@{forbidden}/v1/proxy/world/..' }, status: 403 },
  { name: 'CONNECT', request: { line: 'CONNECT {forbidden}', host: '{forbidden}' }, status: 0 },
  { name: 'OPTIONS *', request: { line: 'OPTIONS *' }, status: 404 },
  { name: 'TRACE', request: { line: 'TRACE /v1/proxy/world/items/a' }, status: 403 },
  { name: 'another Host', request: { line: ITEM, host: '{forbidden}' }, status: 200, sent: 1 },
  { name: 'no Host', request: { line: ITEM, host: null }, status: 400 },
  ignoredHeaderAttack(
    'X-Forwarded-*',
    'X-Forwarded-Host: {forbidden}',
    'X-Forwarded-For: 127.0.0.1',
    'X-Forwarded-Proto: https',
  ),
  ignoredHeaderAttack('Forwarded', 'Forwarded: for=127.0.0.1;host={forbidden}'),
  ignoredHeaderAttack('X-Original-URL and X-Rewrite-URL', 'X-Original-URL: /admin', 'X-Rewrite-URL: /admin'),
  ignoredHeaderAttack(
    'a method override',
    'X-HTTP-Method-Override: DELETE',
    'X-HTTP-Method: DELETE',
    'X-Method-Override: DELETE',
  ),
  ignoredHeaderAttack('Connection that lists others', 'Connection: keep-alive, authorization, idempotency-key, host'),
  ignoredHeaderAttack(
    'headers of a proxy',
    'Proxy-Authorization: Basic eDp5',
    'Proxy-Connection: keep-alive',
    'Via: 1.1 {forbidden}',
  ),
  ignoredHeaderAttack('Upgrade to WebSocket', 'Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: x'),
  ignoredHeaderAttack(
    'Upgrade to HTTP/2',
    'Connection: Upgrade, HTTP2-Settings',
    'Upgrade: h2c',
    'HTTP2-Settings: AAMAAABk',
  ),
  ignoredHeaderAttack(
    'Cookie and Referer',
    'Cookie: session=admin',
    'Referer: http://{forbidden}/',
    'Origin: http://{forbidden}',
  ),
  ignoredHeaderAttack(
    'response headers of the gateway',
    'Oncegate-Lock-Token: 999',
    'Oncegate-Txn: 999',
    'Oncegate-State: succeeded',
  ),
  ignoredHeaderAttack('Expect and Trailer', 'Expect: 100-continue', 'Trailer: Authorization', 'TE: trailers'),
  {
    name: 'a correct charge',
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
  { name: 'headers that are too long', request: { line: ITEM, headers: [`X-A: ${'a'.repeat(100_000)}`] }, status: 431 },
];

/** Bytes that a careless parser reads as a second request. The gateway must refuse them or read them as part of the first. */
const SMUGGLED_REQUEST = `DELETE /v1/proxy/world/admin HTTP/1.1\r\nHost: gateway\r\n${AUTH}\r\n\r\n`;
const renderChargeHead = (...headers: string[]) =>
  [`${CHARGE} HTTP/1.1`, 'Host: gateway', AUTH, 'Content-Type: application/json', ...headers, '', ''].join('\r\n');

export const SMUGGLING_ATTACKS: readonly {
  readonly name: string;
  readonly bytes: string;
  readonly answers?: number;
}[] = [
  {
    name: 'a length and chunks',
    bytes: `${renderChargeHead('Content-Length: 5', 'Transfer-Encoding: chunked')}0\r\n\r\n${SMUGGLED_REQUEST}`,
  },
  {
    name: 'chunks and a length',
    bytes: `${renderChargeHead('Transfer-Encoding: chunked', `Content-Length: ${5 + SMUGGLED_REQUEST.length}`)}0\r\n\r\n${SMUGGLED_REQUEST}`,
  },
  {
    name: 'two lengths',
    bytes: `${renderChargeHead('Content-Length: 0', `Content-Length: ${SMUGGLED_REQUEST.length}`)}${SMUGGLED_REQUEST}`,
  },
  {
    name: 'a list of lengths',
    bytes: `${renderChargeHead(`Content-Length: 0, ${SMUGGLED_REQUEST.length}`)}${SMUGGLED_REQUEST}`,
  },
  { name: 'a negative length', bytes: `${renderChargeHead('Content-Length: -1')}${SMUGGLED_REQUEST}` },
  { name: 'a hexadecimal length', bytes: `${renderChargeHead('Content-Length: 0x10')}${SMUGGLED_REQUEST}` },
  { name: 'another coding', bytes: `${renderChargeHead('Transfer-Encoding: xchunked')}0\r\n\r\n${SMUGGLED_REQUEST}` },
  {
    name: 'a coding after chunks',
    bytes: `${renderChargeHead('Transfer-Encoding: chunked, identity')}0\r\n\r\n${SMUGGLED_REQUEST}`,
  },
  {
    name: 'a coding twice',
    bytes: `${renderChargeHead('Transfer-Encoding: chunked', 'Transfer-Encoding: x')}0\r\n\r\n${SMUGGLED_REQUEST}`,
  },
  {
    name: 'a chunk longer than it says',
    bytes: `${renderChargeHead('Transfer-Encoding: chunked')}1\r\nxx\r\n0\r\n\r\n`,
  },
  {
    name: 'a chunk of endless length',
    bytes: `${renderChargeHead('Transfer-Encoding: chunked')}fffffffffffffffff\r\nx`,
  },
  {
    name: 'bare line feeds',
    bytes: `${renderChargeHead('X-A: b\nTransfer-Encoding: chunked')}0\r\n\r\n${SMUGGLED_REQUEST}`,
  },
  { name: 'HTTP/2', bytes: `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n${SMUGGLED_REQUEST}` },
  { name: 'HTTP/0.9', bytes: `GET /v1/proxy/world/items/a\r\n${SMUGGLED_REQUEST}` },
  {
    name: 'credentials in a trailer',
    answers: 1,
    bytes: `${renderChargeHead('Transfer-Encoding: chunked').replace(`${AUTH}\r\n`, '')}c\r\n${BODY}\r\n0\r\n${AUTH}\r\n\r\n`,
  },
];

/** Path arguments that leave their segment if a server decodes them once too often. */
export const PATH_TRAVERSALS = [
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
/** Path arguments that only look dangerous. */
export const HARMLESS_PATH_VALUES = [
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
