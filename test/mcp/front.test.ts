import { beforeEach, describe, expect, it } from 'vitest';
import { OTHER_AGENT_KEY } from '../support/gateway.ts';
import { connectLegacyClient, connectNewestClient, requestLegacy, requestNewest } from './clients.ts';
import { useMcpGateway } from './front.ts';

const { upstream, gateway } = useMcpGateway();
beforeEach(() => upstream.reset());

const NOW = { prefer: 'wait=0' };
const call = (name: string, args: object, meta: object = {}, headers: Record<string, string> = {}) =>
  requestLegacy(gateway, 'tools/call', { name, arguments: args, _meta: meta }, { headers });
const effects = async (id: string) => (await upstream.effects(id)).length;

describe('tools/list', () => {
  it('shows what the agent may call, with our own annotations, and no more', async () => {
    const client = await connectNewestClient(gateway);
    const { tools } = await client.listTools();
    const names = tools.map(({ name }) => name);
    expect(names).toContain('world__charge');
    expect(names).toContain('oncegate__begin_saga');
    expect(names).not.toContain('world__secret');
    expect(tools.find(({ name }) => name === 'world__charge')).toMatchObject({
      description: 'Charge a card.',
      inputSchema: { type: 'object', required: ['id'] },
      annotations: { readOnlyHint: false, destructiveHint: false, idempotentHint: true },
      _meta: { 'oncegate/once': 'key', 'oncegate/undo': 'compensable' },
    });
    expect(tools.find(({ name }) => name === 'world__read')?.annotations).toMatchObject({ readOnlyHint: true });
    expect(tools.find(({ name }) => name === 'world__mail')?.annotations).toMatchObject({ destructiveHint: true });
    await client.close();
    const other = await connectLegacyClient(gateway, { key: OTHER_AGENT_KEY });
    expect((await other.listTools()).tools.map(({ name }) => name)).toEqual(['world__read']);
    await other.close();
  });
});

describe('a call', () => {
  it.each(['2025-06-18', '2025-11-25'])('is carried out for a client of revision %s', async (version) => {
    const greeting = { protocolVersion: version, capabilities: {}, clientInfo: { name: 'raw', version: '1' } };
    const hello = await requestLegacy(gateway, 'initialize', greeting);
    expect(hello.answer.result).toMatchObject({ protocolVersion: version, serverInfo: { name: 'oncegate' } });
    const session = hello.headers.get('mcp-session-id') ?? '';
    const params = { name: 'world__charge', arguments: { id: `v${version}` } };
    const { answer } = await requestLegacy(gateway, 'tools/call', params, {
      version,
      headers: { 'mcp-session-id': session },
    });
    expect(answer.result.structuredContent).toMatchObject({ t: `v${version}` });
    expect(await effects(`v${version}`)).toBe(1);
  });

  it('is carried out for a client of the newest revision, which has no session', async () => {
    const client = await connectNewestClient(gateway);
    const result = await client.callTool({ name: 'world__charge', arguments: { id: 'new' } });
    expect(result.structuredContent).toMatchObject({ t: 'new' });
    expect(JSON.parse((result.content[0] as { text: string }).text)).toEqual(result.structuredContent);
    expect(result._meta).toMatchObject({ 'oncegate/replayed': false, 'oncegate/txn': expect.any(String) });
    expect(await effects('new')).toBe(1);
    await client.close();
  });

  it('is understood under the name with a dot too', async () => {
    expect((await call('world.charge', { id: 'dot' })).answer.result.isError).toBeUndefined();
    expect(await effects('dot')).toBe(1);
  });

  it('that no rule allows is a result the model can read, with the problem in it', async () => {
    for (const [name, args] of [
      ['world__secret', { id: 'x' }],
      ['world__charge', { id: 'x', n: 5000 }],
      ['nothing__at_all', {}],
    ] as const) {
      const { result } = (await call(name, args)).answer;
      expect(result).toMatchObject({
        isError: true,
        structuredContent: { code: 'denied', status: 403, retry: 'never' },
      });
      expect(result.content[0].text).toContain('denied');
    }
    expect(await effects('x')).toBe(0);
  });

  it('of a tool that is covered but does not exist is a protocol error, and so is what cannot be read', async () => {
    for (const name of ['ghost.x', 'ghost__x']) {
      const unknown = await requestLegacy(gateway, 'tools/call', { name }, { key: OTHER_AGENT_KEY });
      expect(unknown.answer.error).toMatchObject({ code: -32602, data: { code: 'unknown_tool' } });
    }
    for (const params of [
      { arguments: {} },
      { name: 7 },
      { name: 'world__charge', arguments: ['id'] },
      { name: 'world__charge', arguments: 'id' },
    ])
      expect((await requestLegacy(gateway, 'tools/call', params)).answer.error.code).toBe(-32602);
    for (const meta of [
      { 'oncegate/idempotency-key': 7 },
      { 'oncegate/idempotency-key': 'with space' },
      { 'oncegate/saga': 'x' },
    ])
      expect((await call('world__charge', { id: 'bad' }, meta)).answer.error).toMatchObject({ code: -32602 });
    expect(await effects('bad')).toBe(0);
  });

  it('with wrong arguments is told every fault', async () => {
    const { result } = (await call('world__charge', { n: 'many' })).answer;
    expect(result).toMatchObject({ isError: true, structuredContent: { code: 'invalid_arguments', status: 400 } });
    expect(result.structuredContent.faults).toHaveLength(2);
  });

  it('whose tool failed says so, and that nothing happened', async () => {
    await upstream.plan({ match: { id: 'failed' }, do: [{ reply: 422, body: { why: 'no funds' } }] });
    const { result } = (await call('world__charge', { id: 'failed' })).answer;
    expect(result.structuredContent).toMatchObject({
      code: 'tool_failed',
      upstream: { status: 422, body: { why: 'no funds' } },
    });
    expect(result.isError).toBe(true);
  });

  it('in doubt says so and is never sent twice', async () => {
    await upstream.plan({ match: { id: 'doubt' }, do: ['apply', 'drop'] });
    const first = (await call('world__mail', { id: 'doubt' })).answer.result;
    expect(first).toMatchObject({
      isError: true,
      structuredContent: { code: 'in_doubt', retry: 'same_key', status: 504 },
    });
    const again = (await call('world__mail', { id: 'doubt' })).answer.result;
    expect(again.structuredContent).toMatchObject({ code: 'in_doubt', txn: first.structuredContent.txn });
    expect(await effects('doubt')).toBe(1);
  });

  it('to an upstream whose breaker is open is held back and binds nothing', async () => {
    await gateway.admin('POST', '/admin/breakers/sick/open', { reason: 'test' });
    const meta = { 'oncegate/idempotency-key': 'sick-1' };
    const { result } = (await call('sick__pay', { id: 'sick' }, meta)).answer;
    expect(result).toMatchObject({ isError: true, structuredContent: { code: 'breaker_open', retry: 'after_delay' } });
    await gateway.admin('POST', '/admin/breakers/sick/close', { reason: 'test' });
    expect((await call('sick__pay', { id: 'sick' }, meta)).answer.result.isError).toBeUndefined();
    expect(await effects('sick')).toBe(1);
  });

  it('with Oncegate-Dry-Run is explained and not sent', async () => {
    const { result } = (await call('world__charge', { id: 'dry' }, {}, { 'oncegate-dry-run': '?1' })).answer;
    expect(result.structuredContent).toMatchObject({ dryRun: true, decision: { allowed: true } });
    expect(await effects('dry')).toBe(0);
  });

  it('that nobody waits for any more goes on: closing the stream is a hang-up, not an undo', async () => {
    await upstream.plan({ match: { id: 'gone' }, do: [{ event: 'in' }, { wait: 'go' }] });
    const body = { name: 'world__charge', arguments: { id: 'gone' }, _meta: { 'oncegate/idempotency-key': 'gone-1' } };
    const hangUp = new AbortController();
    const asked = requestLegacy(gateway, 'tools/call', body, { signal: hangUp.signal });
    await upstream.awaitEvent('in');
    hangUp.abort();
    await expect(asked).rejects.toThrow();
    await upstream.release('go');
    const again = (await requestLegacy(gateway, 'tools/call', body)).answer.result;
    expect(again.structuredContent).toMatchObject({ t: 'gone' });
    expect(await effects('gone')).toBe(1);
  });
});

describe('a call that a person must approve', () => {
  const approve = async (txn: string) => {
    const { items } = (await gateway.admin('GET', '/admin/approvals?state=pending')).body;
    const { digest } = items.find((item: { txn: string }) => item.txn === txn);
    expect((await gateway.admin('POST', `/admin/approvals/${txn}/approve`, { digest, reason: 'ok' })).status).toBe(200);
  };

  it('answers within the patience of the client, says how to ask again, and is sent once when approved', async () => {
    const held = (await call('world__held', { id: 'h1' }, {}, NOW)).answer.result;
    expect(held).toMatchObject({ isError: true, structuredContent: { state: 'held', tool: 'world.held' } });
    const { txn } = held.structuredContent;
    expect(held.content[0].text).toContain(txn);
    expect((await call('world__held', { id: 'h1' }, {}, NOW)).answer.result.structuredContent.txn).toBe(txn);
    await approve(txn);
    const told = (await call('world__held', { id: 'h1' })).answer.result;
    expect(told.structuredContent).toMatchObject({ t: 'h1' });
    expect((await call('oncegate__get_call', { txn })).answer.result.structuredContent).toMatchObject({
      state: 'succeeded',
    });
    expect(await effects('h1')).toBe(1);
  });

  it('sends a client that can show a page to it, and knows the call when it comes back', async () => {
    const capabilities = { elicitation: { url: {} } };
    const params = { name: 'world__held', arguments: { id: 'h2' } };
    const { answer } = await requestNewest(gateway, 'tools/call', params, { capabilities, headers: NOW });
    expect(answer.result).toMatchObject({
      resultType: 'input_required',
      inputRequests: { approval: { method: 'elicitation/create', params: { mode: 'url' } } },
    });
    const { url } = answer.result.inputRequests.approval.params;
    const txn = url.split('/').at(-1);
    expect(url).toBe(`${gateway.url}/#approvals/${txn}`);
    await approve(txn);
    const back = {
      ...params,
      requestState: answer.result.requestState,
      inputResponses: { approval: { action: 'accept' } },
    };
    const told = await requestNewest(gateway, 'tools/call', back, { capabilities });
    expect(told.answer.result.structuredContent).toMatchObject({ t: 'h2' });
    expect(await effects('h2')).toBe(1);
  });

  it('is no page to visit for a client that can show none', async () => {
    const params = { name: 'world__held', arguments: { id: 'h3' } };
    const { answer } = await requestNewest(gateway, 'tools/call', params, { headers: NOW });
    expect(answer.result).toMatchObject({ isError: true, structuredContent: { state: 'held' } });
  });
});

describe('a tool with an output schema, to which old clients hold every answer', () => {
  it('still tells them of a hold, a failure, a denial and a lost answer', async () => {
    const client = await connectLegacyClient(gateway);
    const { tools } = await client.listTools();
    expect(tools.find(({ name }) => name === 'world__charge')?.outputSchema).toMatchObject({ type: 'object' });
    const told = async (name: string, args: Record<string, unknown>) => client.callTool({ name, arguments: args });
    expect(await told('world__charge', { id: 'o1' })).toMatchObject({ structuredContent: { t: 'o1' } });
    await upstream.plan({ match: { id: 'o2' }, do: [{ reply: 422 }] });
    const failed = await told('world__charge', { id: 'o2' });
    expect(failed).toMatchObject({ isError: true, structuredContent: { code: 'tool_failed' } });
    const denied = await told('world__charge', { id: 'o3', n: 5000 });
    expect(denied).toMatchObject({ isError: true, structuredContent: { code: 'denied' } });
    await upstream.plan({ match: { id: 'o4' }, do: ['apply', 'partial'] });
    const lost = await told('world__charge', { id: 'o4' });
    expect(lost).toMatchObject({
      structuredContent: { state: 'succeeded', outcome: 'body_unavailable', result: null },
    });
    await client.close();
    const hasty = await connectLegacyClient(gateway, { headers: NOW });
    await hasty.listTools();
    const held = await hasty.callTool({ name: 'world__held', arguments: { id: 'o5' } });
    expect(held).toMatchObject({ isError: true, structuredContent: { state: 'held' } });
    await hasty.close();
  });

  it('still shows them what does not fit it, by refusing it', async () => {
    const client = await connectLegacyClient(gateway);
    await client.listTools();
    await upstream.plan({ match: { id: 'o6' }, do: [{ reply: 200, body: { id: 7 } }] });
    await expect(client.callTool({ name: 'world__charge', arguments: { id: 'o6' } })).rejects.toThrow('output schema');
    await client.close();
  });
});
