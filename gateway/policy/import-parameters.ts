// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are what is written here
import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import { isGatewaysOwn } from './compile-upstream.ts';
import type { Path } from './faults.ts';
import { type Located, NotImportable, type OpenApiDocument } from './import-document.ts';
import type { SchemaReader } from './import-schema.ts';
import { headerName } from './schema.ts';

export interface Parameter {
  readonly name: string;
  readonly in: 'path' | 'query' | 'header';
  readonly required: boolean;
  readonly schema: JsonObject;
  /** The template that writes it into the request. */
  readonly template: string;
}

/** The specification says of these that a parameter with their name is ignored: they are written elsewhere. */
const NEVER = new Set(['accept', 'content-type', 'authorization']);

/** By these some servers take a request for one with another method, path or host: then a tool would not be what it says. */
const DIVERTING =
  /^(?:x-http-method|x-(?:http-)?method-override|x-original-url|x-rewrite-url|x-(?:original-|forwarded-)?host|x-forwarded-.+|forwarded)$/i;

/**
 * The parameters of an operation, its own before those of its path. One that cannot be sent is left out with a
 * warning; if the service needs it, so is the operation.
 */
export function readParameters(
  document: OpenApiDocument,
  lists: readonly Located[],
  given: ReadonlySet<string>,
  schemas: SchemaReader,
): Parameter[] {
  const found = new Map<string, Parameter | undefined>();
  for (const { value, path } of lists) {
    for (const [index, item] of document.list(value, path).entries()) {
      const parameter = document.follow(item, [...path, index]);
      const map = document.map(parameter.value, parameter.path);
      const name = text(document, map, 'name', parameter.path);
      const where = text(document, map, 'in', parameter.path);
      const id = `${where} ${where === 'header' ? name.toLowerCase() : name}`;
      if (found.has(id)) continue;
      const isWritten = where === 'header' && (NEVER.has(name.toLowerCase()) || given.has(name.toLowerCase()));
      found.set(
        id,
        isWritten ? undefined : readParameter(document, map, { name, where, path: parameter.path }, schemas),
      );
    }
  }
  const parameters = [...found.values()].filter((parameter) => parameter !== undefined);
  const names = parameters.map(({ name }) => name);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) throw new NotImportable(`two of its parameters are called ${JSON.stringify(twice)}`);
  return parameters;
}

function text(document: OpenApiDocument, map: JsonObject, key: string, path: Path): string {
  const value = map[key];
  if (typeof value !== 'string' || value === '') throw document.fault(path, `"${key}" of this parameter is missing`);
  return value;
}

function readParameter(
  document: OpenApiDocument,
  map: JsonObject,
  { name, where, path }: { name: string; where: string; path: Path },
  schemas: SchemaReader,
): Parameter | undefined {
  const required = map['required'] === true || where === 'path';
  const style = typeof map['style'] === 'string' ? map['style'] : where === 'query' ? 'form' : 'simple';
  const kind = map['schema'] === undefined ? undefined : kindOf(document, map['schema'], [...path, 'schema'], 0);
  const why = unsupported(name, where, style, kind, map);
  if (why !== undefined) {
    const sentence = `the ${where} parameter ${JSON.stringify(name)} cannot be sent: ${why}`;
    if (required) throw new NotImportable(sentence);
    document.warn(path, `${sentence}; it is left out`);
    return undefined;
  }
  const schema = schemas.convert(map['schema'], [...path, 'schema']);
  const narrowed: JsonObject = { ...(isObject(schema) ? schema : {}), ...(kind?.narrow ?? {}) };
  const description = typeof map['description'] === 'string' ? { description: map['description'] } : {};
  return {
    name,
    in: where as Parameter['in'],
    required,
    schema: { ...description, ...narrowed },
    template: templateOf(name, required, kind?.list === true && map['explode'] === false),
  };
}

function unsupported(
  name: string,
  where: string,
  style: string,
  kind: Kind | undefined,
  map: JsonObject,
): string | undefined {
  if (where === 'cookie') return 'cookies are not supported';
  if (where !== 'path' && where !== 'query' && where !== 'header')
    return `${JSON.stringify(where)} is not a place for one`;
  if (name.length > 128 || !/^[\x21-\x7e]+$/.test(name))
    return 'its name is longer than 128 characters or not visible ASCII';
  if (where === 'header' && (!headerName.safeParse(name).success || isGatewaysOwn(name) || DIVERTING.test(name)))
    return 'no tool may write this header';
  if (map['schema'] === undefined) return 'it has no schema (content is not supported)';
  if (style !== (where === 'query' ? 'form' : 'simple')) return `style: ${style} is not supported`;
  if (kind === undefined) return 'only text, numbers, booleans and, in a query, lists of them are supported';
  if (kind.list && where !== 'query') return 'a list is supported in a query only';
  return undefined;
}

/** What a parameter's value can be, and what must be said beside its schema so that it is nothing else. */
interface Kind {
  readonly list: boolean;
  readonly narrow?: JsonObject;
}

const ANY_SCALAR = ['string', 'number', 'boolean'];
const SCALARS = new Set<Json>([...ANY_SCALAR, 'integer', 'null']);
const ALTERNATIVES = ['allOf', 'anyOf', 'oneOf'];

function kindOf(document: OpenApiDocument, schema: Json | undefined, path: Path, depth: number): Kind | undefined {
  const found = document.follow(schema, path);
  if (!isObject(found.value) || depth > 8) return undefined;
  const map = found.value;
  const types = map['type'] === undefined ? [] : Array.isArray(map['type']) ? map['type'] : [map['type']];
  if (types.length > 0 && types.every((type: Json) => SCALARS.has(type))) return { list: false };
  if (types.some((type: Json) => type === 'array')) {
    const items = kindOf(document, map['items'] ?? {}, [...found.path, 'items'], depth + 1);
    if (types.some((type: Json) => type !== 'array' && type !== 'null') || items === undefined || items.list)
      return undefined;
    return { list: true, ...(items.narrow && { narrow: { items: { ...asMap(map['items']), ...items.narrow } } }) };
  }
  if (types.length > 0) return undefined;
  const key = ALTERNATIVES.find((word) => Array.isArray(map[word]));
  if (key === undefined) return { list: false, narrow: { type: ANY_SCALAR } };
  const kinds = (map[key] as readonly Json[]).map((each, index) =>
    kindOf(document, each, [...found.path, key, index], depth + 1),
  );
  if (kinds.some((kind) => kind === undefined || kind.list)) return undefined;
  return { list: false, narrow: { type: ANY_SCALAR } };
}

function asMap(value: Json | undefined): JsonObject {
  return isObject(value) ? value : {};
}

const RESERVED = new Set(
  'true false null in as break const continue else for function if import let loop package namespace return var void while'.split(
    ' ',
  ),
);

/** `args.limit`, or `args["page-size"]` for a name that is no word of CEL. */
export function argument(name: string): string {
  return isWord(name) ? `args.${name}` : `args[${JSON.stringify(name)}]`;
}

function isWord(name: string): boolean {
  return /^[A-Za-z_]\w*$/.test(name) && !RESERVED.has(name);
}

/** One that is absent is null, which query and headers leave out. */
function templateOf(name: string, required: boolean, joined: boolean): string {
  const read = argument(name);
  const value = joined ? `dyn(${read}.map(item, string(item)).join(","))` : read;
  if (required) return `\${${value}}`;
  const given = isWord(name) ? `has(${read})` : `${JSON.stringify(name)} in args`;
  return `\${${given} ? ${value} : null}`;
}
