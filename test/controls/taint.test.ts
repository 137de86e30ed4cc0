import { randomUUID } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { TestSaga } from '../sagas/saga.ts';
import { type CallOptions, keysYaml, PEOPLE_YAML } from '../support/gateway.ts';
import { makeReplicaForTest, useReplicas } from '../support/use-gateway.ts';
import { RunHolder, takeRun } from './run-holder.ts';

/** Each test has its own agent, because the taint of an agent outside of runs is permanent. */
const AGENTS = [
  'run',
  'loose',
  'saga',
  'replay',
  'inventor',
  'stranger',
  'victim',
  'held',
  'looks',
  'between',
  'dry',
  'cap',
  'turns',
  'dies',
];

const policies = (url: string) => `
upstreams:
  world: { adapter: http, url: "${url}", allowPrivate: true, timeout: 30s, breaker: { minimum: 1000 } }
tools:
  world.mail:
    upstream: world
    effect: read
    untrusted: true
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: GET, path: "/read/items/\${args.id}" }
  world.put:
    upstream: world
    input: { type: object, properties: { id: { type: string }, n: { type: number } }, required: [id] }
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: "\${args}" }
    once: { by: idempotent }
    undo: { kind: none }
  world.order:
    upstream: world
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: POST, path: /probed/orders, body: "\${args}" }
    once: { by: probe, probe: { tool: world.mail, args: { id: "\${args.id}" }, applied: "true" } }
    undo: { kind: none }
  world.charge:
    upstream: world
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: POST, path: /keyed/charge, body: "\${args}" }
    once: { by: key, header: Idempotency-Key }
    undo: { kind: none }
agents:
${AGENTS.map(
  (name) => `  ${name}:
    ${keysYaml(name)}
    rules:
      - allow: world.mail
      - allow: world.order
      - { allow: world.put, when: '!tainted && history.sum("world.put", "n", "1h") + (has(args.n) ? args.n : 0.0) <= 10' }
      - { allow: world.charge, when: '!tainted && history.count("world.charge", "1h") < 2', approve: { within: 1h } }
`,
).join('')}${PEOPLE_YAML}`;

const { upstream, database, one, two } = useReplicas({ policies });

const readUntrusted = (agentKey: string, options: CallOptions = {}) =>
  one.call('world.mail', { id: 'm' }, { agentKey, ...options });
const withRun = (run: RunHolder): CallOptions => ({ headers: run.headers });

/** Whether the other replica regards a call with these headers as tainted. */
async function isTainted(agentKey: string, headers: Readonly<Record<string, string>> = {}): Promise<boolean> {
  const dry = { ...headers, 'oncegate-dry-run': '?1' };
  const { body } = await two.call('world.put', { id: randomUUID() }, { agentKey, headers: dry });
  return body.facts.tainted;
}

describe('a run', () => {
  it('is tainted as soon as an untrusted call is claimed in it, and names that call; other runs stay clean', async () => {
    const run = await RunHolder.take(one, 'reads', '', 'run');
    const other = await RunHolder.take(one, 'does not', '', 'run');
    await upstream.plan({ match: { path: '/read/items/slow' }, do: [{ event: 'asked' }, { wait: 'go' }] });
    const reading = run.call('world.mail', { id: 'slow' });
    await upstream.awaitEvent('asked');
    expect(await isTainted('run', run.headers)).toBe(true);
    await upstream.release('go');
    const { txn } = (await reading).body;
    expect((await run.read()).body.tainted).toEqual({ txn, tool: 'world.mail', since: expect.stringMatching(/Z$/) });
    const refused = await run.call('world.put', { id: 'x' });
    expect(refused).toMatchObject({ status: 403, body: { code: 'denied', facts: { tainted: true } } });
    expect(await isTainted('run', other.headers)).toBe(false);
    expect((await other.call('world.put', { id: 'x' })).status).toBe(200);
    expect((await other.read()).body.tainted).toBeNull();
    // The next holder of the run inherits the taint.
    const successor = await RunHolder.take(two, 'reads', '', 'run');
    expect(successor.took).toMatchObject({ epoch: 2, tainted: { txn } });
    expect(await isTainted('run', successor.headers)).toBe(true);
  });

  it('taints its agent too, so neither omitting the run nor a new saga is clean, and only a new run is', async () => {
    await readUntrusted('run', withRun(await RunHolder.take(one, 'leaves', '', 'run')));
    expect(await isTainted('run')).toBe(true);
    const saga = await TestSaga.open(one, {}, 'run');
    expect(await isTainted('run', { 'oncegate-saga': saga.id })).toBe(true);
    expect(await isTainted('run', (await RunHolder.take(one, 'new', '', 'run')).headers)).toBe(false);
  });

  it('that does not exist counts as no run: an untrusted replay in it taints every open run of the agent', async () => {
    const reader = await RunHolder.take(one, 'reader', '', 'inventor');
    await readUntrusted('inventor', { ...withRun(reader), key: 'repeated' });
    const clean = await RunHolder.take(one, 'clean', '', 'inventor');
    expect(await isTainted('inventor', clean.headers)).toBe(false);
    const invented = { 'oncegate-run': randomUUID(), 'oncegate-epoch': '1' };
    await readUntrusted('inventor', { headers: invented, key: 'repeated' });
    expect(await isTainted('inventor', clean.headers)).toBe(true);
  });

  it('that is open is tainted by untrusted calls that its agent makes outside of runs', async () => {
    const open = await RunHolder.take(one, 'open', '', 'loose');
    const finished = await RunHolder.take(one, 'finished', '', 'loose');
    await finished.postAction('finish');
    expect(await isTainted('loose', open.headers)).toBe(false);
    const { txn } = (await readUntrusted('loose')).body;
    expect((await open.read()).body.tainted).toMatchObject({ txn });
    expect((await finished.read()).body.tainted).toBeNull();
    const fresh = await RunHolder.take(one, 'fresh', '', 'loose');
    expect(await isTainted('loose', fresh.headers)).toBe(false);
    // The agent is tainted already. Another read taints the run that was opened meanwhile, too.
    await readUntrusted('loose');
    expect(await isTainted('loose', fresh.headers)).toBe(true);
  });

  it('that starts while the agent waits for an untrusted answer is tainted before the answer is sent', async () => {
    await upstream.plan({ match: { path: '/read/items/late' }, do: [{ event: 'begun' }, { wait: 'tell' }] });
    const reading = one.call('world.mail', { id: 'late' }, { agentKey: 'between' });
    await upstream.awaitEvent('begun');
    const run = await RunHolder.take(two, 'meanwhile', '', 'between');
    expect(await isTainted('between', run.headers)).toBe(false);
    await upstream.release('tell');
    await reading;
    expect(await isTainted('between', run.headers)).toBe(true);
  });
});

describe('a run whose gateway dies during an untrusted call', () => {
  it.each([
    ['claiming', false],
    ['claimed', true],
  ])('at %s has tainted = %s, depending on whether the call was claimed', async (point, expected) => {
    const run = await RunHolder.take(one, `dies at ${point}`, '', 'dies');
    const third = await makeReplicaForTest(one);
    await third.start({ ONCEGATE_DIE_AT: point });
    await new RunHolder(third, run.took, 'dies').call('world.mail', { id: 'm' }).catch(() => {});
    await third.waitForExit();
    expect((await run.history()).body.items).toHaveLength(expected ? 1 : 0);
    expect(await isTainted('dies', run.headers)).toBe(expected);
  });
});

describe('a saga', () => {
  it('that is tainted taints its steps, even in a clean run', async () => {
    const saga = await TestSaga.open(one, {}, 'saga');
    const [reads, clean] = [await RunHolder.take(one, 'a', '', 'saga'), await RunHolder.take(one, 'b', '', 'saga')];
    const { txn } = (await saga.callStep('world.mail', { id: 'm' }, { headers: reads.headers })).body;
    expect(await isTainted('saga', clean.headers)).toBe(false);
    expect(await isTainted('saga', { ...clean.headers, 'oncegate-saga': saga.id })).toBe(true);
    expect((await saga.read()).tainted).toMatchObject({ txn, tool: 'world.mail' });
    expect((await one.admin('GET', `/admin/sagas/${saga.id}`)).body.tainted).toMatchObject({ txn });
    expect((await TestSaga.open(one, {}, 'saga').then((other) => other.read())).tainted).toBeNull();
  });
});

describe('a replay of an untrusted call', () => {
  it('taints the run that it is in, on every replica', async () => {
    const first = await RunHolder.take(one, 'first', '', 'replay');
    expect((await first.call('world.mail', { id: 'm' }, { key: 'k' })).status).toBe(200);
    for (const gateway of [one, two]) {
      const next = await RunHolder.take(gateway, `again at ${gateway.port}`, '', 'replay');
      expect(await isTainted('replay', next.headers)).toBe(false);
      expect((await next.call('world.mail', { id: 'm' }, { key: 'k' })).body.replayed).toBe(true);
      expect(await isTainted('replay', next.headers)).toBe(true);
    }
  });

  it('does not taint the run of another agent that it names', async () => {
    const theirs = await RunHolder.take(one, 'theirs', '', 'victim');
    await readUntrusted('stranger', { key: 's' });
    const named = await readUntrusted('stranger', { key: 's', headers: theirs.headers });
    expect(named.body.replayed).toBe(true);
    expect((await theirs.read()).body.tainted).toBeNull();
  });
});

describe('decisions by taint and history', () => {
  it('a tool whose probe is untrusted is untrusted itself', async () => {
    await one.call('world.order', { id: 'o' }, { agentKey: 'looks', key: 'o' });
    expect(await isTainted('looks')).toBe(true);
  });

  it('a held call keeps the facts of its request, whatever the agent does later', async () => {
    const run = await RunHolder.take(one, 'asks', '', 'held');
    const headers = { ...run.headers, prefer: 'wait=0' };
    const answers = await Promise.all(
      ['h1', 'h2', 'h3'].map((id) => one.call('world.charge', { id }, { agentKey: 'held', key: id, headers })),
    );
    // The third call exceeds the count, because held calls count as well.
    expect(answers.map(({ status }) => status).sort()).toEqual([202, 202, 403]);
    await readUntrusted('held', withRun(run));
    for (const { txn, digest, facts } of (await one.admin('GET', '/admin/approvals?state=pending')).body.items) {
      expect(facts).toMatchObject({ tainted: false, history: { 'count("world.charge", "1h")': expect.any(Number) } });
      const decided = await one.admin('POST', `/admin/approvals/${txn}/approve`, { reason: 'fine', digest });
      expect(decided.status).toBe(200);
      const call = await one.get(`/v1/calls/${txn}?wait=20`, 'held');
      expect(call.body.state).toBe('succeeded');
    }
  });

  it('a dry run shows the facts and taints nothing', async () => {
    const dry = { 'oncegate-dry-run': '?1' };
    await readUntrusted('dry', { headers: dry });
    const { body } = await one.call('world.put', { id: 'x', n: 3 }, { agentKey: 'dry', headers: dry });
    expect(body).toMatchObject({ facts: { tainted: false, history: { 'sum("world.put", "n", "1h")': 0 } } });
    const explained = await one.admin('POST', '/admin/explain', { agent: 'dry', tool: 'world.put', args: { id: 'x' } });
    expect(explained.body.facts).toEqual(body.facts);
  });

  it('a sum is exact under concurrent calls on two replicas, and a repeat does not count', async () => {
    const run = await RunHolder.take(one, 'adds', '', 'cap');
    const put = (i: number) =>
      (i % 2 === 0 ? one : two).call(
        'world.put',
        { id: `c${i}`, n: 2.5 },
        { agentKey: 'cap', key: `c${i}`, headers: run.headers },
      );
    const answers = await Promise.all(Array.from({ length: 16 }, (_, i) => put(i)));
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(4);
    expect(answers.filter(({ status }) => status === 403)).toHaveLength(12);
    const again = await Promise.all(answers.map((_, i) => put(i)));
    expect(again.map(({ status }) => status)).toEqual(answers.map(({ status }) => status));
    expect((await upstream.effects()).filter(({ id }) => /^c\d/.test(id ?? ''))).toHaveLength(4);
    expect((await put(99)).body.facts.history).toEqual({ 'sum("world.put", "n", "1h")': 10 });
  });

  it('a failed call does not count', async () => {
    const run = await RunHolder.take(one, 'fails', '', 'turns');
    await upstream.plan({ match: { id: 'bad' }, do: [{ reply: 422, body: {} }] });
    const put = (id: string, n: number) => run.call('world.put', { id, n }, { key: id });
    expect((await put('bad', 10)).status).toBe(502);
    expect((await put('good', 10)).status).toBe(200);
    expect((await put('more', 1)).status).toBe(403);
    expect((await put('less', -1)).status).toBe(200);
  });

  it('the audit log names each tainted run, saga and agent with the call that tainted it', async () => {
    const rows = await database.query<{ entry: string }>(
      `select entry from audit_entries where entry like '%"what":"tainted"%'`,
    );
    const entries = rows.map(({ entry }) => JSON.parse(entry));
    const taken = (await takeRun(one, { name: 'a' }, { agentKey: 'saga' })).body;
    const mine = entries.filter(({ agent }) => agent === 'saga');
    expect(
      mine.map(({ run, saga, agent: _, ...rest }) => ({ of: run ? 'run' : saga ? 'saga' : 'agent', ...rest })),
    ).toEqual(
      expect.arrayContaining(
        ['agent', 'run', 'saga'].map((of) => ({
          ...{ of, what: 'tainted', tool: 'world.mail' },
          ...{ txn: taken.tainted.txn, at: expect.any(String) },
        })),
      ),
    );
    expect(mine).toHaveLength(3);
  });
});
