import type { CallRecord } from '../../domain/calls/call-record.ts';
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
import type { UndoArguments } from '../../ledger/calls/call-patches.ts';
import { renderUndoArguments } from '../../policy/compile/render-undo-arguments.ts';
import { MIN_ECHO_CHARS, type Payload, type SecretValues } from '../calls/payload.ts';
import type { Context } from '../context.ts';

/** An undo that the caller gives with the call (`Oncegate-Undo`). It replaces the undo of the contract. */
export interface CallerUndo {
  readonly tool: string;
  readonly args: JsonObject;
}

/** Builds the undo that is written with the intent; null when neither caller nor contract declares one. */
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

/** The arguments of a caller's undo without the values that the undo tool or the undone tool redacts. */
export function redactCallerUndoArgs(own: CallerUndo, undoTool: Tool | undefined, tool: Tool, args: JsonObject): Json {
  const secrets = collectLeavesAt(args, pathsUnder('args', tool.redact));
  return redact(redactSecrets(own.args, secrets), pathsUnder('args', undoTool?.redact ?? []));
}

/** The unredacted values from which the arguments of an undo are rendered. */
export interface UndoScope {
  readonly txn: string;
  readonly agent: string;
  readonly args: JsonObject;
  readonly result: Json;
  readonly before: Json | undefined;
  /** Whether the tool that observed `before` redacts parts of it. */
  readonly isBeforeSecret: boolean;
}

/**
 * Builds the undo arguments of a call when its outcome is known. The ledger writes them together with the outcome. If the tool
 * redacts, the arguments are encrypted, and the shown arguments leave out the redacted values.
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
      return { before: null, args: null, sealed: null, reason: 'the undo arguments are not a JSON object' };
    return encodeUndoArguments(key, tool, undoTool, scope, args, undo.template ?? {});
  } catch (error) {
    if (!(error instanceof ExpressionError) && !(error instanceof NotCanonicalError)) throw error;
    return {
      before: null,
      args: null,
      sealed: null,
      reason: sanitize(`the undo arguments cannot be rendered: ${error.message}`),
    };
  }
}

/** Encodes a caller's undo, whose arguments the intent stores. Encrypted arguments are encrypted anew, together with the secrets. */
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

/**
 * Encodes undo arguments for storage: in clear, or encrypted beside the redacted arguments. Pass the template when the
 * arguments were rendered from one, so that values derived from secrets are redacted too.
 */
export function encodeUndoArguments(
  key: Buffer,
  tool: Tool,
  undoTool: Tool | undefined,
  scope: UndoScope,
  args: JsonObject,
  template?: Json,
): UndoArguments {
  const paths = pathsUnder('args', undoTool?.redact ?? []);
  // The arguments are sent later, and only canonical JSON can be sent. The other encrypted values need no canonical form.
  const exact = canonicalize(args);
  if (tool.redact.length === 0 && paths.length === 0 && !scope.isBeforeSecret)
    return { before: null, args: exact, sealed: null, reason: null };
  const secrets = collectSecrets(tool, scope);
  const observed = scope.isBeforeSecret ? collectLeavesAt(scope.before ?? null, [[]]) : [];
  const plain = template === undefined ? args : redactDerivedArgs(args, template, tool, scope);
  return {
    before: null,
    args: canonicalize(redact(redactSecrets(plain, [...secrets, ...observed]), paths)),
    sealed: encrypt(key, scope.txn, JSON.stringify({ args, secrets })),
    reason: null,
  };
}

function redactDerivedArgs(args: JsonObject, template: Json, tool: Tool, scope: UndoScope): Json {
  const rendered = renderFromRedacted(template, tool, scope);
  return rendered === undefined ? redactTemplateValues(args, template) : redactDifferences(args, rendered);
}

/** Renders the template from redacted values; undefined when the template cannot be rendered from them. */
function renderFromRedacted(template: Json, { redact }: Tool, scope: UndoScope): Json | undefined {
  const { agent, before, isBeforeSecret } = scope;
  const args = redactLeavesAndNames(scope.args, pathsUnder('args', redact)) as JsonObject;
  const result = redactLeavesAndNames(scope.result, pathsUnder('result', redact));
  const observed = before !== undefined && isBeforeSecret ? redactLeaves(before, [[]]) : before;
  try {
    return renderUndoArguments(template, toTemplateScope({ args, result, agent, before: observed }));
  } catch (error) {
    if (error instanceof ExpressionError) return undefined;
    throw error;
  }
}

/** Redacts every value, because any of them may derive from a secret. Names that the template itself contains stay. */
function redactTemplateValues(value: Json, template: Json): Json {
  if (typeof value !== 'object' || value === null || typeof template !== 'object' || template === null)
    return value === null ? null : REDACTED;
  const parts = new Map(Object.entries(template) as [string, Json][]);
  const part = (name: string): Json => parts.get(name) ?? null;
  if (Array.isArray(value)) return value.map((item, i) => redactTemplateValues(item as Json, part(String(i))));
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [name, redactTemplateValues(member, part(name))]),
  );
}

/** Redacts every value that differs from `other`, which was rendered without the secrets: such a value derives from a secret. */
function redactDifferences(value: Json, other: Json | undefined): Json {
  if (typeof value !== 'object' || value === null) return value === other ? value : REDACTED;
  if (typeof other !== 'object' || other === null || Array.isArray(value) !== Array.isArray(other)) return REDACTED;
  const others = new Map(Object.entries(other) as [string, Json][]);
  // `other` has more members or items, so their names or number come from a redacted value.
  if (others.size > Object.keys(value).length) return REDACTED;
  if (Array.isArray(value)) return value.map((item, i) => redactDifferences(item as Json, others.get(String(i))));
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [name, redactDifferences(member, others.get(name))]),
  );
}

/** The values in arguments and result that the tool redacts. */
function collectSecrets({ redact }: Tool, { args, result }: Pick<UndoScope, 'args' | 'result'>): (string | number)[] {
  return [
    ...collectLeavesAt(args, pathsUnder('args', redact)),
    ...collectLeavesAt(result, pathsUnder('result', redact)),
  ];
}

/** Redacts the values that equal or contain a secret. */
function redactSecrets(value: Json, secrets: SecretValues): Json {
  if (secrets.length === 0) return value;
  const exact = new Set(secrets.map(String));
  const scrub = buildSecretScrubber([...exact].filter((secret) => secret.length >= MIN_ECHO_CHARS));
  const clean = (node: Json): Json => {
    if (typeof node === 'string') return exact.has(node) || scrub(node) !== node ? REDACTED : node;
    if (typeof node === 'number') return exact.has(String(node)) ? REDACTED : node;
    if (Array.isArray(node)) return node.map((item) => clean(item as Json));
    if (!isJsonObject(node)) return node;
    return Object.fromEntries(Object.entries(node).map(([name, member]) => [name, clean(member)]));
  };
  return clean(value);
}

/** A call with its payload in clear, such as a call in flight. */
interface DecodedCall {
  readonly record: Pick<CallRecord, 'txn' | 'agent' | 'undo'>;
  readonly tool: Tool;
  readonly payload: Pick<Payload, 'args'>;
  readonly before: Json | undefined;
}

/** Builds the undo arguments of a call whose result is known. */
export function prepareUndoArguments(
  ctx: Context,
  { record, tool, payload, before }: DecodedCall,
  result: () => Json,
): UndoArguments | null {
  const { txn, agent, undo } = record;
  if (undo?.tool === undefined) return null;
  const observer = tool.observe === undefined ? undefined : ctx.policies().tools.get(tool.observe.tool);
  const isBeforeSecret = (observer?.redact.length ?? 0) > 0;
  return buildUndoArguments(ctx.sealingKey, tool, ctx.policies().tools.get(undo.tool), undo, {
    txn,
    agent,
    args: payload.args,
    before,
    result: result(),
    isBeforeSecret,
  });
}

/** Encodes the observation made before the call. It is stored with the first attempt. */
export function encodeObservation(key: Buffer, txn: string, before: Json, isSecret: boolean): UndoArguments {
  return isSecret
    ? { before: null, args: null, sealed: encrypt(key, txn, JSON.stringify({ before }, rejectNonFinite)), reason: null }
    : { before: canonicalize(before), args: null, sealed: null, reason: null };
}

/** A replacer that throws on NaN and Infinity, which `JSON.stringify` would write as null. */
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

/** The observation of a call; undefined when there is none, or when it cannot be decrypted. */
export function decodeObservation(key: Buffer, call: StoredUndoFields): Json | undefined {
  if (call.before !== null) return JSON.parse(call.before) as Json;
  return decryptUndoFields(key, call)?.['before'];
}

/** The exact arguments of the undo, or a string with the reason why there are none. */
export function decodeUndoArgs(key: Buffer, call: StoredUndoFields): JsonObject | string {
  if (call.undoArgs === null) return 'the undo arguments are not known';
  if (call.undoSealed === null) return JSON.parse(call.undoArgs) as JsonObject;
  const args = decryptUndoFields(key, call)?.['args'];
  return isJsonObject(args) ? args : 'the undo arguments cannot be decrypted with the key of this gateway';
}

/**
 * The values that must not appear in the answer to a compensation: the secrets of the undone call, which an argument may
 * contain, and each hidden argument. Empty if the arguments are stored in clear.
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
