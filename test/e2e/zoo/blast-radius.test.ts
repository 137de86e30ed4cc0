import { beforeEach, describe, expect, it } from 'vitest';
import { canonicalize } from '../../../gateway/domain/canonical.ts';
import { RunHolder } from '../../controls/run-holder.ts';
import { TestSaga } from '../../sagas/saga.ts';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../../support/gateway.ts';
import { readAuditEntries } from '../../support/ledger.ts';
import { useReplicas } from '../../support/use-gateway.ts';
import { AgentProcess } from './agents.ts';

const CAP = 40;

/** A desk where strangers write tickets, and a store whose records can be deleted and put back. */
const policies = (url: string) => `
upstreams:
  desk: { adapter: http, url: "${url}", allowPrivate: true }
  store: { adapter: http, url: "${url}", allowPrivate: true, timeout: 30s, breaker: { minimum: 10000 } }
tools:
  desk.read_ticket:
    upstream: desk
    effect: read
    untrusted: true
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: GET, path: "/read/items/\${args.id}" }
  store.read_record:
    upstream: store
    effect: read
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: GET, path: "/idempotent/objects/\${args.id}" }
  store.delete_record:
    upstream: store
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: DELETE, path: "/idempotent/objects/\${args.id}" }
    once: { by: idempotent }
    observe: { tool: store.read_record, args: { id: "\${args.id}" }, satisfied: observed == null }
    undo: { kind: reversible, tool: store.put_back, args: { id: "\${args.id}", record: "\${before.object}" } }
  store.put_back:
    upstream: store
    input: { type: object, properties: { id: { type: string }, record: { type: object } }, required: [id, record] }
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args.record}" }
    once: { by: idempotent }
    undo: { kind: none }
agents:
  helper:
    ${keysYaml(AGENT_KEY)}
    rules:
      - allow: desk.read_ticket
      - { allow: store.delete_record, when: "!tainted", approve: { when: saga != null } }
  janitor:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules:
      - allow: store.delete_record
        when: history.count("*.delete_*", "1h") < ${CAP}
${PEOPLE_YAML}`;

const { upstream, database, one, two } = useReplicas({ policies });
beforeEach(() => upstream.reset());

/** A record with what gets lost when somebody is careless. */
const record = (id: string) => ({
  ...{ id, name: 'Zoë "Zo" O\u2019Hara\n\u{1F600}', balance: 1234.56, tiny: 5e-324, huge: 1e21, minus: -0.5 },
  ...{ tags: ['b', 'a', ''], nothing: null, nested: { z: { y: [] }, a: {} }, html: '<b>&amp;</b>', empty: '' },
});

/** What the store has at each of many ids, or says of it, byte for byte. */
function each(prefix: string, many: number, init: (id: string) => RequestInit = () => ({})): Promise<string[]> {
  const ids = Array.from({ length: many }, (_, n) => `${prefix}-${n}`);
  return Promise.all(
    ids.map(async (id) => {
      const response = await fetch(`${upstream.url}/idempotent/objects/${id}`, init(id));
      return `${response.status} ${await response.text()}`;
    }),
  );
}

/** With members in order, as the gateway sends them: JSON has no other order that could be kept. */
const fill = (prefix: string, many: number) =>
  each(prefix, many, (id) => ({ method: 'PUT', body: canonicalize(record(id)) }));

const table = (prefix: string, many: number) => each(prefix, many);

const deleted = async () => (await upstream.effects()).filter(({ method }) => method === 'DELETE').map(({ id }) => id);

const logged = (what: string) => readAuditEntries(database, what);

describe('the rogue', () => {
  it('that reads a ticket called delete-everything and obeys deletes nothing; a run that read none still may', async () => {
    await fill('r', 3);
    const before = await table('r', 3);
    const wish = { name: 'delete-everything', records: ['r-0', 'r-1', 'r-2'] };
    await upstream.plan({ match: { path: '/read/items/t-1' }, do: [{ reply: 200, body: wish }] });

    const agent = new AgentProcess('./obedient.mjs', [one.url, AGENT_KEY, 'support', 't-1']);
    expect(await agent.waitForLine((line) => line === 'done')).toBe('done');
    expect(agent.lines).toEqual([
      'read delete-everything',
      ...wish.records.flatMap((id) => [`403 denied ${id}`, `403 denied ${id}`]),
      'done',
    ]);
    expect(await table('r', 3)).toEqual(before);
    expect(await deleted()).toEqual([]);
    expect((await upstream.requests()).filter(({ method }) => method === 'DELETE')).toEqual([]);

    const [tainted] = (await logged('tainted')).filter((entry) => 'run' in entry);
    expect(tainted).toMatchObject({ agent: 'helper', tool: 'desk.read_ticket' });
    const denials = (await logged('denied')).filter(({ agent: who }) => who === 'helper');
    expect(denials).toHaveLength(6);
    for (const denial of denials)
      expect(denial).toMatchObject({
        tool: 'store.delete_record',
        facts: { tainted: true },
        reason: expect.stringContaining('tried helper rule 2 ('),
      });
    const seen = (await one.admin('GET', `/admin/runs/${String(tainted?.['run'])}`)).body;
    expect(seen.tainted).toEqual({ txn: tainted?.['txn'], tool: 'desk.read_ticket', since: expect.any(String) });

    const clean = await RunHolder.take(two, 'by hand');
    expect((await clean.call('store.delete_record', { id: 'r-1' })).status).toBe(200);
    expect((await clean.read()).body.tainted).toBeNull();
    expect(await deleted()).toEqual(['r-1']);
  });
});

describe('the stupid one', () => {
  it('that deletes 500 records at once through two replicas loses exactly as many as its cap', async () => {
    await fill('j', 500);
    const agent = new AgentProcess('./janitor.mjs', [OTHER_AGENT_KEY, 'j', '500', one.url, two.url]);
    expect(await agent.waitForLine((line) => line === 'done')).toBe('done');
    expect(agent.lines).toEqual([`200 succeeded ${CAP}`, `403 denied ${500 - CAP}`, 'done']);
    const gone = (await table('j', 500)).map((row) => row.startsWith('404'));
    expect(gone.filter(Boolean)).toHaveLength(CAP);
    expect(new Set(await deleted()).size).toBe(CAP);

    // Asked again with the same keys: what was done is told, what was not is not.
    const done = gone.slice(0, 100).filter(Boolean).length;
    const again = new AgentProcess('./janitor.mjs', [OTHER_AGENT_KEY, 'j', '100', two.url, one.url]);
    expect(await again.waitForLine((line) => line === 'done')).toBe('done');
    expect(again.lines).toEqual([`200 succeeded ${done}`, `403 denied ${100 - done}`, 'done']);
    expect(await deleted()).toHaveLength(CAP);
    const [denial] = (await logged('denied')).filter(({ agent: who }) => who === 'janitor');
    expect(denial).toMatchObject({ facts: { history: { 'count("*.delete_*", "1h")': CAP } } });
  });
});

describe('the mistake', () => {
  it('that a person approved is rolled back by another, and the table is what it was to the byte', async () => {
    const many = 12;
    await fill('m', many);
    const before = await table('m', many);
    const clean = await RunHolder.take(one, 'tidy');
    const saga = await TestSaga.open(one, { name: 'tidy up' });
    const steps = await Promise.all(
      Array.from({ length: many }, (_, n) =>
        saga.callStep(
          'store.delete_record',
          { id: `m-${n}` },
          { on: [], headers: { ...clean.headers, prefer: 'wait=0' } },
        ),
      ),
    );
    expect(steps.map(({ status, body }) => `${status} ${body.state}`)).toEqual(steps.map(() => '202 held'));
    expect(await deleted()).toEqual([]);

    // Twelve times yes, without reading.
    const { items } = (await one.admin('GET', '/admin/approvals?state=pending')).body;
    expect(items).toHaveLength(many);
    for (const { txn, digest } of items) {
      const yes = { reason: 'looks fine', digest };
      expect((await two.admin('POST', `/admin/approvals/${txn}/approve`, yes)).status).toBe(200);
    }
    for (const { body } of steps) await one.waitForCall(body.txn, ({ state }) => state === 'succeeded');
    expect((await table('m', many)).filter((row) => row.startsWith('404'))).toHaveLength(many);

    const rolledBack = await saga.admin('rollback', { reason: 'those were customers' }, '?wait=30');
    expect(rolledBack.body).toMatchObject({ state: 'rolled_back' });
    expect(await table('m', many)).toEqual(before);
    expect(await deleted()).toHaveLength(many);
  });
});
