import type { Socket } from 'node:net';
import { ERRORS, type RetryAdvice } from '../domain/errors.ts';

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
    detail: 'The request took too long to arrive; nothing was done with it.',
    retry: 'same_key',
  },
};

/** How long a caller has to read why before the connection is gone, whether or not it hangs up too. */
const LINGER_MS = 1_000;

/** A request that node itself cannot read deserves the same kind of answer as any other; its connection is of no more use. */
export function answerUnreadable(error: Error & { readonly code?: string }, socket: Socket): void {
  if (!socket.writable) return;
  const { status, reason, detail, retry } = FAULTS[error.code ?? ''] ?? INVALID;
  const type = 'https://oncegate.dev/errors#malformed';
  // It never became a request: there is no path to name as its instance.
  const body = JSON.stringify({ type, title, status, detail, instance: '/', code: 'malformed', retry });
  const head = ['connection: close', 'content-type: application/problem+json', `content-length: ${body.length}`];
  socket.end(`HTTP/1.1 ${status} ${reason}\r\n${head.join('\r\n')}\r\n\r\n${body}`);
  // Closed at once, what the caller is still writing would reset the connection under the answer; never closed, a caller
  // who does not hang up would have it for ever. What still comes is read and forgotten.
  socket.resume();
  setTimeout(() => socket.destroy(), LINGER_MS).unref();
}
