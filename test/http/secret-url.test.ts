import { expect, it } from 'vitest';
import { testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const TOKEN = 'canary-webhook-token-77aa';

const { upstream, database, gateway } = useGateway({
  env: { HOOK: TOKEN, LOG_LEVEL: 'trace' },
  policies: (url) => `
upstreams:
  hook: { adapter: http, url: "${url}/none/\${env.HOOK}", allowPrivate: true, timeout: 1s, breaker: { minimum: 1000 } }
tools:
  hook.post:
    upstream: hook
    request: { method: POST, path: /mail, body: "\${args}" }
${testerYaml('[{ allow: hook.* }]')}`,
});

it('a token in the URL of an upstream is sent, and appears nowhere else', async () => {
  const held = await gateway.call('hook.post', { id: 'one' }, { key: 'one', headers: { prefer: 'wait=0' } });
  const { txn } = held.body;
  const approvals = await gateway.admin('GET', '/admin/approvals');
  const [{ digest, target }] = approvals.body.items;
  expect(target.url).toBe(`${upstream.url}/none/[redacted]/mail`);
  await gateway.admin('POST', `/admin/approvals/${txn}/approve`, { reason: 'ok', digest });
  await gateway.waitForCall(txn, ({ state }) => state === 'succeeded' || state === 'failed' || state === 'in_doubt');
  const [sent] = await upstream.requests('one');
  expect(sent?.url).toContain(TOKEN);

  const tables = await database.query<{ name: string }>(
    `select quote_ident(table_name) as name from information_schema.tables where table_schema = 'public' and table_type = 'BASE TABLE'`,
  );
  const rows = await Promise.all(
    tables.map(({ name }) => database.query<{ row: string }>(`select t::text as row from ${name} t`)),
  );
  const replies = [await gateway.get(`/v1/calls/${txn}`), await gateway.admin('GET', `/admin/calls/${txn}`), approvals];
  expect(JSON.stringify([rows, replies.map(({ body }) => body)])).not.toContain(TOKEN);
  expect(gateway.output).not.toContain(TOKEN);
});
