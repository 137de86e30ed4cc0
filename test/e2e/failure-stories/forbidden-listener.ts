import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';

/**
 * Listens at every loopback address, where no connection may ever arrive; also on IPv6 if the machine has it. Every
 * connection is recorded, even without data.
 */
export class ForbiddenListener {
  readonly connections: string[] = [];
  readonly #server: Server;
  readonly hasIpv6: boolean;

  private constructor(server: Server, hasIpv6: boolean) {
    this.#server = server;
    this.hasIpv6 = hasIpv6;
    server.on('connection', (socket) => {
      this.connections.push(`${socket.localAddress}`);
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
