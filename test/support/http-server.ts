import { once } from 'node:events';
import { createServer, type RequestListener, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { useResource } from './use-resource.ts';

/** An HTTP server on loopback. */
export class TestHttpServer {
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(listener: RequestListener): Promise<TestHttpServer> {
    const server = createServer(listener).listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new TestHttpServer(server);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async stop(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }
}

/** An HTTP server for tests that cannot use the counting upstream. */
export function useHttpServer(listener: RequestListener): TestHttpServer {
  return useResource(
    () => TestHttpServer.start(listener),
    (server) => server.stop(),
  );
}

export async function readBody(request: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString('utf8');
}
