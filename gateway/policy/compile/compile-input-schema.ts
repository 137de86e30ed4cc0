import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import type { ArgumentFaults, ValidationTimeout } from '../../domain/policy.ts';
import { sanitize } from '../../domain/sanitize.ts';
import { compileBoundedRegex } from '../expressions/bounded-regex.ts';
import { runWithTimeout } from '../expressions/run-with-timeout.ts';
import type { DocumentPath } from '../faults.ts';
import { measureExpandedSize } from './expanded-schema-size.ts';

/**
 * A tool's own JSON Schema. It is written by a policy's author (or by an MCP server, who is not trusted), and it runs
 * over what an agent sends: nothing in it may cost more than the size of the arguments.
 */
export type ArgumentCheck = (args: JsonObject) => ArgumentFaults;
export type SchemaFault = { readonly path: DocumentPath; readonly message: string };

const MAX_FAULTS = 50;
const MAX_ERRORS_READ = 1_000;
const MAX_FAULT_CHARACTERS = 1_000;
const MAX_VALUES_FOR_ALL_ERRORS = 20_000;

/** What a check may take: everybody else waits for it. Telling every fault instead of the first is worth less. */
const MAX_CHECK_MS = 1_000;
const MAX_CHECK_MS_FOR_ALL_ERRORS = 250;
/** One that took longer is left alone for so many times as long: whatever is sent, most of the time is everybody's. */
const BACKOFF_FACTOR = 10;
/** Below these a check cannot take more than some ten milliseconds, and nobody needs to watch it. */
const MAX_UNTIMED_VISITS = 1_000_000;
const MAX_UNTIMED_REGEX_STEPS = 5_000_000;

type CompiledInputSchema = { check: ArgumentCheck } | { faults: SchemaFault[] };

/** An imported schema is compiled to see whether it can be, and again with its tool: that costs milliseconds each. */
const compiledSchemas = new WeakMap<JsonObject, CompiledInputSchema>();

export function compileInputSchema(schema: JsonObject): CompiledInputSchema {
  const compiled = compiledSchemas.get(schema) ?? compileUncached(schema);
  compiledSchemas.set(schema, compiled);
  return compiled;
}

/**
 * Looked at now and compiled when it is first needed: a server may list thousands of tools of which few are ever called. One
 * that turns out not to be a schema then fits no arguments.
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
    faults.push({ path: ['type'], message: 'the arguments of a tool are always an object: write type: object' });
  }
  collectSchemaFaults(schema, [], faults, 0);
  return faults;
}

function compileUncached(schema: JsonObject): CompiledInputSchema {
  // The default: arguments are an object, which they always are.
  if (Object.keys(schema).every((key) => key === 'type') && schema['type'] === 'object') return { check: () => [] };
  const faults = findSchemaFaults(schema);
  if (faults.length > 0) return { faults };
  let first: TimeLimitedValidator;
  let lightest: number;
  try {
    first = new TimeLimitedValidator(compileWithAjv(schema, false), MAX_CHECK_MS);
    lightest = MAX_UNTIMED_VISITS / measureExpandedSize(schema);
  } catch (error) {
    return { faults: [{ path: [], message: `not a JSON Schema: ${(error as Error).message.slice(0, 200)}` }] };
  }
  let all: TimeLimitedValidator | undefined;
  const check: ArgumentCheck = (args) => {
    try {
      const fit = validateBounded(first, args, lightest);
      if (fit !== false) return fit === true ? [] : fit;
      // Every fault of a small body, the first of a huge one: a million faults would be an attack on us.
      if (countValues(args, MAX_VALUES_FOR_ALL_ERRORS) >= MAX_VALUES_FOR_ALL_ERRORS) return formatErrors(first.errors);
      all ??= new TimeLimitedValidator(compileWithAjv(schema, true), MAX_CHECK_MS_FOR_ALL_ERRORS);
      // A few bytes may have millions: when finding them all takes too long, the first must do.
      return formatErrors(typeof all.validateWithTimeout(args) === 'boolean' ? all.errors : first.errors);
    } catch {
      return ['the arguments are nested too deeply to be checked'];
    }
  };
  return { check };
}

/** How many steps patterns may still take before somebody watches. */
let regexStepsLeft = 0;
const NEEDS_TIME_LIMIT = new Error('this has to be watched');

function validateBounded(check: TimeLimitedValidator, args: JsonObject, lightest: number): boolean | ValidationTimeout {
  if (subtractVisits(args, lightest) >= 0) {
    regexStepsLeft = MAX_UNTIMED_REGEX_STEPS;
    try {
      return check.validate(args);
    } catch (error) {
      if (error !== NEEDS_TIME_LIMIT) throw error;
    }
  }
  return check.validateWithTimeout(args);
}

/** A check that is given up when it takes too long, and then left alone. */
class TimeLimitedValidator {
  readonly validate: ValidateFunction;
  readonly #maxMs: number;
  #backoffUntil = 0;

  constructor(validate: ValidateFunction, mostMs: number) {
    this.validate = validate;
    this.#maxMs = mostMs;
  }

  get errors(): ErrorObject[] | null | undefined {
    return this.validate.errors;
  }

  validateWithTimeout(args: JsonObject): boolean | ValidationTimeout {
    const began = performance.now();
    if (began < this.#backoffUntil) return { restsForMs: this.#backoffUntil - began, isResting: true };
    regexStepsLeft = Number.POSITIVE_INFINITY;
    const fit = runWithTimeout(this.#maxMs, (): boolean => this.validate(args));
    if (fit !== undefined) return fit;
    const ended = performance.now();
    const restsForMs = BACKOFF_FACTOR * (ended - began);
    this.#backoffUntil = ended + restsForMs;
    return { restsForMs, isResting: false };
  }
}

const ajvByOptions = new Map<string, Ajv>();

/** Making a compiler takes 20 ms, so there is one of each kind; it forgets a schema as soon as that is compiled. */
function compileWithAjv(schema: JsonObject, allErrors: boolean): ValidateFunction {
  const draft = schema['$schema'];
  const old = typeof draft === 'string' && /draft-0[67]/.test(draft);
  const id = `${old} ${allErrors}`;
  let compiler = ajvByOptions.get(id);
  if (compiler === undefined) {
    const regExp = Object.assign((pattern: string) => createCountedRegex(pattern), { code: 'new RegExp' });
    const options: Options = {
      allErrors,
      strict: false,
      validateFormats: false,
      logger: false,
      addUsedSchema: false,
      // A property called `constructor` or `toString` is there only if the caller sent it.
      ownProperties: true,
      code: { regExp },
    };
    compiler = old ? new Ajv(options) : (new Ajv2020(options) as unknown as Ajv);
    ajvByOptions.set(id, compiler);
  }
  try {
    return compiler.compile(schema);
  } finally {
    compiler.removeSchema(schema);
  }
}

/** ajv keeps patterns by their text, as `toString` gives it: without one, all of them would be the first. */
function createCountedRegex(source: string): { test: (text: string) => boolean; toString: () => string } {
  const pattern = compileBoundedRegex(source);
  if ('fault' in pattern) throw new Error(pattern.fault);
  const test = (text: string): boolean => {
    regexStepsLeft -= pattern.steps(text.length);
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
    faults.push({ path, message: 'the schema is nested too deeply' });
    return;
  }
  const pattern = (source: string, where: DocumentPath): void => {
    const compiled = compileBoundedRegex(source);
    if ('fault' in compiled) faults.push({ path: where, message: compiled.fault });
  };
  if (typeof schema['pattern'] === 'string') pattern(schema['pattern'], [...path, 'pattern']);
  for (const key of isJsonObject(schema['patternProperties']) ? Object.keys(schema['patternProperties']) : []) {
    pattern(key, [...path, 'patternProperties', key]);
  }
  for (const key of ['$ref', '$dynamicRef', '$recursiveRef']) {
    const ref = schema[key];
    if (typeof ref === 'string' && !ref.startsWith('#')) {
      faults.push({ path: [...path, key], message: 'a reference outside this schema is refused: use #/$defs/…' });
    }
  }
  if (schema['uniqueItems'] === true && !hasScalarItems(schema['items'])) {
    const message = 'uniqueItems needs items of a scalar type: comparing objects costs the square of their number';
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
  const said = new Set<string>();
  const all = errors ?? [];
  let read = 0;
  for (; read < Math.min(all.length, MAX_ERRORS_READ) && said.size < MAX_FAULTS; read++) {
    said.add(sanitize(formatError(all[read] as ErrorObject), MAX_FAULT_CHARACTERS));
  }
  if (read < all.length) said.add(`and ${all.length - read} more`);
  return said.size > 0 ? [...said] : ['the arguments do not fit the schema'];
}

/** Where and what is wrong; never the value, which may be one that is redacted. */
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

function countValues(value: Json, most: number): number {
  let count = 0;
  const stack: Json[] = [value];
  while (stack.length > 0 && count < most) {
    const next = stack.pop() as Json;
    count += 1;
    if (typeof next !== 'object' || next === null) continue;
    for (const item of Object.values(next)) {
      if (stack.length > most) return most;
      stack.push(item);
    }
  }
  return count;
}

/** What is left after looking at all of a value; less than nothing: it is too large. Text costs little, only its length is counted. */
function subtractVisits(value: Json, most: number, depth = 0): number {
  if (typeof value === 'string') return most - 1 - (value.length >> 4);
  if (typeof value !== 'object' || value === null) return most - 1;
  if (depth > 100) return -1;
  let left = most - 1;
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

/** The names an object schema declares, or undefined when it does not say them all in one place. */
export function readDeclaredArguments(schema: JsonObject): { names: Set<string>; closed: boolean } | undefined {
  const open = ['allOf', 'anyOf', 'oneOf', '$ref', 'if', 'patternProperties', 'dependentSchemas'];
  const more = schema['additionalProperties'];
  const properties = schema['properties'];
  if (!isJsonObject(properties) || open.some((key) => key in schema)) return undefined;
  if (more === true || isJsonObject(more)) return undefined;
  return { names: new Set(Object.keys(properties)), closed: more === false };
}
