// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates

import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { createDirectory, runCli } from '../cli/terminal.ts';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { ADMIN_KEY, AGENT_KEY, OTHER_AGENT_KEY, VIEWER_KEY } from '../support/gateway.ts';
import { dumpTables } from '../support/ledger.ts';
import { useReplicas } from '../support/use-gateway.ts';

const EXTRA_POLICY = `
tools:
  world.sealed:
    upstream: world
    request: { method: PUT, path: "/idempotent/objects/x", body: "\${args}" }
    once: { by: idempotent }
    redact: [args.patient]
  world.booked:
    upstream: hotel
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: compensable, tool: world.unbook, args: { id: "un-\${args.id}", guest: "\${args.guest}" } }
  world.unbook:
    upstream: hotel
    request: { method: POST, path: /keyed/refund, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    retry: { attempts: 5, base: 10ms, max: 20ms }
`;

const {
  upstream,
  database,
  one: gateway,
  two: secondReplica,
} = useReplicas({
  policies: (url) => ({
    ...buildFaultPolicies(url),
    'more.yaml': `upstreams:\n  hotel: { adapter: http, url: "${url}", allowPrivate: true }\n${EXTRA_POLICY}`,
  }),
});

const cli = (...argv: string[]) => runCli(argv, { env: { ONCEGATE_URL: gateway.url, ONCEGATE_KEY: ADMIN_KEY } });
const erase = (body: object, key = ADMIN_KEY) =>
  gateway.post('/admin/erase', { reason: 'asked to be forgotten', ...body }, key);

const dumpDatabase = () => dumpTables(database);

it('erasing a subject removes its calls from every table and every replica, and no others', async () => {
  const subject = 'ann@example.com';
  const args = { id: 'ann', deep: [{ mail: subject }], note: 'secret-of-ann' };
  const call = await gateway.call('world.keyed', args, { key: 'ann-key-text' });
  const sealed = await gateway.call('world.sealed', { id: 'sealed', patient: subject }, { key: 'sealed' });
  const other = await gateway.call('world.keyed', { id: 'bob', note: `not ${subject}` }, { key: 'bob' });
  for (const replica of [gateway, secondReplica])
    expect((await replica.call('world.keyed', args, { key: 'ann-key-text' })).body.replayed).toBe(true);

  const result = await cli('erase', '--subject', subject, '--reason', 'asked to be forgotten');
  expect([result.code, result.out]).toEqual([0, 'erased\t2\n']);
  for (const replica of [gateway, secondReplica]) {
    const gone = await replica.call('world.keyed', args, { key: 'ann-key-text' });
    expect(gone).toMatchObject({ status: 410, body: { code: 'key_expired' } });
    expect((await replica.call('world.keyed', { id: 'bob', note: `not ${subject}` }, { key: 'bob' })).status).toBe(200);
  }
  const [row] = await database.query('select sealed, args from calls where txn = $1', [sealed.body.txn]);
  expect(row).toEqual({ sealed: null, args: null });
  const left = await dumpDatabase();
  for (const text of ['secret-of-ann', 'ann-key-text', `"${subject}"`, call.body.result.id])
    expect(left).not.toContain(text);
  expect(left).toContain(other.body.result.id);
  expect(await upstream.effects('ann')).toHaveLength(1);
});

it('an erasure leaves the log valid, and the log says who erased what and why', async () => {
  const call = await gateway.call('world.keyed', { id: 'logged' }, { key: 'logged' });
  expect((await erase({ txn: call.body.txn, reason: 'a court said so' })).body).toMatchObject({ erased: 1, open: [] });
  expect((await erase({ txn: call.body.txn })).body).toMatchObject({ erased: 0, open: [] });
  const proof = await gateway.admin('GET', `/admin/audit/proof?leaf=${call.body.receipt.leaf}`);
  expect(proof.body.entry).toMatchObject({ what: 'call_succeeded', txn: call.body.txn });
  const last = await gateway.call('world.keyed', { id: 'after' }, { key: 'after' });
  await gateway.admin('GET', `/admin/audit/proof?leaf=${last.body.receipt.leaf}`);
  const exported = await cli('audit', 'export');
  const entries = exported.out
    .trim()
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line).entry);
  const erased = entries.filter((entry) => entry.what === 'call_erased' && entry.txn === call.body.txn);
  expect(erased).toMatchObject([{ person: 'root', reason: 'a court said so', scope: `txn:${call.body.txn}` }]);
  expect(exported.out).not.toContain('ann@example.com');
  const cwd = await createDirectory({});
  await writeFile(join(cwd, 'log.jsonl'), exported.out);
  expect((await runCli(['audit', 'verify', 'log.jsonl'], { cwd })).code).toBe(0);
});

it('an open call is not erased, and the answer names it', async () => {
  const held = await gateway.call('world.held', { id: 'held' }, { key: 'held', headers: { prefer: 'wait=0' } });
  const callStep = async (saga: string, key: string) =>
    (await gateway.call('world.keyed', { id: key }, { key, headers: { 'oncegate-saga': saga } })).body.txn;
  const { saga } = (await gateway.request('POST', '/v1/sagas', { key: AGENT_KEY })).body;
  const txn = await callStep(saga, 'step');
  const result = await cli('erase', '--saga', saga, '--reason', 'x');
  expect([result.code, result.out]).toEqual([1, `erased\t0\nopen\t${txn}\n`]);
  expect((await erase({ txn: held.body.txn })).body).toMatchObject({ erased: 0, open: [held.body.txn] });
  expect((await gateway.call('world.keyed', { id: 'step' }, { key: 'step' })).status).toBe(200);
  await gateway.request('POST', `/v1/sagas/${saga}/commit`, { key: AGENT_KEY });
  expect((await erase({ saga })).body).toMatchObject({ erased: 1, open: [] });
});

it('a call is erased with every attempt to undo it', async () => {
  const { body } = await gateway.call('world.booked', { id: 'room', guest: 'guest-to-forget' }, { key: 'room' });
  for (let refused = 0; refused < 2; refused++) await upstream.plan({ match: { id: 'un-room' }, do: [{ reply: 422 }] });
  const undone = await gateway.admin('POST', `/admin/calls/${body.txn}/undo?wait=20`, {
    reason: 'the guest cancelled',
  });
  expect(undone.body.undo.state).toBe('done');
  expect(await dumpDatabase()).toContain('guest-to-forget');
  expect((await erase({ txn: body.txn })).body).toMatchObject({ erased: 4, open: [] });
  expect(await dumpDatabase()).not.toContain('guest-to-forget');
});

it('a repeat of an erased call without a key answers 410 and is not sent', async () => {
  const args = { id: 'unkeyed' };
  const first = await gateway.call('world.none', args);
  expect(first.status).toBe(200);
  expect((await erase({ txn: first.body.txn })).body).toMatchObject({ erased: 1 });
  expect(await gateway.call('world.none', args)).toMatchObject({ status: 410, body: { code: 'key_expired' } });
  // The same if the answer was never delivered, even after a day. (The replica role lets the test rewrite the record.)
  await database.query(`begin; set local session_replication_role = replica;
    update settlements set settled_at = settled_at - interval '25 hours' where txn = '${first.body.txn}';
    update repeats set delivered_at = null where txn = '${first.body.txn}'; commit`);
  const dryRun = await gateway.call('world.none', args, { headers: { 'oncegate-dry-run': '?1' } });
  expect(dryRun.body.wouldAnswer).toMatchObject({ code: 'key_expired' });
  expect((await gateway.call('world.none', args)).status).toBe(410);
  expect(await upstream.effects('unkeyed')).toHaveLength(1);
  // The 410 was delivered. As after any answer, a request within a minute is a repeat, and a later one is a new call.
  const isDelivered = 'select 1 from repeats where txn = $1 and delivered_at is not null';
  await expect.poll(async () => (await database.query(isDelivered, [first.body.txn])).length).toBe(1);
  expect((await gateway.call('world.none', args)).status).toBe(410);
  await database.query(`update repeats set delivered_at = now() - interval '2 minutes' where txn = $1`, [
    first.body.txn,
  ]);
  expect((await gateway.call('world.none', args)).status).toBe(200);
  expect(await upstream.effects('unkeyed')).toHaveLength(2);
});

it('erasing an agent removes the texts of its sagas and runs, and the answer names open runs', async () => {
  const postAsAgent = (path: string, body: object, headers: Record<string, string> = {}) =>
    gateway.request('POST', path, {
      key: OTHER_AGENT_KEY,
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    });
  const { saga } = (await postAsAgent('/v1/sagas', { name: 'saga-secret' })).body;
  await postAsAgent(`/v1/sagas/${saga}/savepoints`, { name: 'savepoint-secret' });
  await postAsAgent(`/v1/sagas/${saga}/commit`, {});
  const { run } = (await postAsAgent('/v1/runs', { name: 'goes-on' })).body;
  const kept = await gateway.request('PUT', `/v1/runs/${run}/checkpoint`, {
    key: OTHER_AGENT_KEY,
    headers: { 'content-type': 'application/json', 'oncegate-epoch': '1' },
    body: '"checkpoint-secret"',
  });
  expect(kept.status).toBe(200);
  const result = await cli('erase', '--agent', 'other', '--reason', 'x');
  expect([result.code, result.out]).toEqual([1, expect.stringContaining(`open run\t${run}\n`)]);
  expect(await dumpDatabase()).toContain('checkpoint-secret');
  await postAsAgent(`/v1/runs/${run}/finish`, {}, { 'oncegate-epoch': '1' });
  expect((await erase({ agent: 'other' })).body).toMatchObject({ open: [], openRuns: [] });
  const left = await database.query<{ row: string }>(
    'select t::text as row from savepoints t union all select t::text from runs t union all select t::text from sagas t',
  );
  for (const secret of ['checkpoint-secret', 'savepoint-secret', 'saga-secret'])
    expect(JSON.stringify(left)).not.toContain(secret);
});

it('erasing an agent removes all pages of its calls, and no calls of other agents', async () => {
  const calls = await Promise.all(
    Array.from({ length: 450 }, (_, i) =>
      gateway.call('world.keyed', { id: `other-${i}` }, { key: `other-${i}`, agentKey: OTHER_AGENT_KEY }),
    ),
  );
  expect(new Set(calls.map(({ status }) => status))).toEqual(new Set([200]));
  const kept = await gateway.call('world.keyed', { id: 'mine' }, { key: 'mine' });
  expect((await erase({ agent: 'other' })).body).toMatchObject({ erased: 450, open: [], cursor: null });
  expect(await database.query(`select 1 from calls where agent = 'other' and args is not null`)).toEqual([]);
  expect((await gateway.get(`/v1/calls/${kept.body.txn}`)).body.args).toEqual({ id: 'mine' });
});

it('erasing requires an administrator, one scope and a reason', async () => {
  expect((await erase({ agent: 'tester' }, VIEWER_KEY)).status).toBe(403);
  expect((await erase({ agent: 'tester' }, AGENT_KEY)).status).toBe(403);
  for (const body of [
    {},
    { agent: 'a', txn: 'b' },
    { agent: 'tester', subject: 'x' },
    { txn: 'x' },
    { agent: 'a', reason: ' ' },
    { subject: '' },
    { agent: 'a', cursor: 'x' },
  ])
    expect([body, (await erase(body)).status]).toEqual([body, 400]);
  expect((await cli('erase', '--reason', 'x')).code).toBe(2);
  expect((await cli('erase', '--agent', 'a', '--txn', 'b', '--reason', 'x')).code).toBe(2);
});
