// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { AGENT_KEY, type CallOptions, type Reply } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const EXTRA_POLICIES = `
tools:
  dry.secret:
    upstream: world
    input: { type: object, properties: { id: { type: string }, card: { type: string }, cents: { type: integer } } }
    request: { method: POST, path: /none/card, body: { id: "\${args.id}", card: "\${args.card}" } }
    once: { by: idempotent }
    redact: [args.card]
  dry.computed:
    upstream: world
    input: { type: object, properties: { cents: { type: integer } } }
    request: { method: POST, path: /none/computed, body: { euro: "\${args.cents / 100}" } }
    once: { by: idempotent }
    redact: [args.cents]
  dry.twice:
    upstream: world
    request: { method: POST, path: /none/twice, body: "\${args}" }
    once: { by: idempotent }
    repeats: { policy: hold }
  dry.business:
    upstream: world
    input: { type: object, properties: { order: { type: string }, id: { type: string } } }
    key: "\${args.order}"
    request: { method: POST, path: "/none/\${args.order}", body: "\${args}" }
    once: { by: idempotent }
  dry.forbidden:
    upstream: world
    request: { method: POST, path: /none/forbidden }
`;

const { upstream, database, gateway } = useGateway({
  policies: (url) => ({
    ...buildFaultPolicies(url, {
      rules: ['{ allow: dry.* }', '{ deny: dry.forbidden }', '{ allow: "ghost.*" }'],
    }),
    'more.yaml': EXTRA_POLICIES,
  }),
});
beforeEach(() => {
  id = uniqueId('dry');
});

const countTraces = async () => ({
  requests: (await upstream.requests()).length,
  rows: await database.query(
    'select (select count(*) from calls) as calls, (select count(*) from open_calls) as open, (select count(*) from repeats) as repeats, (select count(*) from audit_entries) as audit',
  ),
});

/** Runs a dry-run request and checks that it answers 200 and changes neither the upstream nor the ledger. */
async function expectNoTraces(work: () => Promise<Reply>): Promise<Reply> {
  const before = await countTraces();
  const answer = await work();
  expect(answer.status).toBe(200);
  expect(answer.body.dryRun).toBe(true);
  expect(await countTraces()).toEqual(before);
  return answer;
}

const dryRun = (tool: string, args: unknown, options: CallOptions = {}) =>
  expectNoTraces(() =>
    gateway.call(tool, args, { ...options, headers: { ...options.headers, 'oncegate-dry-run': '?1' } }),
  );

describe('a dry run', () => {
  it('shows the request and the txn of the real call', async () => {
    const answer = await dryRun('world.keyed', { id, n: 1 }, { key: id });
    expect(answer.body).toMatchObject({
      tool: 'world.keyed',
      decision: { allowed: true, reason: null },
      identifiedBy: 'key',
      effect: 'write',
      once: 'key',
      hold: false,
      earlier: null,
      request: { upstream: 'world', method: 'POST', path: '/keyed/charge' },
      wouldAnswer: { status: 200, sends: true },
    });
    expect(JSON.parse(answer.body.request.body)).toEqual({ id, n: 1 });
    expect(answer.body.decision.rule).toMatch(/^tester rule/);
    const real = await gateway.call('world.keyed', { id, n: 1 }, { key: id });
    expect(real.body).toMatchObject({ txn: answer.body.txn, replayed: false });
    const [sent] = await upstream.requests(id);
    expect(sent?.body).toBe(answer.body.request.body);
  });

  it.each<[string, string, (id: string) => unknown, number, string]>([
    ['invalid arguments', 'world.keyed', () => ({ n: 'x' }), 400, 'invalid_arguments'],
    ['a denied tool', 'dry.forbidden', (id) => ({ id }), 403, 'denied'],
    ['a tool that no rule covers', 'nowhere.at_all', () => ({}), 403, 'denied'],
    ['an unknown tool', 'ghost.walk', () => ({}), 404, 'unknown_tool'],
    ['bad JSON', 'world.keyed', (id) => `{"id":"${id}","id":1}`, 400, 'malformed'],
    ['no body', 'world.keyed', () => '', 400, 'malformed'],
    ['a list as its body', 'world.keyed', () => '[]', 400, 'malformed'],
    ['arguments that no request can be built from', 'world.put', () => ({ id: '..' }), 400, 'invalid_arguments'],
    ['arguments that no business key can be built from', 'dry.business', () => ({}), 400, 'invalid_arguments'],
  ])('of a call with %s predicts the answer of the real call', async (_name, tool, args, status, code) => {
    const answer = await dryRun(tool, args(id));
    expect(answer.body.wouldAnswer).toMatchObject({ status, code, sends: false });
    const real = await gateway.call(tool, args(id));
    expect([real.status, real.body.code]).toEqual([status, code]);
    if (real.body.faults !== undefined) expect(answer.body.faults).toEqual(real.body.faults);
  });

  it.each([
    ['idempotency-key', 'no space allowed in it'],
    ['prefer', 'wait=soon'],
    ['oncegate-saga', 'no saga'],
    ['oncegate-epoch', '-1'],
  ])('of a call with a malformed %s header predicts 400', async (name, value) => {
    const answer = await expectNoTraces(() =>
      gateway.call('world.keyed', { id }, { headers: { [name]: value, 'oncegate-dry-run': '?1' } }),
    );
    expect(answer.body.wouldAnswer).toMatchObject({ status: 400, code: 'malformed', sends: false });
    const real = await gateway.call('world.keyed', { id }, { headers: { [name]: value } });
    expect(real.body).toMatchObject({ status: 400, code: 'malformed', detail: answer.body.detail });
  });

  it('lists every rule with the reason why it matched or not', async () => {
    const answer = await dryRun('dry.forbidden', {});
    const tried = answer.body.decision.tried;
    expect(tried.length).toBeGreaterThanOrEqual(4);
    for (const rule of tried) expect(rule).toMatchObject({ matched: expect.any(Boolean), why: expect.any(String) });
    expect(answer.body.decision.rule).toBe(tried.find((rule: { verdict: string }) => rule.verdict === 'deny').rule);
  });

  it('of a call that needs approval predicts held', async () => {
    const answer = await dryRun('world.held', { id }, { key: id });
    expect(answer.body).toMatchObject({ hold: true, wouldAnswer: { status: 202, state: 'held', sends: false } });
  });

  it('of a call with a used key predicts a replay, or key_reused for other arguments', async () => {
    await gateway.call('world.keyed', { id }, { key: id });
    const same = await dryRun('world.keyed', { id }, { key: id });
    expect(same.body.wouldAnswer).toEqual({ status: 200, replayed: true, sends: false });
    const other = await dryRun('world.keyed', { id, n: 1 }, { key: id });
    expect(other.body.wouldAnswer).toMatchObject({ status: 422, code: 'key_reused' });
  });

  it('predicts the answer to a repeat of a failed, held, cancelled, running or in-doubt call', async () => {
    await upstream.plan({ match: { id }, do: [{ reply: 422 }] });
    await gateway.call('world.keyed', { id }, { key: `${id}-failed` });
    const failed = await dryRun('world.keyed', { id }, { key: `${id}-failed` });
    expect(failed.body.wouldAnswer).toMatchObject({ status: 502, code: 'tool_failed', replayed: true });

    const prefer = { prefer: 'wait=0' };
    const held = await gateway.call('world.held', { id }, { key: `${id}-held`, headers: prefer });
    expect((await dryRun('world.held', { id }, { key: `${id}-held` })).body.wouldAnswer).toMatchObject({
      status: 202,
      state: 'held',
    });
    await gateway.request('POST', `/v1/calls/${held.body.txn}/cancel`, { key: AGENT_KEY });
    expect((await dryRun('world.held', { id }, { key: `${id}-held` })).body.wouldAnswer).toMatchObject({
      status: 422,
      code: 'cancelled',
    });

    await upstream.plan({ match: { id }, do: [{ wait: id }, 'drop'] });
    const doubtful = gateway.call('world.none', { id }, { key: `${id}-doubt` });
    await upstream.awaitEvent(`received:${id}`, 2);
    expect((await dryRun('world.none', { id }, { key: `${id}-doubt` })).body.wouldAnswer).toMatchObject({
      status: 409,
      code: 'in_progress',
    });
    await upstream.release(id);
    expect((await doubtful).status).toBe(504);
    expect((await dryRun('world.none', { id }, { key: `${id}-doubt` })).body.wouldAnswer).toMatchObject({
      status: 504,
      code: 'in_doubt',
    });
  });

  it('of a repeat without a key predicts a replay', async () => {
    await gateway.call('world.keyed', { id });
    expect((await dryRun('world.keyed', { id })).body).toMatchObject({
      identifiedBy: 'repeat',
      wouldAnswer: { status: 200, replayed: true, sends: false },
    });
    expect((await gateway.call('dry.twice', { id })).status).toBe(502);
  });

  it('shows no redacted value, and reports no fault that only redaction causes', async () => {
    const secret = await dryRun('dry.secret', { id, card: '4111-secret' });
    expect(JSON.stringify(secret.body)).not.toContain('4111-secret');
    expect(secret.body.request.body).toContain('[redacted]');
    const computed = await dryRun('dry.computed', { cents: 1250 });
    expect(computed.body.wouldAnswer).toMatchObject({ status: 200, sends: true });
    expect(computed.body.request).toBeNull();
  });

  it('works through the proxy, even if no tool matches', async () => {
    const dryRunViaProxy = (method: string, path: string, body?: unknown) =>
      expectNoTraces(() =>
        gateway.request(method, `/v1/proxy/${path}`, {
          key: AGENT_KEY,
          headers: { 'content-type': 'application/json', 'oncegate-dry-run': '?1' },
          ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        }),
      );
    expect((await dryRunViaProxy('POST', 'world/keyed/charge', { id })).body.wouldAnswer).toMatchObject({
      sends: true,
    });
    expect((await dryRunViaProxy('POST', 'world/nowhere', {})).body.wouldAnswer).toMatchObject({
      status: 403,
      code: 'denied',
    });
    expect((await dryRunViaProxy('PUT', 'world/idempotent/objects/a', { id: 'b' })).body.wouldAnswer).toMatchObject({
      code: 'malformed',
    });
  });

  it('needs an agent key like any call', async () => {
    const refused = await gateway.call('world.keyed', { id }, { agentKey: 'x', headers: { 'oncegate-dry-run': '?1' } });
    expect(refused.status).toBe(401);
  });
});
