import type { Json } from './json.ts';

/** A JSON-RPC error of an MCP server, passed on unchanged. */
export class McpError extends Error {
  override readonly name = 'McpError';
  readonly code: number;
  readonly data: Json | undefined;

  constructor(code: number, message: string, data?: Json) {
    super(message);
    this.code = code;
    this.data = data;
  }
}
