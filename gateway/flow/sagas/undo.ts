import { decrypt, encrypt } from '../../domain/calls/encryption.ts';
import {
  buildSecretScrubber,
  collectHiddenLeaves,
  collectLeavesAt,
  pathsUnder,
  REDACTED,
  redact,
  redactLeaves,
  redactLeavesAndNames,
} from '../../domain/calls/redact.ts';
import { canonicalize, NotCanonicalError } from '../../domain/canonical.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { ExpressionError, type Tool } from '../../domain/policy.ts';
import type { StoredUndo } from '../../domain/sagas/saga.ts';
import { sanitize } from '../../domain/sanitize.ts';
import type { UndoArguments } from '../../ledger/calls/calls.ts';
import { renderUndoArguments } from '../../policy/compile/render-undo-arguments.ts';
import type { Job } from '../attempts/job.ts';
import { MIN_ECHO_CHARS, type SecretValues } from '../calls/payload.ts';
import type { Context } from '../context.ts';

/** An undo that the caller names because only now it is known (`Oncegate-Undo`). */
export interface CallerUndo {
  readonly tool: string;
  readonly args: JsonObject;
}

/** What is written with the intent; null when nobody said how the call is undone. */
export function buildStoredUndo(
  ctx: Context,
  txn: string,
  tool: Tool,
  { args, undo: own }: { readonly args: JsonObject; readonly undo?: CallerUndo | undefined },
): StoredUndo | null {
  if (own !== undefined) {
    const undoTool = ctx.policies().tools.get(own.tool);
    const template = redactCallerUndoArgs(own, undoTool, tool, args);
    const stored = { kind: 'compensable', tool: own.tool, template, own: true } as const;
    if (tool.redact.length === 0 && pathsUnder('args', undoTool?.redact ?? []).length === 0) return stored;
    return { ...stored, sealed: encrypt(ctx.sealingKey, txn, JSON.stringify(own.args)).toString('base64') };
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
export function redactCallerUndoArgs(own: CallerUndo, undoTool: Tool | undefined, tool: Tool, args: JsonObject): Json {
  const secrets = collectLeavesAt(args, pathsUnder('args', tool.redact));
  return redact(redactSecrets(own.args, secrets), pathsUnder('args', undoTool?.redact ?? []));
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
export function buildUndoArguments(
  key: Buffer,
  tool: Tool,
  undoTool: Tool | undefined,
  undo: StoredUndo | null,
  scope: UndoScope,
): UndoArguments | null {
  if (undo?.tool === undefined) return null;
  if (undo.own === true) return encodeCallerUndo(key, scope.txn, undo, collectSecrets(tool, scope));
  try {
    const args = renderUndoArguments(undo.template ?? {}, toTemplateScope(scope));
    if (!isJsonObject(args))
      return { before: null, args: null, sealed: null, reason: 'the arguments of its undo are no object' };
    return encodeUndoArguments(key, tool, undoTool, scope, args, undo.template ?? {});
  } catch (error) {
    if (!(error instanceof ExpressionError) && !(error instanceof NotCanonicalError)) throw error;
    return {
      before: null,
      args: null,
      sealed: null,
      reason: sanitize(`the arguments of its undo cannot be made: ${error.message}`),
    };
  }
}

/** What the caller named is known from the start; where it is sealed it is sealed once more as what it now is. */
function encodeCallerUndo(
  key: Buffer,
  txn: string,
  { template, sealed }: StoredUndo,
  secrets: SecretValues,
): UndoArguments {
  const args = canonicalize(template ?? {});
  if (sealed === undefined) return { before: null, args, sealed: null, reason: null };
  const exact = JSON.parse(decrypt(key, txn, Buffer.from(sealed, 'base64'))) as JsonObject;
  return { before: null, args, sealed: encrypt(key, txn, JSON.stringify({ args: exact, secrets })), reason: null };
}

function toTemplateScope({ before, args, result, agent }: Pick<UndoScope, 'before' | 'args' | 'result' | 'agent'>) {
  const scope = { args, result, agent };
  return before === undefined ? scope : { ...scope, before };
}

/** Arguments as they are kept: in clear, or sealed with what may be shown beside. Without a template nothing is derived. */
export function encodeUndoArguments(
  key: Buffer,
  tool: Tool,
  undoTool: Tool | undefined,
  scope: UndoScope,
  args: JsonObject,
  template?: Json,
): UndoArguments {
  const paths = pathsUnder('args', undoTool?.redact ?? []);
  // They are what is sent one day, and only what has such a text can be. What else is sealed need not.
  const exact = canonicalize(args);
  if (tool.redact.length === 0 && paths.length === 0 && !scope.isBeforeSecret)
    return { before: null, args: exact, sealed: null, reason: null };
  const secrets = collectSecrets(tool, scope);
  const seen = scope.isBeforeSecret ? collectLeavesAt(scope.before ?? null, [[]]) : [];
  const plain = template === undefined ? args : redactDerivedArgs(args, template, tool, scope);
  return {
    before: null,
    args: canonicalize(redact(redactSecrets(plain, [...secrets, ...seen]), paths)),
    sealed: encrypt(key, scope.txn, JSON.stringify({ args, secrets })),
    reason: null,
  };
}

function redactDerivedArgs(args: JsonObject, template: Json, tool: Tool, scope: UndoScope): Json {
  const other = renderFromRedacted(template, tool, scope);
  return other === undefined ? redactTemplateValues(args, template) : redactDifferences(args, other);
}

/** The arguments as they would be if what is redacted were nothing else; undefined when they cannot be made of that. */
function renderFromRedacted(template: Json, { redact }: Tool, scope: UndoScope): Json | undefined {
  const { agent, before, isBeforeSecret } = scope;
  const args = redactLeavesAndNames(scope.args, pathsUnder('args', redact)) as JsonObject;
  const result = redactLeavesAndNames(scope.result, pathsUnder('result', redact));
  const seen = before !== undefined && isBeforeSecret ? redactLeaves(before, [[]]) : before;
  try {
    return renderUndoArguments(template, toTemplateScope({ args, result, agent, before: seen }));
  } catch (error) {
    if (error instanceof ExpressionError) return undefined;
    throw error;
  }
}

/** Where it is not known which were made of secrets, every value may have been. Names that the template says itself are none. */
function redactTemplateValues(value: Json, template: Json): Json {
  if (typeof value !== 'object' || value === null || typeof template !== 'object' || template === null)
    return value === null ? null : REDACTED;
  const parts = new Map(Object.entries(template) as [string, Json][]);
  const part = (name: string): Json => parts.get(name) ?? null;
  if (Array.isArray(value)) return value.map((item, i) => redactTemplateValues(item as Json, part(String(i))));
  return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, redactTemplateValues(of, part(name))]));
}

/** What comes out otherwise without the secrets was made of them, in whatever way. */
function redactDifferences(value: Json, other: Json | undefined): Json {
  if (typeof value !== 'object' || value === null) return value === other ? value : REDACTED;
  if (typeof other !== 'object' || other === null || Array.isArray(value) !== Array.isArray(other)) return REDACTED;
  const others = new Map(Object.entries(other) as [string, Json][]);
  // It has the names of something that is redacted, or as many items.
  if (others.size > Object.keys(value).length) return REDACTED;
  if (Array.isArray(value)) return value.map((item, i) => redactDifferences(item as Json, others.get(String(i))));
  return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, redactDifferences(of, others.get(name))]));
}

/** What a call redacts. */
function collectSecrets({ redact }: Tool, { args, result }: Pick<UndoScope, 'args' | 'result'>): (string | number)[] {
  return [
    ...collectLeavesAt(args, pathsUnder('args', redact)),
    ...collectLeavesAt(result, pathsUnder('result', redact)),
  ];
}

/** Without the values that are secret, or have a secret in them. */
function redactSecrets(value: Json, secrets: SecretValues): Json {
  if (secrets.length === 0) return value;
  const exact = new Set(secrets.map(String));
  const clean = buildSecretScrubber([...exact].filter((secret) => secret.length >= MIN_ECHO_CHARS));
  const shown = (of: Json): Json => {
    if (typeof of === 'string') return exact.has(of) || clean(of) !== of ? REDACTED : of;
    if (typeof of === 'number') return exact.has(String(of)) ? REDACTED : of;
    if (Array.isArray(of)) return of.map((item) => shown(item as Json));
    if (!isJsonObject(of)) return of;
    return Object.fromEntries(Object.entries(of).map(([name, member]) => [name, shown(member)]));
  };
  return shown(value);
}

/** The arguments of the undo of a call in hand, now that its result is known. */
export function prepareUndoArguments(
  ctx: Context,
  job: Pick<Job, 'txn' | 'agent' | 'args' | 'before' | 'tool' | 'undo'>,
  result: () => Json,
): UndoArguments | null {
  if (job.undo?.tool === undefined) return null;
  const { txn, agent, args, before, tool } = job;
  const observer = tool.observe === undefined ? undefined : ctx.policies().tools.get(tool.observe.tool);
  const isBeforeSecret = (observer?.redact.length ?? 0) > 0;
  return buildUndoArguments(ctx.sealingKey, tool, ctx.policies().tools.get(job.undo.tool), job.undo, {
    txn,
    agent,
    args,
    before,
    result: result(),
    isBeforeSecret,
  });
}

/** What was observed before the call, to be kept with its first attempt. */
export function encodeObservation(key: Buffer, txn: string, before: Json, isSecret: boolean): UndoArguments {
  return isSecret
    ? { before: null, args: null, sealed: encrypt(key, txn, JSON.stringify({ before }, rejectNonFinite)), reason: null }
    : { before: canonicalize(before), args: null, sealed: null, reason: null };
}

/** `JSON.stringify` keeps everything that JSON may say, but makes null of a number without end. */
function rejectNonFinite(_: string, value: unknown): unknown {
  if (typeof value === 'number' && !Number.isFinite(value)) throw new NotCanonicalError(`${value} is not JSON`);
  return value;
}

interface StoredUndoFields {
  readonly txn: string;
  readonly before: string | null;
  readonly undoArgs: string | null;
  readonly undoSealed: Buffer | null;
}

/** What was observed; undefined when nothing was, or it does not open. */
export function decodeObservation(key: Buffer, call: StoredUndoFields): Json | undefined {
  if (call.before !== null) return JSON.parse(call.before) as Json;
  return decryptUndoFields(key, call)?.['before'];
}

/** The exact arguments of the undo, or why there are none. */
export function decodeUndoArgs(key: Buffer, call: StoredUndoFields): JsonObject | string {
  if (call.undoArgs === null) return 'the arguments of its undo are not known';
  if (call.undoSealed === null) return JSON.parse(call.undoArgs) as JsonObject;
  const args = decryptUndoFields(key, call)?.['args'];
  return isJsonObject(args) ? args : 'the sealed arguments of its undo do not open with the key of this gateway';
}

/**
 * What must not be told of the answer to an undo: what its call redacts, for an argument may hold it among other things, and
 * each argument that is not shown. Nothing, where the arguments are no secret.
 */
export function collectUndoSecrets(key: Buffer, call: StoredUndoFields): SecretValues {
  const { args, secrets } = decryptUndoFields(key, call) ?? {};
  if (args === undefined || call.undoArgs === null) return [];
  const hidden = collectHiddenLeaves(args, JSON.parse(call.undoArgs) as Json);
  return [...new Set([...collectLeavesAt(secrets ?? null, [[]]), ...hidden])];
}

function decryptUndoFields(key: Buffer, { txn, undoSealed }: StoredUndoFields): JsonObject | undefined {
  if (undoSealed === null) return undefined;
  try {
    return JSON.parse(decrypt(key, txn, undoSealed)) as JsonObject;
  } catch {
    return undefined;
  }
}
