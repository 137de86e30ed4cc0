import { expect, it } from 'vitest';
import { readBacklog } from '../../gateway/ledger/audit/backlog.ts';
import { useLedger } from '../support/use-ledger.ts';

const { database, db } = useLedger(1);

it('counts up to the limit, reports that there are more, and finds the longest lag of all', async () => {
  expect(await readBacklog(db, 100)).toMatchObject({ underWay: 0, hasMore: false, recoveryLag: 0 });
  await database.query(
    `with made as (
       insert into calls (txn, agent, tool, identity, fingerprint, kind, policy_version)
       select gen_random_uuid(), 'a', 't', 'key', sha256(i::text::bytea), 'none', 'v' from generate_series(1, 300) i
       returning txn
     )
     insert into open_calls (txn, state, fence, attempt, due_at)
     select txn, 'sending', 1, 1, now() - case when row_number() over () = 300 then interval '1 hour' else interval '1 s' end
     from made`,
  );
  const found = await readBacklog(db, 100);
  expect(found).toMatchObject({ underWay: 100, hasMore: true });
  expect(found.recoveryLag).toBeGreaterThan(3_599);
});
