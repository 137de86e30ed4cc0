import { hash } from 'node:crypto';

const BYTES = 32;

/**
 * Copied out of a text, a character a byte: that takes two thirds of the time of a buffer from `hash`, whose bytes are outside of
 * V8's heap and must be freed one by one. Nor is it cut from Node's pool, which would keep eight kilobytes for as long as anybody
 * remembers the hash.
 */
export function sha256(data: string | Buffer): Buffer {
  const text = hash('sha256', data, 'binary');
  const bytes = Buffer.alloc(BYTES);
  for (let i = 0; i < BYTES; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
