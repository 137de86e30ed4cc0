import type { McpClientProfile } from '../../gateway/domain/attempts/adapter.ts';
import { isJsonObject, type JsonObject } from '../../gateway/domain/json.ts';

/** The revision in which every request says all there is to know. */
export const MODERN_PROTOCOL_VERSION = '2026-07-28';
export const CLIENT_INFO = { name: 'oncegate', version: '1' };

const META_PREFIX = 'io.modelcontextprotocol';

/** What the newer way wants in every request: which revision, who asks, and what they can do. */
export function addRequestMeta(params: JsonObject, manner: McpClientProfile | undefined): JsonObject {
  const { _meta } = params;
  const meta = {
    ...(isJsonObject(_meta) ? _meta : {}),
    ...manner?.meta,
    [`${META_PREFIX}/protocolVersion`]: MODERN_PROTOCOL_VERSION,
    [`${META_PREFIX}/clientInfo`]: CLIENT_INFO,
    [`${META_PREFIX}/clientCapabilities`]: manner?.capabilities ?? {},
  };
  return { ...params, _meta: meta };
}

/** What a server may believe because only the gateway says it, a client may not say through the gateway. */
export function stripGatewayMeta(params: JsonObject): JsonObject {
  const { _meta } = params;
  if (!isJsonObject(_meta)) return params;
  const theirs = Object.entries(_meta).filter(([name]) => !name.startsWith('oncegate/'));
  return { ...params, _meta: Object.fromEntries(theirs) };
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

/** As the revision wants it: plain where a header can carry it, else in base64 with a mark. */
function encodeHeaderText(text: string): string {
  if (/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith('=?base64?')) return text;
  return `=?base64?${Buffer.from(text, 'utf8').toString('base64')}?=`;
}
