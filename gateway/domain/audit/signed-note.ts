import { createPrivateKey, createPublicKey, hash, type KeyObject, sign, verify } from 'node:crypto';

/**
 * Log checkpoints as signed notes, in the C2SP formats signed-note, tlog-checkpoint and tlog-cosignature, so that public
 * witnesses and tools understand them.
 */

/** The size and root hash of a log at one moment. */
export interface LogCheckpoint {
  /** The name of the log. */
  readonly origin: string;
  readonly size: number;
  readonly root: Buffer;
}

export class NoteError extends Error {
  override readonly name = 'NoteError';
}

/** The kind of signature is part of the key id, so one key id never stands for two kinds. */
const ALGORITHM_ED25519 = 1;
const ALGORITHM_COSIGNATURE = 4;
const SIGNATURE_LINE_PREFIX = '\u2014 ';
const KEY_NAME_PATTERN = /^[^\s+\p{Cc}]+$/u;
const MAX_NOTE_BYTES = 1_000_000;

/** Signs checkpoints of its own log (`log`), or cosigns those of other logs (`witness`). */
export class NoteSigner {
  readonly name: string;
  /** The public key as text: name, id and bytes. */
  readonly verifier: string;
  readonly #privateKey: KeyObject;
  readonly #keyId: Buffer;

  constructor(name: string, privateKey: KeyObject, as: 'log' | 'witness' = 'log') {
    if (privateKey.asymmetricKeyType !== 'ed25519') throw new NoteError('not an Ed25519 key');
    const bytes = Buffer.concat([
      Buffer.from([as === 'log' ? ALGORITHM_ED25519 : ALGORITHM_COSIGNATURE]),
      Buffer.from(createPublicKey(privateKey).export({ format: 'jwk' }).x ?? '', 'base64url'),
    ]);
    this.name = name;
    this.#privateKey = privateKey;
    this.#keyId = computeKeyId(name, bytes);
    this.verifier = `${name}+${this.#keyId.toString('hex')}+${bytes.toString('base64')}`;
  }

  static fromPem(name: string, pem: string, as: 'log' | 'witness' = 'log'): NoteSigner {
    let key: KeyObject;
    try {
      key = createPrivateKey(pem);
    } catch {
      throw new NoteError('not a private key in PEM form');
    }
    return new NoteSigner(name, key, as);
  }

  /** Signs that the log has this root at this size. */
  sign(size: number, root: Buffer): string {
    const body = formatCheckpointBody({ origin: this.name, size, root });
    return `${body}\n${this.#formatSignatureLine(sign(null, Buffer.from(body), this.#privateKey))}`;
  }

  /** A signature line for a checkpoint: the witness saw it at that second, and nothing earlier that contradicts it. */
  cosign(note: string, second: number): string {
    const time = Buffer.alloc(8);
    time.writeBigUInt64BE(BigInt(second));
    const signature = sign(null, buildCosignatureMessage(parseNote(note).body, second), this.#privateKey);
    return this.#formatSignatureLine(Buffer.concat([time, signature]));
  }

  /** Whether a note has a signature line of this key. Does not verify the signature. */
  hasLineIn(note: string): boolean {
    return parseNote(note).lines.some(({ name, id }) => name === this.name && id.equals(this.#keyId));
  }

  #formatSignatureLine(signature: Buffer): string {
    return `${SIGNATURE_LINE_PREFIX}${this.name} ${Buffer.concat([this.#keyId, signature]).toString('base64')}\n`;
  }
}

/** A public key in the format of `NoteSigner.verifier`. */
export class NoteVerifier {
  readonly name: string;
  readonly text: string;
  readonly #keyId: Buffer;
  readonly #algorithm: number;
  readonly #publicKey: KeyObject;

  constructor(text: string) {
    const [, name = '', id = '', base64 = ''] = /^([^+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]+=*)$/.exec(text) ?? [];
    const bytes = Buffer.from(base64, 'base64');
    const kind = bytes[0] ?? 0;
    if (
      !KEY_NAME_PATTERN.test(name) ||
      bytes.length !== 33 ||
      !(kind === ALGORITHM_ED25519 || kind === ALGORITHM_COSIGNATURE)
    )
      throw new NoteError('the text is not a public key such as example.com/log+1a2b3c4d+AZ…');
    if (computeKeyId(name, bytes).toString('hex') !== id)
      throw new NoteError('the id of the public key does not match its name and bytes');
    this.name = name;
    this.text = text;
    this.#keyId = Buffer.from(id, 'hex');
    this.#algorithm = kind;
    this.#publicKey = createPublicKey({
      key: { kty: 'OKP', crv: 'Ed25519', x: bytes.subarray(1).toString('base64url') },
      format: 'jwk',
    });
  }

  /** The checkpoint in a note of this log. Throws `NoteError` if the note is invalid or not signed by this key. */
  verifyCheckpoint(note: string): LogCheckpoint {
    const checkpoint = parseLogCheckpoint(note);
    if (checkpoint.origin !== this.name)
      throw new NoteError(`the checkpoint belongs to the log ${checkpoint.origin}, not to ${this.name}`);
    if (!this.hasSigned(note)) throw new NoteError('the checkpoint does not bear the signature of this log');
    return checkpoint;
  }

  hasSigned(note: string): boolean {
    const { body, lines } = parseNote(note);
    return lines.some((line) => this.#isOwnLine(line) && this.#isSignatureValid(body, line.signature));
  }

  #isOwnLine({ name, id }: SignatureLine): boolean {
    return name === this.name && id.equals(this.#keyId);
  }

  #isSignatureValid(body: string, signature: Buffer): boolean {
    if (this.#algorithm === ALGORITHM_ED25519)
      return signature.length === 64 && verify(null, Buffer.from(body), this.#publicKey, signature);
    if (signature.length !== 72) return false;
    const second = Number(signature.readBigUInt64BE());
    return verify(null, buildCosignatureMessage(body, second), this.#publicKey, signature.subarray(8));
  }
}

/** Parses the checkpoint of a note without verifying a signature. */
export function parseLogCheckpoint(note: string): LogCheckpoint {
  const [origin = '', size = '', root = ''] = parseNote(note).body.split('\n');
  const bytes = Buffer.from(root, 'base64');
  if (origin === '' || !/^(0|[1-9]\d{0,14})$/.test(size) || bytes.length !== 32 || bytes.toString('base64') !== root)
    throw new NoteError('the note is not a checkpoint with one line each for origin, size and root');
  return { origin, size: Number(size), root: bytes };
}

interface SignatureLine {
  readonly name: string;
  readonly id: Buffer;
  readonly signature: Buffer;
}

/** Splits a note into the signed text, with its last newline, and the signature lines below the empty line. */
function parseNote(note: string): { body: string; lines: SignatureLine[] } {
  const end = note.lastIndexOf('\n\n');
  if (note.length > MAX_NOTE_BYTES || end < 0 || !note.endsWith('\n'))
    throw new NoteError('the text is not a signed note');
  const lines = note.slice(end + 2, -1).split('\n');
  return { body: note.slice(0, end + 1), lines: lines.map(parseSignatureLine) };
}

function parseSignatureLine(line: string): SignatureLine {
  const [, name = '', base64 = ''] = /^\u2014 (\S+) ([A-Za-z0-9+/]+=*)$/.exec(line) ?? [];
  const bytes = Buffer.from(base64, 'base64');
  if (!KEY_NAME_PATTERN.test(name) || bytes.length < 5 || bytes.toString('base64') !== base64)
    throw new NoteError('the note has a line that is not a signature');
  return { name, id: bytes.subarray(0, 4), signature: bytes.subarray(4) };
}

function formatCheckpointBody({ origin, size, root }: LogCheckpoint): string {
  return `${origin}\n${size}\n${root.toString('base64')}\n`;
}

function buildCosignatureMessage(body: string, second: number): Buffer {
  return Buffer.from(`cosignature/v1\ntime ${second}\n${body}`);
}

function computeKeyId(name: string, bytes: Buffer): Buffer {
  return hash('sha256', Buffer.concat([Buffer.from(`${name}\n`), bytes]), 'buffer').subarray(0, 4);
}
