import type { Vote } from './approvals/vote.ts';
import type { History, RuleInputs } from './calls/history.ts';
import type { LockMode, LockScope } from './controls/lock.ts';
import type { Json, JsonObject } from './json.ts';

/**
 * Loaded policies: parsed once, cross-checked, compiled and frozen. Only `gateway/policy` ever sees YAML. Durations are in
 * milliseconds.
 */

/** The variables of an expression. An expression cannot read a variable that is absent here. */
export interface ExpressionScope {
  readonly args?: JsonObject;
  readonly result?: Json;
  readonly before?: Json;
  readonly observed?: Json;
  /** The status of the answer. CEL sees an int. */
  readonly status?: number;
  readonly agent?: string;
  readonly tool?: string;
  readonly saga?: string | null;
  readonly run?: string | null;
  /** Unix milliseconds. CEL sees a timestamp. */
  readonly now?: number;
  /** The history of the agent. Only rules see it. */
  readonly history?: History;
  /** Whether the agent may have read untrusted content. Only rules see it. */
  readonly tainted?: boolean;
}

/** A compiled CEL expression or `${…}` template. Throws `ExpressionError` when the evaluation fails. */
export type Expression<T extends Json = Json> = (scope: ExpressionScope) => T;

export class ExpressionError extends Error {
  override readonly name = 'ExpressionError';
}

export interface BreakerSettings {
  /** The share of failures, from 0 to 1, at which the breaker opens. */
  readonly threshold: number;
  readonly minimum: number;
  readonly windowMs: number;
  readonly cooldownMs: number;
}

export interface Upstream {
  readonly name: string;
  readonly adapter: 'http' | 'mcp';
  /** Absent for an MCP server that `command` starts. */
  readonly url?: string;
  readonly command?: readonly string[];
  /** The whole environment of a server that `command` starts. */
  readonly env?: Readonly<Record<string, string>>;
  /** Credentials, resolved from environment or files. Never stored, logged or shown. */
  readonly headers: Readonly<Record<string, string>>;
  /** Every resolved secret. The gateway scrubs them from the answers of the upstream. */
  readonly secrets: readonly string[];
  readonly timeoutMs: number;
  readonly concurrency: number;
  readonly breaker: BreakerSettings;
  readonly allowPrivate: boolean;
  readonly import?: string;
  readonly expose: 'prefixed' | 'bare';
  /** The default for its tools. Also applies to its resources and prompts. */
  readonly untrusted?: true;
}

/** What makes the repeat of a write harmless. Every write tool declares it. */
export type OnceSpec =
  | { readonly by: 'key'; readonly header?: string; readonly field?: readonly string[]; readonly lifetimeMs: number }
  | { readonly by: 'idempotent' }
  | {
      readonly by: 'probe';
      readonly tool: string;
      readonly args: Expression;
      /** CEL over `result` of the probe and `args` of the call. */
      readonly applied: Expression<boolean>;
      /** The result of a call whose probe found the effect; absent: the result of the probe. CEL over `result` and `args`. */
      readonly result?: Expression;
      readonly settlesMs: number;
    }
  | { readonly by: 'none' };

export interface RequestTemplate {
  readonly method: string;
  /** The path as declared: `/charges/${args.id}`. The proxy route matches requests against it. */
  readonly pathTemplate: string;
  /** Renders the path; every interpolated value is percent-encoded as one segment. */
  readonly path: Expression<string>;
  readonly query: Readonly<Record<string, Expression>>;
  readonly headers: Readonly<Record<string, Expression>>;
  /** Absent if the request has no body. */
  readonly body?: Expression;
}

export type UndoKind = 'reversible' | 'compensable' | 'irreversible' | 'none';

export interface UndoSpec {
  readonly kind: UndoKind;
  /** Whether the contract declares `undo`. An undeclared `none` means that the undo is unknown. */
  readonly declared: boolean;
  readonly tool?: string;
  /** The declared template of the arguments. Each call stores it, so that a later contract does not change the undo. */
  readonly template?: Json;
}

/** Locks that a call takes before its first byte. It holds them until it is final, or until its saga or run ends. */
export interface LockSpec {
  readonly keys: Expression<string[]>;
  readonly mode: LockMode;
  readonly for: LockScope;
}

export interface ObserveSpec {
  readonly tool: string;
  readonly args: Expression;
  /** CEL over `observed` and `args`. */
  readonly satisfied: Expression<boolean>;
  /**
   * How long after an unknown attempt its effect may still become visible to a read. An observation after that time ends a
   * doubt. Absent: an observation proves nothing, and is only shown to the person who resolves the doubt.
   */
  readonly settlesMs?: number;
}

/** A key that a tool derives from the call. With scope `agent`, it applies only to calls without an idempotency key. */
export interface BusinessKey {
  readonly of: Expression;
  /** `shared`: calls with equal business keys are one call, even of different agents or with different idempotency keys. */
  readonly scope: 'agent' | 'shared';
}

export interface RetryPolicy {
  readonly attempts: number;
  readonly baseMs: number;
  readonly maxMs: number;
  readonly withinMs: number;
}

export interface RepeatPolicy {
  readonly policy: 'replay' | 'hold' | 'run';
  readonly windowMs: number;
}

/** The result of a check against the `input` schema: one sentence per fault, none if the arguments match; or a timeout. */
export type ArgumentFaults = readonly string[] | ValidationTimeout;

/** The check took too long, which says nothing about the arguments. */
export interface ValidationTimeout {
  /** How long the schema is not used again. The caller may retry after this time. */
  readonly retryAfterMs: number;
  /** The check was skipped, because an earlier one timed out. */
  readonly wasSkipped: boolean;
}

/** Counts a timeout as a fault, for callers that cannot retry. */
export function listFaults(faults: ArgumentFaults): readonly string[] {
  return 'retryAfterMs' in faults ? ['the check of the arguments against the schema takes too long'] : faults;
}

export interface Tool {
  readonly name: string;
  readonly upstream: string;
  readonly description: string;
  /** A name for people. */
  readonly title?: string;
  /** The JSON Schema as declared. */
  readonly input: JsonObject;
  /** The JSON Schema of the results, if declared. */
  readonly output?: JsonObject;
  readonly faults: (args: JsonObject) => ArgumentFaults;
  readonly effect: 'read' | 'write';
  /** Present for every tool of an `http` upstream. */
  readonly request?: RequestTemplate;
  readonly once: OnceSpec;
  readonly key?: BusinessKey;
  readonly undo: UndoSpec;
  readonly observe?: ObserveSpec;
  readonly locks: readonly LockSpec[];
  readonly timeoutMs: number;
  readonly retry: RetryPolicy;
  /** Statuses that prove that nothing happened. */
  readonly noEffect: ReadonlySet<number>;
  /** Whether a 2xx answer says that nothing happened. CEL over `status` and `result`. */
  readonly failed?: Expression<boolean>;
  /** Statuses from 200 to 299 that say that the upstream took the work on and may not have done it yet. */
  readonly accepted: ReadonlySet<number>;
  /** The tool that the proxy route takes, if several tools have this method and path. */
  readonly isProxyTarget?: true;
  /** Paths such as `['args','card']`. Their values are never stored or logged in clear. */
  readonly redact: readonly (readonly string[])[];
  readonly maxResultBytes: number;
  readonly repeats: RepeatPolicy;
  /** A read that the ledger does not record, unless another property of the call requires a record. */
  readonly unrecorded?: true;
  /** Outsiders can write the results, so a call taints its caller. */
  readonly untrusted?: true;
  /** SHA-256 (hex) over the declared contract. An approval binds to it. */
  readonly digest: string;
  /** Why the tool must not be called now: its MCP server changed the definition. */
  readonly disabled?: string;
}

export interface Rate {
  readonly limit: number;
  readonly perMs: number;
}

export interface Budget {
  readonly sum: Expression;
  readonly max: number;
  readonly perMs: number;
}

export interface ApprovalSpec {
  readonly when?: Expression<boolean>;
  /** Groups that may decide; empty means any approver. */
  readonly by: readonly string[];
  readonly quorum: number;
  readonly withinMs: number;
}

/** A voter that the gateway asks over the network. */
export interface WebhookVoter {
  readonly name: string;
  readonly url: string;
  /** Signs requests and answers. Never stored, logged or shown. */
  readonly secret: string;
  readonly allowPrivate: boolean;
  readonly withinMs: number;
}

/** A voter on calls: an expression or a webhook. */
export type Voter = { readonly name: string; readonly when: Expression<boolean> } | WebhookVoter;

export interface Voters {
  /** The number of approvals that a call needs. */
  readonly quorum: number;
  readonly of: readonly Voter[];
}

/** The votes on a call before webhooks are asked. */
export interface VoterPoll {
  readonly quorum: number;
  /** The votes of the expressions. */
  readonly votes: readonly Vote[];
  /** The voters still to be asked. */
  readonly open: readonly WebhookVoter[];
}

export interface Rule {
  /** The name in every decision: `billing-bot rule 1 (policies/billing.yaml:12)`. */
  readonly id: string;
  /** The name under which its limits count. A reload keeps it if the rule keeps its position among rules of the same pattern. */
  readonly bucket: string;
  readonly verdict: 'allow' | 'deny';
  readonly pattern: string;
  /** Whether the pattern (exact or glob) covers this tool name. */
  readonly covers: (tool: string) => boolean;
  readonly effect?: 'read' | 'write';
  readonly when?: Expression<boolean>;
  /** The history and taint that its conditions read; absent if none. */
  readonly requiredFacts?: RuleInputs;
  readonly rate?: Rate;
  readonly budget?: Budget;
  /** `never` waives the approval that a write with `once: { by: none }` otherwise needs. */
  readonly approve?: ApprovalSpec | 'never';
  readonly voters?: Voters;
  /** How long an allowed call is held before it is sent. */
  readonly delayMs?: number;
}

/** The tokens of an OIDC issuer that identify an agent. */
export interface JwtSpec {
  readonly issuer: string;
  readonly audience: string;
  /** The token must have all of these claims with exactly these values. */
  readonly claims: Readonly<Record<string, string | number | boolean>>;
  /** The issuer may have a private address, and then no TLS. */
  readonly allowPrivate: boolean;
}

export interface Agent {
  readonly name: string;
  /** SHA-256 digests (32 bytes) of the bearer keys. */
  readonly keys: readonly Buffer[];
  readonly jwt?: JwtSpec;
  readonly rules: readonly Rule[];
}

export type Role = 'viewer' | 'approver' | 'operator' | 'admin';

export interface Person {
  readonly name: string;
  readonly keys: readonly Buffer[];
  readonly roles: readonly Role[];
  readonly groups: readonly string[];
}

export interface Policies {
  /** The first 16 hex digits of SHA-256 over all files. Calls record this version. */
  readonly version: string;
  /** The names of the files. */
  readonly files: readonly string[];
  readonly upstreams: ReadonlyMap<string, Upstream>;
  readonly tools: ReadonlyMap<string, Tool>;
  readonly agents: ReadonlyMap<string, Agent>;
  readonly people: ReadonlyMap<string, Person>;
}

export type PolicyDecision =
  | {
      readonly allowed: true;
      readonly tool: Tool;
      readonly rule: Rule;
      readonly hold: ApprovalSpec | undefined;
      /** Present if the rule has voters. The call needs enough approvals. */
      readonly poll: VoterPoll | undefined;
    }
  | {
      readonly allowed: false;
      readonly code: 'denied' | 'unknown_tool';
      readonly reason: string;
      readonly rule: Rule | undefined;
    };
