// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a message shows a template
import { createHash } from 'node:crypto';
import { canonicalize } from '../../domain/canonical.ts';
import { parseDurationMs } from '../../domain/duration.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { BusinessKey, ObserveSpec, OnceSpec, Tool, UndoSpec, Upstream } from '../../domain/policy.ts';
import type { DeclaredEntry } from '../declarations.ts';
import { type CompileOptions, compileCondition, type ScopeVariable } from '../expressions/compile-expression.ts';
import { compileTemplate, splitTemplate, type TemplateCompileOptions } from '../expressions/compile-template.ts';
import {
  type Diagnostics,
  type DocumentPath,
  didYouMean,
  formatList,
  locateChild,
  locateKey,
  type SourceLocation,
} from '../faults.ts';
import type { KeyDeclaration, LockDeclaration, ToolDeclaration } from '../policy-file-schema.ts';
import { formatShortValue } from '../zod-issues.ts';
import { type ArgumentCheck, compileInputSchema, readDeclaredArguments } from './compile-input-schema.ts';
import { compileLock, LOCK_VARIABLES } from './compile-locks.ts';
import { compileRequest } from './compile-request.ts';
import { isReservedHeader } from './compile-upstream.ts';

export const TOOL_DEFAULTS = {
  effect: 'write',
  input: { type: 'object' },
  lifetimeMs: 24 * 3_600_000,
  settlesMs: 30_000,
  retry: { attempts: 5, baseMs: 200, maxMs: 30_000, withinMs: 3_600_000 },
  /** For HTTP tools only. An MCP server refuses in its own messages, and the status of a proxy in front of it proves nothing. */
  noEffect: [400, 401, 403, 404, 422, 429],
  accepted: [202],
  maxResultBytes: 1_048_576,
  repeats: { policy: 'replay', windowMs: 60_000 },
} as const;

/** A tool being compiled: its declaration and the options for its expressions. */
export interface ToolCompilation {
  readonly name: string;
  readonly location: SourceLocation;
  readonly value: ToolDeclaration;
  readonly diagnostics: Diagnostics;
  /** The options of the template at a path of this tool. Reading an undeclared argument is a fault. */
  templateOptions(
    path: DocumentPath,
    variables: readonly ScopeVariable[],
    strictness?: 'declared' | 'closed',
  ): TemplateCompileOptions;
  condition(
    path: DocumentPath,
    source: string | boolean,
    variables: readonly ScopeVariable[],
    hasOwner?: CompileOptions['hasOwner'],
  ): ReturnType<typeof compileCondition>;
}

export function compileTool(
  declared: DeclaredEntry<ToolDeclaration>,
  upstream: { readonly compiled: Upstream | undefined; readonly raw: unknown },
  diagnostics: Diagnostics,
): Tool | undefined {
  const { name, location, value } = declared;
  if (value === undefined) return undefined;
  const input = (value.input ?? TOOL_DEFAULTS.input) as JsonObject;
  const context = createToolCompilation(name, location, value, input, diagnostics);
  const effect = value.effect ?? TOOL_DEFAULTS.effect;
  if (effect === 'read') rejectWriteOnlyKeys(context);
  if (value.record === false) rejectLedgerKeys(context, effect);
  const adapter = upstream.compiled?.adapter;
  if (adapter === 'mcp' && value.request !== undefined) {
    diagnostics.addError(
      locateKey(location, 'request'),
      `request is only for tools of http upstreams, and ${value.upstream} is an mcp upstream. Remove it.`,
    );
  }
  if (adapter === 'mcp' && value.proxy !== undefined) {
    diagnostics.addError(
      locateKey(location, 'proxy'),
      `proxy is only for tools of http upstreams, and ${value.upstream} is an mcp upstream. Remove it.`,
    );
  }
  const timeoutMs = value.timeout === undefined ? (upstream.compiled?.timeoutMs ?? 0) : parseDurationMs(value.timeout);
  return {
    name,
    upstream: value.upstream,
    description: value.description ?? '',
    ...(value.title !== undefined && { title: value.title }),
    ...(value.output !== undefined && {
      output: compileOutput(value.output as JsonObject, locateChild(location, 'output'), diagnostics),
    }),
    input,
    faults: compileArgumentCheck(input, locateChild(location, 'input'), diagnostics),
    effect,
    ...(adapter === 'http' && { request: compileRequest(context) }),
    once: compileOnce(context),
    ...(value.key !== undefined && { key: compileKey(context, value.key) }),
    undo: compileUndo(context),
    ...(value.observe !== undefined && { observe: compileObserve(context, value.observe) }),
    locks: (value.locks ?? []).map((lock, index) =>
      compileLock(
        lock,
        context.templateOptions(typeof lock === 'string' ? ['locks', index] : ['locks', index, 'key'], LOCK_VARIABLES),
      ),
    ),
    timeoutMs,
    retry: compileRetry(context),
    noEffect: new Set(value.noEffect ?? (adapter === 'mcp' ? [] : TOOL_DEFAULTS.noEffect)),
    ...(value.failed !== undefined && {
      failed: context.condition(['failed'], value.failed, ['status', 'result'], 'object'),
    }),
    accepted: new Set(value.accepted ?? TOOL_DEFAULTS.accepted),
    ...(value.proxy === true && { isProxyTarget: true as const }),
    redact: compileRedact(context, input),
    maxResultBytes: value.result?.maxBytes ?? TOOL_DEFAULTS.maxResultBytes,
    repeats: {
      policy: value.repeats?.policy ?? TOOL_DEFAULTS.repeats.policy,
      windowMs:
        value.repeats?.window === undefined ? TOOL_DEFAULTS.repeats.windowMs : parseDurationMs(value.repeats.window),
    },
    ...(value.record === false && { unrecorded: true as const }),
    ...((value.untrusted ?? upstream.compiled?.untrusted) === true && { untrusted: true as const }),
    digest: digestContract({ name, tool: value, upstream: upstream.raw }),
  };
}

function createToolCompilation(
  name: string,
  location: SourceLocation,
  value: ToolDeclaration,
  input: JsonObject,
  diagnostics: Diagnostics,
): ToolCompilation {
  const declared = readDeclaredArguments(input);
  const explainUnknown = (argument: string): string | undefined =>
    declared === undefined || declared.names.has(argument) ? undefined : describeUnknown(argument, declared.names);
  return {
    name,
    location,
    value,
    diagnostics,
    templateOptions: (path, variables, strictness = 'declared') => ({
      variables,
      reportFault: (message, below, offset) =>
        diagnostics.addError(locateChild(location, ...path, ...below), message, offset),
      reportArgumentRead: (argument, below, offset) => {
        const message = explainUnknown(argument);
        if (message === undefined) return;
        if (strictness === 'declared' || declared?.closed)
          diagnostics.addError(locateChild(location, ...path, ...below), message, offset);
        else diagnostics.addWarning(locateChild(location, ...path, ...below), message, offset);
      },
    }),
    condition: (path, source, variables, hasOwner) =>
      compileCondition(unwrapTemplate(String(source)), {
        variables,
        ...(hasOwner !== undefined && { hasOwner }),
        reportFault: (message, offset) => diagnostics.addError(locateChild(location, ...path), message, offset),
        reportArgumentRead: (argument, offset) => {
          const message = explainUnknown(argument);
          if (message !== undefined) diagnostics.addError(locateChild(location, ...path), message, offset);
        },
      }),
  };
}

/** Removes a `${…}` around a whole expression, where CEL is expected anyway. */
export function unwrapTemplate(source: string): string {
  const parts = source.startsWith('${') ? splitTemplate(source) : [];
  const [only] = Array.isArray(parts) ? parts : [];
  return Array.isArray(parts) && parts.length === 1 && only !== undefined && 'expression' in only
    ? only.expression
    : source;
}

function describeUnknown(argument: string, names: ReadonlySet<string>): string {
  const known = formatList(names) || 'none';
  return `The input schema has no argument ${argument}.${didYouMean(argument, names)} Its arguments: ${known}.`;
}

function rejectWriteOnlyKeys({ value, location, diagnostics }: ToolCompilation): void {
  for (const key of ['once', 'repeats', 'observe', 'undo'] as const) {
    if (value[key] === undefined || (key === 'undo' && value.undo?.kind === 'none')) continue;
    diagnostics.addError(
      locateKey(location, key),
      `${key} is only for writes, because a read has no effect. Remove it, or write effect: write.`,
    );
  }
}

/** Refuses keys that need a record in the ledger. */
function rejectLedgerKeys({ value, location, diagnostics }: ToolCompilation, effect: Tool['effect']): void {
  if (effect === 'write') {
    diagnostics.addError(
      locateKey(location, 'record'),
      'record: false is only for reads, because an unrecorded write could happen twice. Remove it, or write effect: read.',
    );
    return;
  }
  for (const key of ['key', 'locks'] as const) {
    if (value[key] === undefined) continue;
    diagnostics.addError(
      locateKey(location, key),
      `${key} needs a record in the ledger. Remove ${key} or record: false.`,
    );
  }
}

function compileArgumentCheck(input: JsonObject, location: SourceLocation, diagnostics: Diagnostics): ArgumentCheck {
  const compiled = compileInputSchema(input);
  if ('check' in compiled) return compiled.check;
  for (const fault of compiled.faults) diagnostics.addError(locateChild(location, ...fault.path), fault.message);
  return () => [];
}

/** Checks that the output schema is valid. Clients receive it and may check results against it; the gateway does not. */
function compileOutput(output: JsonObject, location: SourceLocation, diagnostics: Diagnostics): JsonObject {
  const compiled = compileInputSchema(output);
  if ('faults' in compiled)
    for (const fault of compiled.faults) diagnostics.addError(locateChild(location, ...fault.path), fault.message);
  return output;
}

function compileOnce(context: ToolCompilation): OnceSpec {
  const { value, location, diagnostics } = context;
  const once = value.once ?? { by: 'none' as const };
  if (once.by === 'idempotent' || once.by === 'none') return { by: once.by };
  if (once.by === 'key') {
    if ((once.header === undefined) === (once.field === undefined)) {
      diagnostics.addError(
        locateChild(location, 'once'),
        `once by key must have either header or field (got ${once.header === undefined ? 'neither' : 'both'}).`,
      );
    }
    // Oncegate-Txn carries the id of the call, so it may be the key. No other reserved header may.
    if (once.header !== undefined && isReservedHeader(once.header) && once.header.toLowerCase() !== 'oncegate-txn')
      diagnostics.addError(
        locateChild(location, 'once', 'header'),
        `The gateway itself writes the header ${once.header}. Choose another header for the key.`,
      );
    return {
      by: 'key',
      ...(once.header !== undefined && { header: once.header }),
      ...(once.field !== undefined && { field: once.field.split('.') }),
      lifetimeMs: once.lifetime === undefined ? TOOL_DEFAULTS.lifetimeMs : parseDurationMs(once.lifetime),
    };
  }
  return {
    by: 'probe',
    tool: once.probe.tool,
    args: compileTemplate(once.probe.args ?? {}, context.templateOptions(['once', 'probe', 'args'], ['args', 'agent'])),
    applied: context.condition(['once', 'probe', 'applied'], once.probe.applied, ['result', 'args'], 'object_or_null'),
    ...(once.probe.result !== undefined && {
      result: compileTemplate(
        once.probe.result,
        context.templateOptions(['once', 'probe', 'result'], ['result', 'args', 'agent']),
      ),
    }),
    settlesMs: once.settles === undefined ? TOOL_DEFAULTS.settlesMs : parseDurationMs(once.settles),
  };
}

/** Refuses a constant key, because it would make all calls one call. */
function compileKey(
  { value, location, diagnostics, templateOptions }: ToolCompilation,
  key: KeyDeclaration,
): BusinessKey {
  const { of, scope = 'agent' } = typeof key === 'string' ? { of: key } : key;
  const path: DocumentPath = typeof key === 'string' ? ['key'] : ['key', 'of'];
  const parts = splitTemplate(of);
  if (Array.isArray(parts) && !parts.some((part) => 'expression' in part)) {
    diagnostics.addError(
      locateChild(location, ...path),
      `The key ${formatShortValue(of)} is the same for every call. Write an expression such as "\${args.order_id}".`,
    );
  }
  if (scope === 'shared' && value.effect === 'read')
    diagnostics.addError(
      locateChild(location, 'key', 'scope'),
      'scope: shared is only for writes, because a read has no effect to share. Remove it.',
    );
  // A shared key must not read the agent, the saga or the run, because it would then differ between agents.
  const variables: ScopeVariable[] = scope === 'shared' ? ['args'] : ['args', 'agent', 'saga', 'run'];
  return { of: compileTemplate(of, templateOptions(path, variables, 'closed')), scope };
}

function compileUndo(context: ToolCompilation): UndoSpec {
  const { value, location, diagnostics } = context;
  const undo = value.undo;
  if (undo === undefined) return { kind: 'none', declared: false };
  const canUndo = undo.kind === 'compensable' || undo.kind === 'reversible';
  if (canUndo && undo.tool === undefined)
    diagnostics.addError(locateChild(location, 'undo'), `undo of kind ${undo.kind} must name the tool that undoes it.`);
  if (!canUndo && undo.tool !== undefined) {
    diagnostics.addError(
      locateKey(location, 'undo', 'tool'),
      `undo of kind ${undo.kind} must not name a tool. Remove tool, or write kind: compensable or kind: reversible.`,
    );
  }
  const variables: ScopeVariable[] = [
    'args',
    'result',
    'agent',
    ...(value.observe === undefined ? [] : (['before'] as const)),
  ];
  const template = (undo.args ?? {}) as Json;
  // Compiled here only to report its faults. A call is undone by the template that is stored with it.
  if (undo.tool !== undefined) compileTemplate(template, context.templateOptions(['undo', 'args'], variables));
  return { kind: undo.kind, declared: true, ...(undo.tool !== undefined && { tool: undo.tool, template }) };
}

function compileObserve(context: ToolCompilation, observe: NonNullable<ToolDeclaration['observe']>): ObserveSpec {
  const { value, location, diagnostics } = context;
  if (observe.settles !== undefined && value.once?.by === 'probe')
    diagnostics.addError(
      locateKey(location, 'observe', 'settles'),
      'The probe of this tool ends its doubts, so settles belongs to once. Move it there.',
    );
  else if (observe.settles !== undefined && !value.locks?.some(isExclusiveLock)) {
    const message =
      'settles needs an exclusive lock, because otherwise another caller may have caused what the read shows. Declare one in locks.';
    diagnostics.addWarning(locateKey(location, 'observe', 'settles'), message);
  }
  return {
    tool: observe.tool,
    args: compileTemplate(observe.args ?? {}, context.templateOptions(['observe', 'args'], ['args', 'agent'])),
    satisfied: context.condition(['observe', 'satisfied'], observe.satisfied, ['observed', 'args'], 'object_or_null'),
    ...(observe.settles !== undefined && { settlesMs: parseDurationMs(observe.settles) }),
  };
}

function isExclusiveLock(lock: LockDeclaration): boolean {
  return typeof lock === 'string' || lock.mode !== 'shared';
}

function compileRetry({ value, location, diagnostics }: ToolCompilation): Tool['retry'] {
  const { attempts, baseMs, maxMs, withinMs } = TOOL_DEFAULTS.retry;
  const base = value.retry?.base === undefined ? baseMs : parseDurationMs(value.retry.base);
  const max = value.retry?.max === undefined ? Math.max(maxMs, base) : parseDurationMs(value.retry.max);
  if (max < base)
    diagnostics.addError(
      locateChild(location, 'retry', 'max'),
      `max must be at least base, which is ${value.retry?.base ?? `${baseMs}ms`} (got ${value.retry?.max}).`,
    );
  return {
    attempts: value.retry?.attempts ?? attempts,
    baseMs: base,
    maxMs: max,
    withinMs: value.retry?.within === undefined ? withinMs : parseDurationMs(value.retry.within),
  };
}

/** A misspelled path would leave a secret in clear. It is a fault if the schema is closed, else a warning. */
function compileRedact({ value, location, diagnostics }: ToolCompilation, input: JsonObject): Tool['redact'] {
  const declared = readDeclaredArguments(input);
  return (value.redact ?? []).map((text, index) => {
    const path = text.split('.');
    const argument = path[1] ?? '';
    if (path[0] === 'args' && declared !== undefined && !declared.names.has(argument)) {
      const message = describeUnknown(argument, declared.names);
      if (declared.closed) diagnostics.addError(locateChild(location, 'redact', index), message);
      else diagnostics.addWarning(locateChild(location, 'redact', index), message);
    }
    return path;
  });
}

/** The digest that an approval binds to. It covers the contract as declared, so that it contains no secret. */
export function digestContract(contract: object): string {
  const json = JSON.parse(JSON.stringify(contract)) as Json;
  return createHash('sha256').update(canonicalize(json)).digest('hex');
}
