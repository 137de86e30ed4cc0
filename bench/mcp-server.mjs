// A minimal MCP server of revision 2026-07-28 that does nothing. With --stdio it uses its standard streams and an older
// revision, because mcp-proxy starts it that way.
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';

const TOOLS = [{ name: 'charge', description: 'Charge a card.', inputSchema: { type: 'object' } }];
const RESULT = { content: [{ type: 'text', text: 'x'.repeat(1000) }] };
const ANSWERS = {
  'server/discover': { supportedVersions: ['2026-07-28'], capabilities: { tools: {} } },
  initialize: {
    protocolVersion: '2025-11-25',
    capabilities: { tools: {} },
    serverInfo: { name: 'bench', version: '1' },
  },
  'tools/list': { tools: TOOLS },
  'tools/call': RESULT,
  ping: {},
};

function answer({ id, method }) {
  const result = ANSWERS[method];
  return result === undefined
    ? { jsonrpc: '2.0', id, error: { code: -32601, message: 'Method not found' } }
    : { jsonrpc: '2.0', id, result };
}

if (process.argv.includes('--stdio')) {
  for await (const line of createInterface({ input: process.stdin })) {
    const message = JSON.parse(line);
    if (message.id !== undefined) process.stdout.write(`${JSON.stringify(answer(message))}\n`);
  }
} else {
  const server = createServer((request, response) => {
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
      const body = JSON.stringify(answer(JSON.parse(Buffer.concat(chunks).toString())));
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
      response.end(body);
    });
  });
  server.keepAliveTimeout = 60_000;
  server.listen(0, '127.0.0.1', () => console.log(`listening ${server.address().port}`));
}
