import { Client as NewClient, StreamableHTTPClientTransport as NewTransport } from '@modelcontextprotocol/client';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as OldTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { expect, vi } from 'vitest';
import { AGENT_KEY, type Gateway } from '../support/gateway.ts';

export const NEWEST_REVISION = '2026-07-28';
const CLIENT_INFO = { name: 'tests', version: '1' };

interface ClientOptions {
  readonly key?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly capabilities?: object;
}

function buildHeaders({ key = AGENT_KEY, headers = {} }: ClientOptions): Record<string, string> {
  return { authorization: `Bearer ${key}`, ...headers };
}

/** Connects the SDK client of the newest revision. Its handlers answer `input_required` results. */
export async function connectNewestClient(
  gateway: Gateway,
  options: ClientOptions & { prepare?: (client: NewClient) => void } = {},
): Promise<NewClient> {
  const client = new NewClient(CLIENT_INFO, {
    capabilities: options.capabilities ?? {},
    versionNegotiation: { mode: { pin: NEWEST_REVISION } },
  });
  options.prepare?.(client);
  await client.connect(
    new NewTransport(new URL(`${gateway.url}/mcp`), { requestInit: { headers: buildHeaders(options) } }),
  );
  return client;
}

/** Connects the SDK client of the older revisions, which uses a session. */
export async function connectLegacyClient(
  gateway: Gateway,
  options: ClientOptions & { prepare?: (client: OldClient) => void } = {},
): Promise<OldClient> {
  const client = new OldClient(CLIENT_INFO, { capabilities: options.capabilities ?? {} });
  options.prepare?.(client);
  const transport = new OldTransport(new URL(`${gateway.url}/mcp`), {
    requestInit: { headers: buildHeaders(options) },
  });
  await client.connect(transport as Parameters<OldClient['connect']>[0]);
  return client;
}

export interface McpReply {
  readonly status: number;
  readonly headers: Headers;
  /** All messages of the response. The last one is the answer. */
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
  readonly messages: any[];
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
  readonly answer: any;
  readonly text: string;
}

interface McpPostOptions {
  readonly key?: string | null;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

/** Posts a body to /mcp unchanged, and returns all messages of the response. */
export async function postMcp(
  gateway: Gateway,
  body: string,
  { key = AGENT_KEY, headers, signal }: McpPostOptions = {},
): Promise<McpReply> {
  const response = await fetch(`${gateway.url}/mcp`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...(key === null ? {} : { authorization: `Bearer ${key}` }),
      ...headers,
    },
    body,
    ...(signal === undefined ? {} : { signal }),
  });
  const text = await response.text();
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream') === true;
  const data = isStream
    ? [...text.matchAll(/^data: ?(.+)$/gm)].map(([, line]) => line ?? '')
    : text === ''
      ? []
      : [text];
  const messages = data.map((line) => JSON.parse(line));
  return { status: response.status, headers: response.headers, messages, answer: messages.at(-1), text };
}

/** Waits until these tools are imported, because a gateway starts without waiting for its MCP servers. */
export async function waitForImport(gateway: Gateway, ...tools: string[]): Promise<void> {
  await vi.waitFor(
    async () => {
      const names = (await gateway.get('/v1/tools')).body.tools.map(({ name }: { name: string }) => name);
      expect(names).toEqual(expect.arrayContaining(tools));
    },
    { timeout: 30_000 },
  );
}

let rpcId = 0;

/** Sends a request of an older revision without an SDK client. */
export function requestLegacy(
  gateway: Gateway,
  method: string,
  params: object,
  options: McpPostOptions & { version?: string } = {},
) {
  const { version = '2025-06-18', ...more } = options;
  const body = JSON.stringify({ jsonrpc: '2.0', id: ++rpcId, method, params });
  return postMcp(gateway, body, { ...more, headers: { 'mcp-protocol-version': version, ...more.headers } });
}

/** Sends a request of the newest revision, in which each request carries the client's capabilities. */
export function requestNewest(
  gateway: Gateway,
  method: string,
  params: { name?: string; _meta?: object; [member: string]: unknown },
  options: McpPostOptions & { capabilities?: object } = {},
) {
  const { capabilities = {}, ...more } = options;
  const _meta = {
    ...params._meta,
    'io.modelcontextprotocol/protocolVersion': NEWEST_REVISION,
    'io.modelcontextprotocol/clientInfo': CLIENT_INFO,
    'io.modelcontextprotocol/clientCapabilities': capabilities,
  };
  const headers = {
    'mcp-protocol-version': NEWEST_REVISION,
    'mcp-method': method,
    ...(params.name === undefined ? {} : { 'mcp-name': params.name }),
    ...more.headers,
  };
  const body = JSON.stringify({ jsonrpc: '2.0', id: ++rpcId, method, params: { ...params, _meta } });
  return postMcp(gateway, body, { ...more, headers });
}
