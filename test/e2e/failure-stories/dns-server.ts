import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';

/** The addresses of a name: one list per lookup. The last list repeats. */
export type DnsAnswers = readonly (readonly string[])[];

const TYPES = { a: 1, aaaa: 28 } as const;

/** A DNS server on loopback. Its names may resolve differently on each lookup. */
export class TestDnsServer {
  readonly lookups: string[] = [];
  readonly #names: ReadonlyMap<string, DnsAnswers>;
  readonly #socket: Socket = createSocket('udp4');

  private constructor(names: Readonly<Record<string, DnsAnswers>>) {
    this.#names = new Map(Object.entries(names));
    this.#socket.on('message', (query, from) => this.#socket.send(this.#answer(query), from.port, from.address));
  }

  static async start(names: Readonly<Record<string, DnsAnswers>>): Promise<TestDnsServer> {
    const server = new TestDnsServer(names);
    server.#socket.bind(0, '127.0.0.1');
    await once(server.#socket, 'listening');
    return server;
  }

  /** The environment that makes a gateway resolve names with this server. */
  get env(): Record<string, string> {
    const { port } = this.#socket.address() as AddressInfo;
    const resolver = fileURLToPath(new URL('./dns-resolver.mjs', import.meta.url));
    return { NODE_OPTIONS: `--import=${resolver}`, TEST_NAME_SERVER: `127.0.0.1:${port}` };
  }

  countLookups(name: string): number {
    return this.lookups.filter((lookup) => lookup === `a ${name}`).length;
  }

  close(): void {
    this.#socket.close();
  }

  #answer(query: Buffer): Buffer {
    const { name, end } = readName(query, 12);
    const type = query.readUInt16BE(end) === TYPES.aaaa ? 'aaaa' : 'a';
    // Each lookup asks for A and AAAA records; the queries for A records count the earlier lookups.
    const before = this.countLookups(name) - (type === 'aaaa' && this.lookups.at(-1) === `a ${name}` ? 1 : 0);
    this.lookups.push(`${type} ${name}`);
    const answers = this.#names.get(name) ?? [];
    const addresses = (answers[Math.min(before, answers.length - 1)] ?? []).filter(
      (address) => address.includes(':') === (type === 'aaaa'),
    );
    const head = Buffer.alloc(12);
    query.copy(head, 0, 0, 2);
    head.writeUInt16BE(0x8580, 2);
    head.writeUInt16BE(1, 4);
    head.writeUInt16BE(addresses.length, 6);
    return Buffer.concat([
      head,
      query.subarray(12, end + 4),
      ...addresses.map((address) => encodeRecord(type, address)),
    ]);
  }
}

function readName(message: Buffer, start: number): { name: string; end: number } {
  const labels: string[] = [];
  let at = start;
  for (let length = message[at] ?? 0; length > 0; length = message[at] ?? 0) {
    labels.push(message.toString('latin1', at + 1, at + 1 + length));
    at += length + 1;
  }
  return { name: labels.join('.').toLowerCase(), end: at + 1 };
}

function encodeRecord(type: keyof typeof TYPES, address: string): Buffer {
  const data = type === 'a' ? Buffer.from(address.split('.').map(Number)) : encodeIpv6(address);
  const head = Buffer.from([0xc0, 12, 0, TYPES[type], 0, 1, 0, 0, 0, 0, 0, data.length]);
  return Buffer.concat([head, data]);
}

function encodeIpv6(address: string): Buffer {
  const canonical = new URL(`http://[${address}]`).hostname.slice(1, -1);
  const [before = '', after] = canonical.split('::');
  const groups = (text: string) => (text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16)));
  const [high, low] = [groups(before), groups(after ?? '')];
  const all = [...high, ...new Array<number>(8 - high.length - low.length).fill(0), ...low];
  return Buffer.from(all.flatMap((group) => [group >> 8, group & 0xff]));
}
