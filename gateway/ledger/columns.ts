import { LedgerError } from '../domain/errors.ts';

/**
 * The arrays of a batch in PostgreSQL's binary format. A batch carries texts of a kilobyte and more; to quote them here and have
 * them unquoted there was a tenth of what a call cost on either side.
 */

interface Cells {
  readonly uuid: string;
  readonly text: string;
  readonly bytea: Buffer;
  readonly int: number;
  readonly float8: number;
  readonly bool: boolean;
}

export type ColumnType = keyof Cells;

/** A column of a batch: its name and type in the statement, and what each row has there. */
export type Column<Row> = {
  [Type in ColumnType]: readonly [name: string, type: Type, pick: (row: Row) => Cells[Type] | null];
}[ColumnType];

interface Format<Cell> {
  readonly oid: number;
  readonly size: (cell: Cell) => number;
  readonly write: (to: Buffer, cell: Cell, at: number) => void;
}

const FORMATS: { readonly [Type in ColumnType]: Format<Cells[Type]> } = {
  uuid: { oid: 2950, size: () => 16, write: writeUuid },
  text: { oid: 25, size: (text) => Buffer.byteLength(text), write: (to, text, at) => to.write(text, at) },
  bytea: { oid: 17, size: (bytes) => bytes.length, write: (to, bytes, at) => bytes.copy(to, at) },
  int: { oid: 23, size: () => 4, write: (to, value, at) => to.writeInt32BE(value, at) },
  float8: { oid: 701, size: () => 8, write: (to, value, at) => to.writeDoubleBE(value, at) },
  bool: { oid: 16, size: () => 1, write: (to, value, at) => to.writeUInt8(value ? 1 : 0, at) },
};

const HEADER_BYTES = 20;

/** The parameters of a batch, in the order of its columns. */
export function valuesOf<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): (Buffer | null)[] {
  return columns.map((column) => arrayOf(column, rows));
}

/** `unnest` of those parameters, which begin with number `first`. */
export function unnest<Row>(columns: readonly Column<Row>[], first: number): string {
  const arrays = columns.map(([, type], i) => `$${first + i}::${type}[]`);
  return `unnest(${arrays.join(', ')}) as t(${columns.map(([name]) => name).join(', ')})`;
}

/** Null where nothing is in it: `unnest` fills up with nulls. */
function arrayOf<Row, Type extends ColumnType>(
  [name, type, pick]: readonly [name: string, type: Type, pick: (row: Row) => Cells[Type] | null],
  rows: readonly Row[],
): Buffer | null {
  const { oid, size, write } = FORMATS[type];
  const cells = rows.map(pick);
  let bytes = HEADER_BYTES;
  let filled = 0;
  for (const cell of cells) {
    bytes += 4;
    if (cell === null) continue;
    bytes += size(cell);
    filled += 1;
  }
  if (filled === 0) return null;
  const array = Buffer.allocUnsafe(bytes);
  // One dimension; whether there are nulls; of what; how many; counted from one.
  let at = 0;
  for (const value of [1, filled < cells.length ? 1 : 0, oid, cells.length, 1]) at = array.writeInt32BE(value, at);
  for (const cell of cells) {
    const length = cell === null ? -1 : size(cell);
    at = array.writeInt32BE(length, at);
    if (cell === null) continue;
    try {
      write(array, cell, at);
    } catch (error) {
      // As if the server had refused it: what stands beside it in the batch must not suffer.
      throw new LedgerError(
        `${JSON.stringify(cell)} cannot be the ${name} of a call: it is no ${type}`,
        false,
        error,
        true,
      );
    }
    at += length;
  }
  return array;
}

function writeUuid(to: Buffer, uuid: string, at: number): void {
  if (to.write(uuid.replaceAll('-', ''), at, 16, 'hex') !== 16) throw new Error('not 32 hexadecimal digits');
}
