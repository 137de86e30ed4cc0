import type { Vote } from './approvals/vote.ts';
import type { History, RuleInputs } from './calls/history.ts';
import type { LockMode, LockScope } from './controls/lock.ts';
import type { Json, JsonObject } from './json.ts';

/**
 * Policies after loading: parsed once, cross-checked, compiled, frozen. Everything below `gateway/policy` works on these;
 * nobody else ever sees YAML. Durations are milliseconds.
 */

/** What an expression may look at. A variable that is absent here is unknown to the expression. */
export interface ExpressionScope {
  readonly args?: JsonObject;
  readonly result?: Json;
  readonly before?: Json;
  readonly observed?: Json;
  readonly agent?: string;
  readonly tool?: string;
  readonly saga?: string | null;
  readonly run?: string | null;
  /** Unix milliseconds; seen by CEL as a timestamp. */
  readonly now?: number;
  /** What the agent did before; only rules see it. */
  readonly history?: History;
  /** Whether the agent may be obeying a stranger; only rules see it. */
  readonly tainted?: boolean;
}

/** A compiled CEL expression or `${…}` template. Throws `ExpressionError` when it cannot be evaluated. */
export type Expression<T extends Json = Json> = (scope: ExpressionScope) => T;

export class ExpressionError extends Error {
  override readonly name = 'ExpressionError';
}

export interface BreakerSettings {
  /** Share of failures, 0..1, at which it opens. */
  readonly threshold: number;
  readonly minimum: number;
  readonly windowMs: number;
  readonly cooldownMs: number;
}

export interface Upstream {
  readonly name: string;
  readonly adapter: 'http' | 'mcp';
  /** Absent for an MCP server that is started by `command`. */
  readonly url?: string;
  readonly command?: readonly string[];
  /** All that a server started by `command` sees of the environment. */
  readonly env?: Readonly<Record<string, string>>;
  /** Credentials, already resolved from environment or files. Never stored, logged or shown. */
  readonly headers: Readonly<Record<string, string>>;
  /** Every resolved secret value: scrubbed from whatever the upstream answers. */
  readonly secrets: readonly string[];
  readonly timeoutMs: number;
  readonly concurrency: number;
  readonly breaker: BreakerSettings;
  readonly allowPrivate: boolean;
  readonly import?: string;
  readonly expose: 'prefixed' | 'bare';
  /** Of all its tools that do not say otherwise, and of its resources and prompts. */
  readonly untrusted?: true;
}

/** How a repeat of this write is harmless: the question every write tool answers. */
export type OnceSpec =
  | { readonly by: 'key'; readonly header?: string; readonly field?: readonly string[]; readonly lifetimeMs: number }
  | { readonly by: 'idempotent' }
  | {
      readonly by: 'probe';
      readonly tool: string;
      readonly args: Expression;
      /** CEL over `result` (the probe's) and `args` (the call's). */
      readonly applied: Expression<boolean>;
      readonly settlesMs: number;
    }
  | { readonly by: 'none' };

export interface RequestTemplate {
  readonly method: string;
  /** The declared path, `/charges/${args.id}`, as written: proxy mode matches against it. */
  readonly pathTemplate: string;
  /** Renders the path; every interpolated value is percent-encoded as one segment. */
  readonly path: Expression<string>;
  readonly query: Readonly<Record<string, Expression>>;
  readonly headers: Readonly<Record<string, Expression>>;
  /** Absent: no body. */
  readonly body?: Expression;
}

export type UndoKind = 'reversible' | 'compensable' | 'irreversible' | 'none';

export interface UndoSpec {
  readonly kind: UndoKind;
  /** Whether the contract says anything about it. `none` that was not declared means that nobody knows how to undo it. */
  readonly declared: boolean;
  readonly tool?: string;
  /** What its arguments are made of, as declared: kept with each call, which is undone as it was promised. */
  readonly template?: Json;
}

/** Things that a call holds from before its first byte until its end is known, or longer. */
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
   * How long after an unknown attempt the world shows what it did, and nothing of it lands any more: a look after that ends
   * a doubt. Absent: a look proves nothing, and is only shown to whoever resolves it.
   */
  readonly settlesMs?: number;
}

/** What a call that brings no key is told from others by. */
export interface BusinessKey {
  readonly of: Expression;
  /** `shared`: it identifies the call alone, whoever asks and whatever key they bring. */
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

/** Every fault of arguments against the `input` of their tool, as sentences, and none when they fit; or that nobody can say. */
export type ArgumentFaults = readonly string[] | ValidationTimeout;

/** It took too long to tell, which says nothing about the arguments. */
export interface ValidationTimeout {
  /** For so long it is not tried again. */
  readonly restsForMs: number;
  /** It was not even tried: it took too long before. */
  readonly isResting: boolean;
}

/** Where there is nobody to ask again, being undecided is a fault too. */
export function listFaults(faults: ArgumentFaults): readonly string[] {
  return 'restsForMs' in faults ? ['it takes too long to tell whether they fit'] : faults;
}

export interface Tool {
  readonly name: string;
  readonly upstream: string;
  readonly description: string;
  /** A name for people. */
  readonly title?: string;
  /** The JSON Schema as declared. */
  readonly input: JsonObject;
  /** The JSON Schema of its results, if anybody said. */
  readonly output?: JsonObject;
  readonly faults: (args: JsonObject) => ArgumentFaults;
  readonly effect: 'read' | 'write';
  /** Always there for tools of an `http` upstream. */
  readonly request?: RequestTemplate;
  readonly once: OnceSpec;
  readonly key?: BusinessKey;
  readonly undo: UndoSpec;
  readonly observe?: ObserveSpec;
  readonly locks: readonly LockSpec[];
  readonly timeoutMs: number;
  readonly retry: RetryPolicy;
  /** Statuses that prove nothing happened. */
  readonly noEffect: ReadonlySet<number>;
  /** Paths such as `['args','card']`, never stored or logged in clear. */
  readonly redact: readonly (readonly string[])[];
  readonly maxResultBytes: number;
  readonly repeats: RepeatPolicy;
  /** A read that leaves nothing in the ledger, unless something else about the call needs it there. */
  readonly unrecorded?: true;
  /** Strangers can write what it answers: whoever calls it is tainted. */
  readonly untrusted?: true;
  /** SHA-256 (hex) over the declared contract, so that an approval can bind to it. */
  readonly digest: string;
  /** Why it must not be called at present, although it exists: what its server says of it has changed. */
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

/** A voter that is asked over the network. */
export interface WebhookVoter {
  readonly name: string;
  readonly url: string;
  /** Signs what is asked and what is answered. Never stored, logged or shown. */
  readonly secret: string;
  readonly allowPrivate: boolean;
  readonly withinMs: number;
}

/** One who must be convinced that a call is a good idea: an expression, or somebody at a webhook. */
export type Voter = { readonly name: string; readonly when: Expression<boolean> } | WebhookVoter;

export interface Voters {
  /** So many must approve. */
  readonly quorum: number;
  readonly of: readonly Voter[];
}

/** Where the voters of one call stand before anybody is asked over the network. */
export interface VoterPoll {
  readonly quorum: number;
  /** What the expressions say. */
  readonly votes: readonly Vote[];
  /** Who is still to be asked. */
  readonly open: readonly WebhookVoter[];
}

export interface Rule {
  /** `billing-bot rule 1 (policies/billing.yaml:12)`: how every decision names it. */
  readonly id: string;
  /** Names its limits: the same across reloads as long as its place among the rules with this pattern is. */
  readonly bucket: string;
  readonly verdict: 'allow' | 'deny';
  readonly pattern: string;
  /** Whether the pattern (exact or glob) covers this tool name. */
  readonly covers: (tool: string) => boolean;
  readonly effect?: 'read' | 'write';
  readonly when?: Expression<boolean>;
  /** What its conditions ask beside the call itself; absent: nothing. */
  readonly asks?: RuleInputs;
  readonly rate?: Rate;
  readonly budget?: Budget;
  /** `never` waives the approval that a `none` write otherwise needs. */
  readonly approve?: ApprovalSpec | 'never';
  readonly voters?: Voters;
  /** How long what it allows is held before it leaves by itself. */
  readonly delayMs?: number;
}

/** Which tokens of an OIDC issuer make their bearer an agent. */
export interface JwtSpec {
  readonly issuer: string;
  readonly audience: string;
  /** All of them must be in the token, with exactly these values. */
  readonly claims: Readonly<Record<string, string | number | boolean>>;
  /** The issuer may be at a private address, and then without TLS. */
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
  /** First 16 hex digits of SHA-256 over everything that was read: the version that calls record. */
  readonly version: string;
  /** The files they were read from, by name. */
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
      /** The rule has voters: it allows nothing unless enough of them approve. */
      readonly poll: VoterPoll | undefined;
    }
  | {
      readonly allowed: false;
      readonly code: 'denied' | 'unknown_tool';
      readonly reason: string;
      readonly rule: Rule | undefined;
    };
