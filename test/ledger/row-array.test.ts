import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CallStore } from '../../gateway/ledger/calls/calls.ts';
import { CHANGE_ROW_TYPE, CLAIM_ROW_TYPE } from '../../gateway/ledger/calls/encode-call-batch.ts';
import { createRowArrayEncoder, type FinishedRow } from '../../gateway/ledger/row-array.ts';
import { buildIntent } from '../support/intent.ts';
import { useLedger } from '../support/use-ledger.ts';

interface Row {
  readonly id: string | null;
  readonly words: string | null;
  readonly bytes: Buffer | null;
  readonly count: number | null;
  readonly share: number | null;
  readonly flag: boolean;
}

const COLUMNS = [
  ['id', 'uuid'],
  ['words', 'text'],
  ['bytes', 'bytea'],
  ['count', 'int4'],
  ['share', 'float8'],
  ['flag', 'bool'],
] as const;

function encode(rows: readonly Row[], oid: number): Buffer {
  const array = createRowArrayEncoder(COLUMNS);
  array.begin();
  for (const row of rows) {
    array
      .beginRow()
      .writeUuid('id', row.id)
      .writeText('words', row.words)
      .writeBytea('bytes', row.bytes)
      .writeInt('count', row.count)
      .writeFloat('share', row.share)
      .writeBool('flag', row.flag);
  }
  return array.finish(oid);
}

const { db } = useLedger(2);

describe('rows of a batch', () => {
  it('reach PostgreSQL unchanged, with any content and with nulls', async () => {
    await db.run({
      name: 'row-type',
      text: 'create type odd_row as (id uuid, words text, bytes bytea, count int, share float8, flag bool)',
      values: [],
    });
    const [type] = await db.run<{ oid: number }>({ name: 'oid', text: `select 'odd_row'::regtype::oid`, values: [] });
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
        const values = [encode(rows, type?.oid ?? 0)];
        expect(await db.run({ name: 'rows', text: 'select * from unnest($1::odd_row[])', values })).toEqual(rows);
      }),
      { numRuns: 60 },
    );
  });

  it('may be longer than the buffer, and shorter afterwards', async () => {
    const array = createRowArrayEncoder([['words', 'text']]);
    const lengths = async (texts: readonly string[]) => {
      array.begin();
      for (const text of texts) {
        array.beginRow().writeText('words', text);
      }
      const values = [array.finish(type?.oid ?? 0)];
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

  it.each([CLAIM_ROW_TYPE, CHANGE_ROW_TYPE])('of $type have the columns of the schema, in its order', async (row) => {
    const text = `select attname as name, typname as type from pg_attribute a join pg_type t on t.oid = a.atttypid
      where attrelid = $1::regclass and not attisdropped order by attnum`;
    const columns = await db.run<{ name: string; type: string }>({ name: 'attributes', text, values: [row.type] });
    expect(columns.map(({ name, type }) => [name, type])).toEqual(row.columns);
  });

  it('do not compile with a wrong name, type or order, or with a column missing', () => {
    const array = createRowArrayEncoder(COLUMNS);
    array.begin();
    // @ts-expect-error the first column is id
    array.beginRow().writeUuid('words', null);
    // @ts-expect-error id is a uuid
    array.beginRow().writeText('id', null);
    // @ts-expect-error words comes before bytes
    array.beginRow().writeUuid('id', null).writeBytea('bytes', null);
    // @ts-expect-error five columns are missing
    const unfinished: FinishedRow = array.beginRow().writeUuid('id', null);
    expect(unfinished).toBeDefined();
  });

  it('that cannot be encoded are refused alone; the other claims of the batch are won', async () => {
    const calls = new CallStore(db);
    const good = buildIntent('00000000-0000-4000-8000-000000000001');
    const claims = [calls.claim(good), calls.claim({ ...good, txn: 'no uuid' })];
    const [first, second] = await Promise.allSettled(claims);
    expect(first).toEqual({ status: 'fulfilled', value: { kind: 'won', lockToken: null } });
    expect(second).toMatchObject({ reason: { message: 'Column txn is of type uuid and cannot hold "no uuid".' } });
  });
});
