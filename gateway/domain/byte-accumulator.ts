const INITIAL_CAPACITY = 1_024;

/**
 * Collects chunks of bytes in one growing buffer. A list of small chunks would need far more memory than their bytes. Each chunk
 * is an object of about a hundred bytes, and keeps alive the whole buffer that the socket was read into.
 *
 * The caller enforces the size limit: it checks `length` before it appends.
 */
export class ByteAccumulator {
  #bytes = Buffer.alloc(0);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  append(chunk: Uint8Array): void {
    const needed = this.#length + chunk.length;
    if (needed > this.#bytes.length) this.#grow(needed);
    this.#bytes.set(chunk, this.#length);
    this.#length = needed;
  }

  /** Returns all bytes so far and hands them to the caller. The accumulator is empty afterwards. */
  take(): Buffer {
    const taken = this.#bytes.subarray(0, this.#length);
    this.#bytes = Buffer.alloc(0);
    this.#length = 0;
    return taken;
  }

  /** Doubles the capacity, so that each byte is copied about twice, however small the chunks are. */
  #grow(needed: number): void {
    // The first chunk is usually the only one, so it gets an exact buffer.
    if (this.#length === 0) {
      this.#bytes = Buffer.allocUnsafe(needed);
      return;
    }
    // Not from Node's pool: a small buffer of the pool would keep a slab of up to 64 KiB alive.
    const grown = Buffer.allocUnsafeSlow(Math.max(needed, INITIAL_CAPACITY, this.#bytes.length * 2));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
  }
}
