import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Calls } from '../../gateway/ledger/calls.ts';
import { type Column, unnest, valuesOf } from '../../gateway/ledger/columns.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { intentOf } from '../support/intent.ts';

interface Row {
  readonly id: string | null;
  readonly words: string | null;
  readonly bytes: Buffer | null;
  readonly count: number | null;
  readonly share: number | null;
  readonly flag: boolean | null;
}

const COLUMNS: readonly Column<Row>[] = [
  ['id', 'uuid', (row) => row.id],
  ['words', 'text', (row) => row.words],
  ['bytes', 'bytea', (row) => row.bytes],
  ['count', 'int', (row) => row.count],
  ['share', 'float8', (row) => row.share],
  ['flag', 'bool', (row) => row.flag],
  ['place', 'int', () => 0],
];

let database: TestDatabase;
let db: Database;

beforeAll(async () => {
  database = await freshDatabase();
  db = new Database(database.url, { max: 2, applicationName: 'test' });
});
afterAll(async () => {
  await db?.close();
  await database?.drop();
});

describe('the columns of a batch', () => {
  it('arrive as they were, whatever is in them and wherever nothing is', async () => {
    const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: null });
    const row: fc.Arbitrary<Row> = fc.record({
      id: maybe(fc.uuid()),
      words: maybe(fc.string({ unit: 'binary' }).filter((text) => !text.includes('\0'))),
      bytes: maybe(fc.uint8Array().map((bytes) => Buffer.from(bytes))),
      count: maybe(fc.integer()),
      share: maybe(fc.double({ noNaN: true })),
      flag: maybe(fc.boolean()),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(row, { minLength: 1, maxLength: 8 }), async (rows) => {
        const text = `select id, words, bytes, count, share, flag from ${unnest(COLUMNS, 1)}`;
        expect(await db.run({ name: 'columns', text, values: valuesOf(COLUMNS, rows) })).toEqual(rows);
      }),
      { numRuns: 60 },
    );
  });

  it('that cannot be written are refused alone: their neighbours are claimed', async () => {
    const calls = new Calls(db);
    const good = intentOf('00000000-0000-4000-8000-000000000001');
    const claims = [calls.claim(good), calls.claim({ ...good, txn: 'no uuid' })];
    const [first, second] = await Promise.allSettled(claims);
    expect(first).toEqual({ status: 'fulfilled', value: 'won' });
    expect(second).toMatchObject({ reason: { message: '"no uuid" cannot be the txn of a call: it is no uuid' } });
  });
});
