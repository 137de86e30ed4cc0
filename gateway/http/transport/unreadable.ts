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
    detail: 'The request took too long to arrive; nothing was done with it.',
    retry: 'same_key',
  },
};

/** How long a caller has to read why before the connection is gone, whether or not it hangs up too. */
const LINGER_MS = 1_000;

/** A request that node itself cannot read deserves the same kind of answer as any other; its connection is of no more use. */
export class Unreadable {
  /** What was last asked on a connection. Of several at once the last is answered last. */
  readonly #last = new WeakMap<object, ServerResponse>();

  watch(server: Server): void {
    server.on('request', (request, response) => this.#last.set(request.socket, response));
  }

  answer(error: Error & { readonly code?: string }, socket: Socket): void {
    // Answered already: what still comes is no better.
    if (!socket.writable) return;
    const last = this.#last.get(socket);
    const isHalfRead = last !== undefined && !last.req.complete;
    // What is written now would be taken for the answer to a request that is still at work, or has had one. A response has no
    // socket until those before it are done.
    const isTaken = isHalfRead ? last.headersSent || last.socket === null : last?.writableFinished === false;
    if (isTaken) {
      socket.destroy();
      return;
    }
    const fault = FAULTS[error.code ?? ''] ?? INVALID;
    // Whoever was told that nothing was done must be right: what could still become a request is not read to its end. Of what
    // never can be one the rest is read and forgotten: closed at once, it would reset the connection under the answer.
    const couldBecomeOne = isHalfRead || fault.status === 408;
    socket.end(textOf(fault), () => {
      if (couldBecomeOne) socket.destroy();
    });
    if (couldBecomeOne) socket.pause();
    else socket.resume();
    // A caller who does not hang up would have it for ever.
    setTimeout(() => socket.destroy(), LINGER_MS).unref();
  }
}

function textOf({ status, reason, detail, retry }: Fault): string {
  const type = 'https://oncegate.dev/errors#malformed';
  // It never became a request: there is no path to name as its instance.
  const body = JSON.stringify({ type, title, status, detail, instance: '/', code: 'malformed', retry });
  const head = ['connection: close', 'content-type: application/problem+json', `content-length: ${body.length}`];
  return `HTTP/1.1 ${status} ${reason}\r\n${head.join('\r\n')}\r\n\r\n${body}`;
}
