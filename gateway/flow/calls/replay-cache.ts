import { type CallRecord, withoutPayload } from '../../domain/calls/call-record.ts';

export interface CachedAnswer {
  /** Without payload. */
  readonly call: CallRecord;
  readonly fingerprint: Buffer;
}

interface CacheEntry extends CachedAnswer {
  readonly expiresAt: number;
  /** The request body that got this answer, byte for byte. */
  body: string | undefined;
}

interface KeyedRequest {
  readonly agent: string;
  readonly key: string;
  readonly body: string | undefined;
}

/** How often the cache had been cleared at a time. `add` compares it with the current count. */
interface CacheVersion {
  readonly clearCount: number;
  readonly at: number;
}

/** Retries come within seconds or much later, so a minute is enough. */
const MAX_AGE_MS = 60_000;
/** The memory of an entry beyond its answer and its body. The record without payload is half of it, with its times. */
const ENTRY_OVERHEAD_BYTES = 2_000;

/**
 * Recent final answers, so that a retry needs no ledger read. This is safe because a final answer never changes. Answers
 * expire with the retention of their payload. A change of any control flag clears the cache, which is how an early erasure
 * reaches every process.
 */
export class ReplayCache {
  readonly #maxBytes: number;
  readonly #payloadsMs: number;
  /** By txn, and also by agent and key once a request with a key got the answer. */
  #young = new Map<string, CacheEntry>();
  /** The previous generation. It is dropped when the young one reaches half of `#maxBytes` or is too old. */
  #old = new Map<string, CacheEntry>();
  /** The size of the young generation. */
  #bytes = 0;
  #youngSince = performance.now();
  /** How often the cache was cleared. */
  #clearCount = 0;

  /** `payloadsMs` is the retention of payloads. */
  constructor(payloadsMs: number, maxBytes = 16 * 1024 * 1024) {
    this.#payloadsMs = payloadsMs;
    this.#maxBytes = maxBytes;
  }

  get(txn: string): CachedAnswer | undefined {
    return this.#find(txn);
  }

  getByKey(agent: string, key: string): CachedAnswer | undefined {
    return this.#find(toKeyEntryName(agent, key));
  }

  /** Finds an answer only for a byte-identical body, so that the body need not be parsed. */
  getByBody(body: string, agent: string, key: string, tool: string): CachedAnswer | undefined {
    const entry = this.#find(toKeyEntryName(agent, key));
    return entry !== undefined && entry.body === body && entry.call.tool === tool ? entry : undefined;
  }

  #find(name: string): CacheEntry | undefined {
    const entry = this.#young.get(name) ?? this.#old.get(name);
    if (entry === undefined || entry.expiresAt > performance.now()) return entry;
    this.#young.delete(name);
    this.#old.delete(name);
    return undefined;
  }

  /**
   * Take this before reading the ledger and pass it to `add`. An answer read before the cache was cleared must not enter it
   * afterwards, and the age of an answer counts from this moment.
   */
  readVersion(): CacheVersion {
    return { clearCount: this.#clearCount, at: performance.now() };
  }

  /**
   * Adds an answer that was settled `ageMs` ago. Skips calls without a key, because their repeats depend on delivery, and
   * shared calls, because a repeat must join them first.
   */
  add(call: CallRecord, fingerprint: Buffer, ageMs: number, version: CacheVersion = this.readVersion()): void {
    if (version.clearCount !== this.#clearCount || (call.identity !== 'key' && call.identity !== 'business')) return;
    const now = performance.now();
    const expiresAt = Math.min(now + MAX_AGE_MS, version.at + this.#payloadsMs - ageMs);
    if (expiresAt <= now || this.#find(call.txn) !== undefined) return;
    const bytes = ENTRY_OVERHEAD_BYTES + 2 * (call.answer?.body?.length ?? 0);
    if (bytes > this.#maxBytes / 16) return;
    if (this.#bytes + bytes > this.#maxBytes / 2 || now - this.#youngSince > MAX_AGE_MS) this.#startGeneration();
    this.#young.set(call.txn, { call: withoutPayload(call), fingerprint, expiresAt, body: undefined });
    this.#bytes += bytes;
  }

  /** Makes an answer findable by key, and by body if the body may be kept. Ignored if the answer is of another request. */
  addKey(txn: string, fingerprint: Buffer, { agent, key, body }: KeyedRequest): void {
    const entry = this.#young.get(txn);
    if (entry === undefined || entry.body !== undefined || !entry.fingerprint.equals(fingerprint)) return;
    this.#young.set(toKeyEntryName(agent, key), entry);
    // Many answers may be added before the first one gets its key. Then there may be no room left for bodies.
    if (body === undefined || this.#bytes + body.length > this.#maxBytes / 2) return;
    entry.body = body;
    this.#bytes += body.length;
  }

  clear(): void {
    this.#clearCount += 1;
    this.#startGeneration();
    this.#old = new Map();
  }

  #startGeneration(): void {
    this.#old = this.#young;
    this.#young = new Map();
    this.#bytes = 0;
    this.#youngSince = performance.now();
  }
}

/** The name of an entry by key. The space keeps names apart: agent names and txns contain none. */
function toKeyEntryName(agent: string, key: string): string {
  return `${agent} ${key}`;
}
