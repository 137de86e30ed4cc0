import { fileURLToPath } from 'node:url';
import { findFreePort } from '../test/support/gateway.ts';
import type { RequestSpec } from './load.ts';
import { BENCH_AGENT_KEY } from './oncegate.ts';
import { type ServerProcess, startServerProcess } from './processes.ts';

const REVISION = '2026-07-28';
const META = 'io.modelcontextprotocol';

export const startMcpServer = (): Promise<ServerProcess> => startServerProcess('mcp-server.mjs');

/** The same server over standard streams, behind mcp-proxy. */
export async function startMcpProxy(): Promise<ServerProcess> {
  const port = await findFreePort();
  const server = fileURLToPath(new URL('mcp-server.mjs', import.meta.url));
  return startServerProcess('peers/mcp-proxy.mjs', { PORT: String(port), SERVER: server });
}

/** One `tools/call` of the newest revision, which needs no session. */
export const buildMcpCall =
  (path: string, tool: string, note: string) =>
  (run: string) =>
  (i: number): RequestSpec => ({
    path,
    headers: {
      authorization: `Bearer ${BENCH_AGENT_KEY}`,
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
