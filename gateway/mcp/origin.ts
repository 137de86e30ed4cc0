import type { FastifyRequest } from 'fastify';

const LOOPBACK = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/;

/**
 * Whether a browser page of somebody else is behind this request: only browsers say where a page comes from. A page is let in
 * from where the gateway itself is; and on a machine's own address nobody else's name for it counts, because a name can be
 * made to point here (DNS rebinding).
 */
export function isForeign(request: FastifyRequest): boolean {
  const { origin } = request.headers;
  if (origin === undefined) return false;
  const host = hostOf(`http://${request.headers.host ?? ''}`);
  const from = hostOf(origin);
  if (from === undefined || host === undefined) return true;
  const isLocal = LOOPBACK.test(localAddress(request));
  if (isLocal) return !LOOPBACK.test(host.hostname) || !LOOPBACK.test(from.hostname);
  return from.host !== host.host;
}

/** The address at which the request arrived. */
function localAddress({ socket }: FastifyRequest): string {
  const address = (socket.localAddress ?? '').replace(/^::ffff:/, '');
  return address === '::1' ? '[::1]' : address;
}

function hostOf(url: string): URL | undefined {
  return URL.canParse(url) ? new URL(url) : undefined;
}
