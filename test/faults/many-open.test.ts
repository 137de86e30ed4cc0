import { createHash } from 'node:crypto';
import { expect, it } from 'vitest';
import { CALLS_WITH_STATE } from '../support/call-rows.ts';
import { useGateway } from '../support/use-gateway.ts';

const { upstream, database, gateway } = useGateway({ start: false });

/** Inserts calls as a gateway leaves them when it dies with many calls in flight. */
async function insertOrphanedCalls(count: number, kind: 'none' | 'key'): Promise<void> {
  const tool = kind === 'key' ? 'world.keyed' : 'world.none';
  const path = kind === 'key' ? '/keyed/charge' : '/none/mail';
  const seed = createHash('sha256').update(kind).digest('hex').slice(0, 8);
  await database.query(
    `with made as (
       insert into calls (txn, agent, tool, key, identity, fingerprint, kind, key_lifetime_ms, policy_version, rule, args, request)
       select txn, 'tester', $2, $3 || i, 'key', sha256(i::text::bytea), $3::call_kind, 86400000, 'v', 'r',
         json_build_object('id', $3 || i)::text,
         json_build_object('method', 'POST', 'path', $4::text, 'headers', json_build_object('content-type', 'application/json', 'idempotency-key', txn), 'body', json_build_object('id', $3 || i)::text)::text
       from (select i, ($5 || '-0000-8000-8000-' || lpad(to_hex(i), 12, '0'))::uuid as txn from generate_series(1, $1::int) i) s
       returning txn)
     insert into open_calls (txn, owner, state, fence, attempt, attempt_open, first_sent_at)
     select txn, '00000000-0000-4000-8000-00000000dead', 'sending', 1, 1, true, now() from made`,
    [count, tool, kind, path, seed],
  );
}

it('a restarted gateway re-sends each of 10,000 open calls or reports it in doubt', async () => {
  await insertOrphanedCalls(9_000, 'none');
  await insertOrphanedCalls(1_000, 'key');
  await gateway.start();
  const readyAt = performance.now();
  await expect
    .poll(
      () =>
        database
          .query<{ n: number }>(`select count(*)::int n from open_calls where state = 'sending'`)
          .then(([row]) => row?.n),
      { timeout: 60_000, interval: 50 },
    )
    .toBe(0);
  console.log(`10,000 open calls settled or in doubt ${Math.round(performance.now() - readyAt)} ms after /readyz`);
  // On a busy machine a re-send may need several attempts, but it ends without help.
  await expect
    .poll(
      () =>
        database.query(
          `select kind, state, count(*)::int n from ${CALLS_WITH_STATE} group by 1, 2 order by kind::text`,
        ),
      {
        timeout: 60_000,
        interval: 100,
      },
    )
    .toEqual([
      { kind: 'key', state: 'succeeded', n: 1_000 },
      { kind: 'none', state: 'in_doubt', n: 9_000 },
    ]);
  const effects = await upstream.effects();
  expect(new Set(effects.map(({ id }) => id)).size).toBe(1_000);
  expect(effects).toHaveLength(1_000);
});

it('a gateway finds an open call that names it as owner but that it is not executing, and reports it in doubt', async () => {
  const [gatewayProcess] = await database.query<{ id: string }>('select id from processes where ended_at is null');
  await database.query(
    `with made as (
       insert into calls (txn, agent, tool, key, identity, fingerprint, kind, policy_version, rule, args, request)
       values ('00000000-0000-8000-8000-00000000aaaa', 'tester', 'world.none', 'orphan', 'key', sha256('x'), 'none', 'v', 'r', '{}',
         '{"method":"POST","path":"/none/mail","headers":{},"body":"{}"}')
       returning txn)
     insert into open_calls (txn, owner, state, fence, attempt, attempt_open, first_sent_at) select txn, $1, 'sending', 1, 1, true, now() from made`,
    [gatewayProcess?.id],
  );
  const orphan = await gateway.waitForCall('00000000-0000-8000-8000-00000000aaaa', ({ state }) => state === 'in_doubt');
  expect(orphan.problem.code).toBe('in_doubt');
});
