import { LedgerError } from '../domain/errors.ts';

/** The oids of PostgreSQL's built-in types, which are the same in every database. */
const OIDS = { bool: 16, bytea: 17, int4: 23, text: 25, float8: 701, uuid: 2950 } as const;

type ColumnType = keyof typeof OIDS;

/** One column of a composite type. */
export type Column = readonly [name: string, type: ColumnType];

/** The name of the next column if it has this type. Otherwise `never`, which no argument satisfies. */
type NextColumn<Columns extends readonly Column[], Type extends ColumnType> = Columns extends readonly [
  readonly [infer Name extends string, Type],
  ...unknown[],
]
  ? Name
  : never;

type AfterNext<Columns extends readonly Column[]> = Columns extends readonly [
  Column,
  ...infer Rest extends readonly Column[],
]
  ? Rest
  : never;

/** Exists only in types: without it TypeScript would accept an unfinished row as a finished one. */
declare const REMAINING: unique symbol;

/**
 * Writes one row, column by column. `Columns` are the columns still to write, so the compiler refuses a wrong name, type or
 * order. A function that returns `FinishedRow` must write every column. At run time each method only appends bytes.
 */
export interface RowWriter<Columns extends readonly Column[]> {
  readonly [REMAINING]: Columns;
  writeText(column: NextColumn<Columns, 'text'>, value: string | null): RowWriter<AfterNext<Columns>>;
  writeUuid(column: NextColumn<Columns, 'uuid'>, value: string | null): RowWriter<AfterNext<Columns>>;
  writeBytea(column: NextColumn<Columns, 'bytea'>, value: Buffer | null): RowWriter<AfterNext<Columns>>;
  writeInt(column: NextColumn<Columns, 'int4'>, value: number | null): RowWriter<AfterNext<Columns>>;
  writeFloat(column: NextColumn<Columns, 'float8'>, value: number | null): RowWriter<AfterNext<Columns>>;
  writeBool(column: NextColumn<Columns, 'bool'>, value: boolean): RowWriter<AfterNext<Columns>>;
}

export type FinishedRow = RowWriter<readonly []>;

export interface RowArrayEncoder<Columns extends readonly Column[]> {
  begin(): void;
  beginRow(): RowWriter<Columns>;
  /** All rows since `begin`. `oid` is the oid of the composite type in this database. */
  finish(oid: number): Buffer;
}

/**
 * Encodes the rows of a batch as one parameter: an array of a composite type in PostgreSQL's binary format. A batch carries
 * texts of a kilobyte and more. Quoting them here and unquoting them in PostgreSQL would each take a tenth of the time of a call.
 *
 * One encoder serves every batch. The caller must not await between `begin` and `finish`.
 */
export function createRowArrayEncoder<const Columns extends readonly Column[]>(
  columns: Columns,
): RowArrayEncoder<Columns> {
  return new BinaryRowArrayEncoder(columns.length) as unknown as RowArrayEncoder<Columns>;
}

const HEADER_BYTES = 20;
const NULL_LENGTH = -1;
const INITIAL_BYTES = 64 * 1024;
/** A buffer that grew beyond this is given up after its batch, so that one large batch does not hold memory forever. */
const MAX_KEPT_BYTES = 4 * 1024 * 1024;

/** `RowWriter` and `RowArrayEncoder` in one object, so that writing a row allocates nothing. */
class BinaryRowArrayEncoder {
  readonly #columnCount: number;
  #bytes = Buffer.allocUnsafe(INITIAL_BYTES);
  #offset = 0;
  #rowCount = 0;
  #rowStart = 0;

  constructor(columnCount: number) {
    this.#columnCount = columnCount;
  }

  begin(): void {
    this.#offset = HEADER_BYTES;
    this.#rowCount = 0;
  }

  beginRow(): this {
    this.#closeRow();
    this.#rowCount += 1;
    this.#rowStart = this.#offset;
    this.#ensureCapacity(8);
    this.#offset = this.#bytes.writeInt32BE(this.#columnCount, this.#offset + 4);
    return this;
  }

  finish(oid: number): Buffer {
    this.#closeRow();
    // The header: one dimension, no null rows, the type of the elements, their count, and 1 as the lower bound.
    let offset = 0;
    for (const value of [1, 0, oid, this.#rowCount, 1]) offset = this.#bytes.writeUInt32BE(value, offset);
    const array = this.#bytes.subarray(0, this.#offset);
    if (this.#bytes.length <= MAX_KEPT_BYTES) return Buffer.from(array);
    this.#bytes = Buffer.allocUnsafe(INITIAL_BYTES);
    return array;
  }

  writeText(_column: string, value: string | null): this {
    if (value === null) return this.#writeNull('text');
    // UTF-8 needs at most three bytes for each UTF-16 code unit; the exact length is known only after writing.
    const start = this.#beginValue('text', value.length * 3);
    return this.#endValue(start, this.#bytes.write(value, start));
  }

  writeUuid(column: string, value: string | null): this {
    if (value === null) return this.#writeNull('uuid');
    const start = this.#beginValue('uuid', 16);
    const written = this.#bytes.write(value.replaceAll('-', ''), start, 16, 'hex');
    if (written !== 16) throw buildTypeError(value, column, 'uuid');
    return this.#endValue(start, 16);
  }

  writeBytea(_column: string, value: Buffer | null): this {
    if (value === null) return this.#writeNull('bytea');
    const start = this.#beginValue('bytea', value.length);
    value.copy(this.#bytes, start);
    return this.#endValue(start, value.length);
  }

  writeInt(column: string, value: number | null): this {
    if (value === null) return this.#writeNull('int4');
    if ((value | 0) !== value) throw buildTypeError(value, column, 'int4');
    const start = this.#beginValue('int4', 4);
    this.#bytes.writeInt32BE(value, start);
    return this.#endValue(start, 4);
  }

  writeFloat(_column: string, value: number | null): this {
    if (value === null) return this.#writeNull('float8');
    const start = this.#beginValue('float8', 8);
    this.#bytes.writeDoubleBE(value, start);
    return this.#endValue(start, 8);
  }

  writeBool(_column: string, value: boolean): this {
    const start = this.#beginValue('bool', 1);
    this.#bytes[start] = value ? 1 : 0;
    return this.#endValue(start, 1);
  }

  #writeNull(type: ColumnType): this {
    const start = this.#beginValue(type, 0);
    this.#bytes.writeInt32BE(NULL_LENGTH, start - 4);
    this.#offset = start;
    return this;
  }

  /** Writes the oid, leaves room for the length, and returns where the bytes of the value start. */
  #beginValue(type: ColumnType, maxBytes: number): number {
    this.#ensureCapacity(maxBytes + 8);
    return this.#bytes.writeInt32BE(OIDS[type], this.#offset) + 4;
  }

  #endValue(start: number, length: number): this {
    this.#bytes.writeInt32BE(length, start - 4);
    this.#offset = start + length;
    return this;
  }

  #closeRow(): void {
    if (this.#rowCount > 0) this.#bytes.writeInt32BE(this.#offset - this.#rowStart - 4, this.#rowStart);
  }

  #ensureCapacity(bytes: number): void {
    const needed = this.#offset + bytes;
    if (needed <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(needed, this.#bytes.length * 2));
    this.#bytes.copy(larger, 0, 0, this.#offset);
    this.#bytes = larger;
  }
}

/** The same error as a rejection by PostgreSQL: group commit then runs the other rows of the batch without this one. */
function buildTypeError(value: unknown, column: string, type: ColumnType): LedgerError {
  const text = `Column ${column} is of type ${type} and cannot hold ${JSON.stringify(value)}.`;
  return new LedgerError(text, { isCommitUnknown: false, isRejected: true, isPermanent: true });
}
