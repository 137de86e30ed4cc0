import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import type { ArgumentFaults, ValidationTimeout } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { compileBoundedRegex } from '../expressions/bounded-regex.ts';
import { runWithTimeout } from '../expressions/run-with-timeout.ts';
import { type DocumentPath, endSentence } from '../faults.ts';
import { formatShortValue } from '../zod-issues.ts';
import { measureExpandedSize } from './expanded-schema-size.ts';

/**
 * Checks arguments against the JSON Schema of their tool. The author of a policy or an untrusted MCP server writes the schema, and
 * an agent writes the arguments. So the cost of a check is bounded.
 */
export type ArgumentCheck = (args: JsonObject) => ArgumentFaults;
export type SchemaFault = { readonly path: DocumentPath; readonly message: string };

const MAX_FAULTS = 50;
const MAX_ERRORS_READ = 1_000;
const MAX_FAULT_CHARACTERS = 1_000;
const MAX_VALUES_FOR_ALL_ERRORS = 20_000;

/** The time limit of a check, during which all other requests wait. The second check, which lists every fault, has a shorter limit. */
const MAX_CHECK_MS = 1_000;
const MAX_CHECK_MS_FOR_ALL_ERRORS = 250;
/** After a timeout, the validator pauses for ten times the duration of that check, so that hostile arguments cannot block the process. */
const BACKOFF_FACTOR = 10;
/** Below these limits a check takes at most some ten milliseconds and needs no timeout. */
const MAX_UNTIMED_VISITS = 1_000_000;
const MAX_UNTIMED_REGEX_STEPS = 5_000_000;

type CompiledInputSchema = { check: ArgumentCheck } | { faults: SchemaFault[] };

/** Caches compiled schemas. Without the cache, the import and the compiler of its tool would both compile an imported schema. */
const compiledSchemas = new WeakMap<JsonObject, CompiledInputSchema>();

export function compileInputSchema(schema: JsonObject): CompiledInputSchema {
  const compiled = compiledSchemas.get(schema) ?? compileUncached(schema);
  compiledSchemas.set(schema, compiled);
  return compiled;
}

/**
 * Checks the schema now and compiles it at its first use, because a server may list thousands of tools of which few are called. If
 * the schema then fails to compile, the check refuses all arguments.
 */
export function compileInputSchemaLazily(schema: JsonObject): CompiledInputSchema {
  const faults = findSchemaFaults(schema);
  if (faults.length > 0) return { faults };
  return {
    check: (args) => {
      const compiled = compileInputSchema(schema);
      return 'check' in compiled ? compiled.check(args) : compiled.faults.map(({ message }) => message);
    },
  };
}

function findSchemaFaults(schema: JsonObject): SchemaFault[] {
  const faults: SchemaFault[] = [];
  if (schema['type'] !== undefined && schema['type'] !== 'object') {
    faults.push({
      path: ['type'],
      message: `type must be object, because the arguments of a tool are an object (got ${formatShortValue(schema['type'])}).`,
    });
  }
  collectSchemaFaults(schema, [], faults, 0);
  return faults;
}

function compileUncached(schema: JsonObject): CompiledInputSchema {
  // The default schema allows every object, and arguments always are one.
  if (Object.keys(schema).every((key) => key === 'type') && schema['type'] === 'object') return { check: () => [] };
  const faults = findSchemaFaults(schema);
  if (faults.length > 0) return { faults };
  let validator: TimeLimitedValidator;
  let maxUntimedVisits: number;
  try {
    validator = new TimeLimitedValidator(compileWithAjv(schema, false), MAX_CHECK_MS);
    maxUntimedVisits = MAX_UNTIMED_VISITS / measureExpandedSize(schema);
  } catch (error) {
    return {
      faults: [
        {
          path: [],
          message: endSentence(`This is not a valid JSON Schema: ${(error as Error).message.slice(0, 200)}`),
        },
      ],
    };
  }
  let allErrorsValidator: TimeLimitedValidator | undefined;
  const check: ArgumentCheck = (args) => {
    try {
      const validOrTimeout = validateBounded(validator, args, maxUntimedVisits);
      if (validOrTimeout !== false) return validOrTimeout === true ? [] : validOrTimeout;
      // Huge arguments may have a million faults, so only their first fault is listed.
      if (countValues(args, MAX_VALUES_FOR_ALL_ERRORS) >= MAX_VALUES_FOR_ALL_ERRORS)
        return formatErrors(validator.errors);
      allErrorsValidator ??= new TimeLimitedValidator(compileWithAjv(schema, true), MAX_CHECK_MS_FOR_ALL_ERRORS);
      // A few bytes may have millions of faults. If finding them takes too long, the first fault is reported alone.
      const isDone = typeof allErrorsValidator.validateWithTimeout(args) === 'boolean';
      return formatErrors(isDone ? allErrorsValidator.errors : validator.errors);
    } catch {
      // The validator recurses, so deeply nested arguments overflow the stack.
      return ['the arguments are nested too deeply to be checked'];
    }
  };
  return { check };
}

/** How many steps the patterns of an untimed check may still take. */
let regexStepsLeft = 0;
const NEEDS_TIME_LIMIT = new Error('The check needs a time limit.');

function validateBounded(
  validator: TimeLimitedValidator,
  args: JsonObject,
  maxUntimedVisits: number,
): boolean | ValidationTimeout {
  if (subtractVisits(args, maxUntimedVisits) >= 0) {
    regexStepsLeft = MAX_UNTIMED_REGEX_STEPS;
    try {
      return validator.validate(args);
    } catch (error) {
      if (error !== NEEDS_TIME_LIMIT) throw error;
    }
  }
  return validator.validateWithTimeout(args);
}

/** A validator with a timeout. After a timeout it refuses to run for a while. */
class TimeLimitedValidator {
  readonly validate: ValidateFunction;
  readonly #maxMs: number;
  #backoffUntil = 0;

  constructor(validate: ValidateFunction, maxMs: number) {
    this.validate = validate;
    this.#maxMs = maxMs;
  }

  get errors(): ErrorObject[] | null | undefined {
    return this.validate.errors;
  }

  validateWithTimeout(args: JsonObject): boolean | ValidationTimeout {
    const startedAt = performance.now();
    if (startedAt < this.#backoffUntil) return { retryAfterMs: this.#backoffUntil - startedAt, wasSkipped: true };
    regexStepsLeft = Number.POSITIVE_INFINITY;
    const isValid = runWithTimeout(this.#maxMs, (): boolean => this.validate(args));
    if (isValid !== undefined) return isValid;
    const endedAt = performance.now();
    const retryAfterMs = BACKOFF_FACTOR * (endedAt - startedAt);
    this.#backoffUntil = endedAt + retryAfterMs;
    return { retryAfterMs, wasSkipped: false };
  }
}

const ajvByOptions = new Map<string, Ajv>();

/** Creating an Ajv takes 20 ms, so there is one for each set of options. Ajv forgets a schema after compiling it. */
function compileWithAjv(schema: JsonObject, allErrors: boolean): ValidateFunction {
  const draft = schema['$schema'];
  const isOldDraft = typeof draft === 'string' && /draft-0[67]/.test(draft);
  const id = `${isOldDraft} ${allErrors}`;
  let compiler = ajvByOptions.get(id);
  if (compiler === undefined) {
    const regExp = Object.assign((pattern: string) => createCountedRegex(pattern), { code: 'new RegExp' });
    const options: Options = {
      allErrors,
      strict: false,
      validateFormats: false,
      logger: false,
      addUsedSchema: false,
      // Inherited properties such as `constructor` do not count as sent by the caller.
      ownProperties: true,
      code: { regExp },
    };
    compiler = isOldDraft ? new Ajv(options) : (new Ajv2020(options) as unknown as Ajv);
    ajvByOptions.set(id, compiler);
  }
  try {
    return compiler.compile(schema);
  } finally {
    compiler.removeSchema(schema);
  }
}

/** Ajv caches patterns by the result of `toString`, so each pattern needs its own. */
function createCountedRegex(source: string): { test: (text: string) => boolean; toString: () => string } {
  const pattern = compileBoundedRegex(source);
  if ('fault' in pattern) throw new Error(pattern.fault);
  const test = (text: string): boolean => {
    regexStepsLeft -= pattern.estimateSteps(text.length);
    if (regexStepsLeft < 0) throw NEEDS_TIME_LIMIT;
    return pattern.test(text);
  };
  return { test, toString: () => `/${source}/u` };
}

const SUBSCHEMA_KEYWORDS = [
  'items',
  'additionalProperties',
  'additionalItems',
  'not',
  'if',
  'then',
  'else',
  'contains',
  'propertyNames',
];
const UNEVALUATED_KEYWORDS = ['unevaluatedItems', 'unevaluatedProperties'];
const SCHEMA_LIST_KEYWORDS = ['allOf', 'anyOf', 'oneOf', 'prefixItems', 'items'];
const SCHEMA_MAP_KEYWORDS = ['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas'];
const SCALAR_TYPES = new Set<Json>(['string', 'number', 'integer', 'boolean', 'null']);

function collectSchemaFaults(schema: Json | undefined, path: DocumentPath, faults: SchemaFault[], depth: number): void {
  if (!isJsonObject(schema)) return;
  if (depth > 40) {
    faults.push({ path, message: 'The schema is nested too deeply: at most 40 levels are allowed.' });
    return;
  }
  const checkPattern = (source: string, patternPath: DocumentPath): void => {
    const compiled = compileBoundedRegex(source);
    if ('fault' in compiled) faults.push({ path: patternPath, message: compiled.fault });
  };
  if (typeof schema['pattern'] === 'string') checkPattern(schema['pattern'], [...path, 'pattern']);
  for (const key of isJsonObject(schema['patternProperties']) ? Object.keys(schema['patternProperties']) : []) {
    checkPattern(key, [...path, 'patternProperties', key]);
  }
  for (const key of ['$ref', '$dynamicRef', '$recursiveRef']) {
    const ref = schema[key];
    if (typeof ref === 'string' && !ref.startsWith('#')) {
      const message = `${key} must point inside this schema, such as #/$defs/name (got ${formatShortValue(ref)}).`;
      faults.push({ path: [...path, key], message });
    }
  }
  if (schema['uniqueItems'] === true && !hasScalarItems(schema['items'])) {
    const message =
      'uniqueItems must come with items of a scalar type, because comparing objects takes quadratic time. Write items: { type: string }.';
    faults.push({ path: [...path, 'uniqueItems'], message });
  }
  for (const key of [...SUBSCHEMA_KEYWORDS, ...UNEVALUATED_KEYWORDS])
    collectSchemaFaults(schema[key], [...path, key], faults, depth + 1);
  for (const key of SCHEMA_LIST_KEYWORDS) {
    const list = schema[key];
    if (Array.isArray(list))
      for (const [i, item] of list.entries()) collectSchemaFaults(item, [...path, key, i], faults, depth + 1);
  }
  for (const key of SCHEMA_MAP_KEYWORDS) {
    const map = schema[key];
    if (isJsonObject(map))
      for (const [name, item] of Object.entries(map))
        collectSchemaFaults(item, [...path, key, name], faults, depth + 1);
  }
}

function hasScalarItems(items: Json | undefined): boolean {
  if (!isJsonObject(items)) return false;
  const types = Array.isArray(items['type']) ? items['type'] : [items['type'] as Json];
  return types.every((type) => SCALAR_TYPES.has(type));
}

function formatErrors(errors: readonly ErrorObject[] | null | undefined): string[] {
  const messages = new Set<string>();
  const all = errors ?? [];
  let read = 0;
  for (; read < Math.min(all.length, MAX_ERRORS_READ) && messages.size < MAX_FAULTS; read++) {
    messages.add(sanitize(formatError(all[read] as ErrorObject), MAX_FAULT_CHARACTERS));
  }
  if (read < all.length) messages.add(`and ${all.length - read} more`);
  return messages.size > 0 ? [...messages] : ['the arguments do not fit the schema'];
}

/** Says where and what is wrong. Never shows the value, because the tool may declare it as redacted. */
function formatError(error: ErrorObject): string {
  const where = `args${error.instancePath
    .split('/')
    .slice(1)
    .map((part) => `.${part.replaceAll('~1', '/').replaceAll('~0', '~')}`)
    .join('')}`;
  if (error.keyword === 'additionalProperties') {
    return `${where} must not have ${JSON.stringify(error.params['additionalProperty'])}`;
  }
  if (error.keyword === 'required') return `${where} must have ${JSON.stringify(error.params['missingProperty'])}`;
  if (error.keyword === 'enum') return `${where} must be one of ${JSON.stringify(error.params['allowedValues'])}`;
  if (error.keyword === 'const') return `${where} must be ${JSON.stringify(error.params['allowedValue'])}`;
  return `${where} ${error.message ?? 'does not fit'}`;
}

function countValues(value: Json, max: number): number {
  let count = 0;
  const stack: Json[] = [value];
  while (stack.length > 0 && count < max) {
    const next = stack.pop() as Json;
    count += 1;
    if (typeof next !== 'object' || next === null) continue;
    for (const item of Object.values(next)) {
      if (stack.length > max) return max;
      stack.push(item);
    }
  }
  return count;
}

/** Returns the visits that are left after a check of the value. Long text takes several visits. Negative: the value is too large. */
function subtractVisits(value: Json, visitsLeft: number, depth = 0): number {
  if (typeof value === 'string') return visitsLeft - 1 - (value.length >> 4);
  if (typeof value !== 'object' || value === null) return visitsLeft - 1;
  if (depth > 100) return -1;
  let left = visitsLeft - 1;
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length && left >= 0; i++) left = subtractVisits(value[i] as Json, left, depth + 1);
    return left;
  }
  for (const key in value) {
    left = subtractVisits((value as JsonObject)[key] as Json, left - (key.length >> 4), depth + 1);
    if (left < 0) return left;
  }
  return left;
}

/**
 * The names of the arguments under `properties`. `closed`: the schema refuses all others. Undefined if other keywords may declare
 * arguments too.
 */
export function readDeclaredArguments(schema: JsonObject): { names: Set<string>; closed: boolean } | undefined {
  const openKeywords = ['allOf', 'anyOf', 'oneOf', '$ref', 'if', 'patternProperties', 'dependentSchemas'];
  const additional = schema['additionalProperties'];
  const properties = schema['properties'];
  if (!isJsonObject(properties) || openKeywords.some((key) => key in schema)) return undefined;
  if (additional === true || isJsonObject(additional)) return undefined;
  return { names: new Set(Object.keys(properties)), closed: additional === false };
}
