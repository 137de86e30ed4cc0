import { Ajv, type ErrorObject, type Options, type ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import type { Path } from './faults.ts';
import { compilePattern } from './pattern.ts';

/**
 * A tool's own JSON Schema. It is written by a policy's author (or by an MCP server, who is not trusted), and it runs
 * over what an agent sends: nothing in it may cost more than the size of the arguments.
 */
export type Check = (args: JsonObject) => readonly string[];
export type SchemaFault = { readonly path: Path; readonly message: string };

const MOST_FAULTS = 50;
const MOST_VALUES_FOR_ALL = 20_000;

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
  let first: ValidateFunction;
  try {
    first = compileSchema(schema, false);
  } catch (error) {
    return { faults: [{ path: [], message: `not a JSON Schema: ${(error as Error).message.slice(0, 200)}` }] };
  }
  let all: ValidateFunction | undefined;
  const check: Check = (args) => {
    try {
      if (first(args)) return [];
      // Every fault of a small body, the first of a huge one: a million faults would be an attack on us.
      if (countValues(args, MOST_VALUES_FOR_ALL) >= MOST_VALUES_FOR_ALL) return sentences(first.errors);
      all ??= compileSchema(schema, true);
      all(args);
      return sentences(all.errors ?? first.errors);
    } catch {
      return ['the arguments are nested too deeply to be checked'];
    }
  };
  return { check };
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
  return { test: pattern.test, toString: () => `/${source}/u` };
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
  const said = new Set((errors ?? []).map(sentence));
  const list = [...said].slice(0, MOST_FAULTS);
  if (said.size > MOST_FAULTS) list.push(`and ${said.size - MOST_FAULTS} more`);
  return list.length > 0 ? list : ['the arguments do not fit the schema'];
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

/** The names an object schema declares, or undefined when it does not say them all in one place. */
export function declaredArguments(schema: JsonObject): { names: Set<string>; closed: boolean } | undefined {
  const open = ['allOf', 'anyOf', 'oneOf', '$ref', 'if', 'patternProperties', 'dependentSchemas'];
  const more = schema['additionalProperties'];
  const properties = schema['properties'];
  if (!isObject(properties) || open.some((key) => key in schema)) return undefined;
  if (more === true || isObject(more)) return undefined;
  return { names: new Set(Object.keys(properties)), closed: more === false };
}
