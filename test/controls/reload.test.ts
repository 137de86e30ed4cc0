import { writeFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY, testerYaml, writePolicies } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { readAuditEntries } from '../support/ledger.ts';
import { useGateway } from '../support/use-gateway.ts';

const seenCredentials: (string | undefined)[] = [];
let secretFile: string;
let callCount = 0;

const upstream = useHttpServer((request, response) => {
  seenCredentials.push(request.headers.authorization);
  response.setHeader('content-type', 'application/json').end('{}');
});
const { database, gateway } = useGateway({
  upstream: 'none',
  start: false,
  policies: {},
  env: { HOST: '0.0.0.0', LOG_LEVEL: 'info' },
});
beforeAll(async () => {
  secretFile = join(gateway.home, 'token');
  await writeFile(secretFile, 'token-number-one\n');
  await writePolicies(gateway, { 'reload.yaml': policies('A thing.') });
  await gateway.start();
});

function policies(description: string): string {
  return `
upstreams:
  world:
    adapter: http
    url: "${upstream.url}"
    allowPrivate: true
    headers: { authorization: 'Bearer \${file("${secretFile}")}' }
tools:
  world.read: { upstream: world, effect: read, description: "${description}", request: { method: GET, path: /x } }
${testerYaml('[{ allow: world.read }]')}`;
}

const sendAndReadCredential = async () => {
  callCount += 1;
  expect((await gateway.call('world.read', { n: callCount })).status).toBe(200);
  return seenCredentials.at(-1);
};
const readPolicyVersion = async () => (await gateway.request('GET', '/readyz')).body.policyVersion as string;
const reload = () => gateway.admin('POST', '/admin/policies/reload');
const readMetrics = async () => (await gateway.request('GET', '/metrics')).body as string;
const readAudit = (what: string) => readAuditEntries(database, what);

describe('a credential that a policy reads from a file', () => {
  it('is read again on POST /admin/policies/reload, even if no policy changed', async () => {
    const before = await readPolicyVersion();
    expect(await sendAndReadCredential()).toBe('Bearer token-number-one');
    await writeFile(secretFile, 'token-number-two\n');
    expect(await sendAndReadCredential()).toBe('Bearer token-number-one');
    const answer = await reload();
    expect(answer.body).toEqual({ version: before });
    expect(await sendAndReadCredential()).toBe('Bearer token-number-two');
    expect(await readPolicyVersion()).toBe(before);
  });

  it('is read again on SIGHUP', async () => {
    await writeFile(secretFile, 'token-number-three\n');
    gateway.signal('SIGHUP');
    await expect.poll(sendAndReadCredential, { timeout: 10_000 }).toBe('Bearer token-number-three');
  });

  it('that is missing makes the reload fail, and the old credential stays in use', async () => {
    const { rename } = await import('node:fs/promises');
    await rename(secretFile, `${secretFile}.away`);
    const refused = await reload();
    expect(refused.status).toBe(409);
    expect(refused.body.faults[0]).toContain('cannot be read (');
    expect(await sendAndReadCredential()).toBe('Bearer token-number-three');
    await rename(`${secretFile}.away`, secretFile);
    expect((await reload()).status).toBe(200);
  });
});

describe('a refused policy change', () => {
  it('is reported in the log, /readyz and the metrics until it is fixed', async () => {
    const before = await readPolicyVersion();
    expect(await readMetrics()).toMatch(/^oncegate_policy_reload_failed 0$/m);
    expect(await readMetrics()).toContain(`oncegate_policy_info{version="${before}"} 1`);
    await writePolicies(gateway, { 'reload.yaml': 'agents: { tester: { rulez: [] } }\n' });
    await expect.poll(readMetrics, { timeout: 10_000 }).toMatch(/^oncegate_policy_reload_failed 1$/m);
    const ready = await gateway.request('GET', '/readyz');
    expect(ready.status).toBe(200);
    expect(ready.body.policyVersion).toBe(before);
    expect(ready.body.warnings[0]).toContain('rulez');
    await expect.poll(() => gateway.output, { timeout: 5_000 }).toContain('The policy change was refused');
    await sendAndReadCredential();
    await writePolicies(gateway, { 'reload.yaml': policies('Another thing.') });
    await expect.poll(readMetrics, { timeout: 10_000 }).toMatch(/^oncegate_policy_reload_failed 0$/m);
    const after = await readPolicyVersion();
    expect(after).not.toBe(before);
    expect(await readMetrics()).toContain(`oncegate_policy_info{version="${after}"} 1`);
    expect(await readMetrics()).not.toContain(before);
    expect((await gateway.request('GET', '/readyz')).body.warnings).toEqual([]);
  });
});

it('the audit log records each boot and each policy load, with the version and who asked', async () => {
  const [booted] = await readAudit('booted');
  expect(booted).toMatchObject({ host: expect.any(String), gateway: expect.any(String) });
  expect(booted.policyVersion).toMatch(/^[0-9a-f]{16}$/);
  await expect
    .poll(async () => [...new Set((await readAudit('policies_loaded')).map(({ askedBy }) => askedBy))].sort(), {
      timeout: 10_000,
    })
    .toEqual(['SIGHUP', 'file change', 'person root']);
  const loaded = await readAudit('policies_loaded');
  expect(loaded.at(-1)).toMatchObject({ askedBy: 'file change', policyVersion: await readPolicyVersion() });
  const refused = await readAudit('policies_refused');
  expect(refused.map(({ askedBy }) => askedBy)).toEqual(['person root', 'file change']);
  expect(refused[1].faults[0]).toContain('rulez');
  const all = await database.query<{ entry: string }>('select entry from audit_entries');
  expect(JSON.stringify(all)).not.toContain('token-number');
});

describe('metrics', () => {
  it('need no key on loopback, unless a proxy forwarded the request', async () => {
    const answer = await gateway.request('GET', '/metrics');
    expect(answer.status).toBe(200);
    expect(answer.headers.get('content-type')).toContain('text/plain');
    for (const header of ['x-forwarded-for', 'forwarded']) {
      const headers = { [header]: header === 'forwarded' ? 'for=192.0.2.1' : '192.0.2.1' };
      expect((await gateway.request('GET', '/metrics', { headers })).status).toBe(401);
      expect((await gateway.request('GET', '/metrics', { headers, key: AGENT_KEY })).status).toBe(403);
      expect((await gateway.request('GET', '/metrics', { headers, key: ADMIN_KEY })).status).toBe(200);
    }
  });

  const address = Object.values(networkInterfaces())
    .flatMap((all) => all ?? [])
    .find(({ address: one, internal }) => !internal && isIPv4(one))?.address;
  it.skipIf(address === undefined)("need a person's key on other addresses", async () => {
    const url = `http://${address}:${gateway.port}/metrics`;
    const status = async (key?: string) =>
      (await fetch(url, key === undefined ? {} : { headers: { authorization: `Bearer ${key}` } })).status;
    expect(await status()).toBe(401);
    expect(await status(AGENT_KEY)).toBe(403);
    expect(await status(ADMIN_KEY)).toBe(200);
  });
});
