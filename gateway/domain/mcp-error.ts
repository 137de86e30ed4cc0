import type { Json } from './json.ts';

/** An error as MCP knows them: what a server answered, passed on as it stands. */
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
