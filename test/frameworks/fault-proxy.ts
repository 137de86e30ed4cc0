import { once } from 'node:events';
import {
  createServer,
  request as httpRequest,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo } from 'node:net';

export const ANSWER_FAULTS = ['socket drop', 'drop after headers', '502', '503', '404', '401'] as const;
export type AnswerFault = (typeof ANSWER_FAULTS)[number];

/** A proxy between a client and a server. It lets the server execute one `tools/call`, and then loses or replaces the answer. */
export class FaultProxy {
  readonly #server: Server;
  readonly #target: () => number;
  #armed: AnswerFault | undefined;
  /** The number of `tools/call` requests since the proxy was armed. */
  calls = 0;

  private constructor(server: Server, target: () => number) {
    this.#server = server;
    this.#target = target;
  }

  static async start(target: () => number): Promise<FaultProxy> {
    const server = createServer();
    const proxy = new FaultProxy(server, target);
    server.on('request', (request, response) => void proxy.#forward(request, response));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return proxy;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  arm(fault: AnswerFault): void {
    this.#armed = fault;
    this.calls = 0;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #forward(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks);
    const isCall = body.includes('"tools/call"');
    if (isCall) this.calls += 1;
    const fault = isCall ? this.#armed : undefined;
    if (isCall) this.#armed = undefined;
    const { method, url, headers } = request;
    // Each request has its own connection, so a fault affects only one request.
    const sentHeaders = { ...headers, connection: 'close' };
    const out = httpRequest({
      host: '127.0.0.1',
      port: this.#target(),
      method,
      path: url,
      headers: sentHeaders,
      agent: false,
    });
    out.on('error', () => response.destroy());
    response.on('close', () => out.destroy());
    out.on('response', (answer) => {
      if (fault !== undefined) return void applyFault(fault, answer, response);
      response.writeHead(answer.statusCode ?? 500, answer.headers);
      answer.pipe(response);
    });
    out.end(body);
  }
}

/** Waits for the complete answer, so the tool has been executed, and then applies the fault. */
async function applyFault(fault: AnswerFault, answer: IncomingMessage, response: ServerResponse): Promise<void> {
  answer.resume();
  await once(answer, 'end');
  switch (fault) {
    case 'socket drop':
      response.socket?.destroy();
      return;
    case 'drop after headers':
      response.writeHead(200, answer.headers);
      response.flushHeaders();
      response.write(' ', () => response.socket?.destroy());
      return;
    default:
      response.writeHead(Number(fault), { 'content-type': 'text/plain' }).end('replaced by the fault proxy');
  }
}
