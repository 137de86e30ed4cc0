import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  LoggingMessageNotificationSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { AGENT_KEY, keysYaml, OTHER_AGENT_KEY, PEOPLE_YAML } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import {
  connectLegacyClient,
  connectNewestClient,
  postMcp,
  requestLegacy,
  requestNewest,
  waitForImport,
} from './clients.ts';
import { useMcpServer } from './use-mcp-server.ts';

const world = useMcpServer();
const second = useMcpServer({ label: 'second', era: 'modern' });
const declare = (url: string) => `{ adapter: mcp, url: "${url}", allowPrivate: true, timeout: 3s, import: "*" }`;
const { gateway } = useGateway({
  upstream: 'none',
  policies: () => `
upstreams:
  world: ${declare(world.url)}
  second: ${declare(second.url)}
agents:
  tester:
    ${keysYaml(AGENT_KEY)}
    rules:
      - { deny: world.resources, when: args.uri == "notes://private" }
      - { allow: world.put }
      - { allow: "world.*", approve: never }
      - { allow: second.resources }
      - { allow: second.greet, approve: never }
      - { allow: second.think }
  other:
    ${keysYaml(OTHER_AGENT_KEY)}
    rules: [{ allow: second.prompts }, { allow: world.mail, approve: never }]
${PEOPLE_YAML}`,
});
beforeAll(() => waitForImport(gateway, 'world.greet', 'second.greet'));
beforeEach(() => world.reset());

const effects = async (id: string) => (await world.effects()).filter((effect) => effect.id === id);
const text = (result: unknown) =>
  (result as { content: { text: string }[] }).content.map((part) => part.text).join('\n');

describe('a question that a server asks during a call', () => {
  it('reaches a legacy client with the capability, and the answer reaches the server', async () => {
    const client = await connectLegacyClient(gateway, {
      capabilities: { elicitation: {}, sampling: {} },
      prepare: (each) => {
        each.setRequestHandler(ElicitRequestSchema, ({ params }) => {
          expect(params.message).toBe('What is your name?');
          return { action: 'accept', content: { name: 'Ada' } };
        });
        each.setRequestHandler(CreateMessageRequestSchema, () => ({
          role: 'assistant',
          model: 'm',
          content: { type: 'text', text: 'word' },
        }));
      },
    });
    await client.callTool({ name: 'world__greet', arguments: { id: 'ada' } });
    expect(await effects('ada')).toMatchObject([{ said: 'Ada' }]);
    await client.callTool({ name: 'world__think', arguments: { id: 'thought' } });
    expect(await effects('thought')).toMatchObject([{ said: 'word' }]);
    await client.close();
  });

  it('can be declined, and is not sent to a client without the capability', async () => {
    const client = await connectLegacyClient(gateway, {
      capabilities: { elicitation: {} },
      prepare: (each) => each.setRequestHandler(ElicitRequestSchema, () => ({ action: 'decline' })),
    });
    const declined = await client.callTool({ name: 'world__greet', arguments: { id: 'shy' } });
    expect(text(declined)).toContain('not greeted: decline');
    await client.close();
    const mute = await requestLegacy(gateway, 'tools/call', { name: 'world__think', arguments: { id: 'mute' } });
    expect(text(mute.answer.result)).toContain('no model to ask');
    expect([...(await effects('shy')), ...(await effects('mute'))]).toEqual([]);
  });

  it('cannot be answered by another agent', async () => {
    const initialized = await requestLegacy(gateway, 'initialize', {
      protocolVersion: '2025-11-25',
      capabilities: { elicitation: {} },
      clientInfo: { name: 'raw', version: '1' },
    });
    const session = initialized.headers.get('mcp-session-id') ?? '';
    const response = await fetch(`${gateway.url}/mcp`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${AGENT_KEY}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        'mcp-session-id': session,
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name: 'world__greet', arguments: { id: 'eve' } },
      }),
    });
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    let received = '';
    const readUntil = async (expected: string) => {
      while (!received.includes(expected)) {
        const { done, value } = (await reader?.read()) ?? { done: true, value: '' };
        if (done) throw new Error(`The stream ended before "${expected}": ${received}`);
        received += value;
      }
    };
    await readUntil('elicitation/create');
    const { id } = JSON.parse(/^data: (.*elicitation.*)$/m.exec(received)?.[1] ?? '{}');
    const reply = (name: string) =>
      JSON.stringify({ jsonrpc: '2.0', id, result: { action: 'accept', content: { name } } });
    expect((await postMcp(gateway, reply('Eve'), { key: OTHER_AGENT_KEY })).status).toBe(202);
    expect((await postMcp(gateway, reply('Ada'))).status).toBe(202);
    await readUntil('"result"');
    expect(await effects('eve')).toMatchObject([{ said: 'Ada' }]);
  });

  it('is an input_required result for the newest client, and its answer causes one effect', async () => {
    const client = await connectNewestClient(gateway, {
      capabilities: { elicitation: { form: {} } },
      prepare: (each) =>
        each.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: { name: 'Grace' } })),
    });
    const params = {
      name: 'world__greet',
      arguments: { id: 'grace' },
      _meta: { 'oncegate/idempotency-key': 'grace-1' },
    };
    await client.callTool(params);
    const again = await client.callTool(params);
    expect(await effects('grace')).toMatchObject([{ said: 'Grace' }]);
    expect(again._meta).toMatchObject({ 'oncegate/replayed': true });
    await client.close();
  });

  it('reaches a legacy client during the call if the server speaks only the newest revision', async () => {
    const client = await connectLegacyClient(gateway, {
      capabilities: { elicitation: {} },
      prepare: (each) =>
        each.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: { name: 'Old' } })),
    });
    await client.callTool({ name: 'second__greet', arguments: { id: 'bridge' } });
    expect(await second.effects()).toMatchObject([{ id: 'bridge', said: 'Old' }]);
    await client.close();
  });
});

describe('a notification during a call', () => {
  it.each(['old', 'new'])(
    'reaches the calling %s client: progress with its own token, and log messages',
    async (kind) => {
      const progress: number[] = [];
      const id = `steps ${kind}`;
      const onprogress = ({ progress: at }: { progress: number }) => void progress.push(at);
      const params = { name: 'world__steps', arguments: { id } };
      if (kind === 'old') {
        const said: unknown[] = [];
        const client = await connectLegacyClient(gateway, {
          prepare: (each) =>
            each.setNotificationHandler(
              LoggingMessageNotificationSchema,
              ({ params: { data } }) => void said.push(data),
            ),
        });
        await client.callTool(params, undefined, { onprogress });
        expect(said).toEqual(['almost done']);
        await client.close();
      } else {
        const client = await connectNewestClient(gateway);
        await client.callTool(params, { onprogress });
        await client.close();
      }
      expect(progress).toEqual([1, 2, 3]);
      expect(await effects(id)).toHaveLength(1);
    },
  );
});

describe('resources and prompts', () => {
  it('are offered if a rule allows them, and read from their server', async () => {
    const client = await connectNewestClient(gateway);
    const { resources } = await client.listResources();
    expect(resources.map(({ uri }) => uri)).toContain('notes://1');
    expect((await client.listResourceTemplates()).resourceTemplates.length).toBeGreaterThan(0);
    const { contents } = await client.readResource({ uri: 'notes://1' });
    expect(contents).toMatchObject([{ uri: 'notes://1', text: 'world: notes://1' }]);
    const { prompts } = await client.listPrompts();
    expect(prompts.map(({ name }) => name)).toEqual(['world__hello']);
    const { messages } = await client.getPrompt({ name: 'world__hello', arguments: { who: 'you' } });
    expect(messages).toMatchObject([{ content: { text: 'Hello you' } }]);
    const completed = await client.complete({
      ref: { type: 'ref/prompt', name: 'world__hello' },
      argument: { name: 'who', value: 'a' },
    });
    expect(completed.completion.values).toEqual(['a-completed']);
    await client.close();
  });

  it('are refused without a rule, and the denied server is not asked', async () => {
    const denied = await requestLegacy(gateway, 'resources/read', { uri: 'notes://private' });
    expect(denied.answer.result.contents[0].text).toBe('second: notes://private');
    const other = await requestLegacy(gateway, 'resources/read', { uri: 'notes://1' }, { key: OTHER_AGENT_KEY });
    expect(other.answer.error.code).toBe(-32601);
    const prompt = await requestLegacy(gateway, 'prompts/get', { name: 'world__hello' }, { key: OTHER_AGENT_KEY });
    expect(prompt.answer.error.code).toBe(-32602);
    expect((await world.requests()).filter(({ method }) => /read|get/.test(method))).toEqual([]);
  });

  it('of one server are read while another is down', async () => {
    await world.kill();
    const { answer } = await requestLegacy(gateway, 'resources/read', { uri: 'notes://7' });
    await world.restart();
    expect(answer.result?.contents[0].text).toBe('second: notes://7');
  });

  it('are listed from the servers that are reachable', async () => {
    await second.kill();
    const { answer } = await requestLegacy(gateway, 'resources/list', {});
    await second.restart();
    expect(answer.result.resources).toHaveLength(1);
  });
});

describe('a notification outside of calls', () => {
  it('of a changed tool list reaches a listening client after the list has changed', async () => {
    const listedNames = async () =>
      (await requestLegacy(gateway, 'tools/list', {})).answer.result.tools.map(({ name }: { name: string }) => name);
    const received: Promise<string[]>[] = [];
    const old = await connectLegacyClient(gateway, {
      prepare: (each) =>
        each.setNotificationHandler(ToolListChangedNotificationSchema, () => void received.push(listedNames())),
    });
    await old.listTools();
    const arrived = { name: 'arrived', description: 'New.', inputSchema: { type: 'object' } };
    await expect
      .poll(() => world.changeTool(arrived).then(() => received.length), { timeout: 10_000 })
      .toBeGreaterThan(0);
    expect(await received[0]).toContain('world__arrived');
    await old.close();
  });

  it('of a changed resource reaches only subscribers that may read it', async () => {
    const updates: string[] = [];
    const prepare =
      (name: string) =>
      (each: Parameters<NonNullable<NonNullable<Parameters<typeof connectLegacyClient>[1]>['prepare']>>[0]) =>
        each.setNotificationHandler(
          ResourceUpdatedNotificationSchema,
          ({ params }) => void updates.push(`${name} ${params.uri}`),
        );
    const reader = await connectLegacyClient(gateway, { prepare: prepare('reader') });
    const stranger = await connectLegacyClient(gateway, { key: OTHER_AGENT_KEY, prepare: prepare('stranger') });
    await reader.subscribeResource({ uri: 'notes://1' });
    await stranger.subscribeResource({ uri: 'notes://1' }).catch(() => {});
    const updated = { message: { method: 'notifications/resources/updated', params: { uri: 'notes://1' } } };
    await expect
      .poll(
        async () => {
          await world.notify(updated);
          return updates;
        },
        { timeout: 10_000 },
      )
      .toContain('reader notes://1');
    expect(updates.every((line) => line === 'reader notes://1')).toBe(true);
    await reader.close();
    await stranger.close();
  });
});

describe('a held call that carries an answer', () => {
  it('is recognized when its client returns from the approval page', async () => {
    const capabilities = { elicitation: { url: {}, form: {} }, sampling: {} };
    const params = { name: 'second__think', arguments: { id: 'twice held' } };
    const callTool = async (more: object = {}) =>
      (
        await requestNewest(
          gateway,
          'tools/call',
          { ...params, ...more },
          { capabilities, headers: { prefer: 'wait=0' } },
        )
      ).answer.result;
    const approve = async ({ inputRequests }: { inputRequests: { approval: { params: { url: string } } } }) => {
      const txn = inputRequests.approval.params.url.split('/').at(-1) ?? '';
      const { items } = (await gateway.admin('GET', '/admin/approvals?state=pending')).body;
      const { digest } = items.find((item: { txn: string }) => item.txn === txn);
      await gateway.admin('POST', `/admin/approvals/${txn}/approve`, { digest, reason: 'ok' });
      await gateway.waitForCall(txn, ({ state }) => state === 'succeeded');
    };
    const held = await callTool();
    await approve(held);
    const question = await callTool({
      requestState: held.requestState,
      inputResponses: { approval: { action: 'accept' } },
    });
    expect(question.inputRequests).toMatchObject({ word: { method: 'sampling/createMessage' } });
    const word = { role: 'assistant', model: 'm', content: { type: 'text', text: 'deep' } };
    const heldAgain = await callTool({ requestState: question.requestState, inputResponses: { word } });
    await approve(heldAgain);
    const done = await callTool({
      requestState: heldAgain.requestState,
      inputResponses: { approval: { action: 'accept' } },
    });
    expect(done.structuredContent).toMatchObject({ id: 'twice held' });
    expect((await second.effects()).filter(({ id }) => id === 'twice held')).toMatchObject([{ said: 'deep' }]);
  });
});
