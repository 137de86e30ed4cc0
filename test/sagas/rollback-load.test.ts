import { afterAll, beforeAll, expect, it } from 'vitest';
import { startUpstream, type Upstream } from '../faults/upstream.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { type Gateway, startGateway } from '../support/gateway.ts';
import { rollBackMany } from './rollback-load.ts';
import { sagaPolicies } from './saga-policies.ts';

let upstream: Upstream;
let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  upstream = await startUpstream();
  database = await freshDatabase();
  gateway = await startGateway({ policies: sagaPolicies(upstream.url), databaseUrl: database.url });
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
  await upstream?.stop();
});

it('rolls 100 sagas of five steps back at once, each in order and once', async () => {
  const { violations, undos } = await rollBackMany([gateway], upstream, { sagas: 100, steps: 5, name: 'load' });
  expect(violations).toEqual([]);
  expect(undos).toBe(500);
});
