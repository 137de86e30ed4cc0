import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

/** An MCP server built with the official SDK. Its one tool counts its executions per id. */
export class CountingMcpServer {
  readonly executions = new Map<string, number>();
  readonly #transports = new Map<string, StreamableHTTPServerTransport>();
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(): Promise<CountingMcpServer> {
    const http = createServer();
    const server = new CountingMcpServer(http);
    http.on('request', async (request, response) => {
      const id = request.headers['mcp-session-id'];
      const known = typeof id === 'string' ? server.#transports.get(id) : undefined;
      if (id !== undefined && known === undefined) response.writeHead(404).end();
      else await (known ?? (await server.#openSession())).handleRequest(request, response);
    });
    http.listen(0, '127.0.0.1');
    await once(http, 'listening');
    return server;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }

  async #openSession(): Promise<StreamableHTTPServerTransport> {
    const mcp = new McpServer({ name: 'counting', version: '1' });
    mcp.registerTool('pay', { description: 'Pay somebody.', inputSchema: { id: z.string() } }, ({ id }) => {
      const times = (this.executions.get(id) ?? 0) + 1;
      this.executions.set(id, times);
      return { content: [{ type: 'text', text: `paid ${id}, time ${times}` }] };
    });
    const transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => {
        this.#transports.set(id, transport);
      },
    });
    // The types of the SDK contradict each other under exactOptionalPropertyTypes.
    await mcp.connect(transport as Parameters<typeof mcp.connect>[0]);
    return transport;
  }
}
