import type { JsonObject } from '../json.ts';
import type { Tool } from '../policy.ts';
import type { TraceContext } from '../telemetry.ts';

/** What goes to the upstream, rendered once from the arguments and kept, so that a re-send is byte-identical. */
export interface PreparedRequest {
  /** Where the upstream was when it was made, with a digest for what may not be written: it is sent again only there. */
  readonly base?: string | undefined;
  readonly method: string;
  /** Path and query below the upstream's url. */
  readonly path: string;
  /** Everything but credentials: those are added at the last moment and never stored. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
  /** How an MCP server is spoken to, so that it is spoken to in the same way again. */
  readonly manner?: McpClientProfile | undefined;
}

/** As it is stored: `true` for a body that is the arguments themselves, which are stored already. */
export type StoredRequest = Omit<PreparedRequest, 'body'> & { readonly body: string | null | true };

/** An upstream's answer, as it is stored and replayed. */
export interface UpstreamAnswer {
  readonly status: number;
  readonly contentType: string | null;
  /** UTF-8 text, or base64 when `encoding` says so. Null: the body was lost or there was none. */
  readonly body: string | null;
  readonly encoding: 'utf8' | 'base64';
}

/**
 * What one attempt tells us. Only `ok` and `ok_body_lost` prove the effect, only `not_sent` and `refused` prove its
 * absence; everything else is `ambiguous` and must never be rounded to either side.
 */
export type Outcome =
  | {
      readonly kind: 'not_sent';
      readonly detail: string;
      /** `maySend` said no: this process must not send it. */
      readonly abandoned?: boolean;
      /** An open breaker kept it back. */
      readonly heldBack?: boolean;
      /** Refused by our own rules about addresses: nothing the upstream did. */
      readonly refusedHere?: boolean;
    }
  | {
      readonly kind: 'ok';
      readonly answer: UpstreamAnswer;
      /** It answered with a question: what was asked for is not done before another call brings what it wants to know. */
      readonly wantsInput?: boolean;
    }
  | { readonly kind: 'ok_body_lost'; readonly answer: UpstreamAnswer; readonly detail: string }
  | { readonly kind: 'refused'; readonly answer: UpstreamAnswer }
  | { readonly kind: 'ambiguous'; readonly detail: string; readonly answer?: UpstreamAnswer };

export interface SendOptions {
  readonly timeoutMs: number;
  /** Asked synchronously right before the first byte: false, and nothing leaves. */
  readonly maySend: () => boolean;
  /** A connection of its own: a stale kept-alive socket must never make a `probe` or `none` call ambiguous. */
  readonly freshConnection: boolean;
  /** It carries what must be told nobody, whatever its tool redacts: the upstream is not quoted. */
  readonly discreet?: boolean | undefined;
  /** Who follows the call while it runs; nobody, when it is recovered or compensates. */
  readonly follower?: ProgressListener | undefined;
}

/** The two ways of speaking MCP: with a session and requests in both directions, or each request for itself. */
export type McpEra = 'legacy' | 'modern';

/** What of an MCP client shows in a request that is made on its behalf. */
export interface McpClientProfile {
  readonly era: McpEra;
  /** What the client said it can do: `elicitation`, `sampling`, `roots`. */
  readonly capabilities: JsonObject;
  /** Members of `_meta` that the client wants the server to see, such as its log level. */
  readonly meta: JsonObject;
}

/** An MCP client on whose behalf something is sent: it hears what the server says meanwhile, and may be asked. */
export interface ProgressListener extends McpClientProfile {
  tell(method: string, params: JsonObject): void;
  /** What the client answers; rejects when it cannot be asked. */
  ask(method: string, params: JsonObject): Promise<JsonObject>;
}

/** What a request is rendered from. */
export interface RequestInput {
  readonly args: JsonObject;
  /** The same in canonical form, where somebody made it already. */
  readonly canonicalArgs?: string | undefined;
  readonly agent: string;
  /** The manner of the MCP client that asks, if one does. */
  readonly manner?: McpClientProfile | undefined;
  /** What the upstream is to continue. */
  readonly trace?: TraceContext | undefined;
  /** What an earlier answer asked for, to be handed to the same tool. */
  readonly continuation?: Continuation | undefined;
}

/** The answers to an MCP server's questions, with the state it wants back. */
export interface Continuation {
  readonly inputResponses?: JsonObject;
  readonly requestState?: string;
}

/** The port that `adapters/` implements, one per kind of upstream. It throws nothing: every ending is an Outcome. */
export interface Adapter {
  prepare(tool: Tool, wish: RequestInput, txn: string): PreparedRequest;
  /** Whether the upstream still is where it was when a request with this `base` was made. */
  isAt(base: string | undefined): boolean;
  send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome>;
  close(): Promise<void>;
}
