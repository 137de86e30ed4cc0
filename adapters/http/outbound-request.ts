import { type buildConnector, Client } from 'undici';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';
import { createConnector } from './guarded-connector.ts';
import { isPrivateAddress } from './private-address.ts';

/** A request the gateway makes on its own account, to what its operator named: an issuer's keys, a webhook. */
export interface OutboundRequest {
  readonly url: string;
  readonly method: 'GET' | 'POST';
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  /** Private and loopback addresses are refused unless this says so. */
  readonly allowPrivate: boolean;
  readonly mostBytes: number;
  /** From the look-up of the name to the last byte of the answer. */
  readonly timeoutMs: number;
}

export interface OutboundResponse {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: string;
}

/**
 * One request on a connection of its own. Redirects are not followed: their target was named by nobody. Without TLS only a
 * private address is spoken to. Rejects when no whole answer came in time.
 */
export async function sendOutboundRequest(errand: OutboundRequest): Promise<OutboundResponse> {
  const url = new URL(errand.url);
  const guarded = createConnector(errand.allowPrivate, errand.timeoutMs);
  const client = new Client(url.origin, {
    connect: url.protocol === 'https:' ? guarded : rejectPublicAddresses(guarded),
  });
  const deadline = new AbortController();
  const timer = setTimeout(() => {
    deadline.abort(new Error(`no answer within ${errand.timeoutMs} ms`));
    // A name that is still being looked up, or a connection half made, hears nothing of the signal.
    void client.destroy().catch(() => {});
  }, errand.timeoutMs);
  try {
    const { statusCode, headers, body } = await client.request({
      path: url.pathname + url.search,
      method: errand.method,
      headers: errand.headers,
      body: errand.body ?? null,
      signal: deadline.signal,
    });
    const gathered = new ByteAccumulator();
    for await (const chunk of body as AsyncIterable<Buffer>) {
      if (gathered.length + chunk.length > errand.mostBytes)
        throw new Error(`the answer is larger than ${errand.mostBytes} bytes`);
      gathered.append(chunk);
    }
    return { status: statusCode, headers, body: gathered.take().toString('utf8') };
  } finally {
    clearTimeout(timer);
    void client.destroy().catch(() => {});
  }
}

function rejectPublicAddresses(connect: buildConnector.connector): buildConnector.connector {
  return (options, callback) =>
    connect(options, (...result) => {
      const [error, socket] = result;
      if (error !== null) return callback(error, null);
      if (isPrivateAddress(socket.remoteAddress ?? '')) return callback(null, socket);
      socket.destroy();
      return callback(new Error(`${options.hostname} is a public address: only https is spoken there`), null);
    });
}
