import { fileURLToPath } from 'node:url';
import { freePort } from '../test/support/gateway.ts';
import type { Shot } from './load.ts';
import { KEY } from './oncegate.ts';
import { type Listening, listening } from './processes.ts';

const REVISION = '2026-07-28';
const META = 'io.modelcontextprotocol';

export const startMcpServer = (): Promise<Listening> => listening('mcp-server.mjs');

/** The same server over standard streams, behind mcp-proxy. */
export async function startMcpProxy(): Promise<Listening> {
  const port = await freePort();
  const server = fileURLToPath(new URL('mcp-server.mjs', import.meta.url));
  return listening('peers/mcp-proxy.mjs', { PORT: String(port), SERVER: server });
}

/** One `tools/call` of the newest revision, with everything it needs in it. */
export const toolCallOf =
  (path: string, tool: string, note: string) =>
  (run: string) =>
  (i: number): Shot => ({
    path,
    headers: {
      authorization: `Bearer ${KEY}`,
      accept: 'application/json, text/event-stream',
      'mcp-protocol-version': REVISION,
      'mcp-method': 'tools/call',
      'mcp-name': tool,
    },
    body: JSON.stringify({
      jsonrpc: '2.0',
      id: i,
      method: 'tools/call',
      params: {
        name: tool,
        arguments: { amount: 1200, note },
        _meta: {
          'oncegate/idempotency-key': `${run}-${i}`,
          [`${META}/protocolVersion`]: REVISION,
          [`${META}/clientInfo`]: { name: 'bench', version: '1' },
          [`${META}/clientCapabilities`]: {},
        },
      },
    }),
  });
