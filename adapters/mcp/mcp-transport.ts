import { isJsonObject, type Json, type JsonObject } from '../../gateway/domain/json.ts';

/** How an exchange with an MCP server ended, told apart by what it proves. */
export type ExchangeResult =
  /** A JSON-RPC response came back whole. */
  | { readonly as: 'answered'; readonly response: JsonObject; readonly headers: ResponseHeaders }
  /** An HTTP answer without one. */
  | {
      readonly as: 'status';
      readonly status: number;
      readonly text: string;
      readonly headers: ResponseHeaders;
      /** The server no longer knows the session in which it was asked. */
      readonly sessionGone?: boolean;
    }
  | {
      readonly as: 'not_sent';
      readonly detail: string;
      readonly abandoned?: boolean;
      readonly refusedHere?: boolean;
    }
  /** The first byte had left, and no answer will come. */
  | { readonly as: 'lost'; readonly detail: string };

export type ResponseHeaders = Readonly<Record<string, string | string[] | undefined>>;

/** One message to a server. A request has an id and waits for its response; a notification or a response waits for nothing. */
export interface OutgoingMessage {
  readonly message: JsonObject;
  /** For wires that have headers. */
  readonly headers: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly mostBytes: number;
  /** Of one event where many may come, if that is less. */
  readonly mostEventBytes?: number;
  readonly freshConnection: boolean;
  /** Asked synchronously right before the first byte. */
  readonly maySend: () => boolean;
  /** Whatever the server says before it answers. */
  readonly heard: (message: JsonObject) => void;
}

/** A way to an MCP server: HTTP or a child process. It throws nothing. */
export interface McpTransport {
  /** Whether messages carry headers. */
  readonly hasHeaders: boolean;
  exchange(outgoing: OutgoingMessage): Promise<ExchangeResult>;
  /** Listens to what the server says by itself, until it ends that or the time is up. */
  listen(outgoing: Omit<OutgoingMessage, 'message'>): Promise<void>;
  /** What the server says outside any exchange; a wire without such a channel never calls it. */
  onUnasked(heard: (message: JsonObject) => void): void;
  /** The server is a new one that knows nothing of what was said before. */
  onRestart(told: () => void): void;
  close(): Promise<void>;
}

/** Messages longer than this are no tool's answer but an attack on memory. */
export const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

/** So many of a server's own questions are being answered at once, in one exchange: what it asks beyond them is passed over. */
export const MAX_PENDING_REPLIES = 32;

const MAX_ID_LENGTH = 1_024;

/** What a server wrote, if it is a message at all: anything else is passed over. */
export function parseMessage(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isJsonObject(value) && hasValidIds(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Names are looked up and said again: an object could do neither, and at any depth could end the process that tries. */
function hasValidIds({ id, params }: JsonObject): boolean {
  return isValidId(id) && (!isJsonObject(params) || isValidId(params['progressToken']));
}

function isValidId(value: Json | undefined): boolean {
  if (typeof value === 'string') return value.length <= MAX_ID_LENGTH;
  return value === undefined || value === null || typeof value === 'number';
}
