import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CLAIM_ROW, SETTLEMENT_ROW, UPDATE_ROW } from '../../gateway/ledger/calls/call-batches.ts';
import {
  CALL_COLUMNS,
  CALLS_JOINED,
  type ColumnTable,
  INTENT_COLUMNS,
  OPEN_COLUMNS,
  SETTLEMENT_COLUMNS,
  UNDO_COLUMNS,
} from '../../gateway/ledger/calls/call-columns.ts';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { RowArrayEncoder, type RowType } from '../../gateway/ledger/row-array.ts';
import { buildNewCall } from '../support/call-record.ts';
import { useLedger } from '../support/use-ledger.ts';

interface Row {
  readonly id: string | null;
  readonly words: string | null;
  readonly bytes: Buffer | null;
  readonly count: number | null;
  readonly share: number | null;
  readonly flag: boolean;
}

const ODD_ROW: RowType<Row> = {
  type: 'odd_row',
  columns: [
    { name: 'id', type: 'uuid', read: (row) => row.id },
    { name: 'words', type: 'text', read: (row) => row.words },
    { name: 'bytes', type: 'bytea', read: (row) => row.bytes },
    { name: 'count', type: 'int4', read: (row) => row.count },
    { name: 'share', type: 'float8', read: (row) => row.share },
    { name: 'flag', type: 'bool', read: (row) => row.flag },
  ],
};

const { db } = useLedger(2);

describe('rows of a batch', () => {
  it('reach PostgreSQL unchanged, with any content and with nulls', async () => {
    await db.run({
      name: 'row-type',
      text: 'create type odd_row as (id uuid, words text, bytes bytea, count int, share float8, flag bool)',
      values: [],
    });
    const [type] = await db.run<{ oid: number }>({ name: 'oid', text: `select 'odd_row'::regtype::oid`, values: [] });
    const encoder = new RowArrayEncoder(ODD_ROW);
    const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: null });
    const row: fc.Arbitrary<Row> = fc.record({
      id: maybe(fc.uuid()),
      words: maybe(fc.string({ unit: 'binary' }).filter((text) => !text.includes('\0'))),
      bytes: maybe(fc.uint8Array().map((bytes) => Buffer.from(bytes))),
      count: maybe(fc.integer()),
      share: maybe(fc.double({ noNaN: true })),
      flag: fc.boolean(),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(row, { minLength: 1, maxLength: 8 }), async (rows) => {
        const values = [encoder.encode(rows, type?.oid ?? 0)];
        expect(await db.run({ name: 'rows', text: 'select * from unnest($1::odd_row[])', values })).toEqual(rows);
      }),
      { numRuns: 60 },
    );
  });

  it('may be longer than the buffer, and shorter afterwards', async () => {
    const encoder = new RowArrayEncoder<string>({
      type: 'long_row',
      columns: [{ name: 'words', type: 'text', read: (text) => text }],
    });
    const lengths = async (texts: readonly string[]) => {
      const values = [encoder.encode(texts, type?.oid ?? 0)];
      return db.run({ name: 'long', text: 'select length(words) as n from unnest($1::long_row[])', values });
    };
    await db.run({ name: 'long-type', text: 'create type long_row as (words text)', values: [] });
    const [type] = await db.run<{ oid: number }>({ name: 'lid', text: `select 'long_row'::regtype::oid`, values: [] });
    expect(await lengths(['ä'.repeat(3_000_000), 'x'.repeat(70_000), ''])).toEqual([
      { n: 3_000_000 },
      { n: 70_000 },
      { n: 0 },
    ]);
    expect(await lengths(['short'])).toEqual([{ n: 5 }]);
  });

  it.each([CLAIM_ROW, UPDATE_ROW, SETTLEMENT_ROW])(
    'of $type have the columns of the schema, in its order',
    async (row) => {
      const text = `select attname as name, typname as type from pg_attribute a join pg_type t on t.oid = a.atttypid
      where attrelid = $1::regclass and not attisdropped order by attnum`;
      const columns = await db.run<{ name: string; type: string }>({ name: 'attributes', text, values: [row.type] });
      expect(columns).toEqual(row.columns.map(({ name, type }) => ({ name, type })));
    },
  );

  it('that cannot be encoded are refused alone; the other claims of the batch are won', async () => {
    const calls = new CallStore(db);
    const good = buildNewCall('00000000-0000-4000-8000-000000000001');
    const claims = [
      calls.claim(good),
      calls.claim(buildNewCall('00000000-0000-4000-8000-000000000001', { txn: 'no uuid' })),
    ];
    const [first, second] = await Promise.allSettled(claims);
    expect(first).toEqual({ status: 'fulfilled', value: { kind: 'won', lockToken: null } });
    expect(second).toMatchObject({ reason: { message: 'Column txn is of type uuid and cannot hold "no uuid".' } });
  });
});

interface TableColumns {
  readonly table: string;
  readonly alias: string;
  readonly written: ColumnTable;
  /** The columns that no field of a call is read from or patched in, and what they are for. */
  readonly others: Readonly<Record<string, string>>;
}

const TABLES: readonly TableColumns[] = [
  { table: 'calls', alias: 'c', written: INTENT_COLUMNS, others: {} },
  {
    table: 'open_calls',
    alias: 'o',
    written: OPEN_COLUMNS,
    others: {
      run: 'a copy of calls.run, by which the takeover of a run finds its open calls',
      former_owners: 'read by areSendersGone before a verdict',
    },
  },
  { table: 'settlements', alias: 'r', written: SETTLEMENT_COLUMNS, others: {} },
  {
    table: 'undos',
    alias: 'u',
    written: UNDO_COLUMNS,
    others: {
      doubt: 'read with the step by readSteps',
      due_at: 'read with the step by readSteps',
      since: 'read with the step by readSteps',
      tries_from: 'read with the step by readSteps',
      waived: 'read with the step by readSteps',
    },
  },
];

describe('the column tables', () => {
  const readColumns = async (table: string) => {
    const text = `select attname as name, regexp_replace(typname, '^_(.*)', '\\1[]') as type from pg_attribute a join pg_type t on t.oid = a.atttypid
      where attrelid = $1::regclass and attnum > 0 and not attisdropped`;
    const rows = await db.run<{ name: string; type: string }>({ name: 'columns', text, values: [table] });
    return new Map(rows.map(({ name, type }) => [name, type]));
  };

  it.each(TABLES)('account for every column of $table', async ({ table, alias, written, others }) => {
    const read = [...`${CALL_COLUMNS} ${CALLS_JOINED}`.matchAll(new RegExp(`\\b${alias}\\.(\\w+)`, 'g'))];
    const used = new Set([...read.map(([, column]) => column), ...Object.values(written).map(({ column }) => column)]);
    expect([...used, ...Object.keys(others)].sort()).toEqual([...(await readColumns(table)).keys()].sort());
  });

  it.each(TABLES)('write the columns of $table in their types', async ({ table, written }) => {
    const types = await readColumns(table);
    for (const { column, type, cast, set } of Object.values(written))
      if (set === undefined) expect(types.get(column), column).toBe(cast ?? type);
  });
});
