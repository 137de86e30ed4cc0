import { beforeEach, describe, expect, it } from 'vitest';
import { OTHER_AGENT_KEY } from '../support/gateway.ts';
import { connectLegacyClient, connectNewestClient, requestLegacy, requestNewest } from './clients.ts';
import { useMcpGateway } from './use-mcp-gateway.ts';

const { upstream, gateway } = useMcpGateway();
beforeEach(() => upstream.reset());

const NO_WAIT = { prefer: 'wait=0' };
const call = (name: string, args: object, meta: object = {}, headers: Record<string, string> = {}) =>
  requestLegacy(gateway, 'tools/call', { name, arguments: args, _meta: meta }, { headers });
const effects = async (id: string) => (await upstream.effects(id)).length;

describe('tools/list', () => {
  it('shows only the tools that the agent may call, with annotations from their contracts', async () => {
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
  it.each(['2025-06-18', '2025-11-25'])('is executed for a client of revision %s', async (version) => {
    const initializeParams = { protocolVersion: version, capabilities: {}, clientInfo: { name: 'raw', version: '1' } };
    const initialized = await requestLegacy(gateway, 'initialize', initializeParams);
    expect(initialized.answer.result).toMatchObject({ protocolVersion: version, serverInfo: { name: 'oncegate' } });
    const session = initialized.headers.get('mcp-session-id') ?? '';
    const params = { name: 'world__charge', arguments: { id: `v${version}` } };
    const { answer } = await requestLegacy(gateway, 'tools/call', params, {
      version,
      headers: { 'mcp-session-id': session },
    });
    expect(answer.result.structuredContent).toMatchObject({ t: `v${version}` });
    expect(await effects(`v${version}`)).toBe(1);
  });

  it('is executed for a client of the newest revision, which has no session', async () => {
    const client = await connectNewestClient(gateway);
    const result = await client.callTool({ name: 'world__charge', arguments: { id: 'new' } });
    expect(result.structuredContent).toMatchObject({ t: 'new' });
    expect(JSON.parse((result.content[0] as { text: string }).text)).toEqual(result.structuredContent);
    expect(result._meta).toMatchObject({ 'oncegate/replayed': false, 'oncegate/txn': expect.any(String) });
    expect(await effects('new')).toBe(1);
    await client.close();
  });

  it('accepts the dotted tool name', async () => {
    expect((await call('world.charge', { id: 'dot' })).answer.result.isError).toBeUndefined();
    expect(await effects('dot')).toBe(1);
  });

  it('that no rule allows gets a readable error result that contains the problem', async () => {
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

  it('of an unknown tool that a rule covers gets a protocol error, as do malformed parameters', async () => {
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

  it('with wrong arguments gets every fault', async () => {
    const { result } = (await call('world__charge', { n: 'many' })).answer;
    expect(result).toMatchObject({ isError: true, structuredContent: { code: 'invalid_arguments', status: 400 } });
    expect(result.structuredContent.faults).toHaveLength(2);
  });

  it('of a tool that fails gets tool_failed with the answer of the upstream', async () => {
    await upstream.plan({ match: { id: 'failed' }, do: [{ reply: 422, body: { why: 'no funds' } }] });
    const { result } = (await call('world__charge', { id: 'failed' })).answer;
    expect(result.structuredContent).toMatchObject({
      code: 'tool_failed',
      upstream: { status: 422, body: { why: 'no funds' } },
    });
    expect(result.isError).toBe(true);
  });

  it('in doubt gets in_doubt, and is never sent twice', async () => {
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

  it('to an upstream with an open breaker is refused and does not bind its key', async () => {
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

  it('continues after its client disconnects', async () => {
    await upstream.plan({ match: { id: 'gone' }, do: [{ event: 'in' }, { wait: 'go' }] });
    const body = { name: 'world__charge', arguments: { id: 'gone' }, _meta: { 'oncegate/idempotency-key': 'gone-1' } };
    const controller = new AbortController();
    const pending = requestLegacy(gateway, 'tools/call', body, { signal: controller.signal });
    await upstream.awaitEvent('in');
    controller.abort();
    await expect(pending).rejects.toThrow();
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

  it('answers within the wait of the client, says how to ask again, and is sent once when approved', async () => {
    const held = (await call('world__held', { id: 'h1' }, {}, NO_WAIT)).answer.result;
    expect(held).toMatchObject({ isError: true, structuredContent: { state: 'held', tool: 'world.held' } });
    const { txn } = held.structuredContent;
    expect(held.content[0].text).toContain(txn);
    expect((await call('world__held', { id: 'h1' }, {}, NO_WAIT)).answer.result.structuredContent.txn).toBe(txn);
    await approve(txn);
    const approved = (await call('world__held', { id: 'h1' })).answer.result;
    expect(approved.structuredContent).toMatchObject({ t: 'h1' });
    expect((await call('oncegate__get_call', { txn })).answer.result.structuredContent).toMatchObject({
      state: 'succeeded',
    });
    expect(await effects('h1')).toBe(1);
  });

  it('gives a client with URL elicitation the approval page, and recognizes the call afterwards', async () => {
    const capabilities = { elicitation: { url: {} } };
    const params = { name: 'world__held', arguments: { id: 'h2' } };
    const { answer } = await requestNewest(gateway, 'tools/call', params, { capabilities, headers: NO_WAIT });
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
    const approved = await requestNewest(gateway, 'tools/call', back, { capabilities });
    expect(approved.answer.result.structuredContent).toMatchObject({ t: 'h2' });
    expect(await effects('h2')).toBe(1);
  });

  it('gives no approval page to a client without URL elicitation', async () => {
    const params = { name: 'world__held', arguments: { id: 'h3' } };
    const { answer } = await requestNewest(gateway, 'tools/call', params, { headers: NO_WAIT });
    expect(answer.result).toMatchObject({ isError: true, structuredContent: { state: 'held' } });
  });
});

describe('a tool with an output schema, against which legacy clients validate every answer', () => {
  it('still reports a hold, a failure, a denial and a lost answer', async () => {
    const client = await connectLegacyClient(gateway);
    const { tools } = await client.listTools();
    expect(tools.find(({ name }) => name === 'world__charge')?.outputSchema).toMatchObject({ type: 'object' });
    const callTool = async (name: string, args: Record<string, unknown>) => client.callTool({ name, arguments: args });
    expect(await callTool('world__charge', { id: 'o1' })).toMatchObject({ structuredContent: { t: 'o1' } });
    await upstream.plan({ match: { id: 'o2' }, do: [{ reply: 422 }] });
    const failed = await callTool('world__charge', { id: 'o2' });
    expect(failed).toMatchObject({ isError: true, structuredContent: { code: 'tool_failed' } });
    const denied = await callTool('world__charge', { id: 'o3', n: 5000 });
    expect(denied).toMatchObject({ isError: true, structuredContent: { code: 'denied' } });
    await upstream.plan({ match: { id: 'o4' }, do: ['apply', 'partial'] });
    const lost = await callTool('world__charge', { id: 'o4' });
    expect(lost).toMatchObject({
      structuredContent: { state: 'succeeded', outcome: 'body_unavailable', result: null },
    });
    await client.close();
    const impatient = await connectLegacyClient(gateway, { headers: NO_WAIT });
    await impatient.listTools();
    const held = await impatient.callTool({ name: 'world__held', arguments: { id: 'o5' } });
    expect(held).toMatchObject({ isError: true, structuredContent: { state: 'held' } });
    await impatient.close();
  });

  it('makes legacy clients reject an answer that does not fit', async () => {
    const client = await connectLegacyClient(gateway);
    await client.listTools();
    await upstream.plan({ match: { id: 'o6' }, do: [{ reply: 200, body: { id: 7 } }] });
    await expect(client.callTool({ name: 'world__charge', arguments: { id: 'o6' } })).rejects.toThrow('output schema');
    await client.close();
  });
});
