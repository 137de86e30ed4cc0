import { beforeAll, describe, expect, it } from 'vitest';
import { RunHolder } from '../controls/run-holder.ts';
import { AGENT_KEY, keysYaml, PEOPLE_YAML } from '../support/gateway.ts';
import { useGateway } from '../support/use-gateway.ts';
import { requestLegacy, waitForImport } from './clients.ts';
import { useMcpServer } from './use-mcp-server.ts';

/** Each test uses its own agent, because a taint outside of runs never ends. */
const agent = (name: string, key: string) => `  ${name}:
    ${keysYaml(key)}
    rules:
      - { allow: "inbox.*", approve: never }
      - { allow: files.resources }
      - { allow: files.put, when: "!tainted", approve: never }
`;

const inbox = useMcpServer();
const files = useMcpServer({ label: 'files' });
const declare = (url: string) => `adapter: mcp, url: "${url}", allowPrivate: true, timeout: 30s, import: "*"`;
const { gateway } = useGateway({
  upstream: 'none',
  policies: () => `
upstreams:
  inbox: { ${declare(inbox.url)}, untrusted: true }
  files: { ${declare(files.url)} }
tools:
  inbox.pay: { upstream: inbox, once: { by: key, header: Idempotency-Key }, untrusted: false }
agents:
${agent('calls', AGENT_KEY)}${agent('reads', 'reads')}${agent('prompted', 'prompted')}${PEOPLE_YAML}`,
});
beforeAll(() => waitForImport(gateway, 'inbox.put', 'files.put'));

async function isTainted(key: string, headers: Readonly<Record<string, string>> = {}): Promise<boolean> {
  const dry = { ...headers, 'oncegate-dry-run': '?1' };
  return (await gateway.call('files.put', { id: 'dry' }, { agentKey: key, headers: dry })).body.facts.tainted;
}

/** Calls a tool, and repeats the call while the gateway answers that nothing was sent. */
async function callTool(name: string, key: string, meta: object, id = name) {
  for (;;) {
    const reply = await requestLegacy(gateway, 'tools/call', { name, arguments: { id }, _meta: meta }, { key });
    if (reply.answer.result.structuredContent?.code !== 'unavailable') return reply;
  }
}

describe('an untrusted MCP server', () => {
  it('taints through every imported tool except those with untrusted: false', async () => {
    const run = await RunHolder.take(gateway, 'mail');
    const meta = { 'oncegate/run': run.took.run, 'oncegate/epoch': String(run.took.epoch) };
    expect((await callTool('inbox__pay', AGENT_KEY, meta)).answer.result.isError).not.toBe(true);
    expect((await callTool('files__put', AGENT_KEY, meta)).answer.result.isError).not.toBe(true);
    expect(await isTainted(AGENT_KEY, run.headers)).toBe(false);
    expect((await callTool('inbox__put', AGENT_KEY, meta)).answer.result.isError).not.toBe(true);
    expect((await run.read()).body.tainted).toMatchObject({ tool: 'inbox.put' });
    const { result } = (await callTool('files__put', AGENT_KEY, meta, 'another')).answer;
    expect(result).toMatchObject({ isError: true, structuredContent: { code: 'denied', facts: { tainted: true } } });
  });

  it('taints the agent and its unfinished runs through its resources', async () => {
    const run = await RunHolder.take(gateway, 'notes', '', 'reads');
    const read = async (uri: string) =>
      (await requestLegacy(gateway, 'resources/read', { uri }, { key: 'reads' })).answer.result;
    await inbox.kill();
    expect((await read('notes://1')).contents[0].text).toBe('files: notes://1');
    expect(await isTainted('reads')).toBe(false);
    await inbox.restart();
    expect((await read('notes://1')).contents[0].text).toBe('world: notes://1');
    expect(await isTainted('reads')).toBe(true);
    expect((await run.read()).body.tainted).toMatchObject({ txn: null, tool: 'inbox.resources' });
  });

  it('taints through its prompts', async () => {
    expect(await isTainted('prompted')).toBe(false);
    const params = { name: 'inbox__hello', arguments: { who: 'you' } };
    expect(
      (await requestLegacy(gateway, 'prompts/get', params, { key: 'prompted' })).answer.result.messages,
    ).toHaveLength(1);
    expect(await isTainted('prompted')).toBe(true);
  });
});
