// Calls tools through the MCP client of one framework, with a new client for each call and with the retries of the framework.
// Runs under a newer Node than the gateway, because some of the frameworks need it.
//
//   mcp-calls.mjs <framework> <bearer key>
//
// For each call: reads a line {url, tool, args}, prints "ready" when the client is connected, reads "go", and prints the result.
import { createInterface } from 'node:readline';

const [, , framework, key] = process.argv;
const headers = { authorization: `Bearer ${key}` };

const CONNECT = {
  async 'sdk-v1'(url) {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    return connectSdk(Client, StreamableHTTPClientTransport, url);
  },
  async 'sdk-v2'(url) {
    const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
    return connectSdk(Client, StreamableHTTPClientTransport, url);
  },
  'ai-sdk': (url) => connectAiSdk(url, undefined),
  'ai-sdk-retries': (url) => connectAiSdk(url, 2),
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

/** The SDKs wait a minute by default, which is too long for the tests. */
const TIMEOUT_MS = 5_000;
const timeoutFor = (name) => (name === 'sdk-v1' ? [undefined, { timeout: TIMEOUT_MS }] : [{ timeout: TIMEOUT_MS }]);

async function connectSdk(Client, Transport, url) {
  const client = new Client({ name: 'matrix', version: '1' });
  await client.connect(new Transport(new URL(url), { requestInit: { headers } }));
  return {
    call: (name, args) => client.callTool({ name, arguments: args }, ...timeoutFor(framework)),
    close: () => client.close(),
  };
}

async function connectAiSdk(url, maxRetries) {
  const { createMCPClient } = await import('@ai-sdk/mcp');
  const transport = { type: 'http', url, headers };
  const client = await createMCPClient({ transport, ...(maxRetries === undefined ? {} : { maxRetries }) });
  const tools = await client.tools();
  const options = { toolCallId: `call_${Math.random()}`, messages: [] };
  return { call: (tool, args) => tools[tool].execute(args, options), close: () => client.close() };
}

const print = (value) => process.stdout.write(`${typeof value === 'string' ? value : JSON.stringify(value)}\n`);
// A client that is closed during a request rejects promises that nobody awaits.
process.on('unhandledRejection', () => {});

let connection;
let request;
for await (const line of createInterface({ input: process.stdin })) {
  if (line !== 'go') {
    request = JSON.parse(line);
    connection = await CONNECT[framework](request.url);
    print('ready');
    continue;
  }
  try {
    const result = await connection.call(request.tool, request.args);
    print({ isError: result?.isError === true, content: JSON.stringify(result?.content ?? result) });
  } catch (error) {
    print({ thrown: String(error?.message ?? error) });
  }
  Promise.resolve(connection.close()).catch(() => {});
}
process.exit(0);
