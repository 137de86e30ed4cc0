// biome-ignore-all lint/suspicious/noTemplateCurlyInString: documents hold path templates
import { expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, writePolicies } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const WORLD = `openapi: 3.0.3
info: { title: World, version: "1" }
paths:
  /keyed/charge:
    post:
      operationId: charge
      summary: Charge a customer.
      parameters: [{ name: Idempotency-Key, in: header, required: true, schema: { type: string } }]
      requestBody:
        content:
          application/json:
            schema: { type: object, required: [id], properties: { id: { type: string }, amount: { type: integer } } }
      responses: { 200: { description: ok } }
  /idempotent/objects/{object-id}:
    put:
      operationId: objects/put
      parameters:
        - { name: object-id, in: path, required: true, schema: { type: string } }
        - { name: dry, in: query, schema: { type: boolean } }
      requestBody:
        content:
          application/json: { schema: { type: object, properties: { id: { type: string }, size: { type: integer } } } }
      responses: { 200: { description: ok } }
  /read/items/{id}:
    get:
      operationId: getItem
      parameters: [{ name: id, in: path, required: true, schema: { type: string } }]
      responses: { 200: { description: ok } }
`;

/** The import, then the parts of a contract that OpenAPI cannot express. */
const policies = (url: string) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, import: world.openapi.yaml }
tools:
  world.charge: { upstream: world, once: { by: key, header: Idempotency-Key } }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - { allow: world.*, effect: read }
      - { allow: world.charge }
      - { allow: world.objects_put, approve: never }
`;

const { upstream, gateway } = useGateway({
  policies: (url) => ({ 'world.yaml': policies(url), 'world.openapi.yaml': WORLD }),
});

it('an import offers the operations of the document as tools', async () => {
  const { body } = await gateway.get('/v1/tools');
  expect(body.tools.map((tool: { name: string; effect: string }) => [tool.name, tool.effect]).sort()).toEqual([
    ['world.charge', 'write'],
    ['world.getItem', 'read'],
    ['world.objects_put', 'write'],
  ]);
  const charge = body.tools.find((tool: { name: string }) => tool.name === 'world.charge');
  expect(charge).toMatchObject({ description: 'Charge a customer.', once: 'key' });
  expect(Object.keys(charge.input.properties)).toEqual(['id', 'amount']);
});

it('a call sends the request that the document describes, once', async () => {
  const args = { 'object-id': 'a/b', dry: true, id: 'import-1', size: 3 };
  const first = await gateway.call('world.objects_put', args, { key: 'put-1' });
  expect(first.status).toBe(200);
  const again = await gateway.call('world.objects_put', args, { key: 'put-1' });
  expect(again.body).toMatchObject({ txn: first.body.txn, replayed: true });
  const sent = (await upstream.requests()).filter(({ id }) => id === 'import-1');
  expect(sent.map(({ method, url, body }) => [method, url, JSON.parse(body ?? 'null')])).toEqual([
    ['PUT', '/idempotent/objects/a%2Fb?dry=true', { id: 'import-1', size: 3 }],
  ]);
});

it('a tool in the policies completes the imported contract', async () => {
  const { status, body } = await gateway.call('world.charge', { id: 'import-2', amount: 5 }, { key: 'charge-1' });
  expect(status).toBe(200);
  const [sent] = (await upstream.requests()).filter(({ id }) => id === 'import-2');
  expect(sent?.key).toBe(body.txn);
  const refused = await gateway.call('world.charge', { id: 'x', amount: 'five' });
  expect([refused.status, refused.body.code]).toEqual([400, 'invalid_arguments']);
});

it('imported operations work in proxy mode', async () => {
  const { status } = await gateway.request('PUT', '/v1/proxy/world/idempotent/objects/o2?dry=false', {
    key: AGENT_KEY,
    body: JSON.stringify({ id: 'import-3', size: 4 }),
    headers: { 'content-type': 'application/json' },
  });
  expect(status).toBe(200);
  const [sent] = (await upstream.requests()).filter(({ id }) => id === 'import-3');
  expect([sent?.url, JSON.parse(sent?.body ?? 'null')]).toEqual([
    '/idempotent/objects/o2?dry=false',
    { id: 'import-3', size: 4 },
  ]);
});

it('a change of the document takes effect without a restart', async () => {
  await writePolicies(gateway, {
    'world.openapi.yaml': WORLD.replace('operationId: getItem', 'operationId: getThing'),
  });
  await expect
    .poll(async () => JSON.stringify((await gateway.get('/v1/tools')).body), { timeout: 20_000 })
    .toContain('world.getThing');
});
