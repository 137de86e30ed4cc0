import { beforeAll, expect, it } from 'vitest';
import { buildConsolePolicies } from '../console/console-policies.ts';
import { ADMIN_KEY, AGENT_KEY } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const HELD_CALLS = 12;
const ARGS_BYTES = 900_000;
/** A page ends with the item that reaches 4 MiB. The second item is slack, because answers are encoded differently than rows. */
const MAX_ANSWER_BYTES = 4 * 1024 * 1024 + 2 * ARGS_BYTES;

const heldTxns = new Set<string>();

const { database, gateway } = useGateway({ policies: buildConsolePolicies });
beforeAll(async () => {
  for (let i = 0; i < HELD_CALLS; i++) {
    const args = { id: `big-${i}`, text: String(i % 10).repeat(ARGS_BYTES) };
    const call = await gateway.call('world.mail', args, { key: `big-${i}`, headers: { prefer: 'wait=0' } });
    expect(call.status).toBe(202);
    heldTxns.add(call.body.txn);
  }
});

it.each([
  ['/admin/approvals?state=pending', ADMIN_KEY],
  ['/admin/calls?state=held', ADMIN_KEY],
  ['/admin/calls?limit=200', ADMIN_KEY],
  ['/v1/calls?limit=200', AGENT_KEY],
])('a page of %s has a limited size, and its cursor leads to the remaining calls', async (path, key) => {
  const seen: string[] = [];
  let cursor: string | null = '';
  do {
    const cursorParam: string = cursor === '' ? '' : `&cursor=${cursor}`;
    const answer = await fetch(`${gateway.url}${path}${cursorParam}`, { headers: { authorization: `Bearer ${key}` } });
    const text = await answer.text();
    expect(answer.status).toBe(200);
    expect(text.length).toBeLessThan(MAX_ANSWER_BYTES);
    const page = JSON.parse(text) as { items: { txn: string }[]; cursor: string | null };
    expect(page.items.length).toBeGreaterThan(0);
    seen.push(...page.items.map(({ txn }) => txn));
    cursor = page.cursor;
  } while (cursor !== null);
  expect(seen).toHaveLength(HELD_CALLS);
  expect(new Set(seen)).toEqual(heldTxns);
});

it('a call that is larger than a page gets a page of its own', async () => {
  await database.query(`insert into call_events (txn, event) select '${[...heldTxns][3]}', jsonb_build_object('at', now(), 'what', 'test',
    'detail', (select string_agg(md5(n::text), '') from generate_series(1, 150000) n))`);
  const { body } = await gateway.admin('GET', '/admin/calls?limit=1');
  expect(body.items).toHaveLength(1);
  let cursor: string | null = body.cursor;
  let count = 1;
  while (cursor !== null) {
    const page: typeof body = (await gateway.admin('GET', `/admin/calls?cursor=${cursor}`)).body;
    count += page.items.length;
    cursor = page.cursor;
  }
  expect(count).toBe(HELD_CALLS);
});
