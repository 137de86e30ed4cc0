// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this file writes templates
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { isReservedHeader } from '../compile/compile-upstream.ts';
import type { DocumentPath } from '../faults.ts';
import { headerNameSchema } from '../policy-file-schema.ts';
import { formatShortValue } from '../zod-issues.ts';
import type { SchemaConverter } from './import-schema.ts';
import { type LocatedValue, NotImportableError, type OpenApiDocument } from './openapi-document.ts';

export interface OpenApiParameter {
  readonly name: string;
  readonly in: 'path' | 'query' | 'header';
  readonly required: boolean;
  readonly schema: JsonObject;
  /** The template that writes it into the request. */
  readonly template: string;
}

/** The OpenAPI specification says that parameters with these names are ignored. */
const IGNORED_HEADERS = new Set(['accept', 'content-type', 'authorization']);

/** With these headers some servers change the method, path or host of a request, so a tool could do something else than declared. */
const ROUTING_OVERRIDE_HEADERS =
  /^(?:x-http-method|x-(?:http-)?method-override|x-original-url|x-rewrite-url|x-(?:original-|forwarded-)?host|x-forwarded-.+|forwarded)$/i;

/**
 * Reads the parameters of an operation, which win over those of its path. A parameter that cannot be sent is left out with a
 * warning. If it is required, the operation is not imported.
 */
export function readParameters(
  document: OpenApiDocument,
  lists: readonly LocatedValue[],
  presetHeaders: ReadonlySet<string>,
  schemas: SchemaConverter,
): OpenApiParameter[] {
  const found = new Map<string, OpenApiParameter | undefined>();
  for (const { value, path } of lists) {
    for (const [index, item] of document.expectList(value, path).entries()) {
      const parameter = document.dereference(item, [...path, index]);
      const map = document.expectMap(parameter.value, parameter.path);
      const name = requireText(document, map, 'name', parameter.path);
      const where = requireText(document, map, 'in', parameter.path);
      const id = `${where} ${where === 'header' ? name.toLowerCase() : name}`;
      if (found.has(id)) continue;
      const isPreset =
        where === 'header' && (IGNORED_HEADERS.has(name.toLowerCase()) || presetHeaders.has(name.toLowerCase()));
      found.set(
        id,
        isPreset ? undefined : readParameter(document, map, { name, where, path: parameter.path }, schemas),
      );
    }
  }
  const parameters = [...found.values()].filter((parameter) => parameter !== undefined);
  const names = parameters.map(({ name }) => name);
  const duplicate = names.find((name, index) => names.indexOf(name) !== index);
  if (duplicate !== undefined)
    throw new NotImportableError(
      `Two parameters have the name ${JSON.stringify(duplicate)}, so they cannot both be arguments.`,
    );
  return parameters;
}

function requireText(document: OpenApiDocument, map: JsonObject, key: string, path: DocumentPath): string {
  const value = map[key];
  if (typeof value !== 'string' || value === '')
    throw document.addError(path, `A parameter must have ${key}, as text.`);
  return value;
}

function readParameter(
  document: OpenApiDocument,
  map: JsonObject,
  { name, where, path }: { name: string; where: string; path: DocumentPath },
  schemas: SchemaConverter,
): OpenApiParameter | undefined {
  const required = map['required'] === true || where === 'path';
  const style = typeof map['style'] === 'string' ? map['style'] : where === 'query' ? 'form' : 'simple';
  const kind =
    map['schema'] === undefined ? undefined : classifyParameter(document, map['schema'], [...path, 'schema'], 0);
  const reason = explainUnsupported(name, where, style, kind, map);
  if (reason !== undefined) {
    const sentence = `The ${where} parameter ${JSON.stringify(name)} cannot be sent: ${reason}.`;
    if (required) throw new NotImportableError(sentence);
    document.addWarning(path, `${sentence} It is left out.`);
    return undefined;
  }
  const schema = schemas.convert(map['schema'], [...path, 'schema']);
  const narrowed: JsonObject = { ...(isJsonObject(schema) ? schema : {}), ...(kind?.narrow ?? {}) };
  const description = typeof map['description'] === 'string' ? { description: map['description'] } : {};
  return {
    name,
    in: where as OpenApiParameter['in'],
    required,
    schema: { ...description, ...narrowed },
    template: buildParameterTemplate(name, required, kind?.list === true && map['explode'] === false),
  };
}

function explainUnsupported(
  name: string,
  where: string,
  style: string,
  kind: ParameterKind | undefined,
  map: JsonObject,
): string | undefined {
  if (where === 'cookie') return 'cookies are not supported';
  if (where !== 'path' && where !== 'query' && where !== 'header')
    return `in must be path, query or header (got ${formatShortValue(where)})`;
  if (name.length > 128 || !/^[\x21-\x7e]+$/.test(name))
    return 'its name must have at most 128 characters, all of them visible ASCII';
  if (
    where === 'header' &&
    (!headerNameSchema.safeParse(name).success || isReservedHeader(name) || ROUTING_OVERRIDE_HEADERS.test(name))
  )
    return 'a tool must not write this header';
  if (map['schema'] === undefined) return 'it has no schema, and content is not supported';
  if (style !== (where === 'query' ? 'form' : 'simple')) return `style: ${style} is not supported`;
  if (kind === undefined) return 'it must be text, a number, a boolean or, in a query, a list of them';
  if (kind.list && where !== 'query') return 'a list is supported only in a query';
  return undefined;
}

/** The kind of values of a parameter. `narrow` is added to its schema so that it allows no other kind. */
interface ParameterKind {
  readonly list: boolean;
  readonly narrow?: JsonObject;
}

const ANY_SCALAR_TYPE = ['string', 'number', 'boolean'];
const SCALAR_TYPES = new Set<Json>([...ANY_SCALAR_TYPE, 'integer', 'null']);
const COMBINATOR_KEYWORDS = ['allOf', 'anyOf', 'oneOf'];

function classifyParameter(
  document: OpenApiDocument,
  schema: Json | undefined,
  path: DocumentPath,
  depth: number,
): ParameterKind | undefined {
  const found = document.dereference(schema, path);
  if (!isJsonObject(found.value) || depth > 8) return undefined;
  const map = found.value;
  const types = map['type'] === undefined ? [] : Array.isArray(map['type']) ? map['type'] : [map['type']];
  if (types.length > 0 && types.every((type: Json) => SCALAR_TYPES.has(type))) return { list: false };
  if (types.some((type: Json) => type === 'array')) {
    const items = classifyParameter(document, map['items'] ?? {}, [...found.path, 'items'], depth + 1);
    if (types.some((type: Json) => type !== 'array' && type !== 'null') || items === undefined || items.list)
      return undefined;
    return { list: true, ...(items.narrow && { narrow: { items: { ...toMap(map['items']), ...items.narrow } } }) };
  }
  if (types.length > 0) return undefined;
  const key = COMBINATOR_KEYWORDS.find((word) => Array.isArray(map[word]));
  if (key === undefined) return { list: false, narrow: { type: ANY_SCALAR_TYPE } };
  const kinds = (map[key] as readonly Json[]).map((each, index) =>
    classifyParameter(document, each, [...found.path, key, index], depth + 1),
  );
  if (kinds.some((kind) => kind === undefined || kind.list)) return undefined;
  return { list: false, narrow: { type: ANY_SCALAR_TYPE } };
}

function toMap(value: Json | undefined): JsonObject {
  return isJsonObject(value) ? value : {};
}

const CEL_RESERVED_WORDS = new Set(
  'true false null in as break const continue else for function if import let loop package namespace return var void while'.split(
    ' ',
  ),
);

/** `args.limit`, or `args["page-size"]` for a name that is no CEL identifier. */
export function toArgumentExpression(name: string): string {
  return isCelIdentifier(name) ? `args.${name}` : `args[${JSON.stringify(name)}]`;
}

function isCelIdentifier(name: string): boolean {
  return /^[A-Za-z_]\w*$/.test(name) && !CEL_RESERVED_WORDS.has(name);
}

/** An absent optional parameter yields null, which query and headers leave out. */
function buildParameterTemplate(name: string, isRequired: boolean, isJoined: boolean): string {
  const read = toArgumentExpression(name);
  const value = isJoined ? `dyn(${read}.map(item, string(item)).join(","))` : read;
  if (isRequired) return `\${${value}}`;
  const isGiven = isCelIdentifier(name) ? `has(${read})` : `${JSON.stringify(name)} in args`;
  return `\${${isGiven} ? ${value} : null}`;
}
