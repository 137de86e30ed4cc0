import { LedgerError } from '../domain/errors.ts';

/** Of PostgreSQL's own types, which have the same numbers everywhere. */
const OIDS = { bool: 16, bytea: 17, int: 23, text: 25, float8: 701, uuid: 2950 } as const;

type ColumnType = keyof typeof OIDS;

const HEADER_BYTES = 20;
const NULL_LENGTH = -1;
const INITIAL_BYTES = 64 * 1024;
/** What one batch of long texts took is not kept for ever. */
const MAX_KEPT_BYTES = 4 * 1024 * 1024;

/**
 * The rows of a batch as one parameter: an array of a composite type in PostgreSQL's binary format. A batch carries texts of a
 * kilobyte and more; to quote them here and unquote them there was a tenth of what a call cost on either side.
 *
 * One of these is used again for every batch: it is filled and copied out without anything between.
 */
export class RowArrayEncoder {
  readonly #columns: number;
  #bytes = Buffer.allocUnsafe(INITIAL_BYTES);
  #at = 0;
  #rows = 0;
  #rowAt = 0;

  /** How many columns the composite type has. */
  constructor(columns: number) {
    this.#columns = columns;
  }

  begin(): void {
    this.#at = HEADER_BYTES;
    this.#rows = 0;
  }

  beginRow(): void {
    this.#closeRow();
    this.#rows += 1;
    this.#rowAt = this.#at;
    this.#ensureCapacity(8);
    this.#at = this.#bytes.writeInt32BE(this.#columns, this.#at + 4);
  }

  /** All rows so far, whose type has this number in this database. */
  finish(oid: number): Buffer {
    this.#closeRow();
    // One dimension; no row is null; of what; how many; counted from one.
    let at = 0;
    for (const value of [1, 0, oid, this.#rows, 1]) at = this.#bytes.writeUInt32BE(value, at);
    const array = this.#bytes.subarray(0, this.#at);
    if (this.#bytes.length <= MAX_KEPT_BYTES) return Buffer.from(array);
    this.#bytes = Buffer.allocUnsafe(INITIAL_BYTES);
    return array;
  }

  writeText(value: string | null): void {
    if (value === null) return this.#writeNull('text');
    // Of its bytes in UTF-8 it is only known that they are no more than three times its length.
    const at = this.#beginValue('text', value.length * 3);
    this.#endValue(at, this.#bytes.write(value, at));
  }

  writeUuid(column: string, value: string | null): void {
    if (value === null) return this.#writeNull('uuid');
    const at = this.#beginValue('uuid', 16);
    if (this.#bytes.write(value.replaceAll('-', ''), at, 16, 'hex') !== 16) throw buildTypeError(value, column, 'uuid');
    this.#endValue(at, 16);
  }

  writeBytea(value: Buffer | null): void {
    if (value === null) return this.#writeNull('bytea');
    const at = this.#beginValue('bytea', value.length);
    value.copy(this.#bytes, at);
    this.#endValue(at, value.length);
  }

  writeInt(column: string, value: number | null): void {
    if (value === null) return this.#writeNull('int');
    if ((value | 0) !== value) throw buildTypeError(value, column, 'int');
    const at = this.#beginValue('int', 4);
    this.#bytes.writeInt32BE(value, at);
    this.#endValue(at, 4);
  }

  writeFloat8(value: number | null): void {
    if (value === null) return this.#writeNull('float8');
    const at = this.#beginValue('float8', 8);
    this.#bytes.writeDoubleBE(value, at);
    this.#endValue(at, 8);
  }

  writeBool(value: boolean): void {
    const at = this.#beginValue('bool', 1);
    this.#bytes[at] = value ? 1 : 0;
    this.#endValue(at, 1);
  }

  #writeNull(type: ColumnType): void {
    const at = this.#beginValue(type, 0);
    this.#bytes.writeInt32BE(NULL_LENGTH, at - 4);
    this.#at = at;
  }

  /** Where the bytes of a value go: after its type, and its length, which is known once they are written. */
  #beginValue(type: ColumnType, bytes: number): number {
    this.#ensureCapacity(bytes + 8);
    return this.#bytes.writeInt32BE(OIDS[type], this.#at) + 4;
  }

  #endValue(at: number, length: number): void {
    this.#bytes.writeInt32BE(length, at - 4);
    this.#at = at + length;
  }

  #closeRow(): void {
    if (this.#rows > 0) this.#bytes.writeInt32BE(this.#at - this.#rowAt - 4, this.#rowAt);
  }

  #ensureCapacity(bytes: number): void {
    const needed = this.#at + bytes;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(needed, this.#bytes.length * 2));
    this.#bytes.copy(larger, 0, 0, this.#at);
    this.#bytes = larger;
  }
}

/** As if the server had refused it: what stands beside it in the batch must not suffer. */
function buildTypeError(value: unknown, column: string, type: ColumnType): LedgerError {
  const text = `${JSON.stringify(value)} cannot be the ${column} of a call: it is no ${type}`;
  return new LedgerError(text, { isCommitUnknown: false, isRejected: true, isPermanent: true });
}
