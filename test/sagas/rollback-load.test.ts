import { afterAll, beforeAll, expect, it } from 'vitest';
import { startUpstream, type TestUpstream } from '../faults/upstream.ts';
import { createTestDatabase, type TestDatabase } from '../support/database.ts';
import { type Gateway, startGateway } from '../support/gateway.ts';
import { runRollbackLoad } from './rollback-load.ts';
import { buildSagaPolicies } from './saga-policies.ts';

let upstream: TestUpstream;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  upstream = await startUpstream();
  database = await createTestDatabase();
  gateway = await startGateway({ policies: buildSagaPolicies(upstream.url), databaseUrl: database.url });
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

it('rolls 100 sagas of five steps back at once, each in order and once', async () => {
  const { violations, undos } = await runRollbackLoad([gateway], upstream, { sagas: 100, steps: 5, name: 'load' });
  expect(violations).toEqual([]);
  expect(undos).toBe(500);
});
