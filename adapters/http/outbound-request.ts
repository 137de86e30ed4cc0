import { type buildConnector, Client } from 'undici';
import { ByteAccumulator } from '../../gateway/domain/byte-accumulator.ts';
import { createConnector } from './guarded-connector.ts';
import { isPrivateAddress } from './private-address.ts';

/** A request of the gateway itself to a URL from the configuration: the keys of an issuer, a webhook, a witness. */
export interface OutboundRequest {
  readonly url: string;
  readonly method: 'GET' | 'POST';
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  /** Private and loopback addresses are refused unless this is true. */
  readonly allowPrivate: boolean;
  readonly maxBytes: number;
  /** From the DNS lookup to the last byte of the answer. */
  readonly timeoutMs: number;
}

export interface OutboundResponse {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: string;
}

/**
 * Sends one request on its own connection. Does not follow redirects, because their target is not in the configuration. A
 * request without TLS goes only to a private address. Rejects when no whole answer arrives in time.
 */
export async function sendOutboundRequest(request: OutboundRequest): Promise<OutboundResponse> {
  const url = new URL(request.url);
  const connect = createConnector(request.allowPrivate, request.timeoutMs);
  const client = new Client(url.origin, {
    connect: url.protocol === 'https:' ? connect : rejectPublicAddresses(connect),
  });
  const deadline = new AbortController();
  const timer = setTimeout(() => {
    deadline.abort(new Error(`no answer within ${request.timeoutMs} ms`));
    // The signal does not stop a DNS lookup or a connection that is being opened; `destroy` does.
    void client.destroy().catch(() => {});
  }, request.timeoutMs);
  try {
    const { statusCode, headers, body } = await client.request({
      path: url.pathname + url.search,
      method: request.method,
      headers: request.headers,
      body: request.body ?? null,
      signal: deadline.signal,
    });
    const received = new ByteAccumulator();
    for await (const chunk of body as AsyncIterable<Buffer>) {
      if (received.length + chunk.length > request.maxBytes)
        throw new Error(`the answer is larger than ${request.maxBytes} bytes`);
      received.append(chunk);
    }
    return { status: statusCode, headers, body: received.take().toString('utf8') };
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
      return callback(new Error(`${options.hostname} is a public address; use https`), null);
    });
}
