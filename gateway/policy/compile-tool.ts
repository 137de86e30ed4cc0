// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a message shows a template
import { createHash } from 'node:crypto';
import { canonical } from '../domain/canonical.ts';
import { milliseconds } from '../domain/duration.ts';
import type { Json, JsonObject } from '../domain/json.ts';
import type { BusinessKey, Observe, Once, Tool, Undo, Upstream } from '../domain/policy.ts';
import { compileLock, LOCK_SEES } from './compile-locks.ts';
import { compileRequest } from './compile-request.ts';
import { isGatewaysOwn } from './compile-upstream.ts';
import type { Declared } from './declared.ts';
import { compileCondition, type Variable } from './expressions.ts';
import { at, didYouMean, keyOf, listed, type Path, type Place, type Report } from './faults.ts';
import { type Check, compileInput, declaredArguments } from './input.ts';
import type { KeyFile, LockFile, ToolFile } from './schema.ts';
import { compileTemplate, splitTemplate, type TemplateSite } from './template.ts';

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
export interface ToolContext {
  readonly name: string;
  readonly place: Place;
  readonly value: ToolFile;
  readonly report: Report;
  /** A template's site below this tool; unknown arguments are faults there. */
  site(path: Path, sees: readonly Variable[], strictness?: 'declared' | 'closed'): TemplateSite;
  condition(path: Path, source: string | boolean, sees: readonly Variable[]): ReturnType<typeof compileCondition>;
}

export function compileTool(
  declared: Declared<ToolFile>,
  upstream: { readonly compiled: Upstream | undefined; readonly raw: unknown },
  report: Report,
): Tool | undefined {
  const { name, place, value } = declared;
  if (value === undefined) return undefined;
  const input = (value.input ?? TOOL_DEFAULTS.input) as JsonObject;
  const context = toolContext(name, place, value, input, report);
  const effect = value.effect ?? TOOL_DEFAULTS.effect;
  if (effect === 'read') refuseOnRead(context);
  if (value.record === false) refuseUnrecorded(context, effect);
  const adapter = upstream.compiled?.adapter;
  if (adapter === 'mcp' && value.request !== undefined) {
    report.fault(keyOf(place, 'request'), 'request is only for tools of http upstreams');
  }
  const timeoutMs = value.timeout === undefined ? (upstream.compiled?.timeoutMs ?? 0) : milliseconds(value.timeout);
  return {
    name,
    upstream: value.upstream,
    description: value.description ?? '',
    ...(value.title !== undefined && { title: value.title }),
    ...(value.output !== undefined && {
      output: compileOutput(value.output as JsonObject, at(place, 'output'), report),
    }),
    input,
    faults: compileFaults(input, at(place, 'input'), report),
    effect,
    ...(adapter === 'http' && { request: compileRequest(context) }),
    once: compileOnce(context),
    ...(value.key !== undefined && { key: compileKey(context, value.key) }),
    undo: compileUndo(context),
    ...(value.observe !== undefined && { observe: compileObserve(context, value.observe) }),
    locks: (value.locks ?? []).map((lock, index) =>
      compileLock(lock, context.site(typeof lock === 'string' ? ['locks', index] : ['locks', index, 'key'], LOCK_SEES)),
    ),
    timeoutMs,
    retry: compileRetry(context),
    noEffect: new Set(value.noEffect ?? (adapter === 'mcp' ? [] : TOOL_DEFAULTS.noEffect)),
    redact: compileRedact(context, input),
    maxResultBytes: value.result?.maxBytes ?? TOOL_DEFAULTS.maxResultBytes,
    repeats: {
      policy: value.repeats?.policy ?? TOOL_DEFAULTS.repeats.policy,
      windowMs:
        value.repeats?.window === undefined ? TOOL_DEFAULTS.repeats.windowMs : milliseconds(value.repeats.window),
    },
    ...(value.record === false && { unrecorded: true as const }),
    ...((value.untrusted ?? upstream.compiled?.untrusted) === true && { untrusted: true as const }),
    digest: contractDigest({ name, tool: value, upstream: upstream.raw }),
  };
}

function toolContext(name: string, place: Place, value: ToolFile, input: JsonObject, report: Report): ToolContext {
  const declared = declaredArguments(input);
  const unknown = (argument: string): string | undefined =>
    declared === undefined || declared.names.has(argument)
      ? undefined
      : `args.${argument} is not in the input schema (it has: ${listed(declared.names) || 'nothing'})${didYouMean(argument, declared.names)}`;
  return {
    name,
    place,
    value,
    report,
    site: (path, sees, strictness = 'declared') => ({
      sees,
      fault: (message, below, offset) => report.fault(at(place, ...path, ...below), message, offset),
      reads: (argument, below, offset) => {
        const message = unknown(argument);
        if (message === undefined) return;
        if (strictness === 'declared' || declared?.closed) report.fault(at(place, ...path, ...below), message, offset);
        else report.warn(at(place, ...path, ...below), message, offset);
      },
    }),
    condition: (path, source, sees) =>
      compileCondition(bare(String(source)), {
        sees,
        fault: (message, offset) => report.fault(at(place, ...path), message, offset),
        reads: (argument, offset) => {
          const message = unknown(argument);
          if (message !== undefined) report.fault(at(place, ...path), message, offset);
        },
      }),
  };
}

/** Where CEL itself is expected, `${expr}` around all of it is harmless. */
export function bare(source: string): string {
  const parts = source.startsWith('${') ? splitTemplate(source) : [];
  const [only] = Array.isArray(parts) ? parts : [];
  return Array.isArray(parts) && parts.length === 1 && only !== undefined && 'expression' in only
    ? only.expression
    : source;
}

function refuseOnRead({ value, place, report }: ToolContext): void {
  for (const key of ['once', 'repeats', 'observe', 'undo'] as const) {
    if (value[key] === undefined || (key === 'undo' && value.undo?.kind === 'none')) continue;
    report.fault(keyOf(place, key), `${key} is for writes: a read has no effect to repeat or undo`);
  }
}

/** What must be known later has to be written down. */
function refuseUnrecorded({ value, place, report }: ToolContext, effect: Tool['effect']): void {
  if (effect === 'write') {
    report.fault(keyOf(place, 'record'), 'record: false is for reads: a write that nobody recorded could happen twice');
    return;
  }
  for (const key of ['key', 'locks'] as const) {
    if (value[key] === undefined) continue;
    report.fault(keyOf(place, key), `${key} needs the ledger: leave out record: false, or ${key}`);
  }
}

function compileFaults(input: JsonObject, place: Place, report: Report): Check {
  const compiled = compileInput(input);
  if ('check' in compiled) return compiled.check;
  for (const fault of compiled.faults) report.fault(at(place, ...fault.path), fault.message);
  return () => [];
}

/** Shown to clients, who may check results against it; checked here only for being a schema that can be shown. */
function compileOutput(output: JsonObject, place: Place, report: Report): JsonObject {
  const compiled = compileInput(output);
  if ('faults' in compiled) for (const fault of compiled.faults) report.fault(at(place, ...fault.path), fault.message);
  return output;
}

function compileOnce(context: ToolContext): Once {
  const { value, place, report } = context;
  const once = value.once ?? { by: 'none' as const };
  if (once.by === 'nature' || once.by === 'none') return { by: once.by };
  if (once.by === 'key') {
    if ((once.header === undefined) === (once.field === undefined)) {
      report.fault(at(place, 'once'), 'once by key needs exactly one of header and field');
    }
    // The key may well be the id that every request has; no other header of the gateway's can carry it.
    if (once.header !== undefined && isGatewaysOwn(once.header) && once.header.toLowerCase() !== 'oncegate-txn')
      report.fault(at(place, 'once', 'header'), `${once.header} is written by the gateway itself: choose another`);
    return {
      by: 'key',
      ...(once.header !== undefined && { header: once.header }),
      ...(once.field !== undefined && { field: once.field.split('.') }),
      lifetimeMs: once.lifetime === undefined ? TOOL_DEFAULTS.lifetimeMs : milliseconds(once.lifetime),
    };
  }
  return {
    by: 'probe',
    tool: once.probe.tool,
    args: compileTemplate(once.probe.args ?? {}, context.site(['once', 'probe', 'args'], ['args', 'agent'])),
    applied: context.condition(['once', 'probe', 'applied'], once.probe.applied, ['result', 'args']),
    settlesMs: once.settles === undefined ? TOOL_DEFAULTS.settlesMs : milliseconds(once.settles),
  };
}

/** A key that is the same for every call would make all of them one call. */
function compileKey({ value, place, report, site }: ToolContext, key: KeyFile): BusinessKey {
  const { of, scope = 'agent' } = typeof key === 'string' ? { of: key } : key;
  const path: Path = typeof key === 'string' ? ['key'] : ['key', 'of'];
  const parts = splitTemplate(of);
  if (Array.isArray(parts) && !parts.some((part) => 'expression' in part)) {
    report.fault(at(place, ...path), 'this key is the same for every call: write "${args.order_id}"');
  }
  if (scope === 'shared' && value.effect === 'read')
    report.fault(at(place, 'key', 'scope'), 'a read has no effect to share: several agents read for themselves');
  // What tells agents apart would make a shared key one for each of them again.
  const sees: Variable[] = scope === 'shared' ? ['args'] : ['args', 'agent', 'saga', 'run'];
  return { of: compileTemplate(of, site(path, sees, 'closed')), scope };
}

function compileUndo(context: ToolContext): Undo {
  const { value, place, report } = context;
  const undo = value.undo;
  if (undo === undefined) return { kind: 'none', declared: false };
  const undoable = undo.kind === 'compensable' || undo.kind === 'reversible';
  if (undoable && undo.tool === undefined)
    report.fault(at(place, 'undo'), `${undo.kind} needs the tool that undoes it`);
  if (!undoable && undo.tool !== undefined) {
    report.fault(keyOf(place, 'undo', 'tool'), `${undo.kind} has no undo tool: write kind: compensable or reversible`);
  }
  const sees: Variable[] = ['args', 'result', 'agent', ...(value.observe === undefined ? [] : (['before'] as const))];
  const template = (undo.args ?? {}) as Json;
  // Compiled here for its faults only; each call compiles what was stored with it.
  if (undo.tool !== undefined) compileTemplate(template, context.site(['undo', 'args'], sees));
  return { kind: undo.kind, declared: true, ...(undo.tool !== undefined && { tool: undo.tool, template }) };
}

function compileObserve(context: ToolContext, observe: NonNullable<ToolFile['observe']>): Observe {
  const { value, place, report } = context;
  if (observe.settles !== undefined && value.once?.by === 'probe')
    report.fault(
      keyOf(place, 'observe', 'settles'),
      'a doubt about this tool is ended by its probe: settles belongs to once',
    );
  else if (observe.settles !== undefined && !value.locks?.some(isExclusive)) {
    const why = 'what is seen proves who did it only while nobody else may change it: declare an exclusive lock';
    report.warn(keyOf(place, 'observe', 'settles'), why);
  }
  return {
    tool: observe.tool,
    args: compileTemplate(observe.args ?? {}, context.site(['observe', 'args'], ['args', 'agent'])),
    satisfied: context.condition(['observe', 'satisfied'], observe.satisfied, ['observed', 'args']),
    ...(observe.settles !== undefined && { settlesMs: milliseconds(observe.settles) }),
  };
}

function isExclusive(lock: LockFile): boolean {
  return typeof lock === 'string' || lock.mode !== 'shared';
}

function compileRetry({ value, place, report }: ToolContext): Tool['retry'] {
  const { attempts, baseMs, maxMs, withinMs } = TOOL_DEFAULTS.retry;
  const base = value.retry?.base === undefined ? baseMs : milliseconds(value.retry.base);
  const max = value.retry?.max === undefined ? Math.max(maxMs, base) : milliseconds(value.retry.max);
  if (max < base) report.fault(at(place, 'retry', 'max'), 'max is shorter than base');
  return {
    attempts: value.retry?.attempts ?? attempts,
    baseMs: base,
    maxMs: max,
    withinMs: value.retry?.within === undefined ? withinMs : milliseconds(value.retry.within),
  };
}

/** A path with a slip of the pen would leave a secret in clear: where the schema is closed it is a fault. */
function compileRedact({ value, place, report }: ToolContext, input: JsonObject): Tool['redact'] {
  const declared = declaredArguments(input);
  return (value.redact ?? []).map((text, index) => {
    const path = text.split('.');
    const argument = path[1] ?? '';
    if (path[0] === 'args' && declared !== undefined && !declared.names.has(argument)) {
      const message = `${text} is not in the input schema (it has: ${listed(declared.names) || 'nothing'})${didYouMean(argument, declared.names)}`;
      if (declared.closed) report.fault(at(place, 'redact', index), message);
      else report.warn(at(place, 'redact', index), message);
    }
    return path;
  });
}

/** What an approval binds to: the contract as declared, so that it holds no secret. */
export function contractDigest(contract: object): string {
  const json = JSON.parse(JSON.stringify(contract)) as Json;
  return createHash('sha256').update(canonical(json)).digest('hex');
}
