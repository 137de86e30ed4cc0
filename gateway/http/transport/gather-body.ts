import type { IncomingMessage } from 'node:http';
import type { FastifyInstance } from 'fastify';
import { ByteAccumulator } from '../../domain/byte-accumulator.ts';
import { GatewayError } from '../../domain/errors.ts';

const EMPTY_BODY = Buffer.alloc(0);

/**
 * Collects bodies as bytes for the strict parser; Fastify's own parser keeps the last of two equal keys. Fastify would also store
 * every chunk as an object of its own: a mebibyte that arrives byte by byte would need hundreds of mebibytes.
 */
export function gatherBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', (request, payload, done) => {
    // Do not read the body of an unauthenticated request: its answer does not depend on the body.
    if (request.credentials?.principal === undefined) return done(null, EMPTY_BODY);
    gather(payload, request.routeOptions.bodyLimit, done);
  });
}

function gather(payload: IncomingMessage, maxBytes: number, done: (error: Error | null, body?: Buffer) => void): void {
  if (Number(payload.headers['content-length']) > maxBytes) return done(tooLarge(maxBytes));
  const bytes = new ByteAccumulator();
  const onData = (chunk: Buffer) => {
    if (bytes.length + chunk.length > maxBytes) return end(tooLarge(maxBytes));
    bytes.append(chunk);
  };
  const onEnd = () => end(null);
  const onError = () => end(new GatewayError('malformed', 'The body did not arrive completely.'));
  const end = (error: Error | null) => {
    payload.off('data', onData).off('end', onEnd).off('error', onError);
    // Discard the rest of the body.
    payload.resume();
    if (error === null) done(null, bytes.take());
    else done(error);
  };
  payload.on('data', onData).on('end', onEnd).on('error', onError);
}

function tooLarge(maxBytes: number): GatewayError {
  return new GatewayError('too_large', `The body must be at most ${maxBytes} bytes.`);
}
