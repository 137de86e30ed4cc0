import type { CallFace } from '../domain/call.ts';

export interface Final {
  readonly face: CallFace;
  readonly fingerprint: Buffer;
}

interface Kept extends Final {
  readonly until: number;
  readonly bytes: number;
}

interface AsOf {
  readonly dropped: number;
  readonly at: number;
}

/** A retry comes within seconds, or much later. */
const KEEP_MS = 60_000;
/** What a row costs beyond its answer. */
const ROW_BYTES = 2_000;

/**
 * Final answers of a moment ago, so that a retry is told without asking the ledger: a final answer never changes. It may
 * expire, though: nothing is kept longer than its payload is. And everything is dropped whenever a switch changes, which is
 * how an erasure before its time reaches every process.
 */
export class Finals {
  readonly #mostBytes: number;
  readonly #payloadsMs: number;
  readonly #kept = new Map<string, Kept>();
  #bytes = 0;
  /** How often everything was dropped. */
  #dropped = 0;

  /** `payloadsMs` is how long payloads are kept at all. */
  constructor(payloadsMs: number, mostBytes = 16 * 1024 * 1024) {
    this.#payloadsMs = payloadsMs;
    this.#mostBytes = mostBytes;
  }

  get(txn: string): Final | undefined {
    const kept = this.#kept.get(txn);
    if (kept === undefined || kept.until > performance.now()) return kept;
    this.#drop(txn, kept);
    return undefined;
  }

  /**
   * To be taken before the ledger is asked: what was read before everything was dropped must not come back after, and how old
   * an answer is counts from then.
   */
  asOf(): AsOf {
    return { dropped: this.#dropped, at: performance.now() };
  }

  /**
   * `ageMs`: how long ago it was settled. Not kept are calls without a key, which depend on what was delivered, and shared
   * ones, which are joined before they are told.
   */
  keep(face: CallFace, fingerprint: Buffer, ageMs: number, asOf: AsOf = this.asOf()): void {
    if (asOf.dropped !== this.#dropped || (face.identity !== 'key' && face.identity !== 'business')) return;
    const now = performance.now();
    const until = Math.min(now + KEEP_MS, asOf.at + this.#payloadsMs - ageMs);
    if (until <= now || this.#kept.has(face.txn)) return;
    const bytes = ROW_BYTES + 2 * (face.answer?.body?.length ?? 0);
    if (bytes > this.#mostBytes / 16) return;
    this.#kept.set(face.txn, { face, fingerprint, bytes, until });
    this.#bytes += bytes;
    if (this.#bytes > this.#mostBytes) this.#dropOldest();
  }

  clear(): void {
    this.#dropped += 1;
    this.#kept.clear();
    this.#bytes = 0;
  }

  #dropOldest(): void {
    for (const [txn, oldest] of this.#kept) {
      if (this.#bytes <= this.#mostBytes) return;
      this.#drop(txn, oldest);
    }
  }

  #drop(txn: string, kept: Kept): void {
    this.#kept.delete(txn);
    this.#bytes -= kept.bytes;
  }
}
