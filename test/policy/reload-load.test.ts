import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, PEOPLE_YAML, writePolicies } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';

const RELOADS = 1_000;
const WORKERS = 2;

/** Policies under which the agent may call only `world.a`, or only `world.b`. */
function policies(url: string, allowed: 'a' | 'b'): Record<string, string> {
  const input = 'input: { type: object, properties: { id: { type: string } }, required: [id] }';
  return {
    'reload.yaml': `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 5s, breaker: { minimum: 100000 } }
tools:
  world.a: { upstream: world, ${input}, request: { method: POST, path: /keyed/charge, body: "\${args}" }, once: { by: key, header: Idempotency-Key } }
  world.b: { upstream: world, ${input}, request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args}" }, once: { by: idempotent } }
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - { deny: world.${allowed === 'a' ? 'b' : 'a'} }
      - { allow: world.* }
${PEOPLE_YAML}`,
  };
}

const { upstream, database, gateway } = useGateway({ policies: (url) => policies(url, 'a') });

it(`decides every call under exactly one version during ${RELOADS} reloads`, async () => {
  const versions = new Map<string, 'a' | 'b'>();
  let reloading = true;
  let sent = 0;
  let denied = 0;
  const worker = async (w: number) => {
    for (let i = 0; reloading; i += 1) {
      const tool = i % 2 === 0 ? 'a' : 'b';
      const id = `${w}-${i}`;
      const answer = await gateway.call(`world.${tool}`, { id }, { key: id });
      expect([200, 403]).toContain(answer.status);
      if (answer.status === 200) sent += 1;
      else denied += 1;
      // Leaves most of the processor to the reloads, which this test is about.
      await sleep(5);
    }
  };
  const workers = Promise.all(Array.from({ length: WORKERS }, (_, w) => worker(w)));
  for (let i = 0; i < RELOADS; i += 1) {
    const allowed = i % 2 === 0 ? 'b' : 'a';
    await writePolicies(gateway, policies(upstream.url, allowed));
    const reloaded = await gateway.admin('POST', '/admin/policies/reload');
    expect(reloaded.status).toBe(200);
    const known = versions.get(reloaded.body.version);
    expect(known ?? allowed).toBe(allowed);
    versions.set(reloaded.body.version, allowed);
  }
  reloading = false;
  await workers;
  expect(versions.size).toBe(2);
  expect(sent).toBeGreaterThan(100);
  expect(denied).toBeGreaterThan(100);

  const calls = await database.query<{ tool: string; version: string; n: number }>(
    'select tool, policy_version as version, count(*)::int as n from calls group by 1, 2',
  );
  for (const { tool, version } of calls) expect(tool).toBe(`world.${versions.get(version)}`);
  expect(calls.reduce((sum, { n }) => sum + n, 0)).toBe(sent);
  const refusals = await database.query<{ tool: string; version: string }>(
    `select entry::jsonb->>'tool' as tool, entry::jsonb->>'policy' as version from audit_entries where entry::jsonb->>'what' = 'denied'`,
  );
  for (const { tool, version } of refusals) expect(tool).not.toBe(`world.${versions.get(version)}`);
  expect(refusals).toHaveLength(denied);
  expect(await upstream.effects()).toHaveLength(sent);
}, 120_000);
