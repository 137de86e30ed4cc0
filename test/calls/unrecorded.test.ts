// biome-ignore-all lint/suspicious/noTemplateCurlyInString: policies hold templates
import { beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';
import { uniqueId } from '../support/unique-id.ts';
import { useGateway } from '../support/use-gateway.ts';

let id = '';

const { upstream, database, gateway } = useGateway({
  policies: (url) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 2s, breaker: { minimum: 1000 } }
tools:
  world.read:
    upstream: world
    effect: read
    record: false
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: GET, path: "/read/items/\${args.id}" }
    retry: { attempts: 2, base: 20ms }
agents:
  tester: { ${keysYaml(AGENT_KEY)}, rules: [{ allow: world.read, when: 'args.id != "secret"' }] }
  other: { ${keysYaml(OTHER_AGENT_KEY)}, rules: [{ allow: world.read, rate: 1000/m }] }
${PEOPLE_YAML}`,
});
beforeEach(() => {
  id = uniqueId('read');
});

const countRecorded = async () => {
  const [counts] = await database.query<{ calls: string; leaves: string }>(
    `select (select count(*) from calls) as calls, (select count(*) from audit_queue) + (select count(*) from audit_log) as leaves`,
  );
  return counts;
};

describe('a read whose contract says record: false', () => {
  it('is sent, and leaves nothing in the ledger', async () => {
    const before = await countRecorded();
    const { status, body, headers } = await gateway.call('world.read', { id });
    expect({ status, state: body.state, attempts: body.attempts, receipt: body.receipt }).toEqual({
      status: 200,
      state: 'succeeded',
      attempts: 1,
      receipt: null,
    });
    expect(headers.get('oncegate-txn')).toBe(body.txn);
    expect(await countRecorded()).toEqual(before);
    expect((await gateway.get(`/v1/calls/${body.txn}`)).status).toBe(404);
    expect(await upstream.requests()).toContainEqual(expect.objectContaining({ url: `/read/items/${id}` }));
  });

  it('is retried like any read, and fails with tool_failed', async () => {
    await upstream.plan({ match: { path: `/read/items/${id}` }, do: [{ reply: 503 }] });
    const second = await gateway.call('world.read', { id });
    expect({ status: second.status, attempts: second.body.attempts }).toEqual({ status: 200, attempts: 2 });
    await upstream.plan({ match: { path: `/read/items/${id}` }, do: [{ reply: 503 }], times: 'always' });
    const failed = await gateway.call('world.read', { id });
    expect({ status: failed.status, code: failed.body.code }).toEqual({ status: 502, code: 'tool_failed' });
  });

  it('fails when the wait of the caller ends', async () => {
    await upstream.plan({ match: { path: `/read/items/${id}` }, do: [{ wait: id }] });
    const late = await gateway.call('world.read', { id }, { headers: { prefer: 'wait=0' } });
    expect({ status: late.status, code: late.body.code, retry: late.body.retry }).toEqual({
      status: 502,
      code: 'tool_failed',
      retry: 'after_delay',
    });
    await upstream.release(id);
  });

  it('is recorded if it has a key or if a limit counts it', async () => {
    const before = Number((await countRecorded())?.calls);
    const first = await gateway.call('world.read', { id }, { key: id });
    const again = await gateway.call('world.read', { id }, { key: id });
    expect(again.body).toEqual({ ...first.body, replayed: true });
    expect(first.body.receipt).not.toBeNull();
    await gateway.call('world.read', { id }, { agentKey: OTHER_AGENT_KEY });
    expect(Number((await countRecorded())?.calls)).toBe(before + 2);
  });

  it('is logged if it is denied', async () => {
    const before = Number((await countRecorded())?.leaves);
    expect((await gateway.call('world.read', { id: 'secret' })).status).toBe(403);
    expect(Number((await countRecorded())?.leaves)).toBe(before + 1);
  });

  it('is refused while the agent is frozen', async () => {
    await gateway.admin('POST', '/admin/agents/tester/freeze', { reason: 'test' });
    const frozen = await gateway.call('world.read', { id });
    expect({ status: frozen.status, code: frozen.body.code }).toEqual({ status: 503, code: 'frozen' });
    await gateway.admin('POST', '/admin/agents/tester/unfreeze', { reason: 'test' });
    const requests = await upstream.requests();
    expect(requests.filter(({ url }) => url === `/read/items/${id}`)).toEqual([]);
  });
});
