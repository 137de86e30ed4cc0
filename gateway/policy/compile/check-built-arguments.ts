import { canonicalize, NotCanonicalError } from '../../domain/canonical.ts';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { listFaults, type Tool } from '../../domain/policy.ts';
import { splitTemplate } from '../expressions/compile-template.ts';
import { type DocumentPath, didYouMean, formatList } from '../faults.ts';
import { formatShortValue } from '../zod-issues.ts';

/** A fault of the arguments that a template builds. `path` leads to a part of the template; `key`: to its key. */
export interface BuiltArgumentFault {
  readonly path: DocumentPath;
  readonly key?: true;
  readonly message: string;
}

/**
 * Checks the arguments that a template builds against the input schema of the tool that gets them. Reports only what is wrong for
 * every call: the values of expressions are unknown, except that `${args.x}` has the declared type of argument `x` of the caller.
 */
export function checkBuiltArguments(template: Json, target: Tool, callerInput: JsonObject): BuiltArgumentFault[] {
  const context: CheckContext = { target, callerInput, faults: [], stepsLeft: MAX_STEPS };
  if (isJsonObject(template)) checkValue(template, target.input, [], context, MAX_DEPTH);
  else if (readKnownTypes(template, callerInput)?.has('object') === false)
    context.faults.push({ path: [], message: `The arguments of ${target.name} must be an object.` });
  if (context.faults.length === 0 && isJsonObject(template) && isLiteral(template)) {
    const faults = listFaults(target.faults(template));
    const message = `These arguments do not fit ${target.name}: ${faults.join('; ')}.`;
    if (faults.length > 0) context.faults.push({ path: [], message });
  }
  return context.faults;
}

interface CheckContext {
  readonly target: Tool;
  readonly callerInput: JsonObject;
  readonly faults: BuiltArgumentFault[];
  /** Schemas that refer to one another would otherwise take exponential time. What is left over is not checked. */
  stepsLeft: number;
}

const MAX_STEPS = 10_000;
/** The depth of schemas that refer to one another, or of templates. Deeper parts are not checked. */
const MAX_DEPTH = 40;

function checkValue(value: Json, written: Json, path: DocumentPath, context: CheckContext, depthLeft: number): void {
  context.stepsLeft -= 1;
  if (depthLeft === 0 || context.stepsLeft < 0) return;
  const schema = resolveReference(written, context.target.input, depthLeft);
  if (!isJsonObject(schema)) return;
  const allOf = Array.isArray(schema['allOf']) ? schema['allOf'] : [];
  for (const part of allOf) checkValue(value, part as Json, path, context, depthLeft - 1);
  checkType(value, schema, path, context);
  if (isJsonObject(value)) checkMembers(value, schema, path, context, depthLeft);
  else if (Array.isArray(value) && schema['prefixItems'] === undefined) {
    const items = schema['items'];
    if (items === undefined || Array.isArray(items)) return;
    for (const [index, item] of value.entries())
      checkValue(item as Json, items, [...path, index], context, depthLeft - 1);
  }
}

function checkMembers(
  value: JsonObject,
  schema: JsonObject,
  path: DocumentPath,
  context: CheckContext,
  depthLeft: number,
): void {
  const properties = isJsonObject(schema['properties']) ? schema['properties'] : {};
  const required = Array.isArray(schema['required']) ? schema['required'] : [];
  for (const name of required) {
    if (typeof name !== 'string' || Object.hasOwn(value, name)) continue;
    const where = formatArgument([...path, name]);
    const near = Object.keys(value).filter((key) => !Object.hasOwn(properties, key));
    const message = `${context.target.name} requires the argument ${where}, which is missing.${didYouRename(name, near)} Add it.`;
    context.faults.push({ path, message });
  }
  for (const [name, member] of Object.entries(value)) {
    if (Object.hasOwn(properties, name)) {
      checkValue(member, properties[name] as Json, [...path, name], context, depthLeft - 1);
      continue;
    }
    const additional = schema['additionalProperties'];
    if (additional === undefined || schema['patternProperties'] !== undefined) continue;
    if (additional !== false) checkValue(member, additional, [...path, name], context, depthLeft - 1);
    else {
      const where = formatArgument([...path, name]);
      const known = formatList(Object.keys(properties)) || 'none';
      const message = `${context.target.name} has no argument ${where}.${didYouMean(name, Object.keys(properties))} Known arguments: ${known}.`;
      context.faults.push({ path: [...path, name], key: true, message });
    }
  }
}

/** Says which written argument was probably meant for a missing one. */
function didYouRename(name: string, unknown: readonly string[]): string {
  const meant = unknown.find((candidate) => didYouMean(candidate, [name]) !== '');
  return meant === undefined ? '' : ` Is it misspelled as ${meant}?`;
}

function checkType(value: Json, schema: JsonObject, path: DocumentPath, context: CheckContext): void {
  const types = readKnownTypes(value, context.callerInput);
  if (types === undefined) return;
  const allowed = readTypes(schema['type']);
  const got = typeof value === 'string' && !isLiteral(value) ? formatList(types) : formatShortValue(value);
  const where = formatArgument(path);
  const report = (expected: string): void => {
    context.faults.push({ path, message: `${where} of ${context.target.name} must be ${expected} (got ${got}).` });
  };
  const fits = (type: string): boolean =>
    types.has(type) ||
    (type === 'number' && types.has('integer')) ||
    // An expression of type number may yield a whole number. A literal such as 1.5 does not.
    (type === 'integer' && types.has('number') && !isLiteral(value));
  if (allowed !== undefined && !allowed.some(fits))
    report(`of type ${allowed.length === 1 ? allowed[0] : `${allowed.slice(0, -1).join(', ')} or ${allowed.at(-1)}`}`);
  else if (isLiteral(value)) {
    const choices = schema['enum'];
    if (Array.isArray(choices) && !choices.some((choice) => isEqualJson(choice as Json, value)))
      report(`one of ${choices.map((choice) => JSON.stringify(choice)).join(', ')}`);
    if (schema['const'] !== undefined && !isEqualJson(schema['const'], value)) report(JSON.stringify(schema['const']));
  }
}

/** The JSON types that a part of a template can have; undefined when only a call tells. */
function readKnownTypes(value: Json, callerInput: JsonObject): ReadonlySet<string> | undefined {
  if (typeof value !== 'string') return new Set([typeOf(value)]);
  const parts = splitTemplate(value);
  if (!Array.isArray(parts)) return undefined;
  const [only] = parts;
  if (parts.length !== 1 || only === undefined || 'text' in only) return new Set(['string']);
  const [, names] = /^\s*args\.([A-Za-z_][\w.]*)\s*$/.exec(only.expression) ?? [];
  return names === undefined ? undefined : readDeclaredTypes(callerInput, names.split('.'));
}

/** The declared types of an argument of the caller. Its arguments fit its schema before any template is rendered. */
function readDeclaredTypes(input: JsonObject, names: readonly string[]): ReadonlySet<string> | undefined {
  let schema: Json | undefined = input;
  for (const name of names) {
    const properties: Json | undefined = isJsonObject(schema) ? schema['properties'] : undefined;
    schema = isJsonObject(properties) && Object.hasOwn(properties, name) ? properties[name] : undefined;
  }
  const types = isJsonObject(schema) ? readTypes(schema['type']) : undefined;
  return types && new Set(types);
}

/** Values without a canonical form count as equal, because a fault must be certain. */
function isEqualJson(one: Json, other: Json): boolean {
  try {
    return canonicalize(one) === canonicalize(other);
  } catch (error) {
    if (error instanceof NotCanonicalError) return true;
    throw error;
  }
}

function readTypes(type: Json | undefined): string[] | undefined {
  if (typeof type === 'string') return [type];
  return Array.isArray(type) && type.every((each) => typeof each === 'string') && type.length > 0
    ? (type as string[])
    : undefined;
}

function typeOf(value: Json): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  if (typeof value !== 'number') return typeof value;
  return Number.isInteger(value) ? 'integer' : 'number';
}

/** Whether no part of the template is an expression. */
function isLiteral(value: Json): boolean {
  if (typeof value === 'string') return !value.includes('${');
  if (typeof value !== 'object' || value === null) return true;
  return Object.values(value).every((member) => isLiteral(member as Json));
}

/** Follows `$ref` inside the schema. Undefined for a reference that needs more than the names of members. */
function resolveReference(schema: Json, root: JsonObject, depthLeft: number): Json | undefined {
  const ref = isJsonObject(schema) ? schema['$ref'] : undefined;
  if (typeof ref !== 'string') return schema;
  // An `$id` changes what a reference is relative to.
  if (depthLeft === 0 || !/^#(?:\/[^%]*)?$/.test(ref) || JSON.stringify(root).includes('"$id"')) return undefined;
  let found: Json | undefined = root;
  for (const part of ref.split('/').slice(1)) {
    const name = part.replaceAll('~1', '/').replaceAll('~0', '~');
    found =
      typeof found === 'object' && found !== null && Object.hasOwn(found, name)
        ? (found as JsonObject)[name]
        : undefined;
  }
  return found === undefined ? undefined : resolveReference(found, root, depthLeft - 1);
}

function formatArgument(path: DocumentPath): string {
  return path.length === 0 ? 'The arguments' : path.join('.');
}
