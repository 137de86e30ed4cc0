import { once } from 'node:events';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/**
 * A TCP proxy that imitates network faults between the gateway and PostgreSQL, or between the gateway and an upstream. Modes
 * may change while connections are open.
 */
export type TcpProxy = {
  readonly port: number;
  readonly counters: {
    accepted: number;
    open: number;
    cut: number;
    clientBytes: number;
    serverBytes: number;
  };
  /** Ends every fault: listens, forwards without delay, and disarms the cut. */
  pass(): Promise<void>;
  /** Stops listening and destroys open connections. `pass()` listens again on the same port. */
  refuse(): Promise<void>;
  /** Destroys open connections and still accepts new ones. */
  cut(options?: { reset?: boolean }): void;
  /** Accepts connections, but forwards no byte in either direction until `resume()`. */
  stall(): void;
  resume(): void;
  /** Delays each chunk in both directions. */
  delay(ms: number): void;
  /**
   * Cuts one connection at the first matching chunk from a client to the server.
   * `forward: false`: the chunk does not reach the server (the write failed *and was not* persisted).
   * `forward: true`: the chunk reaches the server, and the proxy swallows the answer before the cut (the write failed *but was*
   * persisted). Answers to earlier pipelined requests may come first; `answered` recognizes the right one.
   * Resolves to true when the cut happened, to false when another mode disarmed it.
   */
  cutAfterClientBytes(
    predicate: ChunkPredicate,
    options: { forward: boolean; answered?: ChunkPredicate },
  ): Promise<boolean>;
  close(): Promise<void>;
};

/** `total` counts the bytes of this connection and direction, including the chunk; `connection` is its number. */
export type ChunkPredicate = (chunk: Buffer, total: number, connection: number) => boolean;

type ProxyEndpoint = { socket: net.Socket; total: number; queue: Promise<void> };
type ProxiedConnection = {
  number: number;
  client: ProxyEndpoint;
  server: ProxyEndpoint;
  /** While set, chunks of the server are dropped; the chunk that matches ends the connection. */
  swallow: ChunkPredicate | undefined;
  swallowedBytes: number;
  onDestroyed: () => void;
};
type ArmedCut = {
  matches: ChunkPredicate;
  forward: boolean;
  answered: ChunkPredicate;
  isTriggered: boolean;
  settle: (cut: boolean) => void;
};

export async function startTcpProxy(target: { targetPort: number; targetHost?: string }): Promise<TcpProxy> {
  const links = new Set<ProxiedConnection>();
  const counters = { accepted: 0, open: 0, cut: 0, clientBytes: 0, serverBytes: 0 };
  let delayMs = 0;
  let gate = createGate();
  let armedCut: ArmedCut | undefined;

  const destroy = (link: ProxiedConnection, reset = false) => {
    if (!links.delete(link)) return;
    counters.open -= 1;
    for (const { socket } of [link.client, link.server]) reset ? socket.resetAndDestroy() : socket.destroy();
    link.onDestroyed();
  };
  const cutLink = (link: ProxiedConnection, reset = false) => {
    if (links.has(link)) counters.cut += 1;
    destroy(link, reset);
  };

  /** Keeps chunks in order despite delays and stalls. Pauses the sender until the receiver accepted the chunk. */
  const relay = (
    link: ProxiedConnection,
    from: ProxyEndpoint,
    to: ProxyEndpoint,
    write: (socket: net.Socket) => boolean,
  ) => {
    const forwardAt = performance.now() + delayMs;
    from.socket.pause();
    from.queue = from.queue.then(async () => {
      const remainingMs = forwardAt - performance.now();
      if (remainingMs > 0) await sleep(remainingMs);
      while (gate.isClosed) await gate.opened;
      if (!links.has(link)) return;
      if (!write(to.socket)) await waitForDrain(to.socket);
      from.socket.resume();
    });
  };
  const forward = (link: ProxiedConnection, from: ProxyEndpoint, to: ProxyEndpoint, chunk: Buffer) =>
    relay(link, from, to, (socket) => socket.destroyed || socket.write(chunk));

  const handleClientChunk = (link: ProxiedConnection, chunk: Buffer) => {
    counters.clientBytes += chunk.length;
    link.client.total += chunk.length;
    const armed = armedCut;
    if (!armed || armed.isTriggered || !armed.matches(chunk, link.client.total, link.number)) {
      forward(link, link.client, link.server, chunk);
      return;
    }
    armed.isTriggered = true;
    link.onDestroyed = () => {
      armed.settle(true);
      if (armedCut === armed) armedCut = undefined;
    };
    if (!armed.forward) return cutLink(link);
    link.swallow = armed.answered;
    forward(link, link.client, link.server, chunk);
  };
  const handleServerChunk = (link: ProxiedConnection, chunk: Buffer) => {
    counters.serverBytes += chunk.length;
    link.server.total += chunk.length;
    if (!link.swallow) return forward(link, link.server, link.client, chunk);
    link.swallowedBytes += chunk.length;
    if (link.swallow(chunk, link.swallowedBytes, link.number)) cutLink(link);
  };

  const server = net.createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    const upstream = net.connect({
      host: target.targetHost ?? '127.0.0.1',
      port: target.targetPort,
      allowHalfOpen: true,
      noDelay: true,
    });
    const createEndpoint = (endpoint: net.Socket): ProxyEndpoint => ({
      socket: endpoint,
      total: 0,
      queue: Promise.resolve(),
    });
    counters.accepted += 1;
    const endpoints = { client: createEndpoint(socket), server: createEndpoint(upstream) };
    const link: ProxiedConnection = {
      number: counters.accepted,
      ...endpoints,
      swallow: undefined,
      swallowedBytes: 0,
      onDestroyed() {},
    };
    links.add(link);
    counters.open += 1;
    socket.on('data', (chunk) => handleClientChunk(link, chunk));
    upstream.on('data', (chunk) => handleServerChunk(link, chunk));
    for (const [from, to] of [
      [link.client, link.server],
      [link.server, link.client],
    ] as const) {
      from.socket.on('end', () => {
        // If the server closes instead of answering, no answer will come to swallow: cut now.
        if (link.swallow && from === link.server) cutLink(link);
        else relay(link, from, to, (other) => other.end() !== undefined);
      });
      from.socket.on('error', () => destroy(link));
      from.socket.on('close', () => {
        // Both sides closed: an ordinary end. A side that closed without FIN must not leave the other side waiting.
        if (link.client.socket.destroyed && link.server.socket.destroyed) destroy(link);
        else if (!from.socket.readableEnded) destroy(link);
      });
    }
  });
  server.on('error', () => {});
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as net.AddressInfo;

  const disarm = () => {
    if (armedCut && !armedCut.isTriggered) armedCut.settle(false);
    armedCut = undefined;
  };
  const cut = (options: { reset?: boolean } = {}) => {
    for (const link of [...links]) cutLink(link, options.reset);
  };
  const resume = () => {
    gate.open();
    gate = createGate();
  };
  const refuse = async () => {
    const closed = server.listening ? once(server, 'close') : undefined;
    if (closed) server.close();
    cut();
    await closed;
  };

  return {
    port,
    counters,
    async pass() {
      disarm();
      resume();
      delayMs = 0;
      if (server.listening) return;
      server.listen(port, '127.0.0.1');
      await once(server, 'listening');
    },
    refuse,
    cut,
    stall() {
      gate.close();
    },
    resume,
    delay(ms) {
      delayMs = ms;
    },
    cutAfterClientBytes(predicate, { forward: shouldForward, answered = () => true }) {
      disarm();
      return new Promise((settle) => {
        armedCut = { matches: predicate, forward: shouldForward, answered, isTriggered: false, settle };
      });
    },
    async close() {
      disarm();
      resume();
      await refuse();
    },
  };
}

function waitForDrain(socket: net.Socket): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      socket.off('drain', done);
      socket.off('close', done);
      resolve();
    };
    socket.on('drain', done);
    socket.on('close', done);
    if (socket.destroyed) done();
  });
}

function createGate() {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  const gate = {
    isClosed: false,
    opened,
    close() {
      gate.isClosed = true;
    },
    open() {
      gate.isClosed = false;
      open();
    },
  };
  return gate;
}
