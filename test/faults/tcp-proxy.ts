import { once } from 'node:events';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/**
 * A TCP link that can be broken in every way a network breaks: one stands between the gateway and PostgreSQL, or between
 * the gateway and an upstream. Modes may change while connections are open.
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
  /** Back to an honest link: listens, forwards, no delay, nothing armed. */
  pass(): Promise<void>;
  /** Nobody listens any more, and what was open is destroyed. `pass()` listens again on the same port. */
  refuse(): Promise<void>;
  /** Destroys what is open now; new connections are welcome. */
  cut(how?: { reset?: boolean }): void;
  /** Accepts, but no byte passes in either direction until `resume()`. */
  stall(): void;
  resume(): void;
  /** Each chunk, in both directions, arrives this much later. */
  delay(ms: number): void;
  /**
   * Waits for the first client→server chunk that matches, on any connection, once.
   * `forward: false`: it never reaches the server, both sides are destroyed (failed *and not* persisted).
   * `forward: true`: it does, the server's answer is waited for and swallowed, then both sides are destroyed (failed *but*
   * persisted). A pipelining client may get earlier answers in between: `answered` says which bytes are the awaited ones.
   * Resolves true when the cut was made, false when it was disarmed before.
   */
  cutAfterClientBytes(
    predicate: ChunkPredicate,
    how: { forward: boolean; answered?: ChunkPredicate },
  ): Promise<boolean>;
  close(): Promise<void>;
};

/** `total` counts the bytes of that connection and direction, the chunk included; connections are told apart by their number. */
export type ChunkPredicate = (chunk: Buffer, total: number, connection: number) => boolean;

type ProxyEndpoint = { socket: net.Socket; total: number; queue: Promise<void> };
type ProxiedConnection = {
  number: number;
  client: ProxyEndpoint;
  server: ProxyEndpoint;
  swallow: ChunkPredicate | undefined;
  swallowed: number;
  done: () => void;
};
type ArmedCut = {
  matches: ChunkPredicate;
  forward: boolean;
  answered: ChunkPredicate;
  sprung: boolean;
  settle: (cut: boolean) => void;
};

export async function startTcpProxy(target: { targetPort: number; targetHost?: string }): Promise<TcpProxy> {
  const links = new Set<ProxiedConnection>();
  const counters = { accepted: 0, open: 0, cut: 0, clientBytes: 0, serverBytes: 0 };
  let delayMs = 0;
  let gate = createGate();
  let trap: ArmedCut | undefined;

  const destroy = (link: ProxiedConnection, reset = false) => {
    if (!links.delete(link)) return;
    counters.open -= 1;
    for (const { socket } of [link.client, link.server]) reset ? socket.resetAndDestroy() : socket.destroy();
    link.done();
  };
  const cutLink = (link: ProxiedConnection, reset = false) => {
    if (links.has(link)) counters.cut += 1;
    destroy(link, reset);
  };

  /** Keeps the order of chunks whatever delay and stall do meanwhile, and stops reading from who sends faster than we pass on. */
  const relay = (
    link: ProxiedConnection,
    from: ProxyEndpoint,
    to: ProxyEndpoint,
    act: (socket: net.Socket) => boolean,
  ) => {
    const due = performance.now() + delayMs;
    from.socket.pause();
    from.queue = from.queue.then(async () => {
      const left = due - performance.now();
      if (left > 0) await sleep(left);
      while (gate.closed) await gate.opened;
      if (!links.has(link)) return;
      if (!act(to.socket)) await waitForDrain(to.socket);
      from.socket.resume();
    });
  };
  const forward = (link: ProxiedConnection, from: ProxyEndpoint, to: ProxyEndpoint, chunk: Buffer) =>
    relay(link, from, to, (socket) => socket.destroyed || socket.write(chunk));

  const fromClient = (link: ProxiedConnection, chunk: Buffer) => {
    counters.clientBytes += chunk.length;
    link.client.total += chunk.length;
    const armed = trap;
    if (!armed || armed.sprung || !armed.matches(chunk, link.client.total, link.number)) {
      forward(link, link.client, link.server, chunk);
      return;
    }
    armed.sprung = true;
    link.done = () => {
      armed.settle(true);
      if (trap === armed) trap = undefined;
    };
    if (!armed.forward) return cutLink(link);
    link.swallow = armed.answered;
    forward(link, link.client, link.server, chunk);
  };
  const fromServer = (link: ProxiedConnection, chunk: Buffer) => {
    counters.serverBytes += chunk.length;
    link.server.total += chunk.length;
    if (!link.swallow) return forward(link, link.server, link.client, chunk);
    link.swallowed += chunk.length;
    if (link.swallow(chunk, link.swallowed, link.number)) cutLink(link);
  };

  const server = net.createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    const upstream = net.connect({
      host: target.targetHost ?? '127.0.0.1',
      port: target.targetPort,
      allowHalfOpen: true,
      noDelay: true,
    });
    const side = (of: net.Socket): ProxyEndpoint => ({ socket: of, total: 0, queue: Promise.resolve() });
    counters.accepted += 1;
    const ends = { client: side(socket), server: side(upstream) };
    const link: ProxiedConnection = { number: counters.accepted, ...ends, swallow: undefined, swallowed: 0, done() {} };
    links.add(link);
    counters.open += 1;
    socket.on('data', (chunk) => fromClient(link, chunk));
    upstream.on('data', (chunk) => fromServer(link, chunk));
    for (const [from, to] of [
      [link.client, link.server],
      [link.server, link.client],
    ] as const) {
      from.socket.on('end', () => {
        // A server that closes instead of answering has answered too.
        if (link.swallow && from === link.server) cutLink(link);
        else relay(link, from, to, (other) => other.end() !== undefined);
      });
      from.socket.on('error', () => destroy(link));
      from.socket.on('close', () => {
        // Closed after both ends were passed on: an ordinary goodbye. Otherwise the other side must not wait for ever.
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
    if (trap && !trap.sprung) trap.settle(false);
    trap = undefined;
  };
  const cut = (how: { reset?: boolean } = {}) => {
    for (const link of [...links]) cutLink(link, how.reset);
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
    cutAfterClientBytes(predicate, { forward: forwards, answered = () => true }) {
      disarm();
      return new Promise((settle) => {
        trap = { matches: predicate, forward: forwards, answered, sprung: false, settle };
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
    closed: false,
    opened,
    close() {
      gate.closed = true;
    },
    open() {
      gate.closed = false;
      open();
    },
  };
  return gate;
}
