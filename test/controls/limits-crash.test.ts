import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY, type Gateway, keysYaml, OTHER_AGENT_KEY, type Reply } from '../support/gateway.ts';
import { useReplicas } from '../support/use-gateway.ts';

function policies(url: string): Record<string, string> {
  const input =
    'input: { type: object, properties: { id: { type: string }, amount: { type: number } }, required: [id] }';
  const buildRule = (prefix: string, rest: string) =>
    `      - { allow: world.pay, when: 'args.id.startsWith("${prefix}-")', ${rest} }`;
  return {
    'limits.yaml': `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
tools:
  world.pay:
    upstream: world
    ${input}
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    retry: { attempts: 2, base: 10ms, max: 10ms, within: 1h }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
${buildRule('crash', 'rate: 20/h')}
${buildRule('same', 'rate: 2/h')}
${buildRule('second', 'rate: 3/s')}
${buildRule('cents', 'budget: { sum: args.amount, max: 0.3, per: 1h }')}
${buildRule('big', 'budget: { sum: args.amount, max: 9007199254740991, per: 1h }')}
${buildRule('held', 'rate: 2/h, approve: { within: 1h }')}
${buildRule('refund', 'rate: 1/h')}
${buildRule('both', 'rate: 2/h, budget: { sum: args.amount, max: 10, per: 2s }')}
${buildRule('flood', 'rate: 100/h')}
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules: [{ allow: world.pay }]
people:
  root: { ${keysYaml(ADMIN_KEY)}, roles: [admin] }
`,
  };
}

const { upstream, database, one, two, replicas } = useReplicas({ policies });
beforeEach(async () => {
  for (const replica of replicas) await replica.ensureStarted();
});

const pay = (on: Gateway, id: string, amount?: number, headers = {}): Promise<Reply> =>
  on.call('world.pay', { id, ...(amount === undefined ? {} : { amount }) }, { key: id, headers });
const countEffects = async (prefix: string) =>
  (await upstream.effects()).filter((effect) => effect.id?.startsWith(prefix)).length;

it('a rate is exact when two replicas are under load, one is killed, and every call is repeated', async () => {
  await upstream.plan({ match: { path: '/keyed/charge' }, do: [{ delay: 60 }, 'apply'], times: 20 });
  const ids = Array.from({ length: 80 }, (_, i) => `crash-${i}`);
  const first = Promise.all(ids.map((id, i) => pay(i % 2 === 0 ? one : two, id).catch(() => undefined)));
  await upstream.awaitEvent('received', 5);
  await two.kill();
  await first;
  await two.start();
  const again = await Promise.all(ids.map((id, i) => pay(i % 2 === 0 ? two : one, id)));
  expect(again.filter(({ status }) => status === 200)).toHaveLength(20);
  expect(new Set(again.map(({ status }) => status))).toEqual(new Set([200, 429]));
  expect(await countEffects('crash-')).toBe(20);
});

it('simultaneous calls with one key count once, and replays do not count', async () => {
  const burst = await Promise.all(Array.from({ length: 30 }, (_, i) => pay(i % 2 === 0 ? one : two, 'same-a')));
  expect(new Set(burst.map(({ status }) => status))).toEqual(new Set([200]));
  expect((await pay(one, 'same-b')).status).toBe(200);
  expect((await pay(two, 'same-c')).status).toBe(429);
  for (const gateway of [one, two]) expect((await pay(gateway, 'same-a')).body.replayed).toBe(true);
  expect(await countEffects('same-')).toBe(2);
});

it('a rate of 3/s allows at most three calls in any second, and Retry-After is correct', async () => {
  // The gateway deletes rows of `spends` that left the window, so a trigger copies each row.
  await database.query(`create table counted (at timestamptz, txn uuid);
    create function copy_spend() returns trigger language plpgsql as $$
      begin insert into counted values (new.at, new.txn); return null; end $$;
    create trigger copy_spend after insert on spends for each row execute function copy_spend()`);
  const stopAt = performance.now() + 3_500;
  let i = 0;
  const keepPaying = async (gateway: Gateway) => {
    while (performance.now() < stopAt) {
      i += 1;
      const answer = await pay(gateway, `second-${i}`);
      if (answer.status === 429) expect(answer.headers.get('retry-after')).toBe('1');
      await sleep(15);
    }
  };
  await Promise.all([keepPaying(one), keepPaying(two), keepPaying(one)]);
  const spends = await database.query<{ at: number }>(
    `select extract(epoch from n.at)::float8 * 1000 as at from counted n join calls c on c.txn = n.txn
       where c.tool = 'world.pay' and c.args like '%"second-%' order by n.at`,
  );
  await database.query('drop trigger copy_spend on spends');
  for (let k = 3; k < spends.length; k += 1)
    expect((spends[k]?.at ?? 0) - (spends[k - 3]?.at ?? 0)).toBeGreaterThanOrEqual(1_000);
  expect(spends.length).toBeGreaterThanOrEqual(9);
  expect(await countEffects('second-')).toBe(spends.length);
  await expect.poll(async () => (await pay(two, 'second-last')).status, { timeout: 2_000 }).toBe(200);
});

it('a budget adds decimal amounts exactly, without rounding to floats', async () => {
  for (const id of ['a', 'b', 'c']) expect((await pay(one, `cents-${id}`, 0.1)).status).toBe(200);
  expect((await pay(two, 'cents-d', 1e-12)).body.code).toBe('over_budget');
  expect((await pay(two, 'cents-e', 0)).status).toBe(200);
  expect((await pay(one, 'big-a', 9007199254740990)).status).toBe(200);
  expect((await pay(one, 'big-b', 2)).status).toBe(429);
  expect((await pay(one, 'big-c', 1)).status).toBe(200);
  expect((await pay(one, 'big-d', 1)).status).toBe(429);
});

it('a held call counts once: repeats do not count again, and cancelling it gives nothing back', async () => {
  const held = await pay(one, 'held-a', undefined, { prefer: 'wait=0' });
  expect(held.status).toBe(202);
  expect((await pay(two, 'held-b', undefined, { prefer: 'wait=0' })).status).toBe(202);
  expect((await pay(two, 'held-a', undefined, { prefer: 'wait=0' })).status).toBe(202);
  expect((await pay(one, 'held-c', undefined, { prefer: 'wait=0' })).status).toBe(429);
  await one.request('POST', `/v1/calls/${held.body.txn}/cancel`, { key: AGENT_KEY });
  expect((await pay(one, 'held-c', undefined, { prefer: 'wait=0' })).status).toBe(429);
  const approvals = (await one.admin('GET', '/admin/approvals?state=pending')).body.items;
  expect(approvals).toHaveLength(1);
});

it('a call that could not be sent is not counted', async () => {
  await upstream.kill();
  expect((await pay(one, 'refund-a')).status).toBe(503);
  await upstream.restart();
  expect((await pay(two, 'refund-b')).status).toBe(200);
  expect((await pay(two, 'refund-a')).status).toBe(429);
});

it('a refusal by two limits names the one with the longer wait, and spends from neither', async () => {
  expect((await pay(one, 'both-a', 5)).status).toBe(200);
  expect((await pay(one, 'both-b', 6)).body.code).toBe('over_budget');
  expect((await pay(one, 'both-c', 5)).status).toBe(200);
  const refused = await pay(two, 'both-d', 6);
  expect(refused.body.code).toBe('rate_limited');
  expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(3_000);
});

it('an agent that floods its limit does not starve other agents', async () => {
  const flood = Promise.all(Array.from({ length: 300 }, (_, i) => pay(one, `flood-${i}`)));
  const statuses: number[] = [];
  for (let i = 0; i < 10; i += 1) {
    const answer = await one.call('world.pay', { id: `calm-${i}` }, { key: `calm-${i}`, agentKey: OTHER_AGENT_KEY });
    statuses.push(answer.status);
  }
  const answers = await flood;
  expect(statuses).toEqual(Array(10).fill(200));
  const counts = new Map<number, number>();
  for (const { status } of answers) counts.set(status, (counts.get(status) ?? 0) + 1);
  expect(Object.fromEntries(counts)).toEqual({ 200: 100, 429: 200 });
});
