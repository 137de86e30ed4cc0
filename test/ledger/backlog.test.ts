import { afterAll, beforeAll, expect, it } from 'vitest';
import { readBacklog } from '../../gateway/ledger/audit/backlog.ts';
import { Database } from '../../gateway/ledger/db.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';

let database: TestDatabase;
let db: Database;

beforeAll(async () => {
  database = await createTestDatabase();
  db = new Database(database.url, { max: 1, applicationName: 'test' });
});
afterAll(async () => {
  await db?.close();
  await database?.drop();
});

it('counts so many open calls and not more, says so, and knows the longest lag of all', async () => {
  expect(await readBacklog(db, 100)).toMatchObject({ underWay: 0, hasMore: false, recoveryLag: 0 });
  await database.query(
    `with made as (
       insert into calls (txn, agent, tool, identity, fingerprint, kind, state, attempt, policy_version)
       select gen_random_uuid(), 'a', 't', 'key', sha256(i::text::bytea), 'none', 'sending', 1, 'v' from generate_series(1, 300) i
       returning txn
     )
     insert into open_calls (txn, due_at) select txn, now() - case when row_number() over () = 300 then interval '1 hour' else interval '1 s' end
     from made`,
  );
  const found = await readBacklog(db, 100);
  expect(found).toMatchObject({ underWay: 100, hasMore: true });
  expect(found.recoveryLag).toBeGreaterThan(3_599);
});
