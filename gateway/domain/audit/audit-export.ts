import { hash } from 'node:crypto';
import { Frontier, HASH_BYTES } from './merkle.ts';
import { type LogCheckpoint, NoteError, NoteVerifier } from './signed-note.ts';

/**
 * An export of the audit log has one line per entry, in order, and a last line with the newest checkpoint and the public key.
 *
 *   {"index":0,"leaf":"<hex>","entry":{…}}
 *   {"index":1,"leaf":"<hex>","checkpoint":"<signed note>","entry":{…}}
 *   {"checkpoint":"<signed note>","publicKey":"<name+id+base64>"}
 *
 * `entry` is exactly the text that was hashed. Some entries carry the checkpoint that was signed when they were the last entry;
 * these checkpoints narrow down where a fault is.
 */
export interface ExportedEntry {
  readonly index: number;
  readonly leaf: Buffer;
  readonly entry: string;
  readonly checkpoint: string | null;
}

export function formatEntryLine({ index, leaf, entry, checkpoint }: ExportedEntry): string {
  const signed = checkpoint === null ? '' : `,"checkpoint":${JSON.stringify(checkpoint)}`;
  return `{"index":${index},"leaf":"${leaf.toString('hex')}"${signed},"entry":${entry}}`;
}

export function formatLastLine(checkpoint: string, publicKey: string): string {
  return JSON.stringify({ checkpoint, publicKey });
}

/** A key and a checkpoint from a source that the author of the export could not change. The export must match both. */
export interface TrustedInputs {
  readonly key?: string | undefined;
  readonly checkpoint?: string | undefined;
}

export interface ExportVerification {
  readonly isGood: boolean;
  /** The number of entries read. */
  readonly entries: number;
  /** Entries below this index match a signature. */
  readonly proved: number;
  readonly publicKey: string | null;
  readonly fault: ExportFault | null;
}

export interface ExportFault {
  /** The first bad entry: missing, changed or out of order. Null if the key or the given checkpoint is at fault. */
  readonly entry: number | null;
  /** The last entry that may be the bad one. It is larger than `entry` if only a signature does not match. */
  readonly upTo: number | null;
  readonly why: string;
}

/** Parses the last line of an export; undefined for any other line. */
export function parseLastLine(line: string): { checkpoint: string; publicKey: string } | undefined {
  try {
    const value = JSON.parse(line) as { checkpoint?: unknown; publicKey?: unknown };
    const { checkpoint, publicKey } = value;
    if (typeof checkpoint !== 'string' || typeof publicKey !== 'string') return undefined;
    return formatLastLine(checkpoint, publicKey) === line ? { checkpoint, publicKey } : undefined;
  } catch {
    return undefined;
  }
}

const LEAF_HEX_DIGITS = 2 * HASH_BYTES;
const ENTRY_MARKER = '","entry":';
const CHECKPOINT_MARKER = '","checkpoint":"';
const NEWLINE = '\n'.charCodeAt(0);
const CLOSING_BRACE = '}'.charCodeAt(0);

/**
 * Verifies an export against its signatures only. It buffers at most one line, whatever the size of the log. The key is in the
 * last line, so the caller reads that line first (`readLastLine`).
 */
export class ExportVerifier {
  readonly #frontier = new Frontier();
  readonly #verifier: NoteVerifier | undefined;
  readonly #trusted: LogCheckpoint | undefined;
  #provedSize = 0;
  #fault: ExportFault | undefined;
  /** The first entry whose text does not match the hash on its line. The next signature shows whether an earlier one is bad. */
  #firstMismatch: number | undefined;
  #hasReadLastLine = false;
  /** The start of a line whose end has not arrived. */
  #partialLine: Buffer = Buffer.alloc(0);

  constructor(publicKey: string | undefined, trusted: TrustedInputs = {}) {
    try {
      const key = trusted.key ?? publicKey;
      this.#verifier = key === undefined ? undefined : new NoteVerifier(key);
      if (trusted.key !== undefined && publicKey !== undefined && trusted.key !== publicKey)
        this.#recordFault(null, null, 'the export is signed with another key than the given one');
      if (trusted.checkpoint !== undefined) this.#trusted = this.#verifier?.verifyCheckpoint(trusted.checkpoint);
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      this.#recordFault(null, null, `the public key or the given checkpoint is invalid: ${error.message}`);
    }
  }

  get hasFault(): boolean {
    return this.#fault !== undefined;
  }

  get entries(): number {
    return this.#frontier.size;
  }

  /** Takes the next bytes of the export, in chunks of any size. Overwrites bytes of the chunk. */
  feed(chunk: Buffer): void {
    const bytes = this.#partialLine.length === 0 ? chunk : Buffer.concat([this.#partialLine, chunk]);
    let from = 0;
    for (let end = bytes.indexOf(NEWLINE); end >= 0 && !this.hasFault; end = bytes.indexOf(NEWLINE, from)) {
      this.#verifyLine(bytes.subarray(from, end));
      from = end + 1;
    }
    this.#partialLine = bytes.subarray(from);
  }

  #verifyLine(bytes: Buffer): void {
    if (this.#hasReadLastLine)
      return this.#recordFault(this.entries, this.entries, 'the export continues after its last line');
    const index = this.entries;
    const head = `{"index":${index},"leaf":"`;
    const start = bytes.toString('latin1', 0, head.length + LEAF_HEX_DIGITS + ENTRY_MARKER.length);
    if (!start.startsWith(head)) return this.#verifyLastLine(bytes.toString('utf8'), index);
    const claimed = start.slice(head.length, head.length + LEAF_HEX_DIGITS);
    const leaf = Buffer.from(claimed, 'hex');
    const parsed = start.endsWith(ENTRY_MARKER)
      ? { at: start.length }
      : parseSignedLine(bytes, head.length + LEAF_HEX_DIGITS);
    if (parsed === undefined || leaf.length !== HASH_BYTES || bytes[bytes.length - 1] !== CLOSING_BRACE)
      return this.#recordFault(index, index, 'the line does not have the form of an entry');
    // The leaf hash covers a zero byte and the entry. The zero byte overwrites the colon, which is already parsed.
    bytes[parsed.at - 1] = 0;
    if (hash('sha256', bytes.subarray(parsed.at - 1, -1), 'hex') !== claimed) this.#firstMismatch ??= index;
    this.#frontier.append(leaf);
    if (this.entries === this.#trusted?.size) this.#compareRoot(this.#trusted, 'the given checkpoint');
    if (parsed.checkpoint !== undefined) this.#verifyEntryCheckpoint(parsed.checkpoint, index);
  }

  /** Ends the export and returns the verdict. */
  finish(): ExportVerification {
    const { entries } = this;
    if (this.#partialLine.length > 0)
      this.#recordFault(entries, entries, 'the export is cut off in the middle of a line');
    if (!this.#hasReadLastLine)
      this.#recordFault(
        entries,
        entries,
        'the export ends before its last line, which holds the checkpoint and the key',
      );
    // An entry is good only if a verified signature covers it, even if no fault was found before.
    if (this.#verifier === undefined) this.#recordFault(null, null, 'there is no public key to verify the export with');
    if (this.#provedSize < entries) this.#recordFault(this.#provedSize, entries - 1, 'no signature covers the entry');
    return {
      isGood: this.#fault === undefined,
      entries,
      proved: this.#provedSize,
      publicKey: this.#verifier?.text ?? null,
      fault: this.#fault ?? null,
    };
  }

  #verifyEntryCheckpoint(note: string, index: number): void {
    try {
      const checkpoint = this.#verifier?.verifyCheckpoint(note);
      if (checkpoint === undefined) return;
      if (checkpoint.size !== index + 1)
        this.#recordFault(index, index, 'the entry carries the checkpoint of another entry');
      else this.#compareRoot(checkpoint, `the checkpoint of ${checkpoint.size} entries`);
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      this.#recordFault(index, index, `the entry carries an invalid checkpoint: ${error.message}`);
    }
  }

  /** If the root over all leaf hashes matches the signed root, every leaf hash is genuine. */
  #compareRoot({ root, size }: LogCheckpoint, name: string): void {
    if (!this.#frontier.computeRoot().equals(root))
      this.#recordFault(this.#provedSize, size - 1, `the entries do not match the root hash of ${name}`);
    else if (this.#firstMismatch !== undefined)
      this.#recordFault(this.#firstMismatch, this.#firstMismatch, 'the entry differs from the signed one');
    else this.#provedSize = size;
  }

  #verifyLastLine(text: string, index: number): void {
    const last = parseLastLine(text);
    if (last === undefined)
      return this.#recordFault(index, index, 'the line at its position is neither this entry nor the last line');
    this.#hasReadLastLine = true;
    try {
      const checkpoint = this.#verifier?.verifyCheckpoint(last.checkpoint);
      if (checkpoint === undefined) return;
      if (checkpoint.size > index)
        this.#recordFault(
          this.#provedSize,
          index,
          `${checkpoint.size} entries were signed, but the export does not contain all of them`,
        );
      else if (checkpoint.size < index)
        this.#recordFault(this.#provedSize, index - 1, `only ${checkpoint.size} entries were signed`);
      else this.#compareRoot(checkpoint, 'the last checkpoint');
      if (this.#trusted !== undefined && this.#trusted.size > index)
        this.#recordFault(
          index,
          index,
          `the entry is missing: the given checkpoint covers ${this.#trusted.size} entries`,
        );
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      this.#recordFault(index, index, `the last checkpoint is invalid: ${error.message}`);
    }
  }

  /** Keeps the first fault. A mismatch at an earlier entry takes precedence. */
  #recordFault(entry: number | null, upTo: number | null, why: string): void {
    if (this.#firstMismatch !== undefined && entry !== null && this.#firstMismatch < entry)
      this.#fault ??= {
        entry: this.#firstMismatch,
        upTo: this.#firstMismatch,
        why: 'the entry does not have the hash on its line',
      };
    this.#fault ??= { entry, upTo, why };
  }
}

/** Parses the checkpoint of a line that has one, and the start of the entry. */
function parseSignedLine(bytes: Buffer, at: number): { at: number; checkpoint?: string } | undefined {
  if (bytes.toString('latin1', at, at + CHECKPOINT_MARKER.length) !== CHECKPOINT_MARKER) return undefined;
  const end = bytes.indexOf(ENTRY_MARKER, at + CHECKPOINT_MARKER.length, 'latin1');
  if (end < 0) return undefined;
  try {
    const text = bytes.toString('utf8', at + CHECKPOINT_MARKER.length - 1, end + 1);
    const checkpoint = JSON.parse(text) as string;
    return JSON.stringify(checkpoint) === text ? { at: end + ENTRY_MARKER.length, checkpoint } : undefined;
  } catch {
    return undefined;
  }
}
