import { lookup as systemLookup } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import { buildConnector } from 'undici';
import { isPrivateAddress } from './private-address.ts';

export class PrivateAddressError extends Error {
  override readonly name = 'PrivateAddressError';
}

/**
 * Connects to an upstream. Unless private addresses are allowed, a host name is refused if any of its addresses is private,
 * before a packet is sent. The address of the open connection is checked again, because DNS may have changed meanwhile.
 */
export function createConnector(allowPrivate: boolean, timeoutMs: number): buildConnector.connector {
  const guardedLookup: LookupFunction = (hostname, options, callback) => {
    systemLookup(hostname, { ...options, all: true }, (error, addresses) => {
      if (error !== null) return callback(error, '');
      const privateOne = addresses.find(({ address }) => isPrivateAddress(address));
      if (privateOne !== undefined) return callback(createPrivateAddressError(hostname, privateOne.address), '');
      if (options.all === true) return callback(null, addresses);
      const first = addresses[0];
      return first === undefined
        ? callback(new Error(`DNS has no address for ${hostname}`), '')
        : callback(null, first.address, first.family);
    });
  };
  const connect = buildConnector({ timeout: timeoutMs, ...(allowPrivate ? {} : { lookup: guardedLookup }) });
  if (allowPrivate) return connect;

  return (options, callback) => {
    const host = options.hostname.replace(/^\[|\]$/g, '');
    if (isIP(host) !== 0 && isPrivateAddress(host)) {
      // Call back asynchronously: undici marks the client as connecting only after this returns.
      queueMicrotask(() => callback(createPrivateAddressError(host, host), null));
      return;
    }
    connect(options, (...result) => {
      const [error, socket] = result;
      if (error !== null) return callback(error, null);
      if (isPrivateAddress(socket.remoteAddress ?? '')) {
        socket.destroy();
        return callback(createPrivateAddressError(host, socket.remoteAddress ?? 'unknown'), null);
      }
      return callback(null, socket);
    });
  };
}

function createPrivateAddressError(host: string, address: string): PrivateAddressError {
  const resolved = host === address ? '' : ` (${address})`;
  return new PrivateAddressError(
    `${host}${resolved} is a private address; allow it with allowPrivate: true on the upstream`,
  );
}
