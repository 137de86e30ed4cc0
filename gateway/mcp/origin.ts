import type { FastifyRequest } from 'fastify';

const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/;

/**
 * Whether a page of another origin sent this request; only browsers send `Origin`. On a loopback address, both the origin and the
 * host must be loopback names, because DNS rebinding can point any other name here.
 */
export function isCrossOrigin(request: FastifyRequest): boolean {
  const { origin } = request.headers;
  if (origin === undefined) return false;
  const host = parseUrl(`http://${request.headers.host ?? ''}`);
  const originUrl = parseUrl(origin);
  if (originUrl === undefined || host === undefined) return true;
  const isLocal = LOOPBACK.test(localAddress(request));
  if (isLocal) return !LOOPBACK.test(host.hostname) || !LOOPBACK.test(originUrl.hostname);
  return originUrl.host !== host.host;
}

/** The local address that received the request. */
function localAddress({ socket }: FastifyRequest): string {
  const address = (socket.localAddress ?? '').replace(/^::ffff:/, '');
  return address === '::1' ? '[::1]' : address;
}

function parseUrl(url: string): URL | undefined {
  return URL.canParse(url) ? new URL(url) : undefined;
}
