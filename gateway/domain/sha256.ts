import { hash } from 'node:crypto';

const BYTES = 32;

/**
 * Copies the digest out of a binary string, one byte per character. That takes two thirds of the time of a buffer from
 * `hash`, whose bytes live outside the V8 heap and are freed one by one. `Buffer.alloc` does not use the pool of Node, where
 * a stored hash would keep 8 KiB alive.
 */
export function sha256(data: string | Buffer): Buffer {
  const text = hash('sha256', data, 'binary');
  const bytes = Buffer.alloc(BYTES);
  for (let i = 0; i < BYTES; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}
