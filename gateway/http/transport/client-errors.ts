import type { Server, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { ERRORS, type RetryAdvice } from '../../domain/errors.ts';

interface Fault {
  readonly status: number;
  readonly reason: string;
  readonly detail: string;
  readonly retry: RetryAdvice;
}

const { title, retry } = ERRORS.malformed;
const INVALID: Fault = { status: 400, reason: 'Bad Request', detail: 'This is not a valid HTTP request.', retry };
const FAULTS: Readonly<Record<string, Fault>> = {
  HPE_HEADER_OVERFLOW: {
    status: 431,
    reason: 'Request Header Fields Too Large',
    detail: 'The headers are too large.',
    retry,
  },
  ERR_HTTP_REQUEST_TIMEOUT: {
    status: 408,
    reason: 'Request Timeout',
    detail: 'The request took too long to arrive. Nothing was done with it.',
    retry: 'same_key',
  },
};

/** How long a client has to read the answer before the connection is destroyed. */
const LINGER_MS = 1_000;

/** Answers requests that Node cannot parse with a problem document, then closes the connection. */
export class ClientErrorResponder {
  /** The newest response per connection. Pipelined responses go out in order, so the newest goes out last. */
  readonly #lastResponses = new WeakMap<object, ServerResponse>();

  watch(server: Server): void {
    server.on('request', (request, response) => this.#lastResponses.set(request.socket, response));
  }

  answer(error: Error & { readonly code?: string }, socket: Socket): void {
    // The first error was answered already.
    if (!socket.writable) return;
    const last = this.#lastResponses.get(socket);
    const isHalfRead = last !== undefined && !last.req.complete;
    // Send nothing if the client would take this answer for that of an earlier request, still open or already answered.
    // A response has no socket until the responses before it are finished.
    const isTaken = isHalfRead ? last.headersSent || last.socket === null : last?.writableFinished === false;
    if (isTaken) {
      socket.destroy();
      return;
    }
    const fault = FAULTS[error.code ?? ''] ?? INVALID;
    // The answer says that nothing was done. So do not read bytes that could still complete the request.
    // Read and discard other bytes: closing at once would reset the connection before the client has the answer.
    const couldBecomeRequest = isHalfRead || fault.status === 408;
    socket.end(formatResponse(fault), () => {
      if (couldBecomeRequest) socket.destroy();
    });
    if (couldBecomeRequest) socket.pause();
    else socket.resume();
    // Without a timeout, a client that never closes would keep the connection for ever.
    setTimeout(() => socket.destroy(), LINGER_MS).unref();
  }
}

function formatResponse({ status, reason, detail, retry }: Fault): string {
  const type = 'https://oncegate.dev/errors#malformed';
  // An unparsed request has no path to name as the instance.
  const body = JSON.stringify({ type, title, status, detail, instance: '/', code: 'malformed', retry });
  const head = ['connection: close', 'content-type: application/problem+json', `content-length: ${body.length}`];
  return `HTTP/1.1 ${status} ${reason}\r\n${head.join('\r\n')}\r\n\r\n${body}`;
}
