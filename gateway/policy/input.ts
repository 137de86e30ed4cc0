import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import { legible } from '../domain/legible.ts';
import type { Faults, Undecided } from '../domain/policy.ts';
import type { Path } from './faults.ts';
import { compilePattern } from './pattern.ts';
import { writtenOutSize } from './schema-size.ts';
import { withinTime } from './watchdog.ts';

/**
 * A tool's own JSON Schema. It is written by a policy's author (or by an MCP server, who is not trusted), and it runs
 * over what an agent sends: nothing in it may cost more than the size of the arguments.
 */
export type Check = (args: JsonObject) => Faults;
export type SchemaFault = { readonly path: Path; readonly message: string };

const MOST_FAULTS = 50;
const MOST_FAULTS_READ = 1_000;
const MOST_FAULT_CHARACTERS = 1_000;
const MOST_VALUES_FOR_ALL = 20_000;

/** What a check may take: everybody else waits for it. Telling every fault instead of the first is worth less. */
const MOST_MS = 1_000;
const MOST_MS_FOR_ALL = 250;
/** One that took longer is left alone for so many times as long: whatever is sent, most of the time is everybody's. */
const REST = 10;
/** Below these a check cannot take more than some ten milliseconds, and nobody needs to watch it. */
const UNWATCHED_VISITS = 1_000_000;
const UNWATCHED_STEPS = 5_000_000;

type Compiled = { check: Check } | { faults: SchemaFault[] };

/** An imported schema is compiled to see whether it can be, and again with its tool: that costs milliseconds each. */
const compiledInputs = new WeakMap<JsonObject, Compiled>();

export function compileInput(schema: JsonObject): Compiled {
  const compiled = compiledInputs.get(schema) ?? compileAnew(schema);
  compiledInputs.set(schema, compiled);
  return compiled;
}

/**
 * Looked at now and compiled when it is first needed: a server may list thousands of tools of which few are ever called. One
 * that turns out not to be a schema then fits no arguments.
 */
export function compileInputLater(schema: JsonObject): Compiled {
  const faults = visibleFaults(schema);
  if (faults.length > 0) return { faults };
  return {
    check: (args) => {
      const compiled = compileInput(schema);
      return 'check' in compiled ? compiled.check(args) : compiled.faults.map(({ message }) => message);
    },
  };
}

function visibleFaults(schema: JsonObject): SchemaFault[] {
  const faults: SchemaFault[] = [];
  if (schema['type'] !== undefined && schema['type'] !== 'object') {
    faults.push({ path: ['type'], message: 'the arguments of a tool are always an object: write type: object' });
  }
  inspect(schema, [], faults, 0);
  return faults;
}

function compileAnew(schema: JsonObject): Compiled {
  // The default: arguments are an object, which they always are.
  if (Object.keys(schema).every((key) => key === 'type') && schema['type'] === 'object') return { check: () => [] };
  const faults = visibleFaults(schema);
  if (faults.length > 0) return { faults };
  let first: WatchedCheck;
  let lightest: number;
  try {
    first = new WatchedCheck(compileSchema(schema, false), MOST_MS);
    lightest = UNWATCHED_VISITS / writtenOutSize(schema);
  } catch (error) {
    return { faults: [{ path: [], message: `not a JSON Schema: ${(error as Error).message.slice(0, 200)}` }] };
  }
  let all: WatchedCheck | undefined;
  const check: Check = (args) => {
    try {
      const fit = fits(first, args, lightest);
      if (fit !== false) return fit === true ? [] : fit;
      // Every fault of a small body, the first of a huge one: a million faults would be an attack on us.
      if (countValues(args, MOST_VALUES_FOR_ALL) >= MOST_VALUES_FOR_ALL) return sentences(first.errors);
      all ??= new WatchedCheck(compileSchema(schema, true), MOST_MS_FOR_ALL);
      // A few bytes may have millions: when finding them all takes too long, the first must do.
      return sentences(typeof all.fits(args) === 'boolean' ? all.errors : first.errors);
    } catch {
      return ['the arguments are nested too deeply to be checked'];
    }
  };
  return { check };
}

/** How many steps patterns may still take before somebody watches. */
let stepsLeft = 0;
const UNWATCHED = new Error('this has to be watched');

function fits(check: WatchedCheck, args: JsonObject, lightest: number): boolean | Undecided {
  if (leftAfter(args, lightest) >= 0) {
    stepsLeft = UNWATCHED_STEPS;
    try {
      return check.validate(args);
    } catch (error) {
      if (error !== UNWATCHED) throw error;
    }
  }
  return check.fits(args);
}

/** A check that is given up when it takes too long, and then left alone. */
class WatchedCheck {
  readonly validate: ValidateFunction;
  readonly #mostMs: number;
  #restsUntil = 0;

  constructor(validate: ValidateFunction, mostMs: number) {
    this.validate = validate;
    this.#mostMs = mostMs;
  }

  get errors(): ErrorObject[] | null | undefined {
    return this.validate.errors;
  }

  fits(args: JsonObject): boolean | Undecided {
    const began = performance.now();
    if (began < this.#restsUntil) return { restsForMs: this.#restsUntil - began, isResting: true };
    stepsLeft = Number.POSITIVE_INFINITY;
    const fit = withinTime(this.#mostMs, (): boolean => this.validate(args));
    if (fit !== undefined) return fit;
    const ended = performance.now();
    const restsForMs = REST * (ended - began);
    this.#restsUntil = ended + restsForMs;
    return { restsForMs, isResting: false };
  }
}

const compilers = new Map<string, Ajv>();

/** Making a compiler takes 20 ms, so there is one of each kind; it forgets a schema as soon as that is compiled. */
function compileSchema(schema: JsonObject, allErrors: boolean): ValidateFunction {
  const draft = schema['$schema'];
  const old = typeof draft === 'string' && /draft-0[67]/.test(draft);
  const id = `${old} ${allErrors}`;
  let compiler = compilers.get(id);
  if (compiler === undefined) {
    const regExp = Object.assign((pattern: string) => patternOf(pattern), { code: 'new RegExp' });
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
    compilers.set(id, compiler);
  }
  try {
    return compiler.compile(schema);
  } finally {
    compiler.removeSchema(schema);
  }
}

/** ajv keeps patterns by their text, as `toString` gives it: without one, all of them would be the first. */
function patternOf(source: string): { test: (text: string) => boolean; toString: () => string } {
  const pattern = compilePattern(source);
  if ('fault' in pattern) throw new Error(pattern.fault);
  const test = (text: string): boolean => {
    stepsLeft -= pattern.steps(text.length);
    if (stepsLeft < 0) throw UNWATCHED;
    return pattern.test(text);
  };
  return { test, toString: () => `/${source}/u` };
}

const ONE = [
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
const ONE_MORE = ['unevaluatedItems', 'unevaluatedProperties'];
const LISTS = ['allOf', 'anyOf', 'oneOf', 'prefixItems', 'items'];
const MAPS = ['properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas'];
const SCALARS = new Set<Json>(['string', 'number', 'integer', 'boolean', 'null']);

function inspect(schema: Json | undefined, path: Path, faults: SchemaFault[], depth: number): void {
  if (!isObject(schema)) return;
  if (depth > 40) {
    faults.push({ path, message: 'the schema is nested too deeply' });
    return;
  }
  const pattern = (source: string, where: Path): void => {
    const compiled = compilePattern(source);
    if ('fault' in compiled) faults.push({ path: where, message: compiled.fault });
  };
  if (typeof schema['pattern'] === 'string') pattern(schema['pattern'], [...path, 'pattern']);
  for (const key of isObject(schema['patternProperties']) ? Object.keys(schema['patternProperties']) : []) {
    pattern(key, [...path, 'patternProperties', key]);
  }
  for (const key of ['$ref', '$dynamicRef', '$recursiveRef']) {
    const ref = schema[key];
    if (typeof ref === 'string' && !ref.startsWith('#')) {
      faults.push({ path: [...path, key], message: 'a reference outside this schema is refused: use #/$defs/…' });
    }
  }
  if (schema['uniqueItems'] === true && !scalarItems(schema['items'])) {
    const message = 'uniqueItems needs items of a scalar type: comparing objects costs the square of their number';
    faults.push({ path: [...path, 'uniqueItems'], message });
  }
  for (const key of [...ONE, ...ONE_MORE]) inspect(schema[key], [...path, key], faults, depth + 1);
  for (const key of LISTS) {
    const list = schema[key];
    if (Array.isArray(list))
      for (const [i, item] of list.entries()) inspect(item, [...path, key, i], faults, depth + 1);
  }
  for (const key of MAPS) {
    const map = schema[key];
    if (isObject(map))
      for (const [name, item] of Object.entries(map)) inspect(item, [...path, key, name], faults, depth + 1);
  }
}

function scalarItems(items: Json | undefined): boolean {
  if (!isObject(items)) return false;
  const types = Array.isArray(items['type']) ? items['type'] : [items['type'] as Json];
  return types.every((type) => SCALARS.has(type));
}

function sentences(errors: readonly ErrorObject[] | null | undefined): string[] {
  const said = new Set<string>();
  const all = errors ?? [];
  let read = 0;
  for (; read < Math.min(all.length, MOST_FAULTS_READ) && said.size < MOST_FAULTS; read++) {
    said.add(legible(sentence(all[read] as ErrorObject), MOST_FAULT_CHARACTERS));
  }
  if (read < all.length) said.add(`and ${all.length - read} more`);
  return said.size > 0 ? [...said] : ['the arguments do not fit the schema'];
}

/** Where and what is wrong; never the value, which may be one that is redacted. */
function sentence(error: ErrorObject): string {
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
function leftAfter(value: Json, most: number, depth = 0): number {
  if (typeof value === 'string') return most - 1 - (value.length >> 4);
  if (typeof value !== 'object' || value === null) return most - 1;
  if (depth > 100) return -1;
  let left = most - 1;
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length && left >= 0; i++) left = leftAfter(value[i] as Json, left, depth + 1);
    return left;
  }
  for (const key in value) {
    left = leftAfter((value as JsonObject)[key] as Json, left - (key.length >> 4), depth + 1);
    if (left < 0) return left;
  }
  return left;
}

/** The names an object schema declares, or undefined when it does not say them all in one place. */
export function declaredArguments(schema: JsonObject): { names: Set<string>; closed: boolean } | undefined {
  const open = ['allOf', 'anyOf', 'oneOf', '$ref', 'if', 'patternProperties', 'dependentSchemas'];
  const more = schema['additionalProperties'];
  const properties = schema['properties'];
  if (!isObject(properties) || open.some((key) => key in schema)) return undefined;
  if (more === true || isObject(more)) return undefined;
  return { names: new Set(Object.keys(properties)), closed: more === false };
}
