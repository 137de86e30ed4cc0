import { BlockList, isIP } from 'node:net';

/** IPv4 ranges that are not public: loopback, private, link-local, shared, multicast, reserved, documentation. */
const PRIVATE_V4: readonly (readonly [string, number])[] = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['168.63.129.16', 32], // looks public, but is the host service of every Azure machine
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
 * The only public IPv6 ranges: global unicast, and two ranges that embed an IPv4 address, which is checked by itself. All
 * other ranges count as private, because an unassigned range may get any meaning later.
 */
const PUBLIC_V6: readonly (readonly [string, number])[] = [
  ['2000::', 3],
  ['64:ff9b::', 96], // NAT64
  ['::ffff:0:0', 96], // IPv4-mapped
];

/** Exceptions within the public ranges: tunnels whose target is in the address, documentation, benchmarks. */
const PRIVATE_V6: readonly (readonly [string, number])[] = [
  ['2001::', 23], // Teredo, ORCHID and other protocol assignments
  ['2001:db8::', 32],
  ['2002::', 16], // 6to4
  ['3fff::', 20],
];

const privateRanges = new BlockList();
for (const [net, prefix] of PRIVATE_V4) {
  // `net.BlockList` applies these to IPv4-mapped addresses too, but not to NAT64 addresses.
  privateRanges.addSubnet(net, prefix, 'ipv4');
  privateRanges.addSubnet(`64:ff9b::${net}`, 96 + prefix, 'ipv6');
}
for (const [net, prefix] of PRIVATE_V6) privateRanges.addSubnet(net, prefix, 'ipv6');

const publicV6Ranges = new BlockList();
for (const [net, prefix] of PUBLIC_V6) publicV6Ranges.addSubnet(net, prefix, 'ipv6');

/** Whether an address needs `allowPrivate`. Text that is not an address counts as private. */
export function isPrivateAddress(address: string): boolean {
  const bare = address.split('%')[0] ?? '';
  const family = isIP(bare);
  if (family === 0) return true;
  if (family === 4) return privateRanges.check(bare, 'ipv4');
  return !publicV6Ranges.check(bare, 'ipv6') || privateRanges.check(bare, 'ipv6');
}
