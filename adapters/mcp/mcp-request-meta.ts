import type { McpClientProfile } from '../../gateway/domain/attempts/adapter.ts';
import { isJsonObject, type JsonObject } from '../../gateway/domain/json.ts';

/** The revision in which each request is self-contained. */
export const MODERN_PROTOCOL_VERSION = '2026-07-28';
export const CLIENT_INFO = { name: 'oncegate', version: '1' };

const META_PREFIX = 'io.modelcontextprotocol';

/** Adds the `_meta` of modern MCP: the revision, the client, and its capabilities. */
export function addRequestMeta(params: JsonObject, profile: McpClientProfile | undefined): JsonObject {
  const { _meta } = params;
  const meta = {
    ...(isJsonObject(_meta) ? _meta : {}),
    ...profile?.meta,
    [`${META_PREFIX}/protocolVersion`]: MODERN_PROTOCOL_VERSION,
    [`${META_PREFIX}/clientInfo`]: CLIENT_INFO,
    [`${META_PREFIX}/clientCapabilities`]: profile?.capabilities ?? {},
  };
  return { ...params, _meta: meta };
}

/** Removes `oncegate/` members from a client's `_meta`, because a server may trust them as coming from the gateway. */
export function stripGatewayMeta(params: JsonObject): JsonObject {
  const { _meta } = params;
  if (!isJsonObject(_meta)) return params;
  const clientMembers = Object.entries(_meta).filter(([name]) => !name.startsWith('oncegate/'));
  return { ...params, _meta: Object.fromEntries(clientMembers) };
}

export function buildModernHeaders(method: string, params: JsonObject): Record<string, string> {
  const name = params['name'] ?? params['uri'];
  return {
    'mcp-protocol-version': MODERN_PROTOCOL_VERSION,
    'mcp-method': method,
    ...(typeof name === 'string' && METHODS_WITH_NAME.has(method) ? { 'mcp-name': encodeHeaderText(name) } : {}),
  };
}

const METHODS_WITH_NAME = new Set(['tools/call', 'prompts/get', 'resources/read']);

/** Encodes a header by the revision: plain if a header can carry the text, else marked base64. */
function encodeHeaderText(text: string): string {
  if (/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith('=?base64?')) return text;
  return `=?base64?${Buffer.from(text, 'utf8').toString('base64')}?=`;
}
