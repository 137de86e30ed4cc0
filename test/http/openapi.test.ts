import { readdirSync, readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { faultPolicies } from '../support/fault-policies.ts';
import { type Gateway, startGateway } from '../support/gateway.ts';

let database: TestDatabase;
let gateway: Gateway;

beforeAll(async () => {
  database = await freshDatabase();
  gateway = await startGateway({ policies: faultPolicies('http://127.0.0.1:9'), databaseUrl: database.url });
});
afterAll(async () => {
  await gateway?.dispose();
  await database?.drop();
});

type Document = { paths: Record<string, Record<string, unknown>> };

it('every operation that is documented is there, and asks who is asking', async () => {
  const { paths } = (await gateway.request('GET', '/openapi.json')).body as Document;
  for (const [path, operations] of Object.entries(paths)) {
    for (const method of Object.keys(operations)) {
      const answer = await gateway.request(method.toUpperCase(), path.replaceAll(/\{\w+\}/g, 'x'));
      expect([path, method, answer.status]).toEqual([path, method, 401]);
    }
  }
});

it('every route that is written is documented', async () => {
  const { paths } = (await gateway.request('GET', '/openapi.json')).body as Document;
  const source = readdirSync('gateway/http')
    .map((file) => readFileSync(`gateway/http/${file}`, 'utf8'))
    .join('\n');
  const routes = [...source.matchAll(/app\.(?:get|post|put|all)\(\s*'(\/(?:v1|admin)[^']*)'/g)].map(
    ([, route]) => route ?? '',
  );
  expect(routes.length).toBeGreaterThan(10);
  const documented = new Set(Object.keys(paths).map((path) => path.replaceAll(/\{\w+\}/g, ':')));
  for (const route of routes) expect(documented).toContain(route.replaceAll(/:\w+|\*/g, ':'));
});

it('a known agent sees the tools it may call, each with its schema', async () => {
  const { paths } = (await gateway.get('/openapi.json')).body as Document;
  expect(paths['/v1/tools/world.keyed']?.['post']).toMatchObject({ operationId: 'world__keyed' });
  expect(Object.keys(((await gateway.request('GET', '/openapi.json')).body as Document).paths)).not.toContain(
    '/v1/tools/world.keyed',
  );
});
