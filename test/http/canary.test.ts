import { expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY, testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const CREDENTIAL = 'canary-credential-1f2e3d';
const CARD = 'canary-card-4242424242424242';

const { upstream, database, gateway } = useGateway({
  env: { WORLD_TOKEN: CREDENTIAL, LOG_LEVEL: 'trace' },
  policies: (url) => `
upstreams:
  world:
    adapter: http
    url: "${url}"
    headers: { authorization: "Bearer \${env.WORLD_TOKEN}" }
    allowPrivate: true
    timeout: 1s
    breaker: { minimum: 1000 }
tools:
  world.echo:
    upstream: world
    input: { type: object, properties: { id: { type: string }, card: { type: string } }, required: [id] }
    request: { method: POST, path: /echo, body: "\${args}" }
    once: { by: idempotent }
    redact: [args.card]
    retry: { attempts: 2, base: 10ms, max: 10ms, within: 1m }
  world.mail:
    upstream: world
    input: { type: object, properties: { id: { type: string }, card: { type: string } }, required: [id] }
    request: { method: POST, path: /none/mail, body: "\${args}" }
    redact: [args.card]
${testerYaml('[{ allow: world.* }]')}`,
});

it('credentials, keys and redacted values appear in no table, log, metric or answer', async () => {
  const answers: string[] = [];
  const record = (reply: { body: unknown }) => answers.push(JSON.stringify(reply.body));
  await upstream.plan({ match: { id: 'lost' }, do: ['apply', 'drop'] });
  await upstream.plan({
    match: { id: 'failing' },
    do: [{ reply: 422, body: { said: `your card ${CARD} with ${CREDENTIAL}` } }],
  });
  for (const id of ['plain', 'lost', 'failing'])
    record(await gateway.call('world.echo', { id, card: CARD }, { key: id }));
  record(await gateway.call('world.echo', { id: 'denied', card: CARD, x: 1 }, { key: 'bad key' }));
  record(await gateway.call('world.nothing', { card: CARD }));
  const held = await gateway.call(
    'world.mail',
    { id: 'held', card: CARD },
    { key: 'held', headers: { prefer: 'wait=0' } },
  );
  record(held);
  record(await gateway.admin('GET', '/admin/approvals'));
  record(await gateway.admin('GET', '/admin/calls'));
  record(await gateway.get('/v1/calls'));
  record(await gateway.call('world.echo', { id: 'dry', card: CARD }, { headers: { 'oncegate-dry-run': '?1' } }));
  for (const path of ['/metrics', '/readyz', '/openapi.json']) record(await gateway.request('GET', path));
  const { digest } = (await gateway.admin('GET', '/admin/approvals')).body.items[0];
  record(await gateway.admin('POST', `/admin/approvals/${held.body.txn}/approve`, { reason: 'ok', digest }));
  await gateway.waitForCall(held.body.txn, ({ state }) => state === 'succeeded');

  // The upstream received the real values.
  expect((await upstream.requests('held'))[0]?.body).toContain(CARD);
  expect((await upstream.requests('plain'))[0]?.headers['authorization']).toBe(`Bearer ${CREDENTIAL}`);

  const tables = await database.query<{ name: string }>(
    `select tablename as name from pg_tables where schemaname = 'public'`,
  );
  let dump = '';
  for (const { name } of tables) dump += JSON.stringify(await database.query(`select t::text as row from ${name} t`));
  for (const secret of [CREDENTIAL, CARD, AGENT_KEY, ADMIN_KEY]) {
    const hex = Buffer.from(secret).toString('hex');
    expect(dump.includes(secret) || dump.includes(hex), `${secret} in the database`).toBe(false);
    expect(gateway.output.includes(secret), `${secret} in the logs`).toBe(false);
    expect(
      answers.find((answer) => answer.includes(secret)),
      `${secret} in an answer`,
    ).toBeUndefined();
  }
  expect(dump).toContain('[redacted]');
});
