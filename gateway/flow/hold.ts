import type { Continuation, PreparedRequest } from '../domain/adapter.ts';
import { digest } from '../domain/audit.ts';
import { canonical } from '../domain/canonical.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { Policies, Tool } from '../domain/policy.ts';
import { pathsUnder, REDACTED, redact, scrub } from '../domain/redact.ts';
import type { Vote } from '../domain/vote.ts';
import { type OwnUndo, ownArgsShown } from './undo.ts';

/** What a person is shown of a held call. The fingerprint stands for the arguments that are redacted in it. */
export interface Shown {
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

export function whatIsShown(
  call: {
    agent: string;
    args: JsonObject;
    fingerprint: Buffer;
    rule: string;
    undo: OwnUndo | undefined;
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
  const shown: Shown = {
    agent: call.agent,
    tool: tool.name,
    contract: tool.digest,
    fingerprint: call.fingerprint.toString('hex'),
    rule: call.rule,
    args: redact(call.args, pathsUnder('args', tool.redact)),
    target: targetOf(tool, request, policies),
    undo: undoShown(tool, call, policies),
    ...(call.continuation === undefined ? {} : { input: inputShown(tool, call.continuation) }),
    ...(call.saga === undefined ? {} : { saga: call.saga }),
    ...(call.run === undefined ? {} : { run: call.run }),
    ...(call.facts === undefined ? {} : { facts: call.facts }),
    ...(call.votes === undefined || call.votes.length === 0
      ? {}
      : { voters: call.votes, votedUnder: policies.version }),
  };
  return canonical(shown as unknown as JsonObject);
}

/** A tool that redacts may ask again for what it redacts: then only the fingerprint stands for it. */
function inputShown(tool: Tool, { inputResponses, requestState }: Continuation): Json {
  if (tool.redact.length > 0) return REDACTED;
  return { responses: inputResponses ?? null, state: requestState ?? null };
}

/** How it would be undone: by the tool's contract, or as the caller says. */
export function undoShown(
  tool: Tool,
  { args, undo: own }: { readonly args: JsonObject; readonly undo?: OwnUndo | undefined },
  policies: Policies,
): Shown['undo'] {
  if (own !== undefined) {
    const shown = ownArgsShown(own, policies.tools.get(own.tool), tool, args);
    return { kind: 'compensable', tool: own.tool, args: shown };
  }
  if (!tool.undo.declared && tool.effect === 'write') return { kind: 'none', tool: null, declared: false };
  return { kind: tool.undo.kind, tool: tool.undo.tool ?? null };
}

/** Where a request goes under these policies. A path may carry redacted arguments: then only its template is shown. */
export function targetOf(tool: Tool, request: PreparedRequest, policies: Policies): Shown['target'] {
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
export function digestOf(shown: string, policyVersion: string): string {
  return digest(`${policyVersion}\n${shown}`);
}
