import { hash } from 'node:crypto';

/** In bytes of its own: one cut from Node's pool would keep eight kilobytes of it for as long as anybody remembers the hash. */
export function sha256(data: string | Buffer): Buffer {
  return hash('sha256', data, 'buffer');
}
