import type { JsonObject } from '../json.ts';
import type { Tool } from '../policy.ts';
import type { TraceContext } from '../telemetry.ts';

/** The request to the upstream. It is rendered once and stored, so that a re-send is byte-identical. */
export interface PreparedRequest {
  /** Identifies the upstream's URL at the first send, with a digest in place of secrets. A re-send goes only there. */
  readonly base?: string | undefined;
  readonly method: string;
  /** Path and query below the upstream's url. */
  readonly path: string;
  /** All headers except credentials, which are added at the send and never stored. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
  /** The profile of the MCP client. A re-send uses the same profile. */
  readonly manner?: McpClientProfile | undefined;
}

/** The stored form. A body of `true` stands for the arguments, which are stored already. */
export type StoredRequest = Omit<PreparedRequest, 'body'> & { readonly body: string | null | true };

/** The answer of an upstream, as it is stored and replayed. */
export interface UpstreamAnswer {
  readonly status: number;
  readonly contentType: string | null;
  /** UTF-8 text or base64, by `encoding`. Null if the body was lost or empty. */
  readonly body: string | null;
  readonly encoding: 'utf8' | 'base64';
}

/**
 * The result of one attempt. Only `ok` and `ok_body_lost` prove the effect; only `not_sent` and `refused` prove its absence.
 * `accepted` proves that the upstream took the work on, not that it is done. Everything else is `ambiguous` and must never be
 * treated as either.
 */
export type Outcome =
  | {
      readonly kind: 'not_sent';
      readonly detail: string;
      /** `maySend` returned false: this replica must not send the request. */
      readonly abandoned?: boolean;
      /** An open circuit breaker stopped the request. */
      readonly heldBack?: boolean;
      /** The address rules of the gateway refused the request, so it says nothing about the upstream. */
      readonly refusedHere?: boolean;
    }
  | {
      readonly kind: 'ok';
      readonly answer: UpstreamAnswer;
      /** The tool asks for input, and does its work only when another call brings the input. */
      readonly wantsInput?: boolean;
    }
  | { readonly kind: 'ok_body_lost'; readonly answer: UpstreamAnswer; readonly detail: string }
  /** `detail` is set when the body did not arrive completely. */
  | { readonly kind: 'accepted'; readonly answer: UpstreamAnswer; readonly detail?: string }
  /** `detail` is set when the body, not the status, says that nothing happened. */
  | { readonly kind: 'refused'; readonly answer: UpstreamAnswer; readonly detail?: string }
  | { readonly kind: 'ambiguous'; readonly detail: string; readonly answer?: UpstreamAnswer };

export interface SendOptions {
  readonly timeoutMs: number;
  /** Called synchronously right before the first byte. If it returns false, nothing is sent. */
  readonly maySend: () => boolean;
  /** Use a new connection: a stale keep-alive socket must never make a `probe` or `none` call ambiguous. */
  readonly freshConnection: boolean;
  /** The request carries secrets beyond the redacted ones, so errors must not quote the upstream. */
  readonly discreet?: boolean | undefined;
  /** The client that receives progress; undefined for a recovered call or a compensation. */
  readonly listener?: ProgressListener | undefined;
}

/** `legacy` MCP has sessions and requests in both directions; in `modern` MCP each request stands alone. */
export type McpEra = 'legacy' | 'modern';

/** The data of an MCP client that each request on its behalf carries. */
export interface McpClientProfile {
  readonly era: McpEra;
  /** The declared capabilities: `elicitation`, `sampling`, `roots`. */
  readonly capabilities: JsonObject;
  /** Members of `_meta` for the server, such as the log level. */
  readonly meta: JsonObject;
}

/** An MCP client on whose behalf a request is sent. It receives notifications of the server and answers its questions. */
export interface ProgressListener extends McpClientProfile {
  tell(method: string, params: JsonObject): void;
  /** Resolves with the answer of the client; rejects when the client cannot be asked. */
  ask(method: string, params: JsonObject): Promise<JsonObject>;
}

/** The input from which a request is rendered. */
export interface RequestInput {
  readonly args: JsonObject;
  /** The canonical form of `args`, if the caller already computed it. */
  readonly canonicalArgs?: string | undefined;
  readonly agent: string;
  /** The profile of the calling MCP client, if there is one. */
  readonly clientProfile?: McpClientProfile | undefined;
  /** The trace that the upstream continues. */
  readonly trace?: TraceContext | undefined;
  /** The input that an earlier answer of the tool asked for. */
  readonly continuation?: Continuation | undefined;
}

/** Answers to questions of an MCP server, with the state that the server wants back. */
export interface Continuation {
  readonly inputResponses?: JsonObject;
  readonly requestState?: string;
}

/** The port that `adapters/` implements, once per kind of upstream. `send` never throws: every ending is an `Outcome`. */
export interface Adapter {
  prepare(tool: Tool, input: RequestInput, txn: string): PreparedRequest;
  /** Whether the URL of the upstream is still the one that `base` identifies. */
  isAt(base: string | undefined): boolean;
  send(tool: Tool, request: PreparedRequest, options: SendOptions): Promise<Outcome>;
  close(): Promise<void>;
}
