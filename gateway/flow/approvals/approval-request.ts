import type { Vote } from '../../domain/approvals/vote.ts';
import type { Continuation, PreparedRequest } from '../../domain/attempts/adapter.ts';
import { sha256Hex } from '../../domain/audit/audit.ts';
import { pathsUnder, REDACTED, redact, scrub } from '../../domain/calls/redact.ts';
import { canonicalize } from '../../domain/canonical.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { Policies, Tool } from '../../domain/policy.ts';
import { type CallerUndo, redactCallerUndoArgs } from '../sagas/undo.ts';

/** The part of a held call that a person sees. Redacted values are hidden, but the fingerprint covers them. */
export interface ShownRequest {
  readonly agent: string;
  readonly tool: string;
  readonly contract: string;
  readonly fingerprint: string;
  readonly rule: string;
  readonly args: Json;
  readonly target: { readonly upstream: string; readonly method: string; readonly url: string };
  readonly undo: {
    readonly kind: string;
    readonly tool: string | null;
    readonly args?: Json;
    readonly declared?: false;
  };
  /** The saga of which the call is a step. */
  readonly saga?: string;
  /** The run in which the call is made. */
  readonly run?: string;
  /** Answers of an MCP client to questions of the tool. They are sent with the arguments. */
  readonly input?: Json;
  /** The history and taint that the rules read. */
  readonly facts?: JsonObject;
  /** The earlier votes of the voters of the rule. */
  readonly voters?: readonly Vote[];
  /** The version of the policies under which they voted. */
  readonly votedUnder?: string;
}

export function buildShownRequest(
  call: {
    agent: string;
    args: JsonObject;
    fingerprint: Buffer;
    rule: string;
    undo: CallerUndo | undefined;
    saga: string | undefined;
    continuation?: Continuation | undefined;
    run: string | undefined;
    facts?: JsonObject | undefined;
    votes?: readonly Vote[];
  },
  tool: Tool,
  request: PreparedRequest,
  policies: Policies,
): string {
  const shown: ShownRequest = {
    agent: call.agent,
    tool: tool.name,
    contract: tool.digest,
    fingerprint: call.fingerprint.toString('hex'),
    rule: call.rule,
    args: redact(call.args, pathsUnder('args', tool.redact)),
    target: resolveTarget(tool, request, policies),
    undo: previewUndo(tool, call, policies),
    ...(call.continuation === undefined ? {} : { input: previewInput(tool, call.continuation) }),
    ...(call.saga === undefined ? {} : { saga: call.saga }),
    ...(call.run === undefined ? {} : { run: call.run }),
    ...(call.facts === undefined ? {} : { facts: call.facts }),
    ...(call.votes === undefined || call.votes.length === 0
      ? {}
      : { voters: call.votes, votedUnder: policies.version }),
  };
  return canonicalize(shown as unknown as JsonObject);
}

/** Hides the input if the tool redacts, because the tool may ask for a redacted value. The fingerprint still covers the input. */
function previewInput(tool: Tool, { inputResponses, requestState }: Continuation): Json {
  if (tool.redact.length > 0) return REDACTED;
  return { responses: inputResponses ?? null, state: requestState ?? null };
}

/** How the call would be undone: by the undo of the caller, else by the contract of the tool. */
export function previewUndo(
  tool: Tool,
  { args, undo: own }: { readonly args: JsonObject; readonly undo?: CallerUndo | undefined },
  policies: Policies,
): ShownRequest['undo'] {
  if (own !== undefined) {
    const shown = redactCallerUndoArgs(own, policies.tools.get(own.tool), tool, args);
    return { kind: 'compensable', tool: own.tool, args: shown };
  }
  if (!tool.undo.declared && tool.effect === 'write') return { kind: 'none', tool: null, declared: false };
  return { kind: tool.undo.kind, tool: tool.undo.tool ?? null };
}

/** The target of a request under these policies. A tool that redacts shows its path template, which holds no arguments. */
export function resolveTarget(tool: Tool, request: PreparedRequest, policies: Policies): ShownRequest['target'] {
  const upstream = policies.upstreams.get(tool.upstream);
  if (upstream?.adapter === 'mcp') {
    const server = scrub(upstream.url ?? upstream.command?.[0] ?? '', upstream.secrets);
    return { upstream: tool.upstream, method: request.method, url: `${server}#${request.path}` };
  }
  const base = scrub(upstream?.url ?? '', upstream?.secrets ?? []);
  const path = tool.redact.length === 0 ? request.path : (tool.request?.pathTemplate ?? '');
  return { upstream: tool.upstream, method: request.method, url: base.replace(/\/$/, '') + path };
}

/** The digest that a decision must name. It covers the shown request and the policy version. */
export function computeApprovalDigest(shown: string, policyVersion: string): string {
  return sha256Hex(`${policyVersion}\n${shown}`);
}
