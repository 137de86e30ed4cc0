// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startUpstream, type TestUpstream } from '../faults/upstream.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { AGENT_KEY, type Gateway, PEOPLE_YAML, sha256Hex, startGateway } from '../support/gateway.ts';

let upstream: TestUpstream;

beforeAll(async () => {
  upstream = await startUpstream();
});
afterAll(async () => {
  await upstream?.stop();
});

const CREDENTIAL = 'tok/en"with\\odd=chars';
const CARD = '4111-1111-1111-secret';

const policies = (tuning = '') => ({
  'retention.yaml': `
upstreams:
  world:
    adapter: http
    url: "${upstream.url}"
    allowPrivate: true
    breaker: { minimum: 1000 }
    timeout: 2s
    headers: { authorization: "Bearer \${env.RETENTION_TOKEN}", x-api-key: "\${env.RETENTION_TOKEN}" }
  hotel: { adapter: http, url: "${upstream.url}", allowPrivate: true }
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
agents:
  tester:
    keys: ["sha256:${sha256Hex(AGENT_KEY)}"]
    rules: [{ allow: "world.*" }]
${PEOPLE_YAML}${tuning}`,
});

const env = { RETENTION_TOKEN: CREDENTIAL };

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (let left = 800; !(await condition()); left--) {
    if (left === 0) throw new Error('it never came true');
    await sleep(25);
  }
}

/** Every table, as text. */
async function dump(database: TestDatabase): Promise<string> {
  const tables = await database.query<{ name: string }>(
    "select quote_ident(table_name) as name from information_schema.tables where table_schema = 'public'",
  );
  expect(tables.length).toBeGreaterThan(5);
  const texts = await Promise.all(
    tables.map(async ({ name }) =>
      (await database.query<{ row: string }>(`select t::text as row from ${name} t`)).map(({ row }) => row).join('\n'),
    ),
  );
  return texts.join('\n');
}

describe('retention', () => {
  let database: TestDatabase;
  let gateway: Gateway;

  beforeAll(async () => {
    database = await createTestDatabase();
    gateway = await startGateway({
      policies: policies(),
      databaseUrl: database.url,
      env,
      config: 'retention: { payloads: 1s }\n',
    });
  });
  afterAll(async () => {
    await gateway?.dispose();
    await database?.drop();
  });

  const erased = (txn: string) => async () =>
    (await database.query('select 1 from calls where txn = $1 and erased_at is not null', [txn])).length === 1;

  it('forgets the payload and never executes the key anew', async () => {
    const args = { id: 'old', note: 'payload-to-be-forgotten' };
    const first = await gateway.call('world.keyed', args, { key: 'old-key-text' });
    expect(first.status).toBe(200);
    expect((await gateway.call('world.keyed', args, { key: 'old-key-text' })).body.replayed).toBe(true);
    await until(erased(first.body.txn));

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
    const text = await dump(database);
    expect(text).toContain(first.body.txn);
    for (const part of ['payload-to-be-forgotten', 'old-key-text', first.body.result.id])
      expect(text).not.toContain(part);
  });

  it('starts with the answer, not with the call: what is open or held is kept', async () => {
    await upstream.plan({ match: { id: 'slow' }, do: ['apply', { wait: 'slow' }] });
    const prefer = { prefer: 'wait=0' };
    const slow = await gateway.call('world.keyed', { id: 'slow' }, { key: 'slow', headers: prefer });
    const held = await gateway.call('world.held', { id: 'held' }, { key: 'held', headers: prefer });
    const marker = await gateway.call('world.keyed', { id: 'marker' }, { key: 'marker' });
    await until(erased(marker.body.txn));
    expect((await gateway.call('world.held', { id: 'held' }, { key: 'held', headers: prefer })).status).toBe(202);
    await upstream.release('slow');
    const done = await gateway.get(`/v1/calls/${slow.body.txn}?wait=20`);
    expect(done.body).toMatchObject({ state: 'succeeded', args: { id: 'slow' } });
    expect((await gateway.call('world.keyed', { id: 'slow' }, { key: 'slow' })).body.replayed).toBe(true);
    await until(erased(slow.body.txn));
    expect((await gateway.get(`/v1/calls/${held.body.txn}`)).body).toMatchObject({
      state: 'held',
      args: { id: 'held' },
    });
  });

  it('forgets what people said about a call with it', async () => {
    const prefer = { prefer: 'wait=0' };
    const { body } = await gateway.call('world.held', { id: 'voted' }, { key: 'voted', headers: prefer });
    const { digest } = (await gateway.admin('GET', `/admin/approvals/${body.txn}`)).body;
    const vote = { reason: 'because voter-words say so', digest };
    expect((await gateway.admin('POST', `/admin/approvals/${body.txn}/approve`, vote)).status).toBe(200);
    await until(erased(body.txn));
    expect(await database.query('select reason from votes where txn = $1', [body.txn])).toEqual([{ reason: '' }]);
  });

  it('keeps what a step of an open saga is undone with, and forgets it once the saga is long over', async () => {
    const { saga } = (await gateway.request('POST', '/v1/sagas', { key: AGENT_KEY })).body;
    const step = { key: 'step', headers: { 'oncegate-saga': saga } };
    const { body } = await gateway.call('world.booked', { id: 'step' }, step);
    // Two that come after it are swept: the sweep has passed the step, and would come back to it.
    for (const id of ['after', 'long-after']) {
      const marker = await gateway.call('world.keyed', { id }, { key: id });
      await until(erased(marker.body.txn));
    }
    expect((await gateway.get(`/v1/calls/${body.txn}`)).body).toMatchObject({ args: { id: 'step' }, erasedAt: null });
    const undone = await gateway.request('POST', `/v1/sagas/${saga}/rollback?wait=20`, {
      key: AGENT_KEY,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ reason: 'no more' }),
    });
    expect(undone.body).toMatchObject({ state: 'rolled_back', steps: [{ undo: { state: 'done' } }] });
    expect(await upstream.effects('un-step')).toHaveLength(1);
    await until(erased(body.txn));
    await until(erased(undone.body.steps[0].undo.txn));
  });

  it('drops tombstones only when the operator sets a limit', async () => {
    const limited = await createTestDatabase();
    const other = await startGateway({
      policies: policies(),
      databaseUrl: limited.url,
      env,
      config: 'retention: { payloads: 1s, keys: 2s }\n',
    });
    try {
      const first = await other.call('world.keyed', { id: 'dropped' }, { key: 'dropped' });
      await until(async () => (await other.call('world.keyed', { id: 'dropped' }, { key: 'dropped' })).status === 410);
      await until(async () => (await limited.query('select 1 from calls')).length === 0);
      const anew = await other.call('world.keyed', { id: 'dropped' }, { key: 'dropped' });
      expect(anew.status).toBe(200);
      expect(anew.body).toMatchObject({ txn: first.body.txn, replayed: false });
    } finally {
      await other.dispose();
      await limited.drop();
    }
    const kept = await database.query('select 1 from calls where erased_at is not null');
    expect(kept.length).toBeGreaterThan(0);
  });
});

describe('what is redacted', () => {
  let database: TestDatabase;
  let gateway: Gateway;

  beforeAll(async () => {
    database = await createTestDatabase();
    gateway = await startGateway({
      policies: policies(),
      databaseUrl: database.url,
      env: { ...env, LOG_LEVEL: 'trace' },
    });
  });
  afterAll(async () => {
    await gateway?.dispose();
    await database?.drop();
  });

  const args = (id: string) => ({
    id,
    card: `${CARD}-${id}`,
    pin: 864_213,
    more: { secret: 'deep\nsecret', open: 'kept' },
  });

  it('is in no table, no answer and no log, and yet is what is sent', async () => {
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
    const everything = `${await dump(database)}\n${JSON.stringify(views)}\n${gateway.output}`;
    for (const secret of [CARD, '864213', 'deep\\nsecret', 'deep\nsecret']) expect(everything).not.toContain(secret);
    expect(views[1].args).toEqual({
      id: 'clear',
      card: '[redacted]',
      pin: '[redacted]',
      more: { secret: '[redacted]', open: 'kept' },
    });
    expect(views[4].replayed).toBe(true);
  });

  it('is sent whole again when the answer was lost', async () => {
    await upstream.plan({ match: { id: 'lost' }, do: ['apply', 'drop'] });
    const answer = await gateway.call('world.redacted', args('lost'));
    expect(answer.status).toBe(200);
    expect(answer.body.attempts).toBe(2);
    const sent = await upstream.requests('lost');
    expect(sent.map((each) => JSON.parse(each.body ?? ''))).toEqual([args('lost'), args('lost')]);
  });

  it('is sent whole again by the next process after a crash', async () => {
    await upstream.plan({ match: { id: 'crash' }, do: ['apply', { kill: gateway.pid }, 'drop'] });
    await gateway.call('world.redacted', args('crash')).catch(() => undefined);
    await gateway.waitForExit();
    expect(await dump(database)).not.toContain(CARD);
    await gateway.start();
    await until(async () => (await upstream.requests('crash')).length === 2);
    const [first, second] = await upstream.requests('crash');
    expect(second?.bodySha256).toBe(first?.bodySha256);
    expect(second?.url).toBe(first?.url);
    const told = await gateway.call('world.redacted', args('crash'));
    expect(told.status).toBe(200);
    expect(await dump(database)).not.toContain(CARD);
  });

  it('binds as the real value does: another card is another request', async () => {
    await gateway.call('world.redacted', args('bound'), { key: 'bound' });
    const other = await gateway.call('world.redacted', { ...args('bound'), card: 'another-card' }, { key: 'bound' });
    expect(other.body.code).toBe('key_reused');
  });
});

describe('a credential', () => {
  it('that the upstream echoes is scrubbed, however JSON writes it', async () => {
    const database = await createTestDatabase();
    const gateway = await startGateway({ policies: policies(), databaseUrl: database.url, env });
    try {
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
      const through = await gateway.request('POST', '/v1/proxy/world/echo', {
        key: AGENT_KEY,
        headers: { 'content-type': 'application/json' },
        body: '{"id":"php"}',
      });
      expect(through.body).toBe('[redacted]');

      const everything = await dump(database);
      expect(everything).not.toContain(CREDENTIAL);
      expect(everything).not.toContain(JSON.stringify(CREDENTIAL).slice(1, -1));
    } finally {
      await gateway.dispose();
      await database.drop();
    }
  });
});
