import { BlockList, isIP } from 'node:net';

/** IPv4 that leads inside: loopback, private, link-local, shared, multicast, reserved, documentation. */
const PRIVATE_V4: readonly (readonly [string, number])[] = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['168.63.129.16', 32], // looks public, and is the host's own service on every Azure machine
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
];

/**
 * IPv6 that leads outside, and nothing else does: global unicast, and the two forms that carry an IPv4 address which is then
 * judged by itself. What is not assigned today may be anything tomorrow.
 */
const PUBLIC_V6: readonly (readonly [string, number])[] = [
  ['2000::', 3],
  ['64:ff9b::', 96], // NAT64
  ['::ffff:0:0', 96], // IPv4-mapped
];

/** Inside that: tunnels that end wherever their last bits say, documentation, benchmarks. */
const PRIVATE_V6: readonly (readonly [string, number])[] = [
  ['2001::', 23], // Teredo, ORCHID and other protocol assignments
  ['2001:db8::', 32],
  ['2002::', 16], // 6to4
  ['3fff::', 20],
];

const privateRanges = new BlockList();
for (const [net, prefix] of PRIVATE_V4) {
  // `net.BlockList` judges an IPv4-mapped address by these too; of NAT64 it knows nothing.
  privateRanges.addSubnet(net, prefix, 'ipv4');
  privateRanges.addSubnet(`64:ff9b::${net}`, 96 + prefix, 'ipv6');
}
for (const [net, prefix] of PRIVATE_V6) privateRanges.addSubnet(net, prefix, 'ipv6');

const publicV6Ranges = new BlockList();
for (const [net, prefix] of PUBLIC_V6) publicV6Ranges.addSubnet(net, prefix, 'ipv6');

/** Whether a literal address must not be connected to without `allowPrivate`. What is no address at all is private too. */
export function isPrivateAddress(address: string): boolean {
  const bare = address.split('%')[0] ?? '';
  const family = isIP(bare);
  if (family === 0) return true;
  if (family === 4) return privateRanges.check(bare, 'ipv4');
  return !publicV6Ranges.check(bare, 'ipv6') || privateRanges.check(bare, 'ipv6');
}
