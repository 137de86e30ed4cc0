import { beforeEach, describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { ADMIN_KEY, AGENT_KEY, keysYaml, OTHER_AGENT_KEY, VIEWER_KEY } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const OPERATOR_KEY = 'test-operator-key';
const APPROVER_KEY = 'test-approver-key';

const { upstream, database, gateway } = useGateway({
  policies: (url) => ({
    ...buildFaultPolicies(url),
    'more-people.yaml': `people:
  omar: { ${keysYaml(OPERATOR_KEY)}, roles: [operator] }
  ada: { ${keysYaml(APPROVER_KEY)}, roles: [approver] }
`,
  }),
});
beforeEach(() => {
  id = uniqueId('admin');
});

async function createDoubtfulCall(): Promise<string> {
  await upstream.plan({ match: { id }, do: ['drop'] });
  const answer = await gateway.call('world.none', { id }, { key: id });
  expect(answer.status).toBe(504);
  return answer.body.txn;
}

const resolve = (txn: string, body: unknown, key = ADMIN_KEY) => gateway.post(`/admin/calls/${txn}/resolve`, body, key);

const verdict = { verdict: 'not_applied', reason: 'looked' } as const;

describe('access', () => {
  it.each<[string, string | undefined, number, number]>([
    ['no key', undefined, 401, 401],
    ['an unknown key', 'no-such-key', 401, 401],
    ['an agent', AGENT_KEY, 403, 403],
    ['another agent', OTHER_AGENT_KEY, 403, 403],
    ['a viewer', VIEWER_KEY, 200, 403],
    ['an approver', APPROVER_KEY, 200, 403],
    ['an operator', OPERATOR_KEY, 200, 200],
    ['an admin', ADMIN_KEY, 200, 200],
  ])('to the admin API depends on the role: %s', async (_caller, key, readStatus, resolveStatus) => {
    const txn = await createDoubtfulCall();
    const credentials = key === undefined ? {} : { key };
    expect((await gateway.request('GET', '/admin/calls', credentials)).status).toBe(readStatus);
    expect((await gateway.request('GET', `/admin/calls/${txn}`, credentials)).status).toBe(readStatus);
    const resolved = await gateway.request('POST', `/admin/calls/${txn}/resolve`, {
      ...credentials,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(verdict),
    });
    expect(resolved.status).toBe(resolveStatus);
    if (resolveStatus !== 200) {
      expect(resolved.body).toMatchObject({
        code: resolveStatus === 401 ? 'unauthenticated' : 'forbidden',
        retry: 'never',
      });
      expect((await gateway.get(`/v1/calls/${txn}`)).body.state).toBe('in_doubt');
    }
  });

  it('to the agent API is refused for the key of a person', async () => {
    expect((await gateway.call('world.keyed', { id }, { agentKey: ADMIN_KEY })).status).toBe(401);
    const refused = await gateway.get('/v1/calls', ADMIN_KEY);
    expect([refused.status, refused.body.detail]).toEqual([
      401,
      'This is the key of a person. This API is for agents: send the key of an agent.',
    ]);
    expect((await gateway.get('/v1/calls', 'nobody')).body.detail).toBe('No agent has this bearer key.');
    expect(await upstream.requests(id)).toEqual([]);
  });
});

describe('POST /admin/calls/{txn}/resolve', () => {
  it.each<[string, unknown, RegExp]>([
    ['no body', '', /verdict/],
    ['no verdict', { reason: 'x' }, /verdict/],
    ['an unknown verdict', { verdict: 'maybe', reason: 'x' }, /verdict/],
    ['no reason', { verdict: 'applied' }, /^reason is required\.$/],
    ['an empty reason', { verdict: 'applied', reason: '  ' }, /reason/],
    ['a reason that is too long', { verdict: 'applied', reason: 'x'.repeat(2_001) }, /reason/],
    ['a reason that is not a string', { verdict: 'applied', reason: 7 }, /^reason must be a string \(got 7\)\.$/],
    ['a reason with a NUL', { verdict: 'applied', reason: 'a\u0000b' }, /reason/],
    [
      'an unknown key',
      { verdict: 'applied', reason: 'x', force: true },
      /^Unknown key "force"\. Known keys: verdict, /,
    ],
    ['a list', '[]', /body/],
    ['a duplicate key', '{"verdict":"applied","verdict":"applied","reason":"x"}', /twice/],
  ])('refuses %s and changes nothing', async (_name, body, detail) => {
    const txn = await createDoubtfulCall();
    const refused = await resolve(txn, body);
    expect(refused.status).toBe(400);
    expect(refused.body.code).toBe('malformed');
    expect(refused.body.detail).toMatch(detail);
    expect((await gateway.get(`/v1/calls/${txn}`)).body.state).toBe('in_doubt');
  });

  it('reports every fault at once', async () => {
    const refused = await resolve(await createDoubtfulCall(), { verdict: 'maybe', force: 1 });
    expect(refused.body.faults).toHaveLength(3);
  });

  it.each(['00000000-0000-8000-8000-000000000000', 'nonsense', '%00'])(
    'answers 404 for an unknown call: %s',
    async (txn) => {
      expect((await resolve(txn, verdict)).status).toBe(404);
      expect((await gateway.admin('GET', `/admin/calls/${txn}`)).status).toBe(404);
    },
  );

  it('is refused for a call that is not in doubt', async () => {
    const done = await gateway.call('world.keyed', { id }, { key: id });
    for (const verdict of ['applied', 'not_applied', 'retry']) {
      const refused = await resolve(done.body.txn, { verdict, reason: 'x' });
      expect(refused.status).toBe(409);
      expect(refused.body.code).toBe('conflict');
    }
    const held = await gateway.call('world.held', { id }, { key: `${id}-h`, headers: { prefer: 'wait=0' } });
    expect((await resolve(held.body.txn, { verdict: 'applied', reason: 'x' })).status).toBe(409);
    expect((await gateway.call('world.keyed', { id }, { key: id })).body).toEqual({ ...done.body, replayed: true });
  });

  it('passes the result that the person gave to the agent unchanged', async () => {
    const txn = await createDoubtfulCall();
    const given = { id: 'ch_1', list: [1, null, { deep: '\ud83d\ude00 \u0000' }] };
    expect((await resolve(txn, { verdict: 'applied', reason: 'seen in the console', result: given })).status).toBe(200);
    const replayed = await gateway.call('world.none', { id }, { key: id });
    expect(replayed.status).toBe(200);
    expect(replayed.body).toMatchObject({ state: 'succeeded', replayed: true, result: given });
    expect(replayed.body.receipt.leaf).toMatch(/^[0-9a-f]{64}$/);
  });

  it('passes null to the agent if the person gave null', async () => {
    const txn = await createDoubtfulCall();
    expect((await resolve(txn, { verdict: 'applied', reason: 'x', result: null })).status).toBe(200);
    expect((await gateway.call('world.none', { id }, { key: id })).body.result).toBeNull();
  });

  it('accepts one of several opposite verdicts that arrive at once', async () => {
    const txn = await createDoubtfulCall();
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_, i) =>
        resolve(txn, { verdict: i % 2 === 0 ? 'applied' : 'not_applied', reason: `vote ${i}` }),
      ),
    );
    expect(answers.filter((answer) => answer.status === 200)).toHaveLength(4);
    expect(answers.filter((answer) => answer.status === 409)).toHaveLength(4);
    const entries = await database.query('select 1 from audit_entries where entry like $1 and entry like $2', [
      `%${txn}%`,
      '%"what":"verdict"%',
    ]);
    expect(entries).toHaveLength(1);
  });
});

describe('GET /admin/calls', () => {
  it('lists the calls of all agents, and filters them', async () => {
    await gateway.call('world.keyed', { id }, { key: id });
    await gateway.call('world.keyed', { id }, { key: id, agentKey: OTHER_AGENT_KEY });
    const agents = async (query: string) =>
      (await gateway.admin('GET', `/admin/calls?tool=world.keyed&limit=2${query}`)).body.items.map(
        (item: { agent: string }) => item.agent,
      );
    expect(await agents('')).toEqual(['other', 'tester']);
    expect(new Set(await agents('&agent=other'))).toEqual(new Set(['other']));
    expect(await agents('&agent=nobody')).toEqual([]);
    for (const query of ['state=x', 'cursor=x', 'agent=a&agent=b', 'agent=%00'])
      expect((await gateway.admin('GET', `/admin/calls?${query}`)).status, query).toBe(400);
  });

  it('shows one call with its whole timeline', async () => {
    const txn = await createDoubtfulCall();
    await resolve(txn, { verdict: 'retry', reason: 'not there' }, OPERATOR_KEY);
    await gateway.waitForCall(txn, (call) => call.state === 'succeeded');
    const { body } = await gateway.admin('GET', `/admin/calls/${txn}`);
    expect(body).toMatchObject({
      agent: 'tester',
      kind: 'none',
      state: 'succeeded',
      evidence: 'answer',
      attempts: 2,
      contradiction: null,
    });
    expect(body.rule).toMatch(/^tester rule/);
    expect(body.policyVersion).toMatch(/^[0-9a-f]{16}$/);
    const steps = body.timeline.map((event: { what: string }) => event.what);
    expect(steps[0]).toBe('claimed');
    expect(steps.at(-1)).toBe('succeeded');
    expect(steps).toContain('in_doubt');
    const verdictEvent = body.timeline.find((event: { what: string }) => event.what === 'verdict');
    expect(verdictEvent).toMatchObject({ verdict: 'retry', person: 'omar', reason: 'not there' });
    const times = body.timeline.map((event: { at: string }) => Date.parse(event.at));
    for (const at of times) expect(at).toBeGreaterThan(Date.now() - 60_000);
  });

  it('shows a held call as held', async () => {
    const held = await gateway.call('world.held', { id }, { key: id, headers: { prefer: 'wait=0' } });
    const { body } = await gateway.admin('GET', `/admin/calls/${held.body.txn}`);
    expect(body.timeline).toEqual([{ at: body.createdAt, what: 'held' }]);
  });
});
