// Tool calls through one framework's own MCP client, each with a client of its own and with whatever it retries by itself. Runs
// under a newer Node than the gateway needs, because some of the frameworks do.
//
//   mcp-calls.mjs <framework> <bearer key>
//
// In comes a line {url, tool, args}; out goes "ready" when the client is connected. In comes "go", and out goes what came back.
import { createInterface } from 'node:readline';

const [, , framework, key] = process.argv;
const headers = { authorization: `Bearer ${key}` };

const CONNECT = {
  async 'sdk-v1'(url) {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    return sdk(Client, StreamableHTTPClientTransport, url);
  },
  async 'sdk-v2'(url) {
    const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
    return sdk(Client, StreamableHTTPClientTransport, url);
  },
  'ai-sdk': (url) => aiSdk(url, undefined),
  'ai-sdk-retries': (url) => aiSdk(url, 2),
  async 'openai-agents'(url) {
    const { MCPServerStreamableHttp } = await import('@openai/agents');
    const server = new MCPServerStreamableHttp({ url, name: 'matrix', requestInit: { headers } });
    await server.connect();
    return { call: (tool, args) => server.callTool(tool, args), close: () => server.close() };
  },
  async langchain(url) {
    const { MultiServerMCPClient } = await import('@langchain/mcp-adapters');
    const client = new MultiServerMCPClient({
      defaultToolTimeout: TIMEOUT_MS,
      mcpServers: { matrix: { transport: 'http', url, headers } },
    });
    const tools = await client.getTools();
    const find = (tool) => tools.find(({ name }) => name.endsWith(tool));
    return { call: (tool, args) => find(tool).invoke(args), close: () => client.close() };
  },
  async mastra(url) {
    const { MCPClient } = await import('@mastra/mcp');
    const client = new MCPClient({
      id: url + Math.random(),
      servers: { matrix: { url: new URL(url), requestInit: { headers } } },
    });
    const tools = await client.listTools();
    const find = (tool) => Object.entries(tools).find(([name]) => name.endsWith(tool))[1];
    return { call: (tool, args) => find(tool).execute(args, {}), close: () => client.disconnect() };
  },
};

/** Their own patience is a minute; nobody here needs to see that. */
const TIMEOUT_MS = 5_000;
const timeoutFor = (name) => (name === 'sdk-v1' ? [undefined, { timeout: TIMEOUT_MS }] : [{ timeout: TIMEOUT_MS }]);

async function sdk(Client, Transport, url) {
  const client = new Client({ name: 'matrix', version: '1' });
  await client.connect(new Transport(new URL(url), { requestInit: { headers } }));
  return {
    call: (name, args) => client.callTool({ name, arguments: args }, ...timeoutFor(framework)),
    close: () => client.close(),
  };
}

async function aiSdk(url, maxRetries) {
  const { createMCPClient } = await import('@ai-sdk/mcp');
  const transport = { type: 'http', url, headers };
  const client = await createMCPClient({ transport, ...(maxRetries === undefined ? {} : { maxRetries }) });
  const tools = await client.tools();
  const options = { toolCallId: `call_${Math.random()}`, messages: [] };
  return { call: (tool, args) => tools[tool].execute(args, options), close: () => client.close() };
}

const say = (value) => process.stdout.write(`${typeof value === 'string' ? value : JSON.stringify(value)}\n`);
// A client that is torn down in the middle of something complains to nobody in particular.
process.on('unhandledRejection', () => {});

let connection;
let wish;
for await (const line of createInterface({ input: process.stdin })) {
  if (line !== 'go') {
    wish = JSON.parse(line);
    connection = await CONNECT[framework](wish.url);
    say('ready');
    continue;
  }
  try {
    const result = await connection.call(wish.tool, wish.args);
    say({ isError: result?.isError === true, said: JSON.stringify(result?.content ?? result) });
  } catch (error) {
    say({ thrown: String(error?.message ?? error) });
  }
  Promise.resolve(connection.close()).catch(() => {});
}
process.exit(0);
