import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';

/**
 * Listens where nothing must ever arrive: at every loopback address, of IPv6 too where there is one. Whatever connects is heard,
 * even if it says nothing.
 */
export class ForbiddenListener {
  readonly heard: string[] = [];
  readonly #server: Server;
  readonly hasIpv6: boolean;

  private constructor(server: Server, hasIpv6: boolean) {
    this.#server = server;
    this.hasIpv6 = hasIpv6;
    server.on('connection', (socket) => {
      this.heard.push(`${socket.localAddress}`);
      socket.on('error', () => {});
      socket.once('data', () => socket.destroy());
    });
  }

  static async start(): Promise<ForbiddenListener> {
    const server = createServer();
    const hasIpv6 = await waitUntilListening(server.listen(0, '::')).catch(() => false);
    if (!hasIpv6) await waitUntilListening(server.listen(0, '0.0.0.0'));
    return new ForbiddenListener(server, hasIpv6);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  close(): void {
    this.#server.close();
  }
}

async function waitUntilListening(server: Server): Promise<true> {
  await once(server, 'listening');
  return true;
}
