import { canonical, NotCanonical } from '../domain/canonical.ts';
import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import { legible } from '../domain/legible.ts';
import { ExpressionError, type Tool } from '../domain/policy.ts';
import {
  cleanerOf,
  leavesAt,
  leavesHidden,
  pathsUnder,
  REDACTED,
  redact,
  redactLeaves,
  redactLeavesAndNames,
} from '../domain/redact.ts';
import type { StoredUndo } from '../domain/saga.ts';
import { seal, unseal } from '../domain/seal.ts';
import type { UndoArguments } from '../ledger/calls.ts';
import { undoArguments } from '../policy/undo-args.ts';
import type { Job } from './job.ts';
import { LEAST_ECHO, type Secrets } from './payload.ts';
import type { Station } from './station.ts';

/** An undo that the caller names because only now it is known (`Oncegate-Undo`). */
export interface OwnUndo {
  readonly tool: string;
  readonly args: JsonObject;
}

/** What is written with the intent; null when nobody said how the call is undone. */
export function storedUndo(
  station: Station,
  txn: string,
  tool: Tool,
  { args, undo: own }: { readonly args: JsonObject; readonly undo?: OwnUndo | undefined },
): StoredUndo | null {
  if (own !== undefined) {
    const undoTool = station.policies().tools.get(own.tool);
    const template = ownArgsShown(own, undoTool, tool, args);
    const stored = { kind: 'compensable', tool: own.tool, template, own: true } as const;
    if (tool.redact.length === 0 && pathsUnder('args', undoTool?.redact ?? []).length === 0) return stored;
    return { ...stored, sealed: seal(station.sealingKey, txn, JSON.stringify(own.args)).toString('base64') };
  }
  const { undo } = tool;
  if (!undo.declared) return null;
  return {
    kind: undo.kind,
    ...(undo.tool === undefined ? {} : { tool: undo.tool }),
    ...(undo.template === undefined ? {} : { template: undo.template }),
  };
}

/** Of an undo that the caller names, what neither its own tool redacts nor the call that it would undo. */
export function ownArgsShown(own: OwnUndo, undoTool: Tool | undefined, tool: Tool, args: JsonObject): Json {
  const secrets = leavesAt(args, pathsUnder('args', tool.redact));
  return redact(hide(own.args, secrets), pathsUnder('args', undoTool?.redact ?? []));
}

/** What the arguments of an undo are made from, as it really was: before anything is redacted. */
export interface UndoScope {
  readonly txn: string;
  readonly agent: string;
  readonly args: JsonObject;
  readonly result: Json;
  readonly before: Json | undefined;
  /** The tool that observed `before` redacts some of it. */
  readonly isBeforeSecret: boolean;
}

/**
 * The arguments of a call's undo, made when its outcome is known and written with it. Where the tool redacts, they are
 * sealed, and what is shown of them leaves out what was redacted.
 */
export function renderUndo(
  key: Buffer,
  tool: Tool,
  undoTool: Tool | undefined,
  undo: StoredUndo | null,
  scope: UndoScope,
): UndoArguments | null {
  if (undo?.tool === undefined) return null;
  if (undo.own === true) return keepOwn(key, scope.txn, undo, secretsOf(tool, scope));
  try {
    const args = undoArguments(undo.template ?? {}, withoutAbsent(scope));
    if (!isObject(args))
      return { before: null, args: null, sealed: null, reason: 'the arguments of its undo are no object' };
    return keepUndo(key, tool, undoTool, scope, args, undo.template ?? {});
  } catch (error) {
    if (!(error instanceof ExpressionError) && !(error instanceof NotCanonical)) throw error;
    return {
      before: null,
      args: null,
      sealed: null,
      reason: legible(`the arguments of its undo cannot be made: ${error.message}`),
    };
  }
}

/** What the caller named is known from the start; where it is sealed it is sealed once more as what it now is. */
function keepOwn(key: Buffer, txn: string, { template, sealed }: StoredUndo, secrets: Secrets): UndoArguments {
  const args = canonical(template ?? {});
  if (sealed === undefined) return { before: null, args, sealed: null, reason: null };
  const exact = JSON.parse(unseal(key, txn, Buffer.from(sealed, 'base64'))) as JsonObject;
  return { before: null, args, sealed: seal(key, txn, JSON.stringify({ args: exact, secrets })), reason: null };
}

function withoutAbsent({ before, args, result, agent }: Pick<UndoScope, 'before' | 'args' | 'result' | 'agent'>) {
  const scope = { args, result, agent };
  return before === undefined ? scope : { ...scope, before };
}

/** Arguments as they are kept: in clear, or sealed with what may be shown beside. Without a template nothing is derived. */
export function keepUndo(
  key: Buffer,
  tool: Tool,
  undoTool: Tool | undefined,
  scope: UndoScope,
  args: JsonObject,
  template?: Json,
): UndoArguments {
  const paths = pathsUnder('args', undoTool?.redact ?? []);
  // They are what is sent one day, and only what has such a text can be. What else is sealed need not.
  const exact = canonical(args);
  if (tool.redact.length === 0 && paths.length === 0 && !scope.isBeforeSecret)
    return { before: null, args: exact, sealed: null, reason: null };
  const secrets = secretsOf(tool, scope);
  const seen = scope.isBeforeSecret ? leavesAt(scope.before ?? null, [[]]) : [];
  const plain = template === undefined ? args : shownOf(args, template, tool, scope);
  return {
    before: null,
    args: canonical(redact(hide(plain, [...secrets, ...seen]), paths)),
    sealed: seal(key, scope.txn, JSON.stringify({ args, secrets })),
    reason: null,
  };
}

function shownOf(args: JsonObject, template: Json, tool: Tool, scope: UndoScope): Json {
  const other = madeOfShown(template, tool, scope);
  return other === undefined ? withoutMade(args, template) : withoutDerived(args, other);
}

/** The arguments as they would be if what is redacted were nothing else; undefined when they cannot be made of that. */
function madeOfShown(template: Json, { redact }: Tool, scope: UndoScope): Json | undefined {
  const { agent, before, isBeforeSecret } = scope;
  const args = redactLeavesAndNames(scope.args, pathsUnder('args', redact)) as JsonObject;
  const result = redactLeavesAndNames(scope.result, pathsUnder('result', redact));
  const seen = before !== undefined && isBeforeSecret ? redactLeaves(before, [[]]) : before;
  try {
    return undoArguments(template, withoutAbsent({ args, result, agent, before: seen }));
  } catch (error) {
    if (error instanceof ExpressionError) return undefined;
    throw error;
  }
}

/** Where it is not known which were made of secrets, every value may have been. Names that the template says itself are none. */
function withoutMade(value: Json, template: Json): Json {
  if (typeof value !== 'object' || value === null || typeof template !== 'object' || template === null)
    return value === null ? null : REDACTED;
  const parts = new Map(Object.entries(template) as [string, Json][]);
  const part = (name: string): Json => parts.get(name) ?? null;
  if (Array.isArray(value)) return value.map((item, i) => withoutMade(item as Json, part(String(i))));
  return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, withoutMade(of, part(name))]));
}

/** What comes out otherwise without the secrets was made of them, in whatever way. */
function withoutDerived(value: Json, other: Json | undefined): Json {
  if (typeof value !== 'object' || value === null) return value === other ? value : REDACTED;
  if (typeof other !== 'object' || other === null || Array.isArray(value) !== Array.isArray(other)) return REDACTED;
  const others = new Map(Object.entries(other) as [string, Json][]);
  // It has the names of something that is redacted, or as many items.
  if (others.size > Object.keys(value).length) return REDACTED;
  if (Array.isArray(value)) return value.map((item, i) => withoutDerived(item as Json, others.get(String(i))));
  return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, withoutDerived(of, others.get(name))]));
}

/** What a call redacts. */
function secretsOf({ redact }: Tool, { args, result }: Pick<UndoScope, 'args' | 'result'>): (string | number)[] {
  return [...leavesAt(args, pathsUnder('args', redact)), ...leavesAt(result, pathsUnder('result', redact))];
}

/** Without the values that are secret, or have a secret in them. */
function hide(value: Json, secrets: Secrets): Json {
  if (secrets.length === 0) return value;
  const exact = new Set(secrets.map(String));
  const clean = cleanerOf([...exact].filter((secret) => secret.length >= LEAST_ECHO));
  const shown = (of: Json): Json => {
    if (typeof of === 'string') return exact.has(of) || clean(of) !== of ? REDACTED : of;
    if (typeof of === 'number') return exact.has(String(of)) ? REDACTED : of;
    if (Array.isArray(of)) return of.map((item) => shown(item as Json));
    if (!isObject(of)) return of;
    return Object.fromEntries(Object.entries(of).map(([name, member]) => [name, shown(member)]));
  };
  return shown(value);
}

/** The arguments of the undo of a call in hand, now that its result is known. */
export function undoOf(
  station: Station,
  job: Pick<Job, 'txn' | 'agent' | 'args' | 'before' | 'tool' | 'undo'>,
  result: () => Json,
): UndoArguments | null {
  if (job.undo?.tool === undefined) return null;
  const { txn, agent, args, before, tool } = job;
  const observer = tool.observe === undefined ? undefined : station.policies().tools.get(tool.observe.tool);
  const isBeforeSecret = (observer?.redact.length ?? 0) > 0;
  return renderUndo(station.sealingKey, tool, station.policies().tools.get(job.undo.tool), job.undo, {
    txn,
    agent,
    args,
    before,
    result: result(),
    isBeforeSecret,
  });
}

/** What was observed before the call, to be kept with its first attempt. */
export function keepBefore(key: Buffer, txn: string, before: Json, isSecret: boolean): UndoArguments {
  return isSecret
    ? { before: null, args: null, sealed: seal(key, txn, JSON.stringify({ before }, finite)), reason: null }
    : { before: canonical(before), args: null, sealed: null, reason: null };
}

/** `JSON.stringify` keeps everything that JSON may say, but makes null of a number without end. */
function finite(_: string, value: unknown): unknown {
  if (typeof value === 'number' && !Number.isFinite(value)) throw new NotCanonical(`${value} is not JSON`);
  return value;
}

interface Kept {
  readonly txn: string;
  readonly before: string | null;
  readonly undoArgs: string | null;
  readonly undoSealed: Buffer | null;
}

/** What was observed; undefined when nothing was, or it does not open. */
export function beforeOf(key: Buffer, call: Kept): Json | undefined {
  if (call.before !== null) return JSON.parse(call.before) as Json;
  return opened(key, call)?.['before'];
}

/** The exact arguments of the undo, or why there are none. */
export function undoArgsOf(key: Buffer, call: Kept): JsonObject | string {
  if (call.undoArgs === null) return 'the arguments of its undo are not known';
  if (call.undoSealed === null) return JSON.parse(call.undoArgs) as JsonObject;
  const args = opened(key, call)?.['args'];
  return isObject(args) ? args : 'the sealed arguments of its undo do not open with the key of this gateway';
}

/**
 * What must not be told of the answer to an undo: what its call redacts, for an argument may hold it among other things, and
 * each argument that is not shown. Nothing, where the arguments are no secret.
 */
export function undoSecretsOf(key: Buffer, call: Kept): Secrets {
  const { args, secrets } = opened(key, call) ?? {};
  if (args === undefined || call.undoArgs === null) return [];
  const hidden = leavesHidden(args, JSON.parse(call.undoArgs) as Json);
  return [...new Set([...leavesAt(secrets ?? null, [[]]), ...hidden])];
}

function opened(key: Buffer, { txn, undoSealed }: Kept): JsonObject | undefined {
  if (undoSealed === null) return undefined;
  try {
    return JSON.parse(unseal(key, txn, undoSealed)) as JsonObject;
  } catch {
    return undefined;
  }
}
