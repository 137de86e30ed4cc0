import { afterAll, beforeAll, expect, it } from 'vitest';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { faultPolicies } from '../support/fault-policies.ts';
import { type Gateway, startGateway } from '../support/gateway.ts';
import { startUpstream, type Upstream } from './upstream.ts';

let upstream: Upstream;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  upstream = await startUpstream();
  database = await freshDatabase();
  gateway = await startGateway({
    policies: faultPolicies(upstream.url, { settles: '1500ms' }),
    databaseUrl: database.url,
  });
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

it('a probe that does not see the effect yet is not believed before the upstream settled', async () => {
  const id = 'eventually';
  await upstream.plan({ match: { id, method: 'POST' }, do: [{ lie: 800 }, 'apply', 'drop'] });
  const answer = await gateway.call('world.probed', { id }, { key: id });
  expect(answer.status).toBe(200);
  expect(answer.body.attempts).toBe(1);
  expect(await upstream.effects(id)).toHaveLength(1);
});

it('an effect that lands after the connection was lost is found, not repeated', async () => {
  const id = 'late';
  await upstream.plan({ match: { id, method: 'POST' }, do: [{ 'late-apply': 700 }, 'drop'] });
  const answer = await gateway.call('world.probed', { id }, { key: id });
  expect(answer.status).toBe(200);
  expect(await upstream.effects(id)).toHaveLength(1);
});

it('a probe that cannot be reached leaves the call in doubt, and finds out later', async () => {
  const id = 'unreachable';
  await upstream.plan({ match: { id, method: 'POST' }, do: ['apply', 'drop'] });
  await upstream.plan({ match: { id, method: 'GET' }, do: [{ reply: 500 }], times: 2 });
  const answer = await gateway.call('world.probed', { id }, { key: id });
  expect(answer.status).toBe(200);
  expect(await upstream.effects(id)).toHaveLength(1);
});
