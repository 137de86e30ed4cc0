import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { TestSaga } from '../sagas/saga.ts';
import { testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import type { UpstreamFaultStep } from './upstream.ts';

const SETTLES_MS = 500;

/** Several tools that write the same object. They differ in how their contracts resolve a doubt. */
function buildPolicies(url: string): string {
  const tool = (name: string, upstream: string, more: string, settles = '') => `
  world.${name}:
    upstream: ${upstream}
    input: { type: object, properties: { id: { type: string }, text: { type: string } }, required: [id, text] }
    request: { method: PUT, path: "/idempotent/objects/\${args.id}", body: { text: "\${args.text}" } }
    retry: { attempts: 3, base: 20ms, max: 200ms, within: 1h }
    locks: ["object/\${args.id}"]
    observe: { tool: world.look, args: { id: "\${args.id}" }, satisfied: "observed != null && observed.object.text == args.text"${settles} }
    ${more}`;
  const undo = `undo: { kind: reversible, tool: world.restore, args: { id: "\${args.id}", text: "\${before.object.text}" } }`;
  const proof = `, settles: ${SETTLES_MS}ms`;
  return `
upstreams:
${['world', 'shown', 'idempotent', 'keyed'].map((name) => `  ${name}: { adapter: http, url: "${url}", allowPrivate: true, timeout: 300ms, breaker: { minimum: 1000 } }`).join('\n')}
tools:
${tool('set', 'world', undo, proof)}
${tool('show', 'shown', '')}
${tool('put', 'idempotent', 'once: { by: idempotent }', proof)}
${tool('keyed', 'keyed', 'once: { by: key, header: Idempotency-Key, lifetime: 300ms }', proof)}
  world.restore:
    upstream: world
    input: { type: object, properties: { id: { type: string }, text: { type: string } }, required: [id, text] }
    request: { method: PUT, path: "/restored/\${args.id}", body: { text: "\${args.text}" } }
    once: { by: idempotent }
  world.look:
    upstream: world
    effect: read
    input: { type: object, properties: { id: { type: string } }, required: [id] }
    request: { method: GET, path: "/idempotent/objects/\${args.id}" }
${testerYaml('[{ allow: world.*, approve: never }]')}`;
}

let id: string;

const { upstream, gateway } = useGateway({ policies: buildPolicies });
beforeEach(async () => {
  await gateway.ensureStarted();
  await upstream.reset();
  id = randomUUID();
});

const readWrites = async () => (await upstream.requests(id)).filter(({ method }) => method === 'PUT');
const planWrites = (steps: UpstreamFaultStep[], times: number | 'always' = 1) =>
  upstream.plan({ match: { id, method: 'PUT' }, do: steps, times });
const callTool = (tool: string) => gateway.call(tool, { id, text: 'requested' }, { headers: { prefer: 'wait=20' } });
const readAsAdmin = async (txn: string) => (await gateway.admin('GET', `/admin/calls/${txn}`)).body;

describe('a write in doubt whose tool declares settles', () => {
  it.each(['world.set', 'world.put'])(
    'succeeds without another send if the observation finds the effect: %s',
    async (tool) => {
      await planWrites(['apply', 'drop'], tool === 'world.put' ? 'always' : 1);
      const { status, body } = await callTool(tool);
      expect(status).toBe(200);
      expect(body).toMatchObject({
        state: 'succeeded',
        outcome: 'observed',
        result: { object: { text: 'requested' } },
      });
      expect((await readAsAdmin(body.txn)).evidence).toBe('probe');
      // An idempotent write may repeat within its attempts; every other write is sent once.
      expect(await readWrites()).toHaveLength(tool === 'world.put' ? 3 : 1);
    },
  );

  it('is sent again if the observation finds no effect', async () => {
    await planWrites(['drop']);
    const { body } = await callTool('world.set');
    expect(body).toMatchObject({ state: 'succeeded', attempts: 2 });
    expect(body.outcome).toBeUndefined();
    expect(await upstream.effects(id)).toHaveLength(1);
    const { timeline } = await readAsAdmin(body.txn);
    expect(timeline.map(({ what }: { what: string }) => what)).toContain('observed_not_satisfied');
  });

  it('is not sent again if its effect appears late but within settles', async () => {
    await planWrites([{ 'late-apply': SETTLES_MS - 200 }, 'drop']);
    const { body } = await callTool('world.set');
    expect(body).toMatchObject({ state: 'succeeded', outcome: 'observed', attempts: 1 });
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('is observed again if an observation fails', async () => {
    await planWrites(['apply', 'drop']);
    await upstream.plan({ match: { id, method: 'GET', nth: 2 }, do: [{ reply: 500 }] });
    const { body } = await callTool('world.set');
    expect(body).toMatchObject({ state: 'succeeded', outcome: 'observed' });
    expect(await readWrites()).toHaveLength(1);
  });

  it('fails without another send if it had no effect and the lifetime of its key is over', async () => {
    await planWrites(['drop'], 'always');
    const { status, body } = await callTool('world.keyed');
    expect([status, body.code]).toEqual([502, 'tool_failed']);
    expect(body.detail).toMatch(/; a second observation found no effect after \d attempts?\.$/);
    expect(body.detail).not.toMatch(/the process that sent it ended/i);
    expect((await readAsAdmin(body.txn)).evidence).toBe('probe');
    expect(await upstream.effects(id)).toEqual([]);
    expect((await upstream.requests(id)).at(-1)?.method).toBe('GET');
  });

  it('is resolved after the gateway was killed during the observation', async () => {
    await planWrites(['apply', 'drop']);
    await upstream.plan({ match: { id, method: 'GET', nth: 2 }, do: [{ event: `observing-${id}` }, 'hang'] });
    const pending = callTool('world.set').catch(() => undefined);
    await upstream.awaitEvent(`observing-${id}`);
    await gateway.kill();
    await pending;
    await gateway.start();
    const [{ txn }] = (await gateway.admin('GET', '/admin/calls?limit=1')).body.items;
    expect((await gateway.get(`/v1/calls/${txn}?wait=20`)).body).toMatchObject({
      state: 'succeeded',
      outcome: 'observed',
    });
    expect(await readWrites()).toHaveLength(1);
  });

  it('is undone with the state observed before the send', async () => {
    await gateway.call('world.put', { id, text: 'old' });
    await planWrites(['apply', 'drop']);
    const saga = await TestSaga.open(gateway);
    expect((await saga.callStep('world.set', { id, text: 'requested' })).body.outcome).toBe('observed');
    expect((await saga.rollback()).body).toMatchObject({ state: 'rolled_back', steps: [{ undo: { state: 'done' } }] });
    expect((await upstream.effects(id)).at(-1)).toMatchObject({ route: 'PUT /restored', body: { text: 'old' } });
  });
});

describe('an observation that PostgreSQL cannot store', () => {
  it('prevents the write, because the gateway could not restore the earlier state', async () => {
    const body = { object: { text: '\uD800' } };
    await upstream.plan({ match: { id, method: 'GET' }, do: [{ reply: 200, body }], times: 'always' });
    const { status, body: answer } = await callTool('world.set');
    expect([status, answer.code]).toEqual([503, 'unavailable']);
    expect(answer.detail).toContain('cannot be stored');
    expect(await readWrites()).toEqual([]);
  });

  it('is shown to people shortened, with a split character replaced', async () => {
    await planWrites(['drop']);
    const prefixLength = '{"object":{"text":"'.length;
    const text = `${'x'.repeat(1_999 - prefixLength)}😀${'y'.repeat(100)}`;
    await upstream.plan({ match: { id, method: 'GET', nth: 2 }, do: [{ reply: 200, body: { object: { text } } }] });
    const { status, body } = await callTool('world.show');
    expect([status, body.code]).toEqual([504, 'in_doubt']);
    const last = (await readAsAdmin(body.txn)).timeline.at(-1);
    expect(last).toMatchObject({ what: 'in_doubt', satisfied: false, observed: expect.stringMatching(/x\uFFFD…$/) });
  });
});

describe('a write in doubt whose tool does not declare settles', () => {
  it.each([
    [['apply', 'drop'], true],
    [['drop'], false],
  ] as [UpstreamFaultStep[], boolean][])(
    'stays in doubt and shows people the observation: %j',
    async (steps, satisfied) => {
      await planWrites(steps);
      const { status, body } = await callTool('world.show');
      expect([status, body.code]).toEqual([504, 'in_doubt']);
      const [listed] = (await gateway.admin('GET', '/admin/calls?state=in_doubt')).body.items;
      expect(listed.txn).toBe(body.txn);
      expect(listed.problem.detail).toContain(`${satisfied ? 'found' : 'did not find'} the requested state`);
      const { timeline } = await readAsAdmin(body.txn);
      const observed = satisfied ? expect.stringContaining('"text":"requested"') : null;
      expect(timeline.at(-1)).toMatchObject({ what: 'in_doubt', satisfied, observed });
      expect(await readWrites()).toHaveLength(1);
      const verdict = satisfied ? 'applied' : 'not_applied';
      const resolved = await gateway.admin('POST', `/admin/calls/${body.txn}/resolve`, { verdict, reason: 'seen' });
      expect(resolved.body).toMatchObject({ state: satisfied ? 'succeeded' : 'failed', evidence: 'person' });
    },
  );
});
