import { isJsonObject, type Json, type JsonObject } from '../../gateway/domain/json.ts';

/** The end of an exchange with an MCP server. Each case says whether the server may have acted on the message. */
export type ExchangeResult =
  /** A whole JSON-RPC response arrived. */
  | { readonly as: 'answered'; readonly response: JsonObject; readonly headers: ResponseHeaders }
  /** An HTTP answer without a JSON-RPC response arrived. */
  | {
      readonly as: 'status';
      readonly status: number;
      readonly text: string;
      readonly headers: ResponseHeaders;
      /** The server no longer knows the session of the request. */
      readonly sessionGone?: boolean;
    }
  /** No byte was sent. */
  | {
      readonly as: 'not_sent';
      readonly detail: string;
      /** `maySend` returned false. */
      readonly abandoned?: boolean;
      /** The address rules of the gateway refused the request. */
      readonly refusedHere?: boolean;
    }
  /** The first byte was sent, and no answer will arrive. */
  | { readonly as: 'lost'; readonly detail: string };

export type ResponseHeaders = Readonly<Record<string, string | string[] | undefined>>;

/** One message to a server. A request has an id and waits for its response; notifications and responses do not wait. */
export interface OutgoingMessage {
  readonly message: JsonObject;
  /** Ignored by a transport without headers. */
  readonly headers: Readonly<Record<string, string>>;
  readonly timeoutMs: number;
  readonly maxBytes: number;
  /** The limit of a single event in a stream of many, if it is smaller than `maxBytes`. */
  readonly maxEventBytes?: number;
  readonly freshConnection: boolean;
  /** Called synchronously right before the first byte. If it returns false, nothing is sent. */
  readonly maySend: () => boolean;
  /** Called with each message that the server sends before it responds to this request. */
  readonly onMessage: (message: JsonObject) => void;
}

/** The transport to an MCP server: HTTP or a child process. `exchange` never rejects. */
export interface McpTransport {
  /** Whether messages carry headers. */
  readonly hasHeaders: boolean;
  exchange(outgoing: OutgoingMessage): Promise<ExchangeResult>;
  /** Listens to messages that the server sends by itself, until the server ends the stream or the time is up. */
  listen(outgoing: Omit<OutgoingMessage, 'message'>): Promise<void>;
  /** Registers the listener for messages outside `exchange` and `listen`. Only a child process sends such messages. */
  onUnsolicited(listener: (message: JsonObject) => void): void;
  /** Registers the listener for a restart of the server, after which all sessions are gone. */
  onRestart(listener: () => void): void;
  close(): Promise<void>;
}

/** The limit of one message. Longer ones could exhaust memory, and no tool needs them. */
export const MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

/** The limit of concurrent replies to server requests in one exchange. Further requests are ignored. */
export const MAX_PENDING_REPLIES = 32;

const MAX_ID_LENGTH = 1_024;

/** Parses a message of a server; undefined if the text is not a valid message. */
export function parseMessage(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isJsonObject(value) && hasValidIds(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Ids must be strings or numbers. Converting a deeply nested object to a string could exhaust the stack and end the process. */
function hasValidIds({ id, params }: JsonObject): boolean {
  return isValidId(id) && (!isJsonObject(params) || isValidId(params['progressToken']));
}

function isValidId(value: Json | undefined): boolean {
  if (typeof value === 'string') return value.length <= MAX_ID_LENGTH;
  return value === undefined || value === null || typeof value === 'number';
}
