import { once } from 'node:events';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { HttpAdapter } from '../../adapters/http/http-adapter.ts';
import { isPrivateAddress } from '../../adapters/http/private-address.ts';
import type { Tool, Upstream } from '../../gateway/domain/policy.ts';

describe('isPrivateAddress', () => {
  it.each([
    '0.0.0.0',
    '0.1.2.3',
    '10.0.0.1',
    '10.255.255.255',
    '100.64.0.1',
    '100.127.255.255',
    '127.0.0.1',
    '127.255.255.254',
    '168.63.129.16',
    '::ffff:168.63.129.16',
    '169.254.169.254',
    '172.16.0.1',
    '172.31.255.255',
    '192.0.0.1',
    '192.0.2.1',
    '192.168.0.1',
    '198.18.0.1',
    '198.51.100.1',
    '203.0.113.9',
    '224.0.0.1',
    '239.255.255.255',
    '240.0.0.1',
    '255.255.255.255',
    '::',
    '::1',
    '0:0:0:0:0:0:0:1',
    '::127.0.0.1',
    '::7f00:1',
    '::ffff:127.0.0.1',
    '::ffff:7f00:1',
    '::FFFF:10.0.0.1',
    '0:0:0:0:0:ffff:a9fe:a9fe',
    '::ffff:0:127.0.0.1',
    '64:ff9b::7f00:1',
    '64:ff9b::127.0.0.1',
    '64:ff9b::10.1.2.3',
    '64:ff9b::a9fe:a9fe',
    '64:ff9b:1::1',
    '100::1',
    '100:0:0:1::1',
    '1::1',
    '200::1',
    '1fff:ffff::1',
    '2001::1',
    '2001:0:7f00:1::',
    '2001:2::1',
    '2001:20::1',
    '2001:1ff:ffff::1',
    '2001:db8::1',
    '2002:7f00:1::',
    '3fff::1',
    '4000::1',
    '5f00::1',
    '64:ff9a::1',
    '64:ff9b:0:0:0:1:101:101',
    'fc00::1',
    'fd12:3456:789a::1',
    'fe80::1',
    'fe80::1%eth0',
    'febf::1',
    'fec0::1',
    'ff02::1',
  ])('is true for %s', (address) => {
    expect(isPrivateAddress(address)).toBe(true);
  });

  it.each(['', 'localhost', 'example.com', '1.2.3', '256.1.1.1', '0x7f000001', '2130706433', '[::1]', '1.1.1.1:80'])(
    'is true for text that is not an address: %j',
    (text) => {
      expect(isPrivateAddress(text)).toBe(true);
    },
  );

  it.each([
    '1.1.1.1',
    '9.255.255.255',
    '11.0.0.0',
    '100.63.255.255',
    '100.128.0.0',
    '126.255.255.255',
    '128.0.0.1',
    '169.253.255.255',
    '172.15.255.255',
    '172.32.0.0',
    '192.167.255.255',
    '192.169.0.0',
    '198.17.255.255',
    '198.20.0.0',
    '223.255.255.255',
    '168.63.129.15',
    '168.63.129.17',
    '2001:200::1',
    '2606:4700::1111',
    '2a00:1450::1',
    '::ffff:1.1.1.1',
    '64:ff9b::1.1.1.1',
  ])('is false for the public address %s', (address) => {
    expect(isPrivateAddress(address)).toBe(false);
  });
});

describe('an upstream without allowPrivate', () => {
  let server: Server;
  let port: number;
  let connections = 0;
  let hasIpv6 = true;

  beforeAll(async () => {
    server = createServer((socket) => {
      connections += 1;
      socket.destroy();
    });
    // Dual-stack if the machine has IPv6, so that every notation of loopback would connect.
    server.listen(0, '::');
    await once(server, 'listening').catch(() => {
      hasIpv6 = false;
      server.listen(0, '0.0.0.0');
      return once(server, 'listening');
    });
    ({ port } = server.address() as AddressInfo);
  });
  afterAll(() => {
    server.close();
  });

  const send = async (host: string, allowPrivate: boolean, freshConnection: boolean) => {
    const upstream: Upstream = {
      name: 'inside',
      adapter: 'http',
      url: `http://${host}:${port}`,
      headers: {},
      secrets: [],
      timeoutMs: 2_000,
      concurrency: 2,
      breaker: { threshold: 0.5, minimum: 10, windowMs: 1_000, cooldownMs: 1_000 },
      allowPrivate,
      expose: 'prefixed',
    };
    const adapter = new HttpAdapter(upstream, Buffer.alloc(32));
    try {
      const tool = {
        name: 't',
        upstream: 'inside',
        noEffect: new Set([400]),
        accepted: new Set(),
        maxResultBytes: 1_000,
      } as unknown as Tool;
      const request = { method: 'POST', path: '/', headers: {}, body: '{}' };
      return await adapter.send(tool, request, { timeoutMs: 2_000, maySend: () => true, freshConnection });
    } finally {
      await adapter.close();
    }
  };

  it.each([
    '127.0.0.1',
    '127.1',
    '127.0.1',
    '2130706433',
    '0x7f.1',
    '0x7f000001',
    '0177.0.0.1',
    '017700000001',
    '0',
    '0.0.0.0',
    '127.0.0.2',
    'localhost',
    'LOCALHOST',
    'localhost.',
    '[::1]',
    '[0:0:0:0:0:0:0:1]',
    '[::]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[64:ff9b::7f00:1]',
    '[64:ff9b::127.0.0.1]',
    '%31%32%37.0.0.1',
    '\uff11\uff12\uff17.0.0.1',
    '10.0.0.1',
    '169.254.169.254',
    '[fc00::1]',
    '[fe80::1]',
  ])('sends nothing to %s', async (host) => {
    for (const fresh of [false, true]) {
      const outcome = await send(host, false, fresh);
      expect(outcome.kind).toBe('not_sent');
      // With a trailing dot, DNS resolves the name, and may not know it.
      const why = host === 'localhost.' ? /private address|ENOTFOUND|EAI_AGAIN/ : /private address/;
      expect('detail' in outcome && outcome.detail).toMatch(why);
    }
    expect(connections).toBe(0);
  });

  it('connects to the same server with allowPrivate', async () => {
    const hosts = ['127.0.0.1', 'localhost', ...(hasIpv6 ? ['[::1]', '[::ffff:127.0.0.1]'] : [])];
    for (const host of hosts) {
      const before = connections;
      expect((await send(host, true, false)).kind).toBe('ambiguous');
      expect(connections, host).toBe(before + 1);
    }
  });
});
