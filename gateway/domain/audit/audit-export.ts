import { hash } from 'node:crypto';
import { Frontier, HASH_BYTES } from './merkle.ts';
import { type LogCheckpoint, NoteError, NoteVerifier } from './signed-note.ts';

/**
 * An export of the log: a line for each entry, in order, and a last one with the newest checkpoint and the public key.
 *
 *   {"index":0,"leaf":"<hex>","entry":{…}}
 *   {"index":1,"leaf":"<hex>","checkpoint":"<signed note>","entry":{…}}
 *   {"checkpoint":"<signed note>","publicKey":"<name+id+base64>"}
 *
 * The entry is the text that was hashed, byte for byte. Now and then an entry carries the checkpoint that was signed when it was
 * the last one: they tell where something went wrong.
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

/** What an export must agree with, from a source that whoever wrote the export had no hand in. */
export interface TrustedInputs {
  readonly key?: string | undefined;
  readonly checkpoint?: string | undefined;
}

export interface ExportVerification {
  readonly isGood: boolean;
  /** How many entries were read. */
  readonly entries: number;
  /** Entries below this are those that were signed. */
  readonly proved: number;
  readonly publicKey: string | null;
  readonly fault: ExportFault | null;
}

export interface ExportFault {
  /** The first bad entry: missing, changed or in the wrong place. Null: no entry, but what it is to be verified with. */
  readonly entry: number | null;
  /** Larger than `entry` where it is one of these, up to here: somebody made the hashes fit, so only a signature gave them away. */
  readonly upTo: number | null;
  readonly why: string;
}

/** The last line of an export, if that is what it is. */
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
 * Reads an export and believes nothing but signatures. Never more than one line of it is held, whatever the size of
 * the log. The key stands in the last line, so whoever reads looks there first (`readLastLine`).
 */
export class ExportVerifier {
  readonly #frontier = new Frontier();
  readonly #verifier: NoteVerifier | undefined;
  readonly #trusted: LogCheckpoint | undefined;
  #provedSize = 0;
  #fault: ExportFault | undefined;
  /** The first entry that is not what its own line says it hashes to. Whether an earlier one is bad too, the next signature tells. */
  #firstMismatch: number | undefined;
  #hasReadLastLine = false;
  /** The beginning of a line whose end is still to come. */
  #partialLine: Buffer = Buffer.alloc(0);

  constructor(publicKey: string | undefined, trusted: TrustedInputs = {}) {
    try {
      const key = trusted.key ?? publicKey;
      this.#verifier = key === undefined ? undefined : new NoteVerifier(key);
      if (trusted.key !== undefined && publicKey !== undefined && trusted.key !== publicKey)
        this.#recordFault(null, null, 'the export is signed with another key than the one that was given');
      if (trusted.checkpoint !== undefined) this.#trusted = this.#verifier?.verifyCheckpoint(trusted.checkpoint);
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      this.#recordFault(null, null, `the public key, or the checkpoint that was given, does not fit: ${error.message}`);
    }
  }

  /** Whether there is anything left to find out. */
  get hasFault(): boolean {
    return this.#fault !== undefined;
  }

  get entries(): number {
    return this.#frontier.size;
  }

  /** The next bytes of the export, however they are cut. They are scribbled on. */
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
      return this.#recordFault(this.entries, this.entries, 'there is something after the last line');
    const index = this.entries;
    const head = `{"index":${index},"leaf":"`;
    const start = bytes.toString('latin1', 0, head.length + LEAF_HEX_DIGITS + ENTRY_MARKER.length);
    if (!start.startsWith(head)) return this.#verifyLastLine(bytes.toString('utf8'), index);
    const claimed = start.slice(head.length, head.length + LEAF_HEX_DIGITS);
    const leaf = Buffer.from(claimed, 'hex');
    const opened = start.endsWith(ENTRY_MARKER)
      ? { at: start.length }
      : parseSignedLine(bytes, head.length + LEAF_HEX_DIGITS);
    if (opened === undefined || leaf.length !== HASH_BYTES || bytes[bytes.length - 1] !== CLOSING_BRACE)
      return this.#recordFault(index, index, 'its line has not the form of one');
    // What was hashed is a zero byte and the entry; the colon before it is read already.
    bytes[opened.at - 1] = 0;
    if (hash('sha256', bytes.subarray(opened.at - 1, -1), 'hex') !== claimed) this.#firstMismatch ??= index;
    this.#frontier.append(leaf);
    if (this.entries === this.#trusted?.size) this.#compareRoot(this.#trusted, 'the checkpoint that was given');
    if (opened.checkpoint !== undefined) this.#verifyEntryCheckpoint(opened.checkpoint, index);
  }

  /** There is nothing more. */
  finish(): ExportVerification {
    const { entries } = this;
    if (this.#partialLine.length > 0)
      this.#recordFault(entries, entries, 'the export is cut off in the middle of a line');
    if (!this.#hasReadLastLine)
      this.#recordFault(entries, entries, 'the export stops before its last line, with checkpoint and key');
    // Whatever went wrong before, or was not noticed: good is only what a signature was seen to vouch for.
    if (this.#verifier === undefined) this.#recordFault(null, null, 'there was no public key to verify it with');
    if (this.#provedSize < entries) this.#recordFault(this.#provedSize, entries - 1, 'no signature vouches for it');
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
      if (checkpoint.size !== index + 1) this.#recordFault(index, index, 'it carries the checkpoint of another place');
      else this.#compareRoot(checkpoint, `the checkpoint of ${checkpoint.size} entries`);
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      this.#recordFault(index, index, `it carries a checkpoint that is none: ${error.message}`);
    }
  }

  /** If the tree of all leaf hashes is the one that was signed, each of them is the true one. */
  #compareRoot({ root, size }: LogCheckpoint, name: string): void {
    if (!this.#frontier.computeRoot().equals(root))
      this.#recordFault(this.#provedSize, size - 1, `the entries do not give what ${name} has signed`);
    else if (this.#firstMismatch !== undefined)
      this.#recordFault(this.#firstMismatch, this.#firstMismatch, 'it is not the entry that was signed in its place');
    else this.#provedSize = size;
  }

  #verifyLastLine(text: string, index: number): void {
    const last = parseLastLine(text);
    if (last === undefined) return this.#recordFault(index, index, 'the line in its place is not its own');
    this.#hasReadLastLine = true;
    try {
      const checkpoint = this.#verifier?.verifyCheckpoint(last.checkpoint);
      if (checkpoint === undefined) return;
      if (checkpoint.size > index)
        this.#recordFault(
          this.#provedSize,
          index,
          `${checkpoint.size} entries were signed, and not all of them are here`,
        );
      else if (checkpoint.size < index)
        this.#recordFault(this.#provedSize, index - 1, `only ${checkpoint.size} entries were signed`);
      else this.#compareRoot(checkpoint, 'the last checkpoint');
      if (this.#trusted !== undefined && this.#trusted.size > index)
        this.#recordFault(
          index,
          index,
          `it is missing: the checkpoint that was given vouches for ${this.#trusted.size} entries`,
        );
    } catch (error) {
      if (!(error instanceof NoteError)) throw error;
      this.#recordFault(index, index, `the last checkpoint does not fit: ${error.message}`);
    }
  }

  /** The first fault counts. An entry that was suspect before is the earlier one. */
  #recordFault(entry: number | null, upTo: number | null, why: string): void {
    if (this.#firstMismatch !== undefined && entry !== null && this.#firstMismatch < entry)
      this.#fault ??= {
        entry: this.#firstMismatch,
        upTo: this.#firstMismatch,
        why: 'it does not have the hash that its line claims',
      };
    this.#fault ??= { entry, upTo, why };
  }
}

/** Of a line with a checkpoint: that, and where its entry starts. */
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
