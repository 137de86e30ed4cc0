// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this file writes templates
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import type { DocumentPath } from '../faults.ts';
import type { OpenApiParameter } from './import-parameters.ts';
import type { SchemaConverter } from './import-schema.ts';
import { type LocatedValue, NotImportableError, type OpenApiDocument } from './openapi-document.ts';

/** How a request body is built from the arguments, and what it adds to their schema. */
export interface OpenApiRequestBody {
  readonly template: string;
  readonly contentType: string;
  readonly properties: JsonObject;
  readonly required: readonly string[];
  /** Whether undeclared arguments are allowed. They become part of the body. */
  readonly additionalProperties: Json | undefined;
}

/** The keywords of an object schema that keep their meaning when its properties become arguments beside the parameters. */
const FLATTENABLE_KEYWORDS = new Set([
  'type',
  'properties',
  'required',
  'additionalProperties',
  'title',
  'description',
  'default',
  'deprecated',
]);

/**
 * Reads a JSON body. It counts as required whatever the document says, because a tool always sends the same shape. The properties of
 * an object become arguments. If a parameter has the name of a property, the whole body is the argument `body` instead.
 */
export function readRequestBody(
  document: OpenApiDocument,
  value: Json | undefined,
  path: DocumentPath,
  parameters: readonly OpenApiParameter[],
  schemas: SchemaConverter,
): OpenApiRequestBody | undefined {
  if (value === undefined) return undefined;
  const body = document.dereference(value, path);
  const map = document.expectMap(body.value, body.path);
  const content = document.expectMap(map['content'], [...body.path, 'content']);
  const type = pickJsonMediaType(Object.keys(content));
  if (type === undefined) {
    const types = Object.keys(content).join(', ').slice(0, 100) || 'of no type';
    const reason = `The request body must be JSON (got ${types}).`;
    if (map['required'] === true) throw new NotImportableError(reason);
    document.addWarning(body.path, `${reason} The request is sent without a body.`);
    return undefined;
  }
  const media = [...body.path, 'content', type];
  const { schema } = document.expectMap(content[type], media);
  const contentType = type.includes('*') ? 'application/json' : type;
  const parameterNames = new Set(parameters.map(({ name }) => name));
  const flat = flattenBodySchema(document, schema, [...media, 'schema'], parameterNames, schemas);
  if (flat !== undefined) {
    const isWhole = parameterNames.size === 0;
    const template = isWhole ? '${args}' : `\${without(args, ${JSON.stringify([...parameterNames])})}`;
    return { ...flat, template, contentType };
  }
  if (parameterNames.has('body'))
    throw new NotImportableError(
      'A parameter must not be named "body" here, because the body becomes an argument of this name.',
    );
  const properties = { body: schemas.convert(schema ?? {}, [...media, 'schema']) };
  return { template: '${args.body}', contentType, properties, required: ['body'], additionalProperties: false };
}

/** Prefers application/json, then any other JSON type, then a wildcard. */
function pickJsonMediaType(types: readonly string[]): string | undefined {
  const patterns = [/^application\/json\s*(?:;|$)/i, /^[\w.-]+\/[\w.-]+\+json\s*(?:;|$)/i, /^(?:\*|application)\/\*$/];
  return patterns.flatMap((pattern) => types.filter((type) => pattern.test(type)))[0];
}

function flattenBodySchema(
  document: OpenApiDocument,
  schema: Json | undefined,
  path: DocumentPath,
  parameterNames: ReadonlySet<string>,
  schemas: SchemaConverter,
): Omit<OpenApiRequestBody, 'template' | 'contentType'> | undefined {
  const top: LocatedValue = isLoneReference(schema)
    ? document.dereference(schema, path)
    : { value: schema ?? null, path };
  if (!isJsonObject(top.value) || (top.value['type'] !== 'object' && top.value['type'] !== undefined)) return undefined;
  if (!isJsonObject(top.value['properties']) || top.value['nullable'] === true) return undefined;
  if (Object.keys(top.value['properties']).some((name) => parameterNames.has(name))) return undefined;
  const converted = schemas.convert(top.value, top.path);
  if (!isJsonObject(converted) || Object.keys(converted).some((key) => !FLATTENABLE_KEYWORDS.has(key)))
    return undefined;
  return {
    properties: converted['properties'] as JsonObject,
    required: document.expectList(converted['required'], [...top.path, 'required']).map(String),
    additionalProperties: converted['additionalProperties'],
  };
}

/** Whether a schema is only a `$ref`. In 3.1 it may have other keywords beside it, which then count too. */
function isLoneReference(schema: Json | undefined): boolean {
  return isJsonObject(schema) && schema['$ref'] !== undefined && Object.keys(schema).length === 1;
}
