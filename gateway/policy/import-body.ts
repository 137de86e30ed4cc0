// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are what is written here
import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import type { Path } from './faults.ts';
import { type Located, NotImportable, type OpenApiDocument } from './import-document.ts';
import type { Parameter } from './import-parameters.ts';
import type { SchemaReader } from './import-schema.ts';

/** How a request body is made of the arguments, and what it adds to their schema. */
export interface Body {
  readonly template: string;
  readonly contentType: string;
  readonly properties: JsonObject;
  readonly required: readonly string[];
  /** Whether arguments that nothing names are allowed, and where they go: into the body. */
  readonly additionalProperties: Json | undefined;
}

/** The keys of an object schema that still mean the same when its properties stand beside the parameters. */
const FLAT = new Set([
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
export function readBody(
  document: OpenApiDocument,
  value: Json | undefined,
  path: Path,
  parameters: readonly Parameter[],
  schemas: SchemaReader,
): Body | undefined {
  if (value === undefined) return undefined;
  const body = document.follow(value, path);
  const map = document.map(body.value, body.path);
  const content = document.map(map['content'], [...body.path, 'content']);
  const type = jsonType(Object.keys(content));
  if (type === undefined) {
    const why = `its body is ${Object.keys(content).join(', ').slice(0, 100) || 'of no type'}: only JSON is supported`;
    if (map['required'] === true) throw new NotImportable(why);
    document.warn(body.path, `${why}; it is sent without one`);
    return undefined;
  }
  const media = [...body.path, 'content', type];
  const { schema } = document.map(content[type], media);
  const contentType = type.includes('*') ? 'application/json' : type;
  const taken = new Set(parameters.map(({ name }) => name));
  const flat = flatten(document, schema, [...media, 'schema'], taken, schemas);
  if (flat !== undefined) {
    const all = taken.size === 0 ? '${args}' : `\${without(args, ${JSON.stringify([...taken])})}`;
    return { ...flat, template: all, contentType };
  }
  if (taken.has('body')) throw new NotImportable('a parameter is called "body", as the body would be');
  const properties = { body: schemas.convert(schema ?? {}, [...media, 'schema']) };
  return { template: '${args.body}', contentType, properties, required: ['body'], additionalProperties: false };
}

/** Plain JSON before its relatives, any of them before "anything". */
function jsonType(types: readonly string[]): string | undefined {
  const patterns = [/^application\/json\s*(?:;|$)/i, /^[\w.-]+\/[\w.-]+\+json\s*(?:;|$)/i, /^(?:\*|application)\/\*$/];
  return patterns.flatMap((pattern) => types.filter((type) => pattern.test(type)))[0];
}

function flatten(
  document: OpenApiDocument,
  schema: Json | undefined,
  path: Path,
  taken: ReadonlySet<string>,
  schemas: SchemaReader,
): Omit<Body, 'template' | 'contentType'> | undefined {
  const top: Located = isLoneReference(schema) ? document.follow(schema, path) : { value: schema ?? null, path };
  if (!isObject(top.value) || (top.value['type'] !== 'object' && top.value['type'] !== undefined)) return undefined;
  if (!isObject(top.value['properties']) || top.value['nullable'] === true) return undefined;
  if (Object.keys(top.value['properties']).some((name) => taken.has(name))) return undefined;
  const converted = schemas.convert(top.value, top.path);
  if (!isObject(converted) || Object.keys(converted).some((key) => !FLAT.has(key))) return undefined;
  return {
    properties: converted['properties'] as JsonObject,
    required: document.list(converted['required'], [...top.path, 'required']).map(String),
    additionalProperties: converted['additionalProperties'],
  };
}

/** In 3.1 a schema may say more beside its `$ref`: then it is not just what that leads to. */
function isLoneReference(schema: Json | undefined): boolean {
  return isObject(schema) && schema['$ref'] !== undefined && Object.keys(schema).length === 1;
}
