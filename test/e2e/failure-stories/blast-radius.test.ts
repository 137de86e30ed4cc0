import { beforeEach, describe, expect, it } from 'vitest';
import { canonicalize } from '../../../gateway/domain/canonical.ts';
import { RunHolder } from '../../controls/run-holder.ts';
import { TestSaga } from '../../sagas/saga.ts';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../../support/gateway.ts';
import { readAuditEntries } from '../../support/ledger.ts';
import { useReplicas } from '../../support/use-gateway.ts';
import { AgentProcess } from './agent-process.ts';

const CAP = 40;

/** A ticket system with untrusted content, and a store whose records can be deleted and restored. */
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

/** A record with values that careless code would change. */
const record = (id: string) => ({
  ...{ id, name: 'Zoë "Zo" O\u2019Hara\n\u{1F600}', balance: 1234.56, tiny: 5e-324, huge: 1e21, minus: -0.5 },
  ...{ tags: ['b', 'a', ''], nothing: null, nested: { z: { y: [] }, a: {} }, html: '<b>&amp;</b>', empty: '' },
});

/** Sends a request to the store for each of many ids, and returns the statuses and bodies. */
function requestEach(prefix: string, count: number, init: (id: string) => RequestInit = () => ({})): Promise<string[]> {
  const ids = Array.from({ length: count }, (_, n) => `${prefix}-${n}`);
  return Promise.all(
    ids.map(async (id) => {
      const response = await fetch(`${upstream.url}/idempotent/objects/${id}`, init(id));
      return `${response.status} ${await response.text()}`;
    }),
  );
}

/** Writes records with members in canonical order, because the gateway restores them in that order. */
const writeRecords = (prefix: string, count: number) =>
  requestEach(prefix, count, (id) => ({ method: 'PUT', body: canonicalize(record(id)) }));

const readRecords = (prefix: string, count: number) => requestEach(prefix, count);

const deleted = async () => (await upstream.effects()).filter(({ method }) => method === 'DELETE').map(({ id }) => id);

const readEntries = (what: string) => readAuditEntries(database, what);

describe('a rogue agent', () => {
  it('that obeys a ticket called delete-everything deletes nothing, while an untainted run still can', async () => {
    await writeRecords('r', 3);
    const before = await readRecords('r', 3);
    const ticket = { name: 'delete-everything', records: ['r-0', 'r-1', 'r-2'] };
    await upstream.plan({ match: { path: '/read/items/t-1' }, do: [{ reply: 200, body: ticket }] });

    const agent = new AgentProcess('./agents/obey-ticket.mjs', [one.url, AGENT_KEY, 'support', 't-1']);
    expect(await agent.waitForLine((line) => line === 'done')).toBe('done');
    expect(agent.lines).toEqual([
      'read delete-everything',
      ...ticket.records.flatMap((id) => [`403 denied ${id}`, `403 denied ${id}`]),
      'done',
    ]);
    expect(await readRecords('r', 3)).toEqual(before);
    expect(await deleted()).toEqual([]);
    expect((await upstream.requests()).filter(({ method }) => method === 'DELETE')).toEqual([]);

    const [tainted] = (await readEntries('tainted')).filter((entry) => 'run' in entry);
    expect(tainted).toMatchObject({ agent: 'helper', tool: 'desk.read_ticket' });
    const denials = (await readEntries('denied')).filter(({ agent: name }) => name === 'helper');
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

describe('a careless agent', () => {
  it('that deletes 500 records at once through two replicas deletes exactly as many as its cap', async () => {
    await writeRecords('j', 500);
    const agent = new AgentProcess('./agents/delete-records.mjs', [OTHER_AGENT_KEY, 'j', '500', one.url, two.url]);
    expect(await agent.waitForLine((line) => line === 'done')).toBe('done');
    expect(agent.lines).toEqual([`200 succeeded ${CAP}`, `403 denied ${500 - CAP}`, 'done']);
    const gone = (await readRecords('j', 500)).map((row) => row.startsWith('404'));
    expect(gone.filter(Boolean)).toHaveLength(CAP);
    expect(new Set(await deleted()).size).toBe(CAP);

    // Repeats under the same keys: finished deletes are replayed, and the others are still denied.
    const done = gone.slice(0, 100).filter(Boolean).length;
    const again = new AgentProcess('./agents/delete-records.mjs', [OTHER_AGENT_KEY, 'j', '100', two.url, one.url]);
    expect(await again.waitForLine((line) => line === 'done')).toBe('done');
    expect(again.lines).toEqual([`200 succeeded ${done}`, `403 denied ${100 - done}`, 'done']);
    expect(await deleted()).toHaveLength(CAP);
    const [denial] = (await readEntries('denied')).filter(({ agent: name }) => name === 'janitor');
    expect(denial).toMatchObject({ facts: { history: { 'count("*.delete_*", "1h")': CAP } } });
  });
});

describe('an approved mistake', () => {
  it('is rolled back, and the records are byte for byte as before', async () => {
    const count = 12;
    await writeRecords('m', count);
    const before = await readRecords('m', count);
    const clean = await RunHolder.take(one, 'tidy');
    const saga = await TestSaga.open(one, { name: 'tidy up' });
    const steps = await Promise.all(
      Array.from({ length: count }, (_, n) =>
        saga.callStep(
          'store.delete_record',
          { id: `m-${n}` },
          { on: [], headers: { ...clean.headers, prefer: 'wait=0' } },
        ),
      ),
    );
    expect(steps.map(({ status, body }) => `${status} ${body.state}`)).toEqual(steps.map(() => '202 held'));
    expect(await deleted()).toEqual([]);

    // A person approves all twelve calls without reading them.
    const { items } = (await one.admin('GET', '/admin/approvals?state=pending')).body;
    expect(items).toHaveLength(count);
    for (const { txn, digest } of items) {
      const decision = { reason: 'looks fine', digest };
      expect((await two.admin('POST', `/admin/approvals/${txn}/approve`, decision)).status).toBe(200);
    }
    for (const { body } of steps) await one.waitForCall(body.txn, ({ state }) => state === 'succeeded');
    expect((await readRecords('m', count)).filter((row) => row.startsWith('404'))).toHaveLength(count);

    const rolledBack = await saga.admin('rollback', { reason: 'those were customers' }, '?wait=30');
    expect(rolledBack.body).toMatchObject({ state: 'rolled_back' });
    expect(await readRecords('m', count)).toEqual(before);
    expect(await deleted()).toHaveLength(count);
  });
});
