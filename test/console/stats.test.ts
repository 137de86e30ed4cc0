import { describe, expect, it } from 'vitest';
import { buildFaultPolicies } from '../support/fault-policies.ts';
import { AGENT_KEY, type Reply, VIEWER_KEY, writePolicies } from '../support/gateway.ts';
import { useReplicas } from '../support/use-gateway.ts';

const { upstream, database, one, two } = useReplicas();

/** Polls until the statistics satisfy the condition; they are up to a second old. */
async function waitForStats(condition: (stats: Reply['body']) => boolean, gateway = one): Promise<Reply['body']> {
  for (const startedAt = performance.now(); ; ) {
    const { status, body } = await gateway.get('/admin/stats', VIEWER_KEY);
    if (status === 200 && condition(body)) return body;
    if (performance.now() - startedAt > 15_000)
      throw new Error(`The statistics did not satisfy the condition: ${JSON.stringify(body)}`);
  }
}

describe('GET /admin/stats', () => {
  it('needs the key of a person', async () => {
    expect((await one.request('GET', '/admin/stats')).status).toBe(401);
    expect((await one.get('/admin/stats', AGENT_KEY)).status).toBe(403);
    const { you } = (await one.get('/admin/stats', VIEWER_KEY)).body;
    expect(you).toEqual({ person: 'watcher', roles: ['viewer'], groups: [] });
  });

  it('counts calls by state and tool, the same on every replica', async () => {
    for (let i = 0; i < 3; i += 1) await one.call('world.keyed', { id: `ok-${i}` }, { key: `ok-${i}` });
    await upstream.plan({ match: { id: 'lost' }, do: ['drop'] });
    expect((await two.call('world.none', { id: 'lost' }, { key: 'lost' })).status).toBe(504);
    await two.call('world.held', { id: 'held' }, { key: 'held', headers: { prefer: 'wait=0' } });
    await one.request('POST', '/v1/sagas', {
      key: AGENT_KEY,
      headers: { 'content-type': 'application/json' },
      body: '{}',
    });
    for (const gateway of [one, two]) {
      const stats = await waitForStats(({ open, sagas }) => open.held === 1 && sagas.open.count === 1, gateway);
      const states = { succeeded: 3, in_doubt: 1, held: 1 };
      expect(stats.calls.minute).toEqual({ count: 5, more: false, states });
      expect(stats.calls.day).toEqual(stats.calls.minute);
      expect(stats.calls.perMinute).toHaveLength(60);
      expect(stats.calls.perMinute.at(-1)).toEqual(states);
      expect(stats.calls.tools[0]).toEqual({ tool: 'world.keyed', count: 3, states: { succeeded: 3 } });
      expect(stats.open).toMatchObject({ held: 1, inDoubt: 1, underWay: 0 });
      expect(stats.approvals.pending).toEqual({ count: 1, more: false });
      expect(stats.processes).toHaveLength(2);
      expect(stats.processes.filter(({ answers }: { answers: boolean }) => answers)).toHaveLength(1);
      expect(stats.processes.find(({ answers }: { answers: boolean }) => answers).pid).toBe(gateway.pid);
    }
  });

  it('shows freezes, breakers, refused policies and the size of the log', async () => {
    await one.admin('POST', '/admin/freeze', { tool: 'world.put', reason: 'broken' });
    await one.admin('POST', '/admin/breakers/world/open', { reason: 'sick' });
    const policies = buildFaultPolicies(upstream.url);
    await writePolicies(one, { ...policies, 'bad.yaml': 'tools: { x: { colour: red } }\n' });
    const refused = await one.admin('POST', '/admin/policies/reload');
    expect(refused.status).toBe(409);
    const stats = await waitForStats(({ frozen, log }) => frozen.length === 1 && log.size > 0);
    expect(stats.frozen).toMatchObject([{ scope: 'tool:world.put', by: 'root', reason: 'broken' }]);
    expect(stats.breakers).toEqual([{ upstream: 'world', state: 'open', by: 'root', reason: 'sick' }]);
    expect(stats.policies.refused).toEqual(refused.body.faults);
    expect(stats.policies.refused[0]).toMatch(/bad\.yaml:1/);
    expect(stats.log.doubt).toBeNull();
    expect(Date.parse(stats.log.sealedAt)).toBeGreaterThan(Date.now() - 60_000);
    await one.admin('POST', '/admin/breakers/world/close', { reason: 'well' });
    await writePolicies(one, { ...policies, 'bad.yaml': '' });
    expect((await one.admin('POST', '/admin/policies/reload')).status).toBe(200);
    expect((await one.get('/admin/stats', VIEWER_KEY)).body.policies.refused).toEqual([]);
  });

  it('matches its schema in every member', async () => {
    const undocumented: string[] = [];
    const compare = (value: unknown, schema: Record<string, never>, path: string): void => {
      if (Array.isArray(value)) {
        for (const item of value) compare(item, schema['items'] ?? ({} as never), `${path}[]`);
      } else if (typeof value === 'object' && value !== null) {
        const { properties = {}, required = [] } = schema as {
          properties?: Record<string, never>;
          required?: string[];
        };
        for (const name of required) if (!(name in value)) undocumented.push(`${path}.${name} is missing`);
        for (const [name, member] of Object.entries(value)) {
          if (properties[name] === undefined) undocumented.push(`${path}.${name}`);
          else compare(member, properties[name], `${path}.${name}`);
        }
      }
    };
    const { paths } = (await one.get('/openapi.json', VIEWER_KEY)).body;
    const { schema } = paths['/admin/stats'].get.responses[200].content['application/json'];
    compare((await one.get('/admin/stats', VIEWER_KEY)).body, schema, 'stats');
    expect(undocumented).toEqual([]);
  });

  it('counts only the newest calls, through the index, and says that there are more', async () => {
    await database.query(`with made as (
        insert into calls (txn, agent, tool, identity, fingerprint, kind, policy_version, created_at)
        select gen_random_uuid(), 'tester', 'world.keyed', 'key', sha256('x'), 'key', 'v', now() - i * interval '2 ms'
        from generate_series(1, 30000) i returning txn
      )
      insert into settlements (txn, state, evidence, attempt) select txn, 'succeeded', 'answer', 1 from made`);
    await database.query('analyze calls, settlements');
    const stats = await waitForStats(({ calls }) => calls.counted > 9_000);
    expect(stats.calls).toMatchObject({
      counted: 10_000,
      minute: { more: true },
      hour: { more: true },
      day: { more: true },
    });
    expect(Date.parse(stats.calls.since)).toBeGreaterThan(Date.now() - 60_000);
    const plan = await database.query<{ 'QUERY PLAN': string }>(
      `explain select tool, created_at from calls where created_at > now() - interval '1 day' order by created_at desc limit 10000`,
    );
    const text = plan.map((line) => line['QUERY PLAN']).join('\n');
    expect(text).toContain('Index Scan Backward using calls_by_time');
  });
});
