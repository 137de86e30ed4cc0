import { randomUUID } from 'node:crypto';
import { beforeEach, describe, expect, it } from 'vitest';
import { TestSaga } from '../sagas/saga.ts';
import { testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import type { UpstreamFaultStep } from './upstream.ts';

const SETTLES = 500;

/** A thing that several tools set, which differ in what they say of a doubt. */
function policies(url: string): string {
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
  const proof = `, settles: ${SETTLES}ms`;
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

const { upstream, gateway } = useGateway({ policies });
beforeEach(async () => {
  await gateway.ensureStarted();
  await upstream.reset();
  id = randomUUID();
});

const writes = async () => (await upstream.requests(id)).filter(({ method }) => method === 'PUT');
const plan = (steps: UpstreamFaultStep[], times: number | 'always' = 1) =>
  upstream.plan({ match: { id, method: 'PUT' }, do: steps, times });
const ask = (tool: string) => gateway.call(tool, { id, text: 'wished' }, { headers: { prefer: 'wait=20' } });
const seenByPerson = async (txn: string) => (await gateway.admin('GET', `/admin/calls/${txn}`)).body;

describe('a write in doubt whose tool says when the world has settled', () => {
  it.each(['world.set', 'world.put'])(
    '%s is seen to have happened: it succeeded, and is not sent again',
    async (tool) => {
      await plan(['apply', 'drop'], tool === 'world.put' ? 'always' : 1);
      const { status, body } = await ask(tool);
      expect(status).toBe(200);
      expect(body).toMatchObject({ state: 'succeeded', outcome: 'observed', result: { object: { text: 'wished' } } });
      expect((await seenByPerson(body.txn)).evidence).toBe('probe');
      // Of a write by idempotent the repeats within its attempts are harmless; of any other there is one.
      expect(await writes()).toHaveLength(tool === 'world.put' ? 3 : 1);
    },
  );

  it('is seen not to have happened: it is sent again', async () => {
    await plan(['drop']);
    const { body } = await ask('world.set');
    expect(body).toMatchObject({ state: 'succeeded', attempts: 2 });
    expect(body.outcome).toBeUndefined();
    expect(await upstream.effects(id)).toHaveLength(1);
    const { timeline } = await seenByPerson(body.txn);
    expect(timeline.map(({ what }: { what: string }) => what)).toContain('observed_not_satisfied');
  });

  it('that lands late, but before it has settled, is not sent again', async () => {
    await plan([{ 'late-apply': SETTLES - 200 }, 'drop']);
    const { body } = await ask('world.set');
    expect(body).toMatchObject({ state: 'succeeded', outcome: 'observed', attempts: 1 });
    expect(await upstream.effects(id)).toHaveLength(1);
  });

  it('is looked at until something can be seen', async () => {
    await plan(['apply', 'drop']);
    await upstream.plan({ match: { id, method: 'GET', nth: 2 }, do: [{ reply: 500 }] });
    const { body } = await ask('world.set');
    expect(body).toMatchObject({ state: 'succeeded', outcome: 'observed' });
    expect(await writes()).toHaveLength(1);
  });

  it('under a key past its lifetime: not happened means failed, and the key is not sent again', async () => {
    await plan(['drop'], 'always');
    const { status, body } = await ask('world.keyed');
    expect([status, body.code]).toEqual([502, 'tool_failed']);
    expect(body.detail).toMatch(/; a second observation found no effect after \d attempts?\.$/);
    expect(body.detail).not.toMatch(/the process that sent it ended/i);
    expect((await seenByPerson(body.txn)).evidence).toBe('probe');
    expect(await upstream.effects(id)).toEqual([]);
    expect((await upstream.requests(id)).at(-1)?.method).toBe('GET');
  });

  it('is found out after the gateway was killed while it looked', async () => {
    await plan(['apply', 'drop']);
    await upstream.plan({ match: { id, method: 'GET', nth: 2 }, do: [{ event: `looks-${id}` }, 'hang'] });
    const asked = ask('world.set').catch(() => undefined);
    await upstream.awaitEvent(`looks-${id}`);
    await gateway.kill();
    await asked;
    await gateway.start();
    const [{ txn }] = (await gateway.admin('GET', '/admin/calls?limit=1')).body.items;
    expect((await gateway.get(`/v1/calls/${txn}?wait=20`)).body).toMatchObject({
      state: 'succeeded',
      outcome: 'observed',
    });
    expect(await writes()).toHaveLength(1);
  });

  it('is undone by what was there before it was sent', async () => {
    await gateway.call('world.put', { id, text: 'old' });
    await plan(['apply', 'drop']);
    const saga = await TestSaga.open(gateway);
    expect((await saga.callStep('world.set', { id, text: 'wished' })).body.outcome).toBe('observed');
    expect((await saga.rollback()).body).toMatchObject({ state: 'rolled_back', steps: [{ undo: { state: 'done' } }] });
    expect((await upstream.effects(id)).at(-1)).toMatchObject({ route: 'PUT /restored', body: { text: 'old' } });
  });
});

describe('a world that cannot be written down', () => {
  it('is not changed: what cannot be kept could not be put back', async () => {
    const body = { object: { text: '\uD800' } };
    await upstream.plan({ match: { id, method: 'GET' }, do: [{ reply: 200, body }], times: 'always' });
    const { status, body: told } = await ask('world.set');
    expect([status, told.code]).toEqual([503, 'unavailable']);
    expect(told.detail).toContain('cannot be stored');
    expect(await writes()).toEqual([]);
  });

  it('is shown to people as far as it can be', async () => {
    await plan(['drop']);
    const frame = '{"object":{"text":"'.length;
    const text = `${'x'.repeat(1_999 - frame)}😀${'y'.repeat(100)}`;
    await upstream.plan({ match: { id, method: 'GET', nth: 2 }, do: [{ reply: 200, body: { object: { text } } }] });
    const { status, body } = await ask('world.show');
    expect([status, body.code]).toEqual([504, 'in_doubt']);
    const last = (await seenByPerson(body.txn)).timeline.at(-1);
    expect(last).toMatchObject({ what: 'in_doubt', satisfied: false, observed: expect.stringMatching(/x\uFFFD…$/) });
  });
});

describe('a write in doubt whose tool does not say so', () => {
  it.each([
    [['apply', 'drop'], true],
    [['drop'], false],
  ] as [UpstreamFaultStep[], boolean][])(
    '%j stays in doubt, and a person is shown what was seen',
    async (steps, satisfied) => {
      await plan(steps);
      const { status, body } = await ask('world.show');
      expect([status, body.code]).toEqual([504, 'in_doubt']);
      const [listed] = (await gateway.admin('GET', '/admin/calls?state=in_doubt')).body.items;
      expect(listed.txn).toBe(body.txn);
      expect(listed.problem.detail).toContain(`${satisfied ? 'found' : 'did not find'} the requested state`);
      const { timeline } = await seenByPerson(body.txn);
      const observed = satisfied ? expect.stringContaining('"text":"wished"') : null;
      expect(timeline.at(-1)).toMatchObject({ what: 'in_doubt', satisfied, observed });
      expect(await writes()).toHaveLength(1);
      const verdict = satisfied ? 'applied' : 'not_applied';
      const resolved = await gateway.admin('POST', `/admin/calls/${body.txn}/resolve`, { verdict, reason: 'seen' });
      expect(resolved.body).toMatchObject({ state: satisfied ? 'succeeded' : 'failed', evidence: 'person' });
    },
  );
});
