import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { OTHER_AGENT_KEY, VIEWER_KEY } from '../support/gateway.ts';
import { startGatewayForTest, useGateway } from '../support/use-gateway.ts';
import { RunHolder, takeRun } from './run-holder.ts';

let name: string;

const { upstream, database, gateway } = useGateway({
  policies: (url) => buildFaultPolicies(url, { timeout: '20s' }),
});
beforeEach(async () => {
  await upstream.reset();
  name = `job-${randomUUID()}`;
});

const UNKNOWN_RUN = '00000000-0000-8000-8000-000000000000';
const NO_WAIT = { prefer: 'wait=0' };

describe('taking a run', () => {
  it('gives epoch 1, then epoch 2; a run of another agent with the same name is another run', async () => {
    const first = await takeRun(gateway, { name });
    expect(first.status).toBe(201);
    expect(first.body).toMatchObject({ name, epoch: 1, drained: true, open: [], checkpoint: null });
    const second = await takeRun(gateway, { name });
    expect(second.status).toBe(200);
    expect(second.body).toMatchObject({ run: first.body.run, epoch: 2, drained: true, open: [] });
    const others = await takeRun(gateway, { name }, { agentKey: OTHER_AGENT_KEY });
    expect(others.body.run).not.toBe(first.body.run);
    expect(others.body.epoch).toBe(1);
  });

  it('with the same idempotency key replays its epoch, and is fenced after another takeover', async () => {
    const options = { key: `take-${name}` };
    const first = await takeRun(gateway, { name }, options);
    const again = await takeRun(gateway, { name }, options);
    expect(again.body).toMatchObject({ run: first.body.run, epoch: 1 });
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    await RunHolder.take(gateway, name);
    const late = await takeRun(gateway, { name }, options);
    expect(late.status).toBe(409);
    expect(late.body).toMatchObject({ code: 'fenced', retry: 'never' });
    expect((await takeRun(gateway, { name }, { key: `other-${name}` })).body.epoch).toBe(3);
  });

  it('many times at once gives each holder its own epoch, and only one is current', async () => {
    const taken = await Promise.all(Array.from({ length: 8 }, () => RunHolder.take(gateway, name)));
    expect(new Set(taken.map(({ took }) => took.epoch)).size).toBe(8);
    const tries = await Promise.all(taken.map((holder, k) => holder.call('world.keyed', { id: `${name}-${k}` })));
    expect(tries.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(tries.filter(({ body }) => body.code === 'fenced')).toHaveLength(7);
  });

  it.each([
    [{}, 'name is required.'],
    [{ name: '' }, 'name'],
    [{ name: 'x'.repeat(129) }, 'name'],
    [{ name: 'a\0b' }, 'NUL'],
    [{ name: 'a', ttl: 'soon' }, 'ttl must be a duration such as 500ms'],
    [{ name: 'a', ttl: 0 }, 'ttl'],
    [{ name: 'a', ttl: '9999d' }, 'ttl'],
    [{ name: 'a', surplus: 1 }, 'surplus'],
  ])('is refused for the malformed body %j', async (body, detail) => {
    const refused = await takeRun(gateway, body);
    expect(refused.status).toBe(400);
    expect(refused.body).toMatchObject({ code: 'malformed' });
    expect(refused.body.detail).toContain(detail);
  });
});

describe('a call in a run', () => {
  it('shows its run and epoch, and is in the history of the run', async () => {
    const holder = await RunHolder.take(gateway, name);
    const { run } = holder.took;
    const answer = await holder.call('world.keyed', { id: name }, { key: name });
    expect(answer.status).toBe(200);
    await gateway.call('world.keyed', { id: 'elsewhere' });
    const history = await holder.history();
    expect(history.body.items).toHaveLength(1);
    expect(history.body.items[0]).toMatchObject({ txn: answer.body.txn, run, epoch: 1, args: { id: name } });
    expect((await gateway.get(`/v1/calls?run=${run}`)).body.items).toHaveLength(1);
    expect((await gateway.admin('GET', `/admin/calls?run=${run}`)).body.items).toHaveLength(1);
  });

  it.each([
    ['older', 1, 'Epoch 1 is over'],
    ['zero', 0, 'Epoch 0 is over'],
    ['invented', 3, 'There is no epoch 3 yet'],
    ['absurd', 999_999_999_999, 'There is no epoch'],
  ])('with an %s epoch is fenced, binds no key and sends nothing', async (_, epoch, detail) => {
    const first = await RunHolder.take(gateway, name);
    const current = await RunHolder.take(gateway, name);
    const headers = { 'oncegate-run': first.took.run, 'oncegate-epoch': String(epoch) };
    for (const tool of ['world.keyed', 'world.put', 'world.none', 'world.read', 'world.held']) {
      const refused = await gateway.call(tool, { id: name }, { key: `${name}-${tool}`, headers });
      expect([tool, refused.status]).toEqual([tool, 409]);
      expect(refused.body).toMatchObject({ code: 'fenced', retry: 'never', epoch: 2 });
      expect(refused.body.detail).toContain(detail);
    }
    const dry = await gateway.call('world.keyed', { id: name }, { headers: { ...headers, 'oncegate-dry-run': '?1' } });
    expect(dry.body.wouldAnswer).toMatchObject({ code: 'fenced' });
    expect(await upstream.requests(name)).toEqual([]);
    expect((await current.call('world.keyed', { id: name }, { key: `${name}-world.keyed` })).status).toBe(200);
  });

  it.each([
    ['a run without an epoch', { 'oncegate-run': UNKNOWN_RUN }],
    ['an epoch without a run', { 'oncegate-epoch': '1' }],
    ['a run that is not a UUID', { 'oncegate-run': 'mine', 'oncegate-epoch': '1' }],
    ['an epoch that is not an integer', { 'oncegate-run': UNKNOWN_RUN, 'oncegate-epoch': '1.5' }],
    ['a negative epoch', { 'oncegate-run': UNKNOWN_RUN, 'oncegate-epoch': '-1' }],
  ])('with %s is malformed', async (_, headers) => {
    const refused = await gateway.call('world.keyed', { id: name }, { headers: headers as Record<string, string> });
    expect(refused.status).toBe(400);
    expect(await upstream.requests(name)).toEqual([]);
  });

  it('answers 404 if the run does not exist or belongs to another agent', async () => {
    const holder = await RunHolder.take(gateway, name);
    for (const [headers, agentKey] of [
      [{ 'oncegate-run': UNKNOWN_RUN, 'oncegate-epoch': '1' }, undefined],
      [holder.headers, OTHER_AGENT_KEY],
    ] as const) {
      const options = agentKey === undefined ? { headers } : { headers, agentKey };
      const refused = await gateway.call('world.keyed', { id: name }, options);
      expect(refused.status).toBe(404);
    }
    expect(await upstream.requests(name)).toEqual([]);
    for (const path of ['', '/calls'])
      expect((await gateway.get(`/v1/runs/${holder.took.run}${path}`, OTHER_AGENT_KEY)).status).toBe(404);
    const stranger = new RunHolder(gateway, holder.took, OTHER_AGENT_KEY);
    expect((await stranger.checkpoint({})).status).toBe(404);
    expect((await stranger.postAction('heartbeat')).status).toBe(404);
    expect((await stranger.postAction('finish')).status).toBe(404);
  });

  it('that is final is replayed in any epoch, because a replay sends nothing', async () => {
    const zombie = await RunHolder.take(gateway, name);
    const first = await zombie.call('world.keyed', { id: name }, { key: name });
    const successor = await RunHolder.take(gateway, name);
    for (const holder of [successor, zombie]) {
      const again = await holder.call('world.keyed', { id: name }, { key: name });
      expect(again.status).toBe(200);
      expect(again.body).toMatchObject({ txn: first.body.txn, replayed: true });
    }
    expect(await upstream.effects(name)).toHaveLength(1);
  });

  it('without a key is not a repeat of an equal call in another run or in no run', async () => {
    const holder = await RunHolder.take(gateway, name);
    const other = await RunHolder.take(gateway, `${name}-2`);
    const txns = await Promise.all([
      holder.call('world.put', { id: name }),
      other.call('world.put', { id: name }),
      gateway.call('world.put', { id: name }),
    ]);
    expect(new Set(txns.map(({ body }) => body.txn)).size).toBe(3);
    expect((await holder.call('world.put', { id: name })).body).toMatchObject({ txn: txns[0]?.body.txn });
  });

  it('shares a batch with calls of other runs, and only fenced calls of the batch are refused', async () => {
    const old = await RunHolder.take(gateway, name);
    const current = await RunHolder.take(gateway, name);
    const other = await RunHolder.take(gateway, `${name}-2`);
    const saga = await gateway.request('POST', '/v1/sagas', { key: 'test-agent-key' });
    const inSaga = { headers: { 'oncegate-saga': saga.body.saga } };
    const calls = Array.from({ length: 60 }, (_, k) => {
      const holder = [old, current, other][k % 3] as RunHolder;
      return holder.call('world.keyed', { id: `${name}-${k}` }, { key: `${name}-${k}`, ...(k % 2 ? inSaga : {}) });
    });
    const answers = await Promise.all(calls);
    answers.forEach(({ status }, k) => {
      expect([k, status]).toEqual([k, k % 3 === 0 ? 409 : 200]);
    });
    const steps = (await gateway.get(`/v1/sagas/${saga.body.saga}`)).body.steps;
    expect(steps).toHaveLength(20);
    expect(await upstream.effects()).toHaveLength(40);
  });
});

describe('a takeover', () => {
  it('cancels held calls, which can no longer be approved', async () => {
    const old = await RunHolder.take(gateway, name);
    const held = await old.call('world.held', { id: name }, { key: name, headers: NO_WAIT });
    expect(held.status).toBe(202);
    const { digest } = (await gateway.admin('GET', '/admin/approvals?state=pending')).body.items.find(
      (item: { txn: string }) => item.txn === held.body.txn,
    );
    const next = await RunHolder.take(gateway, name);
    expect(next.took).toMatchObject({ drained: true, open: [] });
    const call = (await gateway.get(`/v1/calls/${held.body.txn}`)).body;
    expect(call).toMatchObject({ state: 'cancelled', problem: { code: 'cancelled' } });
    expect(call.problem.detail).toContain('taken over');
    const late = await gateway.admin('POST', `/admin/approvals/${held.body.txn}/approve`, { digest, reason: 'late' });
    expect(late.status).toBe(409);
    expect(await upstream.requests(name)).toEqual([]);
  });

  it('is not drained while a call is being sent, and is drained after the answer', async () => {
    const old = await RunHolder.take(gateway, name);
    await upstream.plan({ match: { id: name }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const pending = old.call('world.put', { id: name }, { key: name });
    await upstream.awaitEvent('there');
    const next = await RunHolder.take(gateway, name);
    expect(next.took).toMatchObject({ epoch: 2, drained: false });
    expect(next.took.open).toMatchObject([{ tool: 'world.put', state: 'sending', epoch: 1 }]);
    const waiting = next.read('?wait=20');
    await upstream.release('go');
    expect((await pending).status).toBe(200);
    expect((await waiting).body).toMatchObject({ drained: true, open: [] });
  });

  it('with ?wait answers when it is drained', async () => {
    const old = await RunHolder.take(gateway, name);
    await upstream.plan({ match: { id: name }, do: [{ event: 'there' }, { wait: 'go' }, 'apply', { reply: 200 }] });
    const pending = old.call('world.keyed', { id: name }, { key: name });
    await upstream.awaitEvent('there');
    const taking = RunHolder.take(gateway, name, '?wait=20');
    await expect.poll(async () => (await old.read()).body.epoch).toBe(2);
    await upstream.release('go');
    expect((await taking).took).toMatchObject({ epoch: 2, drained: true });
    expect((await pending).status).toBe(200);
  });

  it('fails a call that is between two attempts and was never sent', async () => {
    const policies = buildFaultPolicies('http://127.0.0.1:9', {
      retry: '{ attempts: 50, base: 30s, max: 30s, within: 1h }',
    });
    const { database: store, gateway: lonely } = await startGatewayForTest({ upstream: 'none', policies });
    const old = await RunHolder.take(lonely, name);
    await old.call('world.keyed', { id: name }, { key: name, headers: NO_WAIT });
    const txns = async () => (await old.history()).body.items as { txn: string; state: string }[];
    const closed = () =>
      store.query(`select txn from open_calls where attempt = 1 and not attempt_open and state = 'sending'`);
    await expect.poll(async () => (await closed()).length, { timeout: 20_000 }).toBe(1);
    const next = await RunHolder.take(lonely, name);
    expect(next.took).toMatchObject({ drained: true });
    expect(await txns()).toMatchObject([{ state: 'failed', problem: { code: 'fenced' } }]);
    expect((await old.call('world.keyed', { id: name }, { key: name, headers: NO_WAIT })).body).toMatchObject({
      code: 'fenced',
      state: 'failed',
    });
  });

  it('stops the re-sends of an idempotent call, which stays in doubt until a person resolves it', async () => {
    const old = await RunHolder.take(gateway, name);
    // The first attempt is dropped unapplied during the takeover. A second attempt would have been answered.
    await upstream.plan({ match: { id: name, nth: 1 }, do: [{ event: 'there' }, { wait: 'go' }, 'drop'] });
    const pending = old.call('world.delete', { id: name }, { key: name });
    await upstream.awaitEvent('there');
    const next = await RunHolder.take(gateway, name);
    await upstream.release('go');
    const answer = await pending;
    expect(answer.status).toBe(504);
    expect(answer.body.detail).toContain('the run was taken over');
    expect(await upstream.requests(name)).toHaveLength(1);
    expect((await next.read()).body).toMatchObject({ drained: false, open: [{ state: 'in_doubt' }] });
    const resolve = (verdict: string) =>
      gateway.admin('POST', `/admin/calls/${answer.body.txn}/resolve`, { verdict, reason: 'looked' });
    expect((await resolve('retry')).status).toBe(409);
    expect((await resolve('not_applied')).status).toBe(200);
    expect((await next.read()).body).toMatchObject({ drained: true, open: [] });
  });

  it('lets a call with once: key re-send, and is not drained until that is answered', async () => {
    const old = await RunHolder.take(gateway, name);
    await upstream.plan({ match: { id: name, nth: 1 }, do: ['apply', { event: 'there' }, { wait: 'go' }, 'drop'] });
    const pending = old.call('world.keyed', { id: name }, { key: name });
    await upstream.awaitEvent('there');
    const next = await RunHolder.take(gateway, name);
    expect(next.took.drained).toBe(false);
    await upstream.release('go');
    expect((await pending).status).toBe(200);
    expect((await next.read('?wait=10')).body.drained).toBe(true);
    expect(await upstream.effects(name)).toHaveLength(1);
  });

  it('stops the re-send of a call that its probe finds not applied', async () => {
    const old = await RunHolder.take(gateway, name);
    await upstream.plan({
      match: { id: name, path: '/probed/orders', nth: 1 },
      do: [{ event: 'there' }, { wait: 'go' }, 'drop'],
    });
    const pending = old.call('world.probed', { id: name }, { key: name });
    await upstream.awaitEvent('there');
    const next = await RunHolder.take(gateway, name);
    await upstream.release('go');
    await pending;
    expect((await next.read('?wait=20')).body.drained).toBe(true);
    const [call] = (await next.history()).body.items;
    expect(call).toMatchObject({ state: 'failed', problem: { code: 'fenced' } });
    expect(await upstream.effects(name)).toEqual([]);
  });

  it('does not wait for reads', async () => {
    const old = await RunHolder.take(gateway, name);
    await upstream.plan({ match: { id: name }, do: [{ event: 'there' }, { wait: 'go' }, { reply: 200 }] });
    const pending = old.call('world.read', { id: name });
    await upstream.awaitEvent('there');
    expect((await RunHolder.take(gateway, name)).took.drained).toBe(true);
    await upstream.release('go');
    await pending;
  });
});

describe('a checkpoint', () => {
  it.each([[null], [0], ['text \u0000 and é'], [[1, { deep: [true] }]], [{ done: ['a', 'b'], next: 'c' }]])(
    '%j is stored exactly, and given to the next holder',
    async (value) => {
      const holder = await RunHolder.take(gateway, name);
      expect((await holder.checkpoint(value)).status).toBe(200);
      expect((await holder.read()).body.checkpoint).toEqual(value);
      expect((await RunHolder.take(gateway, name)).took.checkpoint).toEqual(value);
    },
  );

  it('can be written only by the current holder', async () => {
    const old = await RunHolder.take(gateway, name);
    expect((await old.checkpoint({ by: 1 })).status).toBe(200);
    const next = await RunHolder.take(gateway, name);
    const forged = new RunHolder(gateway, { ...next.took, epoch: 7 }, next.agentKey);
    for (const holder of [old, forged]) {
      const refused = await holder.checkpoint({ by: 'a ghost' });
      expect(refused.status).toBe(409);
      expect(refused.body.code).toBe('fenced');
    }
    expect((await next.read()).body.checkpoint).toEqual({ by: 1 });
    expect((await next.checkpoint({ by: 2 })).status).toBe(200);
    expect((await next.read()).body.checkpoint).toEqual({ by: 2 });
  });

  it('may be 1 MiB at most, and must be strict JSON', async () => {
    const holder = await RunHolder.take(gateway, name);
    const largest = JSON.stringify('x'.repeat(1_048_576 - 2));
    expect((await holder.checkpointText(largest)).status).toBe(200);
    expect((await holder.checkpointText(`${largest} `)).status).toBe(413);
    for (const bad of ['', '{"a":1,"a":2}', '{', '1e999']) expect((await holder.checkpointText(bad)).status).toBe(400);
    expect((await holder.read()).body.checkpoint).toHaveLength(1_048_574);
  });

  it('without an epoch is malformed', async () => {
    const { took } = await RunHolder.take(gateway, name);
    const path = `/v1/runs/${took.run}/checkpoint`;
    const headers = { 'content-type': 'application/json' };
    const refused = await gateway.request('PUT', path, { key: 'test-agent-key', body: '1', headers });
    expect(refused.status).toBe(400);
    expect(refused.body.detail).toContain('Oncegate-Epoch');
  });
});

describe('abandoned runs', () => {
  const readListed = async (run: string) =>
    (await gateway.admin('GET', '/admin/runs?limit=200')).body.items.find((item: { run: string }) => item.run === run);

  it('a run without activity for its ttl is abandoned until it is taken again', async () => {
    const taken = await takeRun(gateway, { name, ttl: '1h' });
    const { run } = taken.body;
    expect(await readListed(run)).toMatchObject({ abandoned: false, agent: 'tester', ttlSeconds: 3600 });
    await database.query(`update runs set taken_at = now() - interval '2 hours' where id = $1`, [run]);
    expect(await readListed(run)).toMatchObject({ abandoned: true });
    const listed = await gateway.get('/admin/runs?abandoned=true', VIEWER_KEY);
    expect(listed.body.items.map((item: { run: string }) => item.run)).toContain(run);
    const next = await RunHolder.take(gateway, name);
    expect(await readListed(run)).toMatchObject({ abandoned: false, ttlSeconds: 3600 });
    expect(next.took.epoch).toBe(2);
  });

  it.each(['a call', 'a checkpoint', 'a heartbeat'])('%s counts as activity', async (activity) => {
    await takeRun(gateway, { name, ttl: 3600 });
    const holder = await RunHolder.take(gateway, name);
    const { run } = holder.took;
    await database.query(`update runs set taken_at = now() - interval '2 hours' where id = $1`, [run]);
    expect(await readListed(run)).toMatchObject({ abandoned: true });
    if (activity === 'a call') await holder.call('world.keyed', { id: name });
    else if (activity === 'a checkpoint') await holder.checkpoint({});
    else expect((await holder.postAction('heartbeat')).body).toMatchObject({ run, epoch: 2, abandoned: false });
    expect(await readListed(run)).toMatchObject({ abandoned: false });
  });

  it('a heartbeat of a replaced holder is fenced', async () => {
    const old = await RunHolder.take(gateway, name);
    await RunHolder.take(gateway, name);
    expect((await old.postAction('heartbeat')).body).toMatchObject({ status: 409, code: 'fenced' });
  });

  it('a finished run is never abandoned, refuses calls, and can be taken again', async () => {
    const holder = await RunHolder.take(gateway, name);
    expect((await holder.postAction('finish')).body).toMatchObject({ abandoned: false, endedAt: expect.any(String) });
    expect((await holder.postAction('finish')).status).toBe(200);
    for (const refused of [await holder.call('world.keyed', { id: name }), await holder.checkpoint({})])
      expect(refused.body).toMatchObject({ status: 409, code: 'fenced', detail: expect.stringContaining('finished') });
    const next = await RunHolder.take(gateway, name);
    expect(next.took.epoch).toBe(2);
    expect((await next.call('world.keyed', { id: name })).status).toBe(200);
  });
});

it('a person can finish an abandoned run: its holder is fenced, and its held calls are cancelled', async () => {
  const holder = await RunHolder.take(gateway, name);
  const waiting = await holder.call('world.held', { id: name }, { key: name, headers: NO_WAIT });
  const path = `/admin/runs/${holder.took.run}/finish`;
  expect((await gateway.admin('POST', path, {})).status).toBe(400);
  const ended = await gateway.admin('POST', path, { reason: 'its machine is gone' });
  expect(ended.body).toMatchObject({ epoch: 2, drained: true, agent: 'tester', endedAt: expect.any(String) });
  expect((await gateway.admin('POST', path, { reason: 'again' })).body.epoch).toBe(2);
  expect((await holder.call('world.keyed', { id: name })).body.code).toBe('fenced');
  expect((await gateway.get(`/v1/calls/${waiting.body.txn}`)).body.state).toBe('cancelled');
  expect((await RunHolder.take(gateway, name)).took.epoch).toBe(3);
});

it('a replaced holder can neither open, change, commit nor roll back a saga', async () => {
  const old = await RunHolder.take(gateway, name);
  const postSaga = (holder: RunHolder, path: string, body: object, agentKey = holder.agentKey) =>
    gateway.request('POST', `/v1/sagas${path}`, {
      key: agentKey,
      body: JSON.stringify(body),
      headers: { ...holder.headers, 'content-type': 'application/json' },
    });
  const opened = await postSaga(old, '', {});
  expect(opened.status).toBe(201);
  const { saga } = opened.body;
  expect((await old.call('world.keyed', { id: name }, { headers: { 'oncegate-saga': saga } })).status).toBe(200);
  const next = await RunHolder.take(gateway, name);
  for (const [path, body] of [
    ['', {}],
    [`/${saga}/savepoints`, { name: 's' }],
    [`/${saga}/rollback`, { reason: 'a ghost says so' }],
    [`/${saga}/commit`, {}],
  ] as const) {
    const refused = await postSaga(old, path, body);
    expect([path, refused.status, refused.body.code]).toEqual([path, 409, 'fenced']);
    if (path === '') expect((await postSaga(next, path, body, OTHER_AGENT_KEY)).status).toBe(404);
  }
  expect((await gateway.get(`/v1/sagas/${saga}`)).body).toMatchObject({ state: 'open', savepoints: [] });
  expect((await postSaga(next, `/${saga}/savepoints`, { name: 's' })).status).toBe(201);
  expect((await postSaga(next, `/${saga}/commit`, {})).body.state).toBe('committed');
});

it('an agent lists its own runs in pages', async () => {
  const mine: string[] = [];
  for (let k = 0; k < 3; k += 1) mine.unshift((await RunHolder.take(gateway, `${name}-${k}`)).took.run);
  const first = (await gateway.get('/v1/runs?limit=2')).body;
  const second = (await gateway.get(`/v1/runs?limit=2&cursor=${first.cursor}`)).body;
  const seen = [...first.items, ...second.items].map((item: { run: string }) => item.run);
  expect(seen.slice(0, 3)).toEqual(mine);
  expect(
    (await gateway.get('/v1/runs', OTHER_AGENT_KEY)).body.items.map((item: { run: string }) => item.run),
  ).not.toContain(mine[0]);
});

it('policies can read the run of a call', async () => {
  const { gateway: strict } = await startGatewayForTest({
    upstream,
    policies: (url) => buildFaultPolicies(url, { rules: ['{ deny: world.keyed, when: run == null }'] }),
  });
  const holder = await RunHolder.take(strict, name);
  expect((await strict.call('world.keyed', { id: name })).status).toBe(403);
  expect((await holder.call('world.keyed', { id: name })).status).toBe(200);
});
