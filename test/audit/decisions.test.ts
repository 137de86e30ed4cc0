import { isDeepStrictEqual } from 'node:util';
import { expect, it } from 'vitest';
import { requestLegacy } from '../mcp/clients.ts';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { AGENT_KEY, keysYaml, type Reply, sha256Hex, VIEWER_KEY } from '../support/gateway.ts';
import { readAuditEntries } from '../support/ledger.ts';
import { pollUntil } from '../support/poll.ts';
import { useGateway } from '../support/use-gateway.ts';

const CAROL_KEY = 'test-carol-key';
const NO_WAIT = { prefer: 'wait=0' };
const JSON_TYPE = { 'content-type': 'application/json' };

/** A tool that only the group finance approves (carol is an approver outside it), and an upstream that does not listen. */
const EXTRA_POLICY = `
upstreams:
  gone: { adapter: http, url: "http://127.0.0.1:1", allowPrivate: true, breaker: { minimum: 1, cooldown: 1h } }
tools:
  gone.put:
    upstream: gone
    request: { method: PUT, path: /thing, body: "\${args}" }
    once: { by: idempotent }
    retry: { attempts: 5, base: 10ms, max: 20ms }
  world.mailed:
    upstream: world
    request: { method: POST, path: /none/mailed, body: "\${args}" }
agents:
  mailer:
    ${keysYaml('test-mailer-key')}
    rules:
      - allow: world.mailed
        approve: { by: [finance], within: 1h }
      - allow: gone.put
people:
  carol: { ${keysYaml(CAROL_KEY)}, roles: [approver], groups: [security] }
  frank: { ${keysYaml('test-frank-key')}, roles: [approver], groups: [finance] }
`;

const { database, gateway } = useGateway({
  policies: (url) => ({
    ...buildFaultPolicies(url, { rules: ['{ allow: oncegate.* }', '{ allow: world.put, rate: 1/h }'] }),
    'more.yaml': EXTRA_POLICY,
  }),
  config: 'retention: { payloads: 1s }\nlimits: { pendingApprovals: 1 }\n',
});

/** Log entries of this kind, sealed or waiting. */
const readEntries = (what: string) => readAuditEntries(database, what);

it('a refusal by a limit is logged', async () => {
  expect((await gateway.call('world.put', { id: 'first' }, { key: 'first' })).status).toBe(200);
  expect((await gateway.call('world.put', { id: 'second' }, { key: 'second' })).status).toBe(429);
  expect(await readEntries('rate_limited')).toMatchObject([{ agent: 'tester', tool: 'world.put' }]);
});

const postAsAgent = (path: string, body: object, headers: Record<string, string> = {}) =>
  gateway.request('POST', path, { key: AGENT_KEY, body: JSON.stringify(body), headers: { ...JSON_TYPE, ...headers } });

/** `refuse` causes one refusal; `entry` is the log entry that it must write. */
const REFUSALS: readonly {
  readonly title: string;
  readonly what: string;
  readonly refuse: (id: string) => Promise<Reply>;
  readonly entry: object;
}[] = [
  {
    title: 'a frozen agent',
    what: 'refused',
    refuse: async (id) => {
      await gateway.admin('POST', '/admin/agents/tester/freeze', { reason: 'lunch' });
      const refused = await gateway.call('world.keyed', { id }, { key: id });
      await gateway.admin('POST', '/admin/agents/tester/unfreeze', { reason: 'lunch is over' });
      return refused;
    },
    entry: { code: 'frozen', agent: 'tester', tool: 'world.keyed', reason: expect.stringContaining('lunch') },
  },
  {
    title: 'a tool behind an open breaker',
    what: 'refused',
    refuse: async (id) => {
      await gateway.admin('POST', '/admin/breakers/world/open', { reason: 'it fails' });
      const refused = await gateway.call('world.keyed', { id }, { key: id });
      await gateway.admin('POST', '/admin/breakers/world/close', { reason: 'it is repaired' });
      return refused;
    },
    entry: { code: 'breaker_open', agent: 'tester', tool: 'world.keyed' },
  },
  {
    title: 'a key that another call used',
    what: 'refused',
    refuse: async (id) => {
      await gateway.call('world.keyed', { id }, { key: id });
      return gateway.call('world.keyed', { id, n: 2 }, { key: id });
    },
    entry: { code: 'key_reused', agent: 'tester', tool: 'world.keyed', txn: expect.any(String) },
  },
  {
    title: 'a key whose call was erased',
    what: 'refused',
    refuse: async (id) => {
      const { headers } = await gateway.call('world.keyed', { id }, { key: id });
      await gateway.admin('POST', '/admin/erase', { txn: headers.get('oncegate-txn'), reason: 'asked to' });
      return gateway.call('world.keyed', { id }, { key: id });
    },
    entry: { code: 'key_expired', agent: 'tester', tool: 'world.keyed', txn: expect.any(String) },
  },
  {
    title: 'a step of a saga that is over',
    what: 'refused',
    refuse: async (id) => {
      const { saga } = (await postAsAgent('/v1/sagas', {})).body;
      await postAsAgent(`/v1/sagas/${saga}/commit`, {});
      return gateway.call('world.keyed', { id }, { key: id, headers: { 'oncegate-saga': saga } });
    },
    entry: { code: 'saga_closed', agent: 'tester', tool: 'world.keyed' },
  },
  {
    title: 'a commit of a saga that is over',
    what: 'refused',
    refuse: async () => {
      const { saga } = (await postAsAgent('/v1/sagas', {})).body;
      await postAsAgent(`/v1/sagas/${saga}/rollback?wait=5`, { reason: 'no more' });
      return postAsAgent(`/v1/sagas/${saga}/commit`, {});
    },
    entry: { code: 'saga_closed', agent: 'tester', saga: expect.any(String) },
  },
  {
    title: 'a rollback of a saga that is committed',
    what: 'refused',
    refuse: async () => {
      const { saga } = (await postAsAgent('/v1/sagas', {})).body;
      await postAsAgent(`/v1/sagas/${saga}/commit`, {});
      return postAsAgent(`/v1/sagas/${saga}/rollback`, { reason: 'too late' });
    },
    entry: { code: 'saga_closed', agent: 'tester', saga: expect.any(String) },
  },
  {
    title: 'a rollback with an old epoch',
    what: 'fenced',
    refuse: async (id) => {
      const { run } = (await postAsAgent('/v1/runs', { name: id })).body;
      const { saga } = (await postAsAgent('/v1/sagas', {})).body;
      await postAsAgent('/v1/runs', { name: id });
      const oldEpoch = { 'oncegate-run': run, 'oncegate-epoch': '1' };
      return postAsAgent(`/v1/sagas/${saga}/rollback`, { reason: 'still me' }, oldEpoch);
    },
    entry: { agent: 'tester', saga: expect.any(String), run: expect.any(String), epoch: 1 },
  },
  {
    title: 'a rollback through a tool of the gateway',
    what: 'refused',
    refuse: async () => {
      const { saga } = (await postAsAgent('/v1/sagas', {})).body;
      await postAsAgent(`/v1/sagas/${saga}/commit`, {});
      const params = { name: 'oncegate.rollback_saga', arguments: { saga, reason: 'too late' } };
      const { answer, headers } = await requestLegacy(gateway, 'tools/call', params);
      return { status: answer.result.structuredContent.status, headers, body: answer.result };
    },
    entry: { code: 'saga_closed', agent: 'tester', saga: expect.any(String) },
  },
  {
    title: 'a rollback by a person with the digest of an old plan',
    what: 'refused',
    refuse: async (id) => {
      const { saga } = (await postAsAgent('/v1/sagas', {})).body;
      const { digest } = (await gateway.admin('POST', `/admin/sagas/${saga}/rollback`, { dryRun: true })).body;
      await gateway.call('world.keyed', { id }, { key: id, headers: { 'oncegate-saga': saga } });
      return gateway.admin('POST', `/admin/sagas/${saga}/rollback`, { reason: 'as shown', digest });
    },
    entry: { code: 'conflict', person: 'root', saga: expect.any(String), reason: expect.stringContaining('digest') },
  },
  {
    title: 'a rollback by a person of a saga that is committed',
    what: 'refused',
    refuse: async () => {
      const { saga } = (await postAsAgent('/v1/sagas', {})).body;
      await postAsAgent(`/v1/sagas/${saga}/commit`, {});
      return gateway.admin('POST', `/admin/sagas/${saga}/rollback`, { reason: 'too late' });
    },
    entry: { code: 'saga_closed', person: 'root', saga: expect.any(String) },
  },
  {
    title: 'a key that opened another saga',
    what: 'refused',
    refuse: async (id) => {
      await postAsAgent('/v1/sagas', { name: 'one' }, { 'idempotency-key': id });
      return postAsAgent('/v1/sagas', { name: 'two' }, { 'idempotency-key': id });
    },
    entry: { code: 'key_reused', agent: 'tester', saga: expect.any(String) },
  },
  {
    title: 'a heartbeat with an old epoch',
    what: 'fenced',
    refuse: async (id) => {
      const { run } = (await postAsAgent('/v1/runs', { name: id })).body;
      await postAsAgent('/v1/runs', { name: id });
      return postAsAgent(`/v1/runs/${run}/heartbeat`, {}, { 'oncegate-epoch': '1' });
    },
    entry: { agent: 'tester', run: expect.any(String), epoch: 1 },
  },
  {
    title: 'a call beyond the limit of pending approvals',
    what: 'rate_limited',
    refuse: async (id) => {
      await gateway.call('world.held', { id }, { key: id, headers: NO_WAIT });
      return gateway.call('world.held', { id: `${id}-more` }, { key: `${id}-more` });
    },
    entry: { agent: 'tester', tool: 'world.held', reason: expect.stringContaining('wait for approval') },
  },
  {
    title: 'a proxied request that matches no tool',
    what: 'denied',
    refuse: (id) => gateway.request('GET', `/v1/proxy/world/secret-${id}`, { key: AGENT_KEY }),
    entry: { agent: 'tester', upstream: 'world', method: 'GET', path: expect.stringMatching(/^[0-9a-f]{64}$/) },
  },
];

it.each(REFUSALS)('a refusal is logged once: $title', async ({ what, refuse, entry, title }) => {
  const before = await readEntries(what);
  const refused = await refuse(`r-${title.replaceAll(' ', '-')}`);
  expect(refused.status).toBeGreaterThanOrEqual(400);
  const after = await readEntries(what);
  expect(after.filter((line) => !before.some((old) => isDeepStrictEqual(old, line)))).toMatchObject([entry]);
  expect(after).toHaveLength(before.length + 1);
  expect(JSON.stringify(after)).not.toContain('secret-');
});

it('a claimed call that could not be sent is logged as released and not as refused', async () => {
  const callGone = () => gateway.call('gone.put', {}, { agentKey: 'test-mailer-key' });
  const readEntriesOfGone = async (what: string) => (await readEntries(what)).filter(({ tool }) => tool === 'gone.put');
  expect((await callGone()).body.code).toBe('breaker_open');
  expect([await readEntriesOfGone('call_released'), await readEntriesOfGone('refused')]).toMatchObject([
    [{ agent: 'mailer' }],
    [],
  ]);
  expect((await callGone()).body.code).toBe('breaker_open');
  expect([await readEntriesOfGone('call_released'), await readEntriesOfGone('refused')]).toMatchObject([
    [{}],
    [{ code: 'breaker_open' }],
  ]);
});

it('a dry run logs no refusal', async () => {
  await gateway.call('world.keyed', { id: 'dry' }, { key: 'dry' });
  const before = await readEntries('refused');
  const plan = await gateway.call(
    'world.keyed',
    { id: 'dry', n: 2 },
    { key: 'dry', headers: { 'oncegate-dry-run': '?1' } },
  );
  expect(plan.body.wouldAnswer).toMatchObject({ code: 'key_reused' });
  expect(await readEntries('refused')).toEqual(before);
});

it.each([
  ['carol', CAROL_KEY, 'finance'],
  ['watcher', VIEWER_KEY, 'approver'],
])('a vote without permission is logged: %s', async (person, key, missing) => {
  const { body } = await gateway.call(
    'world.mailed',
    { id: 'vote' },
    { agentKey: 'test-mailer-key', key: 'vote', headers: NO_WAIT },
  );
  const { txn } = body;
  const refused = await gateway.request('POST', `/admin/approvals/${txn}/approve`, {
    key,
    body: JSON.stringify({ reason: 'me too', digest: sha256Hex('x') }),
    headers: JSON_TYPE,
  });
  expect(refused.status).toBe(403);
  expect(
    (await readEntries('refused')).filter((line) => line.code === 'forbidden' && line.person === person),
  ).toMatchObject([{ txn, agent: 'mailer', verdict: 'approve', reason: expect.stringContaining(missing) }]);
});

it('the expiry of payloads is logged', async () => {
  const [entry] = await pollUntil(
    () => readEntries('payloads_expired'),
    (entries) => entries.length > 0,
  );
  expect(entry).toMatchObject({ calls: expect.any(Number), afterMs: 1_000 });
});
