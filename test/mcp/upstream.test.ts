import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { dumpCallRows } from '../support/call-rows.ts';
import { AGENT_KEY, type Reply, testerYaml } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { requestLegacy, waitForImport } from './clients.ts';
import type { McpFaultPlan, McpFaultStep, TestMcpServer } from './server.ts';
import { useMcpServer } from './use-mcp-server.ts';

const SECRET = 'tok/en+with=odd.letters';

/** Contracts for the tools of one upstream. The modern and the legacy server have the same tools. */
function contracts(upstream: string): string {
  const retry = 'retry: { attempts: 3, base: 20ms, max: 100ms, within: 20s }';
  return `
  ${upstream}.pay: { upstream: ${upstream}, once: { by: key, header: Idempotency-Key }, ${retry} }
  ${upstream}.put: { upstream: ${upstream}, once: { by: idempotent }, ${retry} }
  ${upstream}.mail: { upstream: ${upstream}, once: { by: none }, ${retry} }
  ${upstream}.steps:
    upstream: ${upstream}
    once: { by: probe, probe: { tool: ${upstream}.find, args: { id: "\${args.id}" }, applied: result.structuredContent.found }, settles: 50ms }
    ${retry}
  ${upstream}.find: { upstream: ${upstream}, effect: read, ${retry} }
  ${upstream}.tell: { upstream: ${upstream}, effect: read }
  ${upstream}.show: { upstream: ${upstream}, effect: read }
  ${upstream}.greet: { upstream: ${upstream}, noEffect: [400, 424], ${retry} }`;
}

const server: Record<string, TestMcpServer> = {
  modern: useMcpServer({ era: 'modern' }),
  legacy: useMcpServer({ era: 'legacy' }),
};
const declare = (name: string) =>
  `  ${name}: { adapter: mcp, url: "${server[name]?.url}", allowPrivate: true, timeout: 1s, import: "*", headers: { x-key: "\${env.WORLD_KEY}" }, breaker: { minimum: 1000 } }`;
const { gateway, database } = useGateway({
  upstream: 'none',
  env: { WORLD_KEY: SECRET },
  policies: () => `
upstreams:
${declare('modern')}
${declare('legacy')}
tools:${contracts('modern')}${contracts('legacy')}
${testerYaml('[{ allow: "*.think" }, { allow: "*", approve: never }]')}`,
});
// Imported tools, which no policy declares.
beforeAll(() => waitForImport(gateway, 'modern.think', 'legacy.think'));

describe.each(['modern', 'legacy'])('a %s MCP server', (era) => {
  let world: TestMcpServer;
  beforeEach(async () => {
    world = server[era] as TestMcpServer;
    await world.reset();
  });
  const call = (tool: string, id: string): Promise<Reply> => gateway.call(`${era}.${tool}`, { id });
  const plan = (tool: string, id: string, steps: McpFaultStep[], more: Partial<McpFaultPlan> = {}) =>
    world.plan({ match: { tool, id }, do: steps, ...more });
  const effects = async (id: string) => (await world.effects()).filter((effect) => effect.id === id);
  const sentRequests = async (id: string) => (await world.requests()).filter((request) => request.id === id);

  it.each([
    ['with a NUL', 'half\0done', 'half\uFFFDdone'],
    ['cut in the middle of a character', `${'x'.repeat(999)}😀`, `${'x'.repeat(999)}\uFFFD`],
    ['with a lone surrogate', 'half \uD83D', 'half \uFFFD'],
  ])('that fails with an error text %s leaves the call in doubt', async (_, text, kept) => {
    const id = `text-${text.length}`;
    await plan('mail', id, ['apply', { isError: text }]);
    const reply = await call('mail', id);
    expect([reply.status, reply.body.code]).toEqual([504, 'in_doubt']);
    const recorded = (await gateway.admin('GET', `/admin/calls/${reply.body.txn}`)).body;
    expect(recorded).toMatchObject({ state: 'in_doubt', problem: { detail: expect.stringContaining(kept) } });
    expect(await effects(id)).toHaveLength(1);
  });

  it('returns every kind of content unchanged: text, image, audio, resources, structure', async () => {
    const { answer } = await requestLegacy(gateway, 'tools/call', { name: `${era}__show`, arguments: {} });
    const { content, structuredContent, _meta } = answer.result;
    expect(content.map(({ type }: { type: string }) => type)).toEqual([
      'text',
      'image',
      'audio',
      'resource',
      'resource_link',
    ]);
    expect(content[0]).toEqual({
      type: 'text',
      text: 'a picture, a sound and a file — ünïcødé',
      annotations: { audience: ['user'] },
    });
    expect(content[3]).toEqual({
      type: 'resource',
      resource: { uri: 'notes://1', mimeType: 'text/plain', text: 'a note' },
    });
    expect(structuredContent).toEqual({ deep: { list: [1, 'two', null, { three: 3.5 }] } });
    expect(_meta).toMatchObject({ 'example.org/own': { kept: true }, 'oncegate/replayed': false });
    const { tools } = (await requestLegacy(gateway, 'tools/list', {})).answer.result;
    const shown = tools.find(({ name }: { name: string }) => name === `${era}__show`);
    expect(shown).toMatchObject({ title: 'Show everything', annotations: { readOnlyHint: true } });
    const pay = tools.find(({ name }: { name: string }) => name === `${era}__pay`);
    expect(pay.outputSchema.type).toBe('object');
  });

  it('gets the txn as the idempotency key, and nothing about the agent', async () => {
    const { body } = await call('pay', 'keyed');
    const [sent] = await sentRequests('keyed');
    expect(sent?.params._meta['oncegate/idempotency-key']).toBe(body.txn);
    expect(JSON.stringify(sent)).not.toContain(AGENT_KEY);
    expect(body).toMatchObject({ state: 'succeeded', attempts: 1 });
  });

  /** Faults of the first answer. In each case the effect has happened once. */
  const applied: [string, McpFaultStep[]][] = [
    ['the connection is cut after the effect', ['apply', 'drop']],
    ['the connection is cut after the headers', ['apply', 'headers', 'drop']],
    ['the stream ends without an answer', ['apply', 'headers', 'end']],
    ['it answers 500', ['apply', { status: 500 }]],
    ['it answers 502', ['apply', { status: 502 }]],
    ['it answers 503', ['apply', { status: 503 }]],
    ['it answers 302', ['apply', { status: 302 }]],
    ['it answers garbage', ['apply', 'garbage']],
    ['it never answers', ['apply', 'hang']],
    ['it answers another request', ['apply', 'wrongId', 'end']],
    ['its answer is too large', ['apply', { big: 2_000_000 }]],
    ['it returns an internal error', ['apply', { error: { code: -32603, message: 'oops' } }]],
    ['it says isError', ['apply', { isError: 'half of it' }]],
  ];

  describe.each(applied)('when %s', (how, steps) => {
    const id = (tool: string) => `${tool} ${how}`;

    it('a tool with a key is called again with the same bytes, and has one effect', async () => {
      await plan('pay', id('pay'), steps);
      const { body } = await call('pay', id('pay'));
      expect(body).toMatchObject({ state: 'succeeded', result: { structuredContent: { id: id('pay') } } });
      const sent = await sentRequests(id('pay'));
      expect(sent.length).toBe(2);
      expect(sent[1]?.params).toEqual(sent[0]?.params);
      expect(await effects(id('pay'))).toHaveLength(1);
    });

    it('a tool with once: none is called once, and the call is in doubt', async () => {
      await plan('mail', id('mail'), steps);
      const { body } = await call('mail', id('mail'));
      expect(body).toMatchObject({ status: 504, code: 'in_doubt' });
      expect(await sentRequests(id('mail'))).toHaveLength(1);
      expect(await effects(id('mail'))).toHaveLength(1);
      expect((await gateway.call(`${era}.mail`, { id: id('mail') })).body).toMatchObject({
        code: 'in_doubt',
        txn: body.txn,
      });
      expect(await sentRequests(id('mail'))).toHaveLength(1);
    });
  });

  it('is called again for an idempotent tool, and probed for a tool with a probe', async () => {
    await plan('put', 'n1', ['drop']);
    expect((await call('put', 'n1')).body).toMatchObject({ state: 'succeeded', attempts: 2 });
    await plan('steps', 'p1', ['apply', 'drop']);
    const { body } = await call('steps', 'p1');
    expect(body).toMatchObject({ state: 'succeeded', attempts: 1, result: { structuredContent: { found: true } } });
    expect(await effects('p1')).toHaveLength(1);
    await plan('steps', 'p2', ['drop']);
    expect((await call('steps', 'p2')).body).toMatchObject({ state: 'succeeded', attempts: 2 });
    expect(await effects('p2')).toHaveLength(1);
  });

  it('that refuses with a protocol error has done nothing, and the call fails', async () => {
    await plan('mail', 'refused', [{ error: { code: -32602, message: 'no such thing' } }]);
    const { body } = await call('mail', 'refused');
    expect(body).toMatchObject({ status: 502, code: 'tool_failed' });
    expect(await effects('refused')).toHaveLength(0);
  });

  it('that fails with an internal error may have had the effect, whatever the status', async () => {
    await plan('mail', 'own-error', ['apply', { refuse: { status: 400, code: -32603 } }]);
    expect((await call('mail', 'own-error')).body).toMatchObject({ status: 504, code: 'in_doubt' });
    expect(await effects('own-error')).toHaveLength(1);
    await plan('mail', 'unreadable', [{ refuse: { status: 400, code: -32600 } }]);
    expect((await call('mail', 'unreadable')).body).toMatchObject({ status: 502, code: 'tool_failed' });
  });

  it.each([400, 401, 403])(
    'whose answer is a bare %d, perhaps from a proxy, may have had the effect',
    async (status) => {
      const id = `bare-${status}`;
      await plan('mail', id, ['apply', { status }]);
      const { body } = await call('mail', id);
      expect(body).toMatchObject({ status: 504, code: 'in_doubt' });
      expect(await effects(id)).toHaveLength(1);
    },
  );

  it('is believed if its contract says that isError means no effect', async () => {
    await plan('greet', 'trusted', [{ isError: 'declined' }]);
    expect((await call('greet', 'trusted')).body).toMatchObject({ code: 'tool_failed' });
    const read = await plan('find', 'r', [{ isError: 'not found' }]).then(() => call('find', 'r'));
    expect(read.body).toMatchObject({ code: 'tool_failed' });
  });

  it('that answers twice counts once, and one that postpones its answer is asked later', async () => {
    await plan('mail', 'dup', ['twice']);
    expect((await call('mail', 'dup')).body.result.content).toEqual([{ type: 'text', text: 'answer 1' }]);
    await plan('mail', 'later', ['apply', { later: 60 }]);
    expect((await call('mail', 'later')).body).toMatchObject({ state: 'succeeded', attempts: 1 });
    expect(await effects('later')).toHaveLength(1);
  });

  it('is awaited until the deadline; a later answer leaves the call in doubt', async () => {
    await plan('mail', 'slow', ['apply', { delay: 400 }]);
    expect((await call('mail', 'slow')).body).toMatchObject({ state: 'succeeded' });
    await plan('mail', 'late', ['apply', { delay: 1_300 }]);
    expect((await call('mail', 'late')).body).toMatchObject({ code: 'in_doubt' });
  });

  it('that echoes its credentials is redacted everywhere', async () => {
    const { body } = await call('tell', 'echo');
    expect(body.result.content[0].text).toContain('[redacted]');
    const error = { code: -32000, message: `bad ${SECRET}`, data: { seen: SECRET } };
    await plan('mail', 's1', [{ error }]);
    await plan('mail', 's2', [{ isError: `it was ${SECRET}` }]);
    await plan('find', 's3', [{ error: { ...error, code: -32602 } }]);
    const answers = [body];
    for (const [tool, id] of [
      ['mail', 's1'],
      ['mail', 's2'],
      ['find', 's3'],
    ] as const) {
      const reply = await call(tool, id);
      answers.push(reply.body, (await gateway.admin('GET', `/admin/calls/${reply.body.txn}`)).body);
    }
    expect(JSON.stringify(answers)).not.toContain(JSON.stringify(SECRET).slice(1, -1));
    expect(gateway.output).not.toContain(SECRET);
    expect(await dumpCallRows(database)).not.toContain('tok/en');
  });

  it('whose answer is nested too deeply leaves the call in doubt, and the gateway keeps running', async () => {
    await plan('mail', 'deep', ['apply', { deep: 50_000 }, 'end']);
    const unreadable = { code: 'in_doubt', detail: expect.stringMatching(/the answer cannot be read/i) };
    expect((await call('mail', 'deep')).body).toMatchObject(unreadable);
    await plan('mail', 'code', ['apply', { error: { code: { valueOf: 1, toString: 1 } as never, message: 'odd' } }]);
    expect((await call('mail', 'code')).body).toMatchObject(unreadable);
    expect((await call('mail', 'after')).body).toMatchObject({ state: 'succeeded' });
  });

  it('that sends requests with invalid ids is ignored, and the gateway keeps running', async () => {
    const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
    const pings = [deep, '{"toString":1}', JSON.stringify('x'.repeat(5_000))].map((name) => ({
      raw: `{"jsonrpc":"2.0","id":${name},"method":"ping"}`,
    }));
    await plan('mail', 'nameless', pings);
    expect((await call('mail', 'nameless')).body).toMatchObject({ state: 'succeeded' });
    expect(gateway.isAlive).toBe(true);
  });

  it('that is down gets no call and binds no key, and is called again when it is back', async () => {
    await world.kill();
    const key = `gone-${era}`;
    expect((await gateway.call(`${era}.pay`, { id: 'gone' }, { key })).body).toMatchObject({ status: 503 });
    await world.restart();
    expect((await gateway.call(`${era}.pay`, { id: 'gone' }, { key })).body).toMatchObject({ state: 'succeeded' });
    expect(await effects('gone')).toHaveLength(1);
  });
});

describe('a session that the server forgot', () => {
  const forget = async () => {
    await gateway.call('legacy.mail', { id: 'before' });
    await server['legacy']?.forgetSessions();
  };
  const effects = async (id: string) => (await server['legacy']?.effects())?.filter((effect) => effect.id === id);

  it('is replaced for a call that may be repeated', async () => {
    await forget();
    expect((await gateway.call('legacy.pay', { id: 'forgotten' })).body).toMatchObject({
      state: 'succeeded',
      attempts: 2,
    });
    expect(await effects('forgotten')).toHaveLength(1);
  });

  it('fails one call with once: none, which had no effect, and no other', async () => {
    await forget();
    expect((await gateway.call('legacy.mail', { id: 'unlucky' })).body).toMatchObject({ code: 'tool_failed' });
    expect(await effects('unlucky')).toHaveLength(0);
    expect((await gateway.call('legacy.mail', { id: 'lucky' })).body).toMatchObject({ state: 'succeeded' });
  });
});
