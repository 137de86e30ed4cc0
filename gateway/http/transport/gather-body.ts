import type { IncomingMessage } from 'node:http';
import type { FastifyInstance } from 'fastify';
import { ByteAccumulator } from '../../domain/byte-accumulator.ts';
import { GatewayError } from '../../domain/errors.ts';

const NOTHING = Buffer.alloc(0);

/**
 * Bodies stay bytes until the strict parser reads them: fastify's own would keep the last of two equal keys. They are gathered here
 * because fastify keeps every piece of a body as it came, and in pieces of a byte a mebibyte takes hundreds.
 */
export function gatherBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', (request, payload, done) => {
    // Of somebody who is nobody not even that is read: the answer is the same whatever it says.
    if (request.caller?.countedAs === undefined) return done(null, NOTHING);
    gather(payload, request.routeOptions.bodyLimit, done);
  });
}

function gather(payload: IncomingMessage, most: number, done: (error: Error | null, body?: Buffer) => void): void {
  if (Number(payload.headers['content-length']) > most) return done(tooLarge());
  const bytes = new ByteAccumulator();
  const onData = (chunk: Buffer) => {
    if (bytes.length + chunk.length > most) return end(tooLarge());
    bytes.append(chunk);
  };
  const onEnd = () => end(null);
  const onError = () => end(new GatewayError('malformed', 'The body did not arrive whole.'));
  const end = (error: Error | null) => {
    payload.off('data', onData).off('end', onEnd).off('error', onError);
    // What is left of it flows away.
    payload.resume();
    if (error === null) done(null, bytes.take());
    else done(error);
  };
  payload.on('data', onData).on('end', onEnd).on('error', onError);
}

function tooLarge(): GatewayError {
  return new GatewayError('too_large', 'The body is larger than this gateway takes.');
}
