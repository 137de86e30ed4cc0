// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeEach, describe, expect, it } from 'vitest';
import { readCallState } from '../support/call-rows.ts';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';
import { pollUntil } from '../support/poll.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const tool = (name: string, path: string, more: string) => `
  ${name}:
    upstream: world
    input: { type: object, properties: { id: { type: string }, order: { type: string }, n: { type: integer } }, required: [id] }
    request: { method: POST, path: ${path}, body: "\${args}" }
    ${more}`;

const policies = (rules = '- { allow: "world.*", approve: never }', tools = TOOLS): { 'repeats.yaml': string } => ({
  'repeats.yaml': `
upstreams:
  world: { adapter: http, url: "${upstream.url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
tools:${tools}
agents:
  tester: { ${keysYaml(AGENT_KEY)}, rules: [${rules.slice(2)}] }
  other: { ${keysYaml(OTHER_AGENT_KEY)}, rules: [{ allow: "world.*", approve: never }] }
${PEOPLE_YAML}`,
});

const TOOLS = [
  tool(
    'world.default',
    '/keyed/charge',
    'once: { by: key, header: Idempotency-Key }\n    retry: { attempts: 4, base: 50ms, max: 500ms }',
  ),
  tool('world.short', '/none/mail', 'repeats: { policy: replay, window: 1ms }'),
  tool(
    'world.hold',
    '/keyed-field/charge',
    'once: { by: key, field: meta.key }\n    repeats: { policy: hold, window: 60s }',
  ),
  tool('world.run', '/probed/orders', 'once: { by: idempotent }\n    repeats: { policy: run }'),
  tool('world.business', '/echo', 'once: { by: idempotent }\n    key: "${args.order}"'),
].join('');

const { upstream, database, gateway } = useGateway({ policies: () => policies() });
beforeEach(() => {
  id = uniqueId('repeat');
});

const countEffects = async () => (await upstream.effects(id)).length;

const isDelivered = (txn: string) => async () =>
  (await database.query('select 1 from repeats where txn = $1 and delivered_at is not null', [txn])).length === 1;

/** Calls a tool and aborts the request after the upstream applied it and before it answers. Returns the txn of the succeeded call. */
async function abandonCall(name: string, args: object): Promise<string> {
  await upstream.plan({ match: { id }, do: ['apply', { wait: id }] });
  const client = new AbortController();
  const call = gateway.call(name, args, { signal: client.signal }).catch(() => 'aborted');
  await upstream.awaitEvent(`applied:${id}`);
  client.abort();
  expect(await call).toBe('aborted');
  await upstream.release(id);
  const findCall = async () => (await gateway.get(`/v1/calls?tool=${name}&limit=1`)).body.items[0];
  await pollUntil(async () => (await readCallState(database, (await findCall()).txn)) === 'succeeded');
  return (await findCall()).txn;
}

describe('an identical call without a key', () => {
  it('is replayed within the window, and marked as a replay', async () => {
    const first = await gateway.call('world.default', { id, n: 1 });
    expect(first.body.replayed).toBe(false);
    const again = await gateway.call('world.default', { n: 1, id });
    expect(again.body).toEqual({ ...first.body, replayed: true });
    expect(again.headers.get('idempotent-replayed')).toBe('true');
    expect(await countEffects()).toBe(1);
  });

  it('is a new call if it has other arguments, another agent or a key', async () => {
    const txns = new Set<string>();
    txns.add((await gateway.call('world.default', { id })).body.txn);
    txns.add((await gateway.call('world.default', { id, n: 1 })).body.txn);
    txns.add((await gateway.call('world.default', { id }, { agentKey: OTHER_AGENT_KEY })).body.txn);
    txns.add((await gateway.call('world.default', { id }, { key: id })).body.txn);
    expect(txns.size).toBe(4);
    expect(await countEffects()).toBe(4);
  });

  it('that is made many times at once has one effect and equal answers, all but one marked as replays', async () => {
    const answers = await Promise.all(Array.from({ length: 12 }, () => gateway.call('world.default', { id })));
    expect(new Set(answers.map((answer) => answer.body.txn)).size).toBe(1);
    for (const answer of answers) expect(answer.status).toBe(200);
    expect(answers.filter((answer) => answer.body.replayed === false)).toHaveLength(1);
    expect(await countEffects()).toBe(1);
  });

  it('runs again after the window', async () => {
    const first = await gateway.call('world.short', { id });
    await pollUntil(isDelivered(first.body.txn));
    await sleep(5);
    const second = await gateway.call('world.short', { id });
    expect(second.body.replayed).toBe(false);
    expect(second.body.txn).not.toBe(first.body.txn);
    expect(await countEffects()).toBe(2);
  });

  it('is replayed after the window until the first answer is delivered, and then runs again', async () => {
    const txn = await abandonCall('world.short', { id });
    await sleep(30);
    expect(await isDelivered(txn)()).toBe(false);
    const replay = await gateway.call('world.short', { id });
    expect(replay.body).toMatchObject({ txn, replayed: true, state: 'succeeded' });
    expect(replay.headers.get('idempotent-replayed')).toBe('true');
    expect(await countEffects()).toBe(1);
    await pollUntil(isDelivered(txn));
    await sleep(5);
    const fresh = await gateway.call('world.short', { id });
    expect(fresh.body.replayed).toBe(false);
    expect(await countEffects()).toBe(2);
  });

  it('joins the first call while that is still being sent', async () => {
    await upstream.plan({ match: { id }, do: ['apply', { wait: id }] });
    const first = gateway.call('world.short', { id });
    await upstream.awaitEvent(`applied:${id}`);
    const second = gateway.call('world.short', { id });
    const soon = await gateway.call('world.short', { id }, { headers: { prefer: 'wait=0' } });
    expect(soon.status).toBe(409);
    await upstream.release(id);
    expect((await second).body).toEqual({ ...(await first).body, replayed: true });
    expect(await countEffects()).toBe(1);
  });

  it('runs again after GET /v1/calls/{txn} delivered the outcome', async () => {
    const txn = await abandonCall('world.short', { id });
    expect((await gateway.get(`/v1/calls/${txn}`)).body.state).toBe('succeeded');
    await pollUntil(isDelivered(txn));
    await sleep(5);
    expect((await gateway.call('world.short', { id })).body.replayed).toBe(false);
    expect(await countEffects()).toBe(2);
  });

  it('runs again after a failure was delivered', async () => {
    await upstream.plan({ match: { id }, do: [{ reply: 422 }] });
    const failed = await gateway.call('world.default', { id });
    expect(failed.status).toBe(502);
    await pollUntil(isDelivered(failed.headers.get('oncegate-txn') ?? ''));
    const retried = await gateway.call('world.default', { id });
    expect(retried.status).toBe(200);
    expect(retried.body.replayed).toBe(false);
    expect(await countEffects()).toBe(1);
  });

  it('answers in_doubt while the first call is in doubt, and sends nothing', async () => {
    await upstream.plan({ match: { id }, do: ['apply', 'drop'] });
    const doubt = await gateway.call('world.short', { id });
    expect(doubt.status).toBe(504);
    await sleep(10);
    const again = await gateway.call('world.short', { id });
    expect(again.status).toBe(504);
    expect(again.body.txn).toBe(doubt.body.txn);
    expect(await upstream.requests(id)).toHaveLength(1);
  });
});

describe('repeats: hold', () => {
  it('holds the second call for a person; a third request is a repeat of the held call', async () => {
    const first = await gateway.call('world.hold', { id });
    expect(first.status).toBe(200);
    await pollUntil(isDelivered(first.body.txn));
    const prefer = { headers: { prefer: 'wait=0' } };
    const second = await gateway.call('world.hold', { id }, prefer);
    expect(second.status).toBe(202);
    expect(second.body).toMatchObject({ state: 'held', replayed: false });
    expect(second.headers.get('location')).toBe(`/v1/calls/${second.body.txn}`);
    const third = await gateway.call('world.hold', { id }, prefer);
    expect(third.status).toBe(202);
    expect(third.body.txn).toBe(second.body.txn);
    expect(await countEffects()).toBe(1);

    await gateway.request('POST', `/v1/calls/${second.body.txn}/cancel`, { key: AGENT_KEY });
    const cancelled = await gateway.call('world.hold', { id }, prefer);
    expect(cancelled.status).toBe(422);
    await pollUntil(isDelivered(second.body.txn));
    const held = await gateway.call('world.hold', { id }, prefer);
    expect(held.status).toBe(202);
    expect(held.body.txn).not.toBe(second.body.txn);
    expect(await countEffects()).toBe(1);
  });

  it('replays an answer that was never delivered', async () => {
    const txn = await abandonCall('world.hold', { id });
    expect((await gateway.call('world.hold', { id })).body).toMatchObject({ txn, replayed: true });
  });
});

describe('repeats: run', () => {
  it('sends every call', async () => {
    const answers = [
      await gateway.call('world.run', { id }),
      await gateway.call('world.run', { id }),
      ...(await Promise.all([gateway.call('world.run', { id }), gateway.call('world.run', { id })])),
    ];
    for (const answer of answers) expect(answer.body.replayed).toBe(false);
    expect(new Set(answers.map((answer) => answer.body.txn)).size).toBe(4);
    expect(await countEffects()).toBe(4);
  });

  it('replays a call with a key', async () => {
    await gateway.call('world.run', { id }, { key: id });
    expect((await gateway.call('world.run', { id }, { key: id })).body.replayed).toBe(true);
    expect(await countEffects()).toBe(1);
  });
});

describe('a business key', () => {
  it('identifies a call that brings no key', async () => {
    const first = await gateway.call('world.business', { id, order: id });
    expect(first.status).toBe(200);
    expect((await gateway.call('world.business', { id, order: id })).body).toMatchObject({
      txn: first.body.txn,
      replayed: true,
    });
    const other = await gateway.call('world.business', { id, order: id, n: 1 });
    expect(other.status).toBe(422);
    expect(other.body.code).toBe('key_reused');
    expect((await gateway.call('world.business', { id, order: `${id}b` })).body.replayed).toBe(false);
    expect((await gateway.call('world.business', { id, order: id }, { key: `${id}c` })).body.replayed).toBe(false);
    expect(await countEffects()).toBe(3);
  });

  it('differs from an idempotency key of the same text', async () => {
    const keyed = await gateway.call('world.default', { id }, { key: id });
    const business = await gateway.call('world.business', { id, order: id });
    expect(business.status).toBe(200);
    expect(business.body.txn).not.toBe(keyed.body.txn);
  });

  it('that is empty or missing does not count; `repeats` identifies the call', async () => {
    const empty = await gateway.call('world.business', { id, order: '' });
    expect((await gateway.call('world.business', { id, order: '' })).body.txn).toBe(empty.body.txn);
    const missing = await gateway.call('world.business', { id });
    expect(missing.body.txn).not.toBe(empty.body.txn);
    expect((await gateway.call('world.business', { id })).body.txn).toBe(missing.body.txn);
  });

  it('may be any text without NUL, which PostgreSQL cannot store', async () => {
    const refused = await gateway.call('world.business', { id, order: `${id}\u0000` });
    expect(refused.status).toBe(400);
    expect(refused.body.code).toBe('invalid_arguments');
    for (const order of [`${id}\u2028\ud83d\ude00`, `${id}${'x'.repeat(5_000)}`]) {
      const first = await gateway.call('world.business', { id, order });
      expect(first.status, JSON.stringify(order.slice(0, 20))).toBe(200);
      expect((await gateway.call('world.business', { id, order })).body.txn).toBe(first.body.txn);
    }
  });
});

describe('when policies change', () => {
  const readVersion = async () => (await gateway.request('GET', '/readyz')).body.policyVersion;
  async function changePolicies(next: Record<string, string>): Promise<void> {
    const before = await readVersion();
    // The rename is atomic. A gateway that read a half-written file would enforce half of the policies for a moment.
    for (const [name, text] of Object.entries(next)) {
      await writeFile(join(gateway.home, name), text);
      await rename(join(gateway.home, name), join(gateway.home, 'policies', name));
    }
    await pollUntil(async () => (await readVersion()) !== before);
  }

  it('a finished call that is now denied is replayed, and new calls are denied', async () => {
    const keyed = await gateway.call('world.default', { id }, { key: id });
    const unkeyed = await gateway.call('world.default', { id, n: 1 });
    const business = await gateway.call('world.business', { id, order: id });
    const held = await gateway.call('world.hold', { id }, { key: `${id}-h` });
    await changePolicies(policies('- { deny: "world.*" }'));
    try {
      expect((await gateway.call('world.default', { id }, { key: id })).body).toEqual({
        ...keyed.body,
        replayed: true,
      });
      expect((await gateway.call('world.default', { id, n: 1 })).body.txn).toBe(unkeyed.body.txn);
      expect((await gateway.call('world.business', { id, order: id })).body.txn).toBe(business.body.txn);
      expect((await gateway.call('world.hold', { id }, { key: `${id}-h` })).body.txn).toBe(held.body.txn);
      expect((await gateway.get(`/v1/calls/${keyed.body.txn}`)).status).toBe(200);
      const dry = await gateway.call('world.default', { id }, { key: id, headers: { 'oncegate-dry-run': '?1' } });
      expect(dry.body.wouldAnswer).toMatchObject({ status: 200, replayed: true });

      const other = await gateway.call('world.default', { id, n: 2 }, { key: id });
      expect(other.status).toBe(403);
      expect((await gateway.call('world.default', { id }, { key: `${id}-new` })).status).toBe(403);
      expect(await countEffects()).toBe(4);
    } finally {
      await changePolicies(policies());
    }
    expect((await gateway.call('world.default', { id }, { key: `${id}-new` })).status).toBe(200);
  });

  it('a finished call is replayed although the schema, the request or the name of its tool changed', async () => {
    const keyed = await gateway.call('world.default', { id }, { key: id });
    const again = async () => (await gateway.call('world.default', { id }, { key: id })).body;
    for (const changed of [
      TOOLS.replace('required: [id]', 'required: [id, n]'),
      TOOLS.replace('/keyed/charge, body: "${args}"', '/keyed/charge, body: "${args.n + 1}"'),
      TOOLS.replace('world.default:', 'world.renamed:'),
    ]) {
      await changePolicies(policies(undefined, changed));
      expect(await again()).toEqual({ ...keyed.body, replayed: true });
    }
    const fresh = await gateway.call('world.default', { id }, { key: `${id}-new` });
    expect(fresh.body.code).toBe('unknown_tool');
    await changePolicies(policies());
    expect(await countEffects()).toBe(1);
  });

  it('a denied call has not bound its key', async () => {
    await changePolicies(policies('- { deny: "world.*" }'));
    expect((await gateway.call('world.default', { id }, { key: id })).status).toBe(403);
    await changePolicies(policies());
    expect((await gateway.call('world.default', { id, n: 5 }, { key: id })).status).toBe(200);
  });

  it('a call that is being sent is handed to a person if its tool and upstream are removed', async () => {
    await upstream.plan({ match: { id }, do: ['apply', { event: id }, { wait: id }, 'drop'] });
    const call = gateway.call('world.default', { id }, { key: id, headers: { prefer: 'wait=0' } });
    await upstream.awaitEvent(id);
    const { txn } = (await call).body;
    const withoutWorld = policies()['repeats.yaml'].replace(
      / {2}world:.*\n/,
      '  elsewhere: { adapter: http, url: "http://127.0.0.1:9", allowPrivate: true }\n',
    );
    await changePolicies({
      'repeats.yaml': withoutWorld
        .replaceAll('upstream: world', 'upstream: elsewhere')
        .replaceAll('world.', 'elsewhere.'),
    });
    try {
      await upstream.release(id);
      await gateway.waitForCall(txn, (view) => /no longer declared.*A person must/.test(view.problem?.detail), 10_000);
    } finally {
      await changePolicies(policies());
    }
  });
});
