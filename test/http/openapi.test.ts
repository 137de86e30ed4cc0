import { readdirSync, readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { AGENT_KEY } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const { gateway } = useGateway({ upstream: 'none', policies: buildFaultPolicies('http://127.0.0.1:9') });

type Document = {
  paths: Record<string, Record<string, unknown>>;
  components: {
    parameters: Record<string, { name: string }>;
    // biome-ignore lint/suspicious/noExplicitAny: tests look into schemas of every shape
    schemas: Record<string, any>;
  };
};

it('every documented operation exists and requires authentication', async () => {
  const { paths } = (await gateway.request('GET', '/openapi.json')).body as Document;
  for (const [path, operations] of Object.entries(paths)) {
    for (const method of Object.keys(operations)) {
      const answer = await gateway.request(method.toUpperCase(), path.replaceAll(/\{\w+\}/g, 'x'));
      expect([path, method, answer.status]).toEqual([path, method, 401]);
    }
  }
});

it('every route in the code is documented', async () => {
  const { paths } = (await gateway.request('GET', '/openapi.json')).body as Document;
  const source = readdirSync('gateway/http')
    .filter((file) => file.endsWith('-routes.ts'))
    .map((file) => readFileSync(`gateway/http/${file}`, 'utf8'))
    .join('\n');
  const routes = [...source.matchAll(/app\.(?:get|post|put|all)\(\s*'(\/(?:v1|admin)[^']*)'/g)].map(
    ([, route]) => route ?? '',
  );
  expect(routes.length).toBeGreaterThan(10);
  const documented = new Set(Object.keys(paths).map((path) => path.replaceAll(/\{\w+\}/g, ':')));
  for (const route of routes) expect(documented).toContain(route.replaceAll(/:\w+|\*/g, ':'));
});

it('every header that controls a call is documented for POST /v1/tools/{tool}', async () => {
  const { paths, components } = (await gateway.request('GET', '/openapi.json')).body as Document;
  const source = readFileSync('gateway/http/transport/headers.ts', 'utf8');
  const read = [...source.matchAll(/header\(request, '([a-z-]+)'\)/g)].map(([, name]) => name ?? '');
  expect(read).toContain('oncegate-saga');
  const { post } = paths['/v1/tools/{tool}'] ?? {};
  const { parameters } = post as { parameters: { $ref?: string }[] };
  const documented = parameters.flatMap(({ $ref }) => {
    const parameter = components.parameters[$ref?.split('/').at(-1) ?? ''];
    return parameter === undefined ? [] : [parameter.name.toLowerCase()];
  });
  expect(documented.toSorted()).toEqual(read.toSorted());
});

it('a saga, its plan and its steps match their schemas', async () => {
  const { components } = (await gateway.request('GET', '/openapi.json')).body as Document;
  const { Saga, SagaLine, Plan, Undo } = components.schemas;
  const opened = await gateway.request('POST', '/v1/sagas', { key: AGENT_KEY });
  const { saga } = opened.body as { saga: string };
  const headers = { 'oncegate-saga': saga, prefer: 'wait=0' };
  expect((await gateway.call('world.held', { id: 'step' }, { headers })).status).toBe(202);
  const seen = (await gateway.admin('GET', `/admin/sagas/${saga}`)).body;
  const plan = (await gateway.admin('POST', `/admin/sagas/${saga}/rollback`, { dryRun: true })).body;
  const [line] = (await gateway.admin('GET', '/admin/sagas')).body.items;
  for (const [value, schema] of [
    [opened.body, Saga],
    [seen, Saga],
    [line, SagaLine],
    [plan, Plan],
    [seen.steps[0].undo, Undo],
  ])
    expect(Object.keys(schema.properties)).toEqual(expect.arrayContaining(Object.keys(value)));
  expect(Object.keys(Saga.properties.steps.items.properties)).toEqual(
    expect.arrayContaining(Object.keys(seen.steps[0])),
  );
  expect(Object.keys(Plan.properties.plan.items.properties)).toEqual(expect.arrayContaining(Object.keys(plan.plan[0])));
});

it('a run matches its schemas', async () => {
  const { components } = (await gateway.request('GET', '/openapi.json')).body as Document;
  const { Run, RunLine } = components.schemas;
  const headers = { 'content-type': 'application/json' };
  const taken = (await gateway.request('POST', '/v1/runs', { key: AGENT_KEY, body: '{"name":"a run"}', headers })).body;
  const [line] = (await gateway.admin('GET', '/admin/runs')).body.items;
  expect(Object.keys(Run.properties)).toEqual(expect.arrayContaining(Object.keys(taken)));
  expect(Object.keys(RunLine.properties)).toEqual(expect.arrayContaining(Object.keys(line)));
});

it('an agent sees the tools that it may call', async () => {
  const { paths } = (await gateway.get('/openapi.json')).body as Document;
  expect(paths['/v1/tools/world.keyed']?.['post']).toMatchObject({ operationId: 'world__keyed' });
  expect(Object.keys(((await gateway.request('GET', '/openapi.json')).body as Document).paths)).not.toContain(
    '/v1/tools/world.keyed',
  );
});
