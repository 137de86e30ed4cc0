const INITIAL_CAPACITY = 1_024;

/**
 * Bytes that arrive in pieces, kept as one. A list of the pieces would cost whoever keeps it far more than their bytes: a
 * piece of one byte is an object of a hundred, and holds the whole slab that it was read into. How many bytes are too many
 * the caller knows, and asks before it adds.
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

  /** All that came so far, which is then the caller's: what is added afterwards is a new beginning. */
  take(): Buffer {
    const taken = this.#bytes.subarray(0, this.#length);
    this.#bytes = Buffer.alloc(0);
    this.#length = 0;
    return taken;
  }

  /** By doubling, so that each byte is copied about twice however small the pieces are. */
  #grow(needed: number): void {
    // The first piece is most often all there is.
    const capacity = this.#length === 0 ? needed : Math.max(needed, INITIAL_CAPACITY, this.#bytes.length * 2);
    const grown = Buffer.allocUnsafe(capacity);
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
  }
}
