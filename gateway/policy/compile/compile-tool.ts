// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a message shows a template
import { createHash } from 'node:crypto';
import { canonicalize } from '../../domain/canonical.ts';
import { parseDurationMs } from '../../domain/duration.ts';
import type { Json, JsonObject } from '../../domain/json.ts';
import type { BusinessKey, ObserveSpec, OnceSpec, Tool, UndoSpec, Upstream } from '../../domain/policy.ts';
import type { DeclaredEntry } from '../declarations.ts';
import { compileCondition, type ScopeVariable } from '../expressions/compile-expression.ts';
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
  /** Of HTTP tools. An MCP server that refuses says so in its own words; a bare status of a proxy before it proves nothing. */
  noEffect: [400, 401, 403, 404, 422, 429],
  maxResultBytes: 1_048_576,
  repeats: { policy: 'replay', windowMs: 60_000 },
} as const;

/** A tool being compiled: its declaration, and how its expressions report. */
export interface ToolCompilation {
  readonly name: string;
  readonly place: SourceLocation;
  readonly value: ToolDeclaration;
  readonly report: Diagnostics;
  /** A template's site below this tool; unknown arguments are faults there. */
  site(path: DocumentPath, sees: readonly ScopeVariable[], strictness?: 'declared' | 'closed'): TemplateCompileOptions;
  condition(
    path: DocumentPath,
    source: string | boolean,
    sees: readonly ScopeVariable[],
  ): ReturnType<typeof compileCondition>;
}

export function compileTool(
  declared: DeclaredEntry<ToolDeclaration>,
  upstream: { readonly compiled: Upstream | undefined; readonly raw: unknown },
  report: Diagnostics,
): Tool | undefined {
  const { name, place, value } = declared;
  if (value === undefined) return undefined;
  const input = (value.input ?? TOOL_DEFAULTS.input) as JsonObject;
  const context = createToolCompilation(name, place, value, input, report);
  const effect = value.effect ?? TOOL_DEFAULTS.effect;
  if (effect === 'read') rejectWriteOnlyKeys(context);
  if (value.record === false) rejectLedgerKeys(context, effect);
  const adapter = upstream.compiled?.adapter;
  if (adapter === 'mcp' && value.request !== undefined) {
    report.addError(locateKey(place, 'request'), 'request is only for tools of http upstreams');
  }
  const timeoutMs = value.timeout === undefined ? (upstream.compiled?.timeoutMs ?? 0) : parseDurationMs(value.timeout);
  return {
    name,
    upstream: value.upstream,
    description: value.description ?? '',
    ...(value.title !== undefined && { title: value.title }),
    ...(value.output !== undefined && {
      output: compileOutput(value.output as JsonObject, locateChild(place, 'output'), report),
    }),
    input,
    faults: compileArgumentCheck(input, locateChild(place, 'input'), report),
    effect,
    ...(adapter === 'http' && { request: compileRequest(context) }),
    once: compileOnce(context),
    ...(value.key !== undefined && { key: compileKey(context, value.key) }),
    undo: compileUndo(context),
    ...(value.observe !== undefined && { observe: compileObserve(context, value.observe) }),
    locks: (value.locks ?? []).map((lock, index) =>
      compileLock(
        lock,
        context.site(typeof lock === 'string' ? ['locks', index] : ['locks', index, 'key'], LOCK_VARIABLES),
      ),
    ),
    timeoutMs,
    retry: compileRetry(context),
    noEffect: new Set(value.noEffect ?? (adapter === 'mcp' ? [] : TOOL_DEFAULTS.noEffect)),
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
  place: SourceLocation,
  value: ToolDeclaration,
  input: JsonObject,
  report: Diagnostics,
): ToolCompilation {
  const declared = readDeclaredArguments(input);
  const unknown = (argument: string): string | undefined =>
    declared === undefined || declared.names.has(argument)
      ? undefined
      : `args.${argument} is not in the input schema (it has: ${formatList(declared.names) || 'nothing'})${didYouMean(argument, declared.names)}`;
  return {
    name,
    place,
    value,
    report,
    site: (path, sees, strictness = 'declared') => ({
      sees,
      fault: (message, below, offset) => report.addError(locateChild(place, ...path, ...below), message, offset),
      reads: (argument, below, offset) => {
        const message = unknown(argument);
        if (message === undefined) return;
        if (strictness === 'declared' || declared?.closed)
          report.addError(locateChild(place, ...path, ...below), message, offset);
        else report.addWarning(locateChild(place, ...path, ...below), message, offset);
      },
    }),
    condition: (path, source, sees) =>
      compileCondition(unwrapTemplate(String(source)), {
        sees,
        fault: (message, offset) => report.addError(locateChild(place, ...path), message, offset),
        reads: (argument, offset) => {
          const message = unknown(argument);
          if (message !== undefined) report.addError(locateChild(place, ...path), message, offset);
        },
      }),
  };
}

/** Where CEL itself is expected, `${expr}` around all of it is harmless. */
export function unwrapTemplate(source: string): string {
  const parts = source.startsWith('${') ? splitTemplate(source) : [];
  const [only] = Array.isArray(parts) ? parts : [];
  return Array.isArray(parts) && parts.length === 1 && only !== undefined && 'expression' in only
    ? only.expression
    : source;
}

function rejectWriteOnlyKeys({ value, place, report }: ToolCompilation): void {
  for (const key of ['once', 'repeats', 'observe', 'undo'] as const) {
    if (value[key] === undefined || (key === 'undo' && value.undo?.kind === 'none')) continue;
    report.addError(locateKey(place, key), `${key} is for writes: a read has no effect to repeat or undo`);
  }
}

/** What must be known later has to be written down. */
function rejectLedgerKeys({ value, place, report }: ToolCompilation, effect: Tool['effect']): void {
  if (effect === 'write') {
    report.addError(
      locateKey(place, 'record'),
      'record: false is for reads: a write that nobody recorded could happen twice',
    );
    return;
  }
  for (const key of ['key', 'locks'] as const) {
    if (value[key] === undefined) continue;
    report.addError(locateKey(place, key), `${key} needs the ledger: leave out record: false, or ${key}`);
  }
}

function compileArgumentCheck(input: JsonObject, place: SourceLocation, report: Diagnostics): ArgumentCheck {
  const compiled = compileInputSchema(input);
  if ('check' in compiled) return compiled.check;
  for (const fault of compiled.faults) report.addError(locateChild(place, ...fault.path), fault.message);
  return () => [];
}

/** Shown to clients, who may check results against it; checked here only for being a schema that can be shown. */
function compileOutput(output: JsonObject, place: SourceLocation, report: Diagnostics): JsonObject {
  const compiled = compileInputSchema(output);
  if ('faults' in compiled)
    for (const fault of compiled.faults) report.addError(locateChild(place, ...fault.path), fault.message);
  return output;
}

function compileOnce(context: ToolCompilation): OnceSpec {
  const { value, place, report } = context;
  const once = value.once ?? { by: 'none' as const };
  if (once.by === 'idempotent' || once.by === 'none') return { by: once.by };
  if (once.by === 'key') {
    if ((once.header === undefined) === (once.field === undefined)) {
      report.addError(locateChild(place, 'once'), 'once by key needs exactly one of header and field');
    }
    // The key may well be the id that every request has; no other header of the gateway's can carry it.
    if (once.header !== undefined && isReservedHeader(once.header) && once.header.toLowerCase() !== 'oncegate-txn')
      report.addError(
        locateChild(place, 'once', 'header'),
        `${once.header} is written by the gateway itself: choose another`,
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
    args: compileTemplate(once.probe.args ?? {}, context.site(['once', 'probe', 'args'], ['args', 'agent'])),
    applied: context.condition(['once', 'probe', 'applied'], once.probe.applied, ['result', 'args']),
    settlesMs: once.settles === undefined ? TOOL_DEFAULTS.settlesMs : parseDurationMs(once.settles),
  };
}

/** A key that is the same for every call would make all of them one call. */
function compileKey({ value, place, report, site }: ToolCompilation, key: KeyDeclaration): BusinessKey {
  const { of, scope = 'agent' } = typeof key === 'string' ? { of: key } : key;
  const path: DocumentPath = typeof key === 'string' ? ['key'] : ['key', 'of'];
  const parts = splitTemplate(of);
  if (Array.isArray(parts) && !parts.some((part) => 'expression' in part)) {
    report.addError(locateChild(place, ...path), 'this key is the same for every call: write "${args.order_id}"');
  }
  if (scope === 'shared' && value.effect === 'read')
    report.addError(
      locateChild(place, 'key', 'scope'),
      'a read has no effect to share: several agents read for themselves',
    );
  // What tells agents apart would make a shared key one for each of them again.
  const sees: ScopeVariable[] = scope === 'shared' ? ['args'] : ['args', 'agent', 'saga', 'run'];
  return { of: compileTemplate(of, site(path, sees, 'closed')), scope };
}

function compileUndo(context: ToolCompilation): UndoSpec {
  const { value, place, report } = context;
  const undo = value.undo;
  if (undo === undefined) return { kind: 'none', declared: false };
  const undoable = undo.kind === 'compensable' || undo.kind === 'reversible';
  if (undoable && undo.tool === undefined)
    report.addError(locateChild(place, 'undo'), `${undo.kind} needs the tool that undoes it`);
  if (!undoable && undo.tool !== undefined) {
    report.addError(
      locateKey(place, 'undo', 'tool'),
      `${undo.kind} has no undo tool: write kind: compensable or reversible`,
    );
  }
  const sees: ScopeVariable[] = [
    'args',
    'result',
    'agent',
    ...(value.observe === undefined ? [] : (['before'] as const)),
  ];
  const template = (undo.args ?? {}) as Json;
  // Compiled here for its faults only; each call compiles what was stored with it.
  if (undo.tool !== undefined) compileTemplate(template, context.site(['undo', 'args'], sees));
  return { kind: undo.kind, declared: true, ...(undo.tool !== undefined && { tool: undo.tool, template }) };
}

function compileObserve(context: ToolCompilation, observe: NonNullable<ToolDeclaration['observe']>): ObserveSpec {
  const { value, place, report } = context;
  if (observe.settles !== undefined && value.once?.by === 'probe')
    report.addError(
      locateKey(place, 'observe', 'settles'),
      'a doubt about this tool is ended by its probe: settles belongs to once',
    );
  else if (observe.settles !== undefined && !value.locks?.some(isExclusiveLock)) {
    const why = 'what is seen proves who did it only while nobody else may change it: declare an exclusive lock';
    report.addWarning(locateKey(place, 'observe', 'settles'), why);
  }
  return {
    tool: observe.tool,
    args: compileTemplate(observe.args ?? {}, context.site(['observe', 'args'], ['args', 'agent'])),
    satisfied: context.condition(['observe', 'satisfied'], observe.satisfied, ['observed', 'args']),
    ...(observe.settles !== undefined && { settlesMs: parseDurationMs(observe.settles) }),
  };
}

function isExclusiveLock(lock: LockDeclaration): boolean {
  return typeof lock === 'string' || lock.mode !== 'shared';
}

function compileRetry({ value, place, report }: ToolCompilation): Tool['retry'] {
  const { attempts, baseMs, maxMs, withinMs } = TOOL_DEFAULTS.retry;
  const base = value.retry?.base === undefined ? baseMs : parseDurationMs(value.retry.base);
  const max = value.retry?.max === undefined ? Math.max(maxMs, base) : parseDurationMs(value.retry.max);
  if (max < base) report.addError(locateChild(place, 'retry', 'max'), 'max is shorter than base');
  return {
    attempts: value.retry?.attempts ?? attempts,
    baseMs: base,
    maxMs: max,
    withinMs: value.retry?.within === undefined ? withinMs : parseDurationMs(value.retry.within),
  };
}

/** A path with a slip of the pen would leave a secret in clear: where the schema is closed it is a fault. */
function compileRedact({ value, place, report }: ToolCompilation, input: JsonObject): Tool['redact'] {
  const declared = readDeclaredArguments(input);
  return (value.redact ?? []).map((text, index) => {
    const path = text.split('.');
    const argument = path[1] ?? '';
    if (path[0] === 'args' && declared !== undefined && !declared.names.has(argument)) {
      const message = `${text} is not in the input schema (it has: ${formatList(declared.names) || 'nothing'})${didYouMean(argument, declared.names)}`;
      if (declared.closed) report.addError(locateChild(place, 'redact', index), message);
      else report.addWarning(locateChild(place, 'redact', index), message);
    }
    return path;
  });
}

/** What an approval binds to: the contract as declared, so that it holds no secret. */
export function digestContract(contract: object): string {
  const json = JSON.parse(JSON.stringify(contract)) as Json;
  return createHash('sha256').update(canonicalize(json)).digest('hex');
}
