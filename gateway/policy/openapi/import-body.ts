// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are what is written here
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import type { DocumentPath } from '../faults.ts';
import type { OpenApiParameter } from './import-parameters.ts';
import type { SchemaConverter } from './import-schema.ts';
import { type LocatedValue, NotImportableError, type OpenApiDocument } from './openapi-document.ts';

/** How a request body is made of the arguments, and what it adds to their schema. */
export interface OpenApiRequestBody {
  readonly template: string;
  readonly contentType: string;
  readonly properties: JsonObject;
  readonly required: readonly string[];
  /** Whether arguments that nothing names are allowed, and where they go: into the body. */
  readonly additionalProperties: Json | undefined;
}

/** The keys of an object schema that still mean the same when its properties stand beside the parameters. */
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
 * A JSON body. It counts as needed, whatever the document says: a tool always sends the same shape. An object's
 * properties stand beside the parameters, unless a name would mean both: then the body is the argument `body`.
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
    const why = `its body is ${Object.keys(content).join(', ').slice(0, 100) || 'of no type'}: only JSON is supported`;
    if (map['required'] === true) throw new NotImportableError(why);
    document.addWarning(body.path, `${why}; it is sent without one`);
    return undefined;
  }
  const media = [...body.path, 'content', type];
  const { schema } = document.expectMap(content[type], media);
  const contentType = type.includes('*') ? 'application/json' : type;
  const taken = new Set(parameters.map(({ name }) => name));
  const flat = flattenBodySchema(document, schema, [...media, 'schema'], taken, schemas);
  if (flat !== undefined) {
    const all = taken.size === 0 ? '${args}' : `\${without(args, ${JSON.stringify([...taken])})}`;
    return { ...flat, template: all, contentType };
  }
  if (taken.has('body')) throw new NotImportableError('a parameter is called "body", as the body would be');
  const properties = { body: schemas.convert(schema ?? {}, [...media, 'schema']) };
  return { template: '${args.body}', contentType, properties, required: ['body'], additionalProperties: false };
}

/** Plain JSON before its relatives, any of them before "anything". */
function pickJsonMediaType(types: readonly string[]): string | undefined {
  const patterns = [/^application\/json\s*(?:;|$)/i, /^[\w.-]+\/[\w.-]+\+json\s*(?:;|$)/i, /^(?:\*|application)\/\*$/];
  return patterns.flatMap((pattern) => types.filter((type) => pattern.test(type)))[0];
}

function flattenBodySchema(
  document: OpenApiDocument,
  schema: Json | undefined,
  path: DocumentPath,
  taken: ReadonlySet<string>,
  schemas: SchemaConverter,
): Omit<OpenApiRequestBody, 'template' | 'contentType'> | undefined {
  const top: LocatedValue = isLoneReference(schema)
    ? document.dereference(schema, path)
    : { value: schema ?? null, path };
  if (!isJsonObject(top.value) || (top.value['type'] !== 'object' && top.value['type'] !== undefined)) return undefined;
  if (!isJsonObject(top.value['properties']) || top.value['nullable'] === true) return undefined;
  if (Object.keys(top.value['properties']).some((name) => taken.has(name))) return undefined;
  const converted = schemas.convert(top.value, top.path);
  if (!isJsonObject(converted) || Object.keys(converted).some((key) => !FLATTENABLE_KEYWORDS.has(key)))
    return undefined;
  return {
    properties: converted['properties'] as JsonObject,
    required: document.expectList(converted['required'], [...top.path, 'required']).map(String),
    additionalProperties: converted['additionalProperties'],
  };
}

/** In 3.1 a schema may say more beside its `$ref`: then it is not just what that leads to. */
function isLoneReference(schema: Json | undefined): boolean {
  return isJsonObject(schema) && schema['$ref'] !== undefined && Object.keys(schema).length === 1;
}
