import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface ObservedServiceRequest {
  readonly method: string;
  readonly url: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** The header names in order, with duplicates. */
  readonly names: readonly string[];
  readonly body: string;
}

export const CREDENTIAL = 'Bearer the-credential-of-the-world';

/** An API, an MCP server and an OIDC issuer on one port. Their answers try to redirect the gateway. */
export class HostileServices {
  readonly requests: ObservedServiceRequest[] = [];
  /** JSON-RPC messages that the MCP server got. */
  // biome-ignore lint/suspicious/noExplicitAny: tests look into messages of every shape
  readonly messages: any[] = [];
  /** Public keys of the issuer. */
  keys: object[] = [];
  readonly #server: Server = createServer((request, response) => void this.#serve(request, response));
  readonly #forbiddenUrl: string;

  private constructor(forbiddenUrl: string) {
    this.#forbiddenUrl = forbiddenUrl;
  }

  /** `forbiddenUrl` is the address to which the answers point. */
  static async start(forbiddenUrl: string): Promise<HostileServices> {
    const world = new HostileServices(forbiddenUrl);
    world.#server.listen(0, '127.0.0.1');
    await once(world.#server, 'listening');
    return world;
  }

  get host(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks).toString('utf8');
    const { method = '', url = '', headers } = request;
    if (url.startsWith('/issuer')) return this.#serveIssuer(url, response);
    if (url.startsWith('/mcp')) return this.#serveMcp(url, body, response);
    const names = request.rawHeaders.filter((_, i) => i % 2 === 0).map((name) => name.toLowerCase());
    this.requests.push({ method, url, headers, names, body });
    const [, redirection] = /^\/api\/redirect\/([\w-]+)/.exec(url) ?? [];
    if (redirection !== undefined) return this.#answerWithRedirection(redirection, response);
    sendJson(response, { url });
  }

  /** Answers in one of the ways that point a client to another address. */
  #answerWithRedirection(way: string, response: ServerResponse): void {
    const to = this.#forbiddenUrl;
    const headers: Readonly<Record<string, string>> = {
      refresh: `0; url=${to}`,
      link: `<${to}>; rel=preload, <${to}>; rel=next, <${to}>; rel=canonical`,
      'alt-svc': `h2="${new URL(to).host}"; ma=3600; persist=1, http/1.1="${new URL(to).host}"`,
      'content-location': to,
      'www-authenticate': `Bearer resource_metadata="${to}"`,
      'report-to': JSON.stringify({ endpoints: [{ url: to }] }),
    };
    if (/^\d+$/.test(way)) response.writeHead(Number(way), { location: to, connection: 'close' }).end();
    else if (way === 'switching')
      response.socket?.end(`HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\nGET ${to}`);
    else if (way === 'early-hints')
      response.writeEarlyHints({ link: `<${to}>; rel=preload` }, () => sendJson(response, {}));
    else if (way === 'body') sendJson(response, { $ref: to, next: to, location: to, href: to });
    else sendJson(response, {}, { [way]: headers[way] ?? to });
  }

  #serveIssuer(url: string, response: ServerResponse): void {
    const issuer = `http://${this.host}/issuer`;
    sendJson(response, url.endsWith('/keys') ? { keys: this.keys } : { issuer, jwks_uri: `${issuer}/keys` });
  }

  #serveMcp(url: string, body: string, response: ServerResponse): void {
    if (url === '/mcp-away') return void response.writeHead(307, { location: this.#forbiddenUrl }).end();
    const message = JSON.parse(body === '' ? '{}' : body);
    this.messages.push(message);
    if (message.id === undefined) return void response.writeHead(202).end();
    const result = this.#buildMcpResult(message.method);
    const answer = result === undefined ? { error: { code: -32601, message: 'There is no such method.' } } : { result };
    sendJson(response, { jsonrpc: '2.0', id: message.id, ...answer });
  }

  #buildMcpResult(method: string): object | undefined {
    const to = this.#forbiddenUrl;
    const icons = [{ src: to }];
    switch (method) {
      case 'initialize':
        return {
          protocolVersion: '2025-11-25',
          capabilities: { tools: {}, resources: {} },
          serverInfo: { name: 'w', version: '1', websiteUrl: to, icons },
        };
      case 'tools/list':
        return { tools: [{ name: 'fetch', inputSchema: { type: 'object' }, icons, _meta: { url: to } }] };
      case 'tools/call':
        return {
          content: [
            { type: 'resource_link', uri: to, name: 'more' },
            { type: 'text', text: to },
          ],
        };
      case 'resources/list':
        return { resources: [{ uri: to, name: 'there', icons }] };
      case 'resources/read':
        return { contents: [{ uri: to, text: 'from the server itself' }] };
      default:
        return undefined;
    }
  }
}

function sendJson(response: ServerResponse, body: object, headers: Readonly<Record<string, string>> = {}): void {
  response.writeHead(200, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body));
}

const ALLOWED_HEADERS = new Set([
  ...['host', 'connection', 'accept', 'user-agent', 'authorization', 'content-type', 'content-length'],
  ...['oncegate-txn', 'idempotency-key', 'x-label', 'traceparent', 'tracestate', 'baggage'],
]);
const DECLARED_REQUESTS = [
  /^GET \/api\/items\/[^/?#;\\]+$/,
  /^GET \/api\/documented\/[^/?#;\\]+$/,
  /^GET \/api\/search(?:\?(?:&?q=[^&?#]*)+)?$/,
  /^POST \/api\/charges$/,
  /^(?:GET|POST) \/api\/redirect\/[\w-]+$/,
];

/** The first part of a request that no tool declares, or undefined. */
export function findUndeclared(
  { method, url, headers, names, body }: ObservedServiceRequest,
  host: string,
): string | undefined {
  if (!DECLARED_REQUESTS.some((shape) => shape.test(`${method} ${url}`))) return `${method} ${url}`;
  if (/\.\.(?:[/\\;]|$)/.test(decodeURIComponent(decodeURIComponent(url.replaceAll(/%25(?![0-9a-f]{2})/gi, '')))))
    return `path traversal ${url}`;
  const undeclaredHeader = names.find((name, i) => !ALLOWED_HEADERS.has(name) || names.indexOf(name) !== i);
  if (undeclaredHeader !== undefined) return `header ${undeclaredHeader}`;
  if (headers['host'] !== host) return `host ${headers['host']}`;
  if (headers['authorization'] !== CREDENTIAL) return `authorization ${headers['authorization']}`;
  if (url === '/api/charges' && !/^\{"amount":\d+\}$/.test(body)) return `body ${body}`;
  return undefined;
}
