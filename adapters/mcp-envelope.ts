import type { Manner } from '../gateway/domain/adapter.ts';
import { isObject, type JsonObject } from '../gateway/domain/json.ts';

/** The revision in which every request says all there is to know. */
export const MODERN = '2026-07-28';
export const IDENTITY = { name: 'oncegate', version: '1' };

const META = 'io.modelcontextprotocol';

/** What the newer way wants in every request: which revision, who asks, and what they can do. */
export function withEnvelope(params: JsonObject, manner: Manner | undefined): JsonObject {
  const { _meta } = params;
  const meta = {
    ...(isObject(_meta) ? _meta : {}),
    ...manner?.meta,
    [`${META}/protocolVersion`]: MODERN,
    [`${META}/clientInfo`]: IDENTITY,
    [`${META}/clientCapabilities`]: manner?.capabilities ?? {},
  };
  return { ...params, _meta: meta };
}

/** What a server may believe because only the gateway says it, a client may not say through the gateway. */
export function withoutOurs(params: JsonObject): JsonObject {
  const { _meta } = params;
  if (!isObject(_meta)) return params;
  const theirs = Object.entries(_meta).filter(([name]) => !name.startsWith('oncegate/'));
  return { ...params, _meta: Object.fromEntries(theirs) };
}

export function modernHeaders(method: string, params: JsonObject): Record<string, string> {
  const name = params['name'] ?? params['uri'];
  return {
    'mcp-protocol-version': MODERN,
    'mcp-method': method,
    ...(typeof name === 'string' && NAMED.has(method) ? { 'mcp-name': headerText(name) } : {}),
  };
}

const NAMED = new Set(['tools/call', 'prompts/get', 'resources/read']);

/** As the revision wants it: plain where a header can carry it, else in base64 with a mark. */
function headerText(text: string): string {
  if (/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(text) && !text.startsWith('=?base64?')) return text;
  return `=?base64?${Buffer.from(text, 'utf8').toString('base64')}?=`;
}
