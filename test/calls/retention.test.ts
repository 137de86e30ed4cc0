// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { describe, expect, it } from 'vitest';
import { AGENT_KEY, testerYaml } from '../support/gateway.ts';
import { dumpTables } from '../support/ledger.ts';
import { pollUntil } from '../support/poll.ts';
import { startGatewayForTest, useGateway, useUpstream } from '../support/use-gateway.ts';

const upstream = useUpstream();

const CREDENTIAL = 'tok/en"with\\odd=chars';
const CARD = '4111-1111-1111-secret';

const policies = (url: string) => `
upstreams:
  world:
    adapter: http
    url: "${url}"
    allowPrivate: true
    breaker: { minimum: 1000 }
    timeout: 2s
    headers: { authorization: "Bearer \${env.RETENTION_TOKEN}", x-api-key: "\${env.RETENTION_TOKEN}" }
  hotel: { adapter: http, url: "${url}", allowPrivate: true }
tools:
  world.keyed:
    upstream: world
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.held:
    upstream: world
    request: { method: POST, path: /none/held, body: "\${args}" }
  world.booked:
    upstream: hotel
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: compensable, tool: world.unbook, args: { id: "un-\${args.id}", effect: "\${result.id}" } }
  world.unbook:
    upstream: hotel
    request: { method: POST, path: /keyed/refund, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
  world.redacted:
    upstream: world
    input: { type: object, properties: { id: { type: string }, card: { type: string }, pin: { type: integer }, more: {} } }
    request: { method: PUT, path: "/idempotent/objects/\${args.card}", body: "\${args}" }
    once: { by: idempotent }
    key: "\${args.card}-\${args.id}"
    redact: [args.card, args.pin, args.more.secret, result.response]
    retry: { attempts: 4, base: 50ms, max: 500ms }
  world.echo:
    upstream: world
    request: { method: POST, path: /echo, body: "\${args}" }
    once: { by: idempotent }
${testerYaml('[{ allow: "world.*" }]')}`;

const env = { RETENTION_TOKEN: CREDENTIAL };

describe('retention', () => {
  const { database, gateway } = useGateway({ upstream, policies, env, config: 'retention: { payloads: 1s }\n' });

  const isErased = (txn: string) => async () =>
    (await database.query('select 1 from calls where txn = $1 and erased_at is not null', [txn])).length === 1;

  it('erases the payload, and never executes the key again', async () => {
    const args = { id: 'old', note: 'payload-to-be-forgotten' };
    const first = await gateway.call('world.keyed', args, { key: 'old-key-text' });
    expect(first.status).toBe(200);
    expect((await gateway.call('world.keyed', args, { key: 'old-key-text' })).body.replayed).toBe(true);
    await pollUntil(isErased(first.body.txn));

    for (let i = 0; i < 3; i++) {
      const gone = await gateway.call('world.keyed', args, { key: 'old-key-text' });
      expect(gone.status).toBe(410);
      expect(gone.body).toMatchObject({ code: 'key_expired', retry: 'new_key', txn: first.body.txn });
      expect(gone.headers.get('oncegate-state')).toBe('succeeded');
    }
    const dry = await gateway.call('world.keyed', args, { key: 'old-key-text', headers: { 'oncegate-dry-run': '?1' } });
    expect(dry.body.wouldAnswer).toMatchObject({ status: 410, code: 'key_expired' });
    expect(await upstream.effects('old')).toHaveLength(1);
    const other = await gateway.call('world.keyed', { id: 'old', other: 1 }, { key: 'old-key-text' });
    expect(other.body.code).toBe('key_reused');

    const view = await gateway.get(`/v1/calls/${first.body.txn}`);
    expect(view.status).toBe(200);
    expect(view.body).toMatchObject({ state: 'succeeded', args: null, result: null, key: null });
    expect(view.body.erasedAt).toMatch(/^\d{4}-/);
    const text = await dumpTables(database);
    expect(text).toContain(first.body.txn);
    for (const part of ['payload-to-be-forgotten', 'old-key-text', first.body.result.id])
      expect(text).not.toContain(part);
  });

  it('counts from the answer of a call, so open and held calls are kept', async () => {
    await upstream.plan({ match: { id: 'slow' }, do: ['apply', { wait: 'slow' }] });
    const prefer = { prefer: 'wait=0' };
    const slow = await gateway.call('world.keyed', { id: 'slow' }, { key: 'slow', headers: prefer });
    const held = await gateway.call('world.held', { id: 'held' }, { key: 'held', headers: prefer });
    const marker = await gateway.call('world.keyed', { id: 'marker' }, { key: 'marker' });
    await pollUntil(isErased(marker.body.txn));
    expect((await gateway.call('world.held', { id: 'held' }, { key: 'held', headers: prefer })).status).toBe(202);
    await upstream.release('slow');
    const done = await gateway.get(`/v1/calls/${slow.body.txn}?wait=20`);
    expect(done.body).toMatchObject({ state: 'succeeded', args: { id: 'slow' } });
    expect((await gateway.call('world.keyed', { id: 'slow' }, { key: 'slow' })).body.replayed).toBe(true);
    await pollUntil(isErased(slow.body.txn));
    expect((await gateway.get(`/v1/calls/${held.body.txn}`)).body).toMatchObject({
      state: 'held',
      args: { id: 'held' },
    });
  });

  it('erases the reasons of votes together with their call', async () => {
    const prefer = { prefer: 'wait=0' };
    const { body } = await gateway.call('world.held', { id: 'voted' }, { key: 'voted', headers: prefer });
    const { digest } = (await gateway.admin('GET', `/admin/approvals/${body.txn}`)).body;
    const vote = { reason: 'because voter-words say so', digest };
    expect((await gateway.admin('POST', `/admin/approvals/${body.txn}/approve`, vote)).status).toBe(200);
    await pollUntil(isErased(body.txn));
    expect(await database.query('select reason from votes where txn = $1', [body.txn])).toEqual([{ reason: '' }]);
  });

  it('keeps the payload of a step while its saga is open, and erases it after the saga ended', async () => {
    const { saga } = (await gateway.request('POST', '/v1/sagas', { key: AGENT_KEY })).body;
    const step = { key: 'step', headers: { 'oncegate-saga': saga } };
    const { body } = await gateway.call('world.booked', { id: 'step' }, step);
    // Two later calls are erased first, so the sweep has passed the step twice.
    for (const id of ['after', 'long-after']) {
      const marker = await gateway.call('world.keyed', { id }, { key: id });
      await pollUntil(isErased(marker.body.txn));
    }
    expect((await gateway.get(`/v1/calls/${body.txn}`)).body).toMatchObject({ args: { id: 'step' }, erasedAt: null });
    const undone = await gateway.post(`/v1/sagas/${saga}/rollback?wait=20`, { reason: 'no more' });
    expect(undone.body).toMatchObject({ state: 'rolled_back', steps: [{ undo: { state: 'done' } }] });
    expect(await upstream.effects('un-step')).toHaveLength(1);
    await pollUntil(isErased(body.txn));
    await pollUntil(isErased(undone.body.steps[0].undo.txn));
  });

  it('deletes tombstones only if the operator sets a limit', async () => {
    const { database: limited, gateway: other } = await startGatewayForTest({
      upstream,
      policies,
      env,
      config: 'retention: { payloads: 1s, keys: 2s }\n',
    });
    const first = await other.call('world.keyed', { id: 'dropped' }, { key: 'dropped' });
    await pollUntil(
      async () => (await other.call('world.keyed', { id: 'dropped' }, { key: 'dropped' })).status === 410,
    );
    await pollUntil(async () => (await limited.query('select 1 from calls')).length === 0);
    const executed = await other.call('world.keyed', { id: 'dropped' }, { key: 'dropped' });
    expect(executed.status).toBe(200);
    expect(executed.body).toMatchObject({ txn: first.body.txn, replayed: false });
    const kept = await database.query('select 1 from calls where erased_at is not null');
    expect(kept.length).toBeGreaterThan(0);
  });
});

describe('a redacted value', () => {
  const { database, gateway } = useGateway({ upstream, policies, env: { ...env, LOG_LEVEL: 'trace' } });

  const args = (id: string) => ({
    id,
    card: `${CARD}-${id}`,
    pin: 864_213,
    more: { secret: 'deep\nsecret', open: 'kept' },
  });

  it('is sent in clear, and is in no table, no answer and no log', async () => {
    const answer = await gateway.call('world.redacted', args('clear'));
    expect(answer.status).toBe(200);
    const [effect] = (await upstream.effects()).filter((each) => each.target === `${CARD}-clear`);
    expect(effect?.body).toEqual(args('clear'));

    const { txn } = answer.body;
    const views = [
      answer.body,
      (await gateway.get(`/v1/calls/${txn}`)).body,
      (await gateway.get('/v1/calls')).body,
      (await gateway.admin('GET', `/admin/calls/${txn}`)).body,
      (await gateway.call('world.redacted', args('clear'))).body,
      (await gateway.call('world.redacted', { ...args('clear'), id: 7 })).body,
    ];
    const everything = `${await dumpTables(database)}\n${JSON.stringify(views)}\n${gateway.output}`;
    for (const secret of [CARD, '864213', 'deep\\nsecret', 'deep\nsecret']) expect(everything).not.toContain(secret);
    expect(views[1].args).toEqual({
      id: 'clear',
      card: '[redacted]',
      pin: '[redacted]',
      more: { secret: '[redacted]', open: 'kept' },
    });
    expect(views[4].replayed).toBe(true);
  });

  it('is re-sent in clear after the answer was lost', async () => {
    await upstream.plan({ match: { id: 'lost' }, do: ['apply', 'drop'] });
    const answer = await gateway.call('world.redacted', args('lost'));
    expect(answer.status).toBe(200);
    expect(answer.body.attempts).toBe(2);
    const sent = await upstream.requests('lost');
    expect(sent.map((each) => JSON.parse(each.body ?? ''))).toEqual([args('lost'), args('lost')]);
  });

  it('is re-sent in clear by the next process after a crash', async () => {
    await upstream.plan({ match: { id: 'crash' }, do: ['apply', { kill: gateway.pid }, 'drop'] });
    await gateway.call('world.redacted', args('crash')).catch(() => undefined);
    await gateway.waitForExit();
    expect(await dumpTables(database)).not.toContain(CARD);
    await gateway.start();
    await pollUntil(async () => (await upstream.requests('crash')).length === 2);
    const [first, second] = await upstream.requests('crash');
    expect(second?.bodySha256).toBe(first?.bodySha256);
    expect(second?.url).toBe(first?.url);
    const recovered = await gateway.call('world.redacted', args('crash'));
    expect(recovered.status).toBe(200);
    expect(await dumpTables(database)).not.toContain(CARD);
  });

  it('is part of the fingerprint: another card under the same key is key_reused', async () => {
    await gateway.call('world.redacted', args('bound'), { key: 'bound' });
    const other = await gateway.call('world.redacted', { ...args('bound'), card: 'another-card' }, { key: 'bound' });
    expect(other.body.code).toBe('key_reused');
  });
});

describe('a credential', () => {
  it('that the upstream echoes is scrubbed, also where JSON escapes it', async () => {
    const { database, gateway } = await startGatewayForTest({ upstream, policies, env });
    const answer = await gateway.call('world.echo', { id: 'echoed', said: 'hello' });
    expect(answer.status).toBe(200);
    const sent = (await upstream.requests('echoed')).at(-1);
    expect(sent?.headers['authorization']).toBe(`Bearer ${CREDENTIAL}`);
    expect(answer.body.result.headers['x-api-key']).toBe('[redacted]');
    expect(answer.body.result.headers['authorization']).not.toContain(CREDENTIAL);
    expect(answer.body.result.body.said).toBe('hello');

    await upstream.plan({
      match: { id: 'refused' },
      do: [{ reply: 401, body: { error: `bad token ${CREDENTIAL}` } }],
    });
    const refused = await gateway.call('world.echo', { id: 'refused' });
    expect(refused.body.upstream.body.error).toBe('bad token [redacted]');
    await upstream.plan({ match: { id: 'php' }, do: [{ reply: 200, body: CREDENTIAL }] });
    const through = await gateway.post('/v1/proxy/world/echo', { id: 'php' });
    expect(through.body).toBe('[redacted]');

    const everything = await dumpTables(database);
    expect(everything).not.toContain(CREDENTIAL);
    expect(everything).not.toContain(JSON.stringify(CREDENTIAL).slice(1, -1));
  });
});
