import type { CallSummary } from '../../domain/calls/call.ts';

export interface CachedAnswer {
  readonly face: CallSummary;
  readonly fingerprint: Buffer;
}

interface CacheEntry extends CachedAnswer {
  readonly until: number;
  /** What asked for it, as it came. */
  body: string | undefined;
}

interface KeyedRequest {
  readonly agent: string;
  readonly key: string;
  readonly body: string | undefined;
}

interface CacheVersion {
  readonly dropped: number;
  readonly at: number;
}

/** A retry comes within seconds, or much later. */
const MAX_AGE_MS = 60_000;
/** What a row costs beyond its answer and its body. */
const ENTRY_OVERHEAD_BYTES = 2_000;

/**
 * Final answers of a moment ago, so that a retry is told without asking the ledger: a final answer never changes. It may
 * expire, though: nothing is kept longer than its payload is. And everything is dropped whenever a switch changes, which is
 * how an erasure before its time reaches every process.
 */
export class ReplayCache {
  readonly #mostBytes: number;
  readonly #payloadsMs: number;
  /** By txn; and by agent and key, once somebody was told one that has a key. */
  #young = new Map<string, CacheEntry>();
  /** What was kept before the young ones: it goes all at once when they are half of what may be, or have their time behind them. */
  #old = new Map<string, CacheEntry>();
  /** Of the young. */
  #bytes = 0;
  #youngSince = performance.now();
  /** How often everything was dropped. */
  #dropped = 0;

  /** `payloadsMs` is how long payloads are kept at all. */
  constructor(payloadsMs: number, mostBytes = 16 * 1024 * 1024) {
    this.#payloadsMs = payloadsMs;
    this.#mostBytes = mostBytes;
  }

  get(txn: string): CachedAnswer | undefined {
    return this.#find(txn);
  }

  underKey(agent: string, key: string): CachedAnswer | undefined {
    return this.#find(toKeyEntryName(agent, key));
  }

  /** Only if the very same bytes asked for it: then nothing of them need be read to know what is asked for. */
  askedWith(body: string, agent: string, key: string, tool: string): CachedAnswer | undefined {
    const kept = this.#find(toKeyEntryName(agent, key));
    return kept !== undefined && kept.body === body && kept.face.tool === tool ? kept : undefined;
  }

  #find(name: string): CacheEntry | undefined {
    const kept = this.#young.get(name) ?? this.#old.get(name);
    if (kept === undefined || kept.until > performance.now()) return kept;
    this.#young.delete(name);
    this.#old.delete(name);
    return undefined;
  }

  /**
   * To be taken before the ledger is asked: what was read before everything was dropped must not come back after, and how old
   * an answer is counts from then.
   */
  asOf(): CacheVersion {
    return { dropped: this.#dropped, at: performance.now() };
  }

  /**
   * `ageMs`: how long ago it was settled. Not kept are calls without a key, which depend on what was delivered, and shared
   * ones, which are joined before they are told.
   */
  keep(face: CallSummary, fingerprint: Buffer, ageMs: number, asOf: CacheVersion = this.asOf()): void {
    if (asOf.dropped !== this.#dropped || (face.identity !== 'key' && face.identity !== 'business')) return;
    const now = performance.now();
    const until = Math.min(now + MAX_AGE_MS, asOf.at + this.#payloadsMs - ageMs);
    if (until <= now || this.#find(face.txn) !== undefined) return;
    const bytes = ENTRY_OVERHEAD_BYTES + 2 * (face.answer?.body?.length ?? 0);
    if (bytes > this.#mostBytes / 16) return;
    if (this.#bytes + bytes > this.#mostBytes / 2 || now - this.#youngSince > MAX_AGE_MS) this.#age();
    this.#young.set(face.txn, { face, fingerprint, until, body: undefined });
    this.#bytes += bytes;
  }

  /** Under which key it was asked for, and with which body, if that may be kept too. Nothing, if it is another's by now. */
  noteKey(txn: string, fingerprint: Buffer, { agent, key, body }: KeyedRequest): void {
    const kept = this.#young.get(txn);
    if (kept === undefined || kept.body !== undefined || !kept.fingerprint.equals(fingerprint)) return;
    this.#young.set(toKeyEntryName(agent, key), kept);
    // Many may be kept before the first of them is told: then there is no room for their bodies any more.
    if (body === undefined || this.#bytes + body.length > this.#mostBytes / 2) return;
    kept.body = body;
    this.#bytes += body.length;
  }

  clear(): void {
    this.#dropped += 1;
    this.#age();
    this.#old = new Map();
  }

  #age(): void {
    this.#old = this.#young;
    this.#young = new Map();
    this.#bytes = 0;
    this.#youngSince = performance.now();
  }
}

/** Agents have no spaces in their names, and a txn has none at all: no two calls share a name. */
function toKeyEntryName(agent: string, key: string): string {
  return `${agent} ${key}`;
}
