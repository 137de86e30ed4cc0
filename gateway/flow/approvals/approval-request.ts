import type { Vote } from '../../domain/approvals/vote.ts';
import type { Continuation, PreparedRequest } from '../../domain/attempts/adapter.ts';
import { sha256Hex } from '../../domain/audit/audit.ts';
import { pathsUnder, REDACTED, redact, scrub } from '../../domain/calls/redact.ts';
import { canonicalize } from '../../domain/canonical.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { Policies, Tool } from '../../domain/policy.ts';
import { type CallerUndo, redactCallerUndoArgs } from '../sagas/undo.ts';

/** What a person is shown of a held call. The fingerprint stands for the arguments that are redacted in it. */
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
  /** The saga it is a step of. */
  readonly saga?: string;
  /** The run it is made in. */
  readonly run?: string;
  /** What an MCP client answers to its tool's questions: it is sent with the arguments. */
  readonly input?: Json;
  /** What its rules asked beside the call itself, and were told. */
  readonly facts?: JsonObject;
  /** What the voters of its rule said of it before. */
  readonly voters?: readonly Vote[];
  /** The version of the policies that they voted under. */
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

/** A tool that redacts may ask again for what it redacts: then only the fingerprint stands for it. */
function previewInput(tool: Tool, { inputResponses, requestState }: Continuation): Json {
  if (tool.redact.length > 0) return REDACTED;
  return { responses: inputResponses ?? null, state: requestState ?? null };
}

/** How it would be undone: by the tool's contract, or as the caller says. */
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

/** Where a request goes under these policies. A path may carry redacted arguments: then only its template is shown. */
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

/** What a decision names: everything that was shown, under the policies in force. A change of either is another digest. */
export function computeApprovalDigest(shown: string, policyVersion: string): string {
  return sha256Hex(`${policyVersion}\n${shown}`);
}
