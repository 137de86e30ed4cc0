import { afterAll, beforeAll, expect, it } from 'vitest';
import { startUpstream, type Upstream } from '../faults/upstream.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { faultPolicies } from '../support/fault-policies.ts';
import { type Gateway, startGateway } from '../support/gateway.ts';

let upstream: Upstream;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  upstream = await startUpstream();
  database = await freshDatabase();
  const faults = faultPolicies(upstream.url)['faults.yaml'] ?? '';
  const limited = '      - allow: world.put\n        rate: 1/h\n      - allow: world.held\n';
  gateway = await startGateway({
    policies: { 'faults.yaml': faults.replace('      - allow: world.held\n', limited) },
    databaseUrl: database.url,
    config: 'retention: { payloads: 1s }\n',
  });
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

/** What the log says, sealed or not, of this kind. */
const said = async (what: string) => {
  const rows = await database.query<{ entry: string }>('select entry from audit_entries where entry like $1', [
    `%"what":"${what}"%`,
  ]);
  return rows.map(({ entry }) => JSON.parse(entry));
};

it('a refusal by a limit has its leaf, as a denial has', async () => {
  expect((await gateway.call('world.put', { id: 'first' }, { key: 'first' })).status).toBe(200);
  expect((await gateway.call('world.put', { id: 'second' }, { key: 'second' })).status).toBe(429);
  expect(await said('rate_limited')).toMatchObject([{ agent: 'tester', tool: 'world.put' }]);
});

it('payloads that expire leave a word about it', async () => {
  for (let left = 400; (await said('payloads_expired')).length === 0; left--) {
    if (left === 0) throw new Error('it never said so');
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  expect((await said('payloads_expired'))[0]).toMatchObject({ calls: expect.any(Number), afterMs: 1_000 });
});
