import { LedgerError } from '../domain/errors.ts';

/** Of PostgreSQL's own types, which have the same numbers everywhere. */
const OIDS = { bool: 16, bytea: 17, int: 23, text: 25, float8: 701, uuid: 2950 } as const;

type ColumnType = keyof typeof OIDS;

const HEADER_BYTES = 20;
const ABSENT = -1;
const FIRST_BYTES = 64 * 1024;
/** What one batch of long texts took is not kept for ever. */
const MOST_KEPT_BYTES = 4 * 1024 * 1024;

/**
 * The rows of a batch as one parameter: an array of a composite type in PostgreSQL's binary format. A batch carries texts of a
 * kilobyte and more; to quote them here and unquote them there was a tenth of what a call cost on either side.
 *
 * One of these is used again for every batch: it is filled and copied out without anything between.
 */
export class RowArray {
  readonly #columns: number;
  #bytes = Buffer.allocUnsafe(FIRST_BYTES);
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

  row(): void {
    this.#closeRow();
    this.#rows += 1;
    this.#rowAt = this.#at;
    this.#room(8);
    this.#at = this.#bytes.writeInt32BE(this.#columns, this.#at + 4);
  }

  /** All rows so far, whose type has this number in this database. */
  end(oid: number): Buffer {
    this.#closeRow();
    // One dimension; no row is null; of what; how many; counted from one.
    let at = 0;
    for (const value of [1, 0, oid, this.#rows, 1]) at = this.#bytes.writeUInt32BE(value, at);
    const array = this.#bytes.subarray(0, this.#at);
    if (this.#bytes.length <= MOST_KEPT_BYTES) return Buffer.from(array);
    this.#bytes = Buffer.allocUnsafe(FIRST_BYTES);
    return array;
  }

  text(value: string | null): void {
    if (value === null) return this.#absent('text');
    // Of its bytes in UTF-8 it is only known that they are no more than three times its length.
    const at = this.#open('text', value.length * 3);
    this.#close(at, this.#bytes.write(value, at));
  }

  uuid(column: string, value: string | null): void {
    if (value === null) return this.#absent('uuid');
    const at = this.#open('uuid', 16);
    if (this.#bytes.write(value.replaceAll('-', ''), at, 16, 'hex') !== 16) throw unfit(value, column, 'uuid');
    this.#close(at, 16);
  }

  bytea(value: Buffer | null): void {
    if (value === null) return this.#absent('bytea');
    const at = this.#open('bytea', value.length);
    value.copy(this.#bytes, at);
    this.#close(at, value.length);
  }

  int(column: string, value: number | null): void {
    if (value === null) return this.#absent('int');
    if ((value | 0) !== value) throw unfit(value, column, 'int');
    const at = this.#open('int', 4);
    this.#bytes.writeInt32BE(value, at);
    this.#close(at, 4);
  }

  float8(value: number | null): void {
    if (value === null) return this.#absent('float8');
    const at = this.#open('float8', 8);
    this.#bytes.writeDoubleBE(value, at);
    this.#close(at, 8);
  }

  bool(value: boolean): void {
    const at = this.#open('bool', 1);
    this.#bytes[at] = value ? 1 : 0;
    this.#close(at, 1);
  }

  #absent(type: ColumnType): void {
    const at = this.#open(type, 0);
    this.#bytes.writeInt32BE(ABSENT, at - 4);
    this.#at = at;
  }

  /** Where the bytes of a value go: after its type, and its length, which is known once they are written. */
  #open(type: ColumnType, bytes: number): number {
    this.#room(bytes + 8);
    return this.#bytes.writeInt32BE(OIDS[type], this.#at) + 4;
  }

  #close(at: number, length: number): void {
    this.#bytes.writeInt32BE(length, at - 4);
    this.#at = at + length;
  }

  #closeRow(): void {
    if (this.#rows > 0) this.#bytes.writeInt32BE(this.#at - this.#rowAt - 4, this.#rowAt);
  }

  #room(bytes: number): void {
    const needed = this.#at + bytes;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(needed, this.#bytes.length * 2));
    this.#bytes.copy(larger, 0, 0, this.#at);
    this.#bytes = larger;
  }
}

/** As if the server had refused it: what stands beside it in the batch must not suffer. */
function unfit(value: unknown, column: string, type: ColumnType): LedgerError {
  const text = `${JSON.stringify(value)} cannot be the ${column} of a call: it is no ${type}`;
  return new LedgerError(text, false, undefined, true, true);
}
