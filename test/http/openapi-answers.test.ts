import { Ajv2020 } from 'ajv/dist/2020.js';
import { beforeAll, describe, expect, it } from 'vitest';
import { AGENT_KEY, type Reply } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const { gateway } = useGateway();
const ajv = new Ajv2020({ strict: false, allErrors: true, validateFormats: false });

beforeAll(async () => {
  const document = (await gateway.request('GET', '/openapi.json')).body;
  ajv.addSchema(forbidUnknownMembers(document) as object, 'openapi');
});

/** Sets `additionalProperties` to false where it is absent, so that an undocumented member is a fault. */
function forbidUnknownMembers(node: unknown): unknown {
  if (Array.isArray(node)) return node.map(forbidUnknownMembers);
  if (typeof node !== 'object' || node === null) return node;
  const copy = Object.fromEntries(Object.entries(node).map(([name, value]) => [name, forbidUnknownMembers(value)]));
  return copy['type'] !== undefined && typeof copy['properties'] === 'object'
    ? { additionalProperties: false, ...copy }
    : copy;
}

const pointer = (name: string) => encodeURIComponent(name.replaceAll('~', '~0').replaceAll('/', '~1'));

/** The faults of an answer against its schema in the document. */
function faultsOf(method: string, path: string, { status, body }: Reply): unknown {
  const schema = `responses/${status}/content/application~1json/schema`;
  const validate = ajv.getSchema(`openapi#/paths/${pointer(path)}/${method.toLowerCase()}/${schema}`);
  if (validate === undefined) return `${method} ${path} has no answer ${status}: ${JSON.stringify(body)}`;
  return validate(body) ? [] : validate.errors;
}

async function check(method: 'GET' | 'POST', path: string, ids: Record<string, string> = {}, body?: object) {
  const url = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => ids[name] ?? '');
  const reply = path.startsWith('/admin')
    ? await gateway.admin(method, url, body)
    : await gateway.request(method, url, {
        key: AGENT_KEY,
        headers: { 'content-type': 'application/json', prefer: 'wait=0' },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
  expect(faultsOf(method, path, reply), `${method} ${url}`).toEqual([]);
  return reply.body;
}

describe('answers match the OpenAPI document', () => {
  it('for calls, approvals and cancellations', async () => {
    await check('POST', '/v1/tools/{tool}', { tool: 'world.keyed' }, { id: 'a' });
    const { txn } = await check('POST', '/v1/tools/{tool}', { tool: 'world.held' }, { id: 'b' });
    await check('GET', '/v1/tools');
    await check('GET', '/v1/calls');
    await check('GET', '/v1/calls/{txn}', { txn });
    await check('GET', '/admin/calls');
    await check('GET', '/admin/calls/{txn}', { txn });
    await check('GET', '/admin/approvals');
    const { digest } = await check('GET', '/admin/approvals/{txn}', { txn });
    await check('POST', '/admin/approvals/{txn}/reject', { txn }, { digest, reason: 'no' });
    const other = await check('POST', '/v1/tools/{tool}', { tool: 'world.held' }, { id: 'c' });
    await check('POST', '/v1/calls/{txn}/cancel', other);
  });

  it('for sagas and runs', async () => {
    const { saga } = await check('POST', '/v1/sagas', {}, { name: 'a saga' });
    await check('POST', '/v1/sagas/{id}/savepoints', { id: saga }, { name: 'here' });
    await check('GET', '/v1/sagas');
    await check('GET', '/admin/sagas/{id}', { id: saga });
    await check('POST', '/admin/sagas/{id}/rollback', { id: saga }, { dryRun: true });
    await check('POST', '/v1/sagas/{id}/rollback', { id: saga }, { reason: 'done' });
    const { run } = await check('POST', '/v1/runs', {}, { name: 'a run' });
    await check('GET', '/v1/runs');
    await check('GET', '/v1/runs/{id}/calls', { id: run });
    await check('POST', '/admin/runs/{id}/finish', { id: run }, { reason: 'done' });
  });

  it('for controls and the audit log', async () => {
    const reason = { reason: 'a test' };
    await check('POST', '/admin/breakers/{upstream}/open', { upstream: 'world' }, reason);
    await check('GET', '/admin/breakers');
    await check('POST', '/admin/breakers/{upstream}/close', { upstream: 'world' }, reason);
    await check('POST', '/admin/agents/{agent}/freeze', { agent: 'tester' }, reason);
    await check('POST', '/admin/freeze', {}, { ...reason, tool: 'world.put' });
    for (const path of ['agents', 'freezes', 'locks', 'pins', 'policies', 'stats'])
      await check('GET', `/admin/${path}`);
    await check('POST', '/admin/agents/{agent}/unfreeze', { agent: 'tester' }, reason);
    await check('POST', '/admin/policies/reload');
    await check('POST', '/admin/explain', {}, { agent: 'tester', tool: 'world.put', args: {} });
    await check('POST', '/admin/erase', {}, { ...reason, agent: 'tester' });
    await expect.poll(async () => (await check('GET', '/admin/audit/entries')).items.length).toBeGreaterThan(3);
    const { items } = await check('GET', '/admin/audit/entries');
    const proof = await gateway.admin('GET', `/admin/audit/proof?leaf=${items[0].leaf}`);
    expect(faultsOf('GET', '/admin/audit/proof', proof)).toEqual([]);
    await check('POST', '/admin/audit/accept', {}, reason);
  });
});
