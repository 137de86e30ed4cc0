import { writeFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { ADMIN_KEY, AGENT_KEY, testerYaml, writePolicies } from '../support/gateway.ts';
import { useHttpServer } from '../support/http-server.ts';
import { readAuditEntries } from '../support/ledger.ts';
import { useGateway } from '../support/use-gateway.ts';

const seen: (string | undefined)[] = [];
let secretFile: string;
let n = 0;

const upstream = useHttpServer((request, response) => {
  seen.push(request.headers.authorization);
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

const credential = async () => {
  n += 1;
  expect((await gateway.call('world.read', { n })).status).toBe(200);
  return seen.at(-1);
};
const version = async () => (await gateway.request('GET', '/readyz')).body.policyVersion as string;
const reload = () => gateway.admin('POST', '/admin/policies/reload');
const metrics = async () => (await gateway.request('GET', '/metrics')).body as string;
const audit = (what: string) => readAuditEntries(database, what);

describe('a credential by reference', () => {
  it('is read again on a reload by hand, although no policy file changed and the version stays', async () => {
    const before = await version();
    expect(await credential()).toBe('Bearer token-number-one');
    await writeFile(secretFile, 'token-number-two\n');
    expect(await credential()).toBe('Bearer token-number-one');
    const answer = await reload();
    expect(answer.body).toEqual({ version: before });
    expect(await credential()).toBe('Bearer token-number-two');
    expect(await version()).toBe(before);
  });

  it('is read again on SIGHUP', async () => {
    await writeFile(secretFile, 'token-number-three\n');
    gateway.signal('SIGHUP');
    await expect.poll(credential, { timeout: 10_000 }).toBe('Bearer token-number-three');
  });

  it('that is gone refuses the reload; the old one stays in use', async () => {
    const { rename } = await import('node:fs/promises');
    await rename(secretFile, `${secretFile}.away`);
    const refused = await reload();
    expect(refused.status).toBe(409);
    expect(refused.body.faults[0]).toContain('cannot be read: ENOENT');
    expect(await credential()).toBe('Bearer token-number-three');
    await rename(`${secretFile}.away`, secretFile);
    expect((await reload()).status).toBe(200);
  });
});

describe('a refused change', () => {
  it('is loud: in the log, in /readyz, in the metrics; and quiet again when it is mended', async () => {
    const before = await version();
    expect(await metrics()).toMatch(/^oncegate_policy_reload_failed 0$/m);
    expect(await metrics()).toContain(`oncegate_policy_info{version="${before}"} 1`);
    await writePolicies(gateway, { 'reload.yaml': 'agents: { tester: { rulez: [] } }\n' });
    await expect.poll(metrics, { timeout: 10_000 }).toMatch(/^oncegate_policy_reload_failed 1$/m);
    const ready = await gateway.request('GET', '/readyz');
    expect(ready.status).toBe(200);
    expect(ready.body.policyVersion).toBe(before);
    expect(ready.body.warnings[0]).toContain('rulez');
    await expect.poll(() => gateway.output, { timeout: 5_000 }).toContain('policy change refused');
    await credential();
    await writePolicies(gateway, { 'reload.yaml': policies('Another thing.') });
    await expect.poll(metrics, { timeout: 10_000 }).toMatch(/^oncegate_policy_reload_failed 0$/m);
    const after = await version();
    expect(after).not.toBe(before);
    expect(await metrics()).toContain(`oncegate_policy_info{version="${after}"} 1`);
    expect(await metrics()).not.toContain(before);
    expect((await gateway.request('GET', '/readyz')).body.warnings).toEqual([]);
  });
});

it('boots and readings of the policies are in the log, with the version and who asked', async () => {
  const [booted] = await audit('booted');
  expect(booted).toMatchObject({ host: expect.any(String), gateway: expect.any(String) });
  expect(booted.policyVersion).toMatch(/^[0-9a-f]{16}$/);
  await expect
    .poll(async () => [...new Set((await audit('policies_loaded')).map(({ askedBy }) => askedBy))].sort(), {
      timeout: 10_000,
    })
    .toEqual(['SIGHUP', 'file change', 'person root']);
  const loaded = await audit('policies_loaded');
  expect(loaded.at(-1)).toMatchObject({ askedBy: 'file change', policyVersion: await version() });
  const refused = await audit('policies_refused');
  expect(refused.map(({ askedBy }) => askedBy)).toEqual(['person root', 'file change']);
  expect(refused[1].faults[0]).toContain('rulez');
  const all = await database.query<{ entry: string }>('select entry from audit_entries');
  expect(JSON.stringify(all)).not.toContain('token-number');
});

describe('metrics', () => {
  it('need no key on loopback, unless a proxy speaks for somebody', async () => {
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
  it.skipIf(address === undefined)("need a person's key elsewhere", async () => {
    const url = `http://${address}:${gateway.port}/metrics`;
    const status = async (key?: string) =>
      (await fetch(url, key === undefined ? {} : { headers: { authorization: `Bearer ${key}` } })).status;
    expect(await status()).toBe(401);
    expect(await status(AGENT_KEY)).toBe(403);
    expect(await status(ADMIN_KEY)).toBe(200);
  });
});
