import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import type { DocumentPath } from '../faults.ts';
import { type LocatedValue, NotImportableError, type OpenApiDocument } from './openapi-document.ts';

const SUBSCHEMA_KEYWORDS = new Set([
  'items',
  'additionalProperties',
  'not',
  'if',
  'then',
  'else',
  'contains',
  'propertyNames',
  'unevaluatedItems',
  'unevaluatedProperties',
]);
const SCHEMA_LIST_KEYWORDS = new Set(['allOf', 'anyOf', 'oneOf', 'prefixItems']);
const SCHEMA_MAP_KEYWORDS = new Set(['properties', 'patternProperties', 'dependentSchemas']);
const COPIED_KEYWORDS = new Set([
  ...['type', 'enum', 'const', 'required', 'title', 'description', 'default', 'format', 'deprecated', 'pattern'],
  ...['multipleOf', 'maximum', 'minimum', 'exclusiveMaximum', 'exclusiveMinimum', 'maxLength', 'minLength'],
  ...['maxItems', 'minItems', 'uniqueItems', 'maxContains', 'minContains', 'maxProperties', 'minProperties'],
  ...['dependentRequired', 'contentEncoding', 'contentMediaType'],
]);
/** Keywords that change the base or the meaning of a schema, and are not supported. */
const UNSUPPORTED_KEYWORDS = [
  '$id',
  '$anchor',
  '$dynamicRef',
  '$dynamicAnchor',
  '$recursiveRef',
  '$recursiveAnchor',
  '$schema',
];

const MAX_DEPTH = 60;
const MAX_DEFINITIONS = 300;

/**
 * Converts the schemas of one operation to JSON Schema. Referenced schemas go to `$defs`, so recursive schemas work. Examples and the
 * like are left out, because a model pays for every word.
 */
export class SchemaConverter {
  readonly #document: OpenApiDocument;
  readonly #names = new Map<string, string>();
  /** Referenced schemas that are not converted yet. A queue, because a long chain of schemas would overflow the stack. */
  readonly #pending: ({ readonly name: string } & LocatedValue)[] = [];

  constructor(document: OpenApiDocument) {
    this.#document = document;
  }

  convert(schema: Json | undefined, path: DocumentPath, depth = 0): Json {
    if (typeof schema === 'boolean') return schema;
    const map = this.#document.expectMap(schema, path);
    if (depth > MAX_DEPTH) throw new NotImportableError(`A schema must be nested at most ${MAX_DEPTH} levels deep.`);
    const unsupported = UNSUPPORTED_KEYWORDS.find((key) => key in map);
    if (unsupported !== undefined) throw new NotImportableError(`The schema keyword ${unsupported} is not supported.`);
    const ref = map['$ref'] === undefined ? undefined : { $ref: this.#toLocalRef(map['$ref'], [...path, '$ref']) };
    if (ref !== undefined && this.#document.isVersion30) return ref;
    const converted: Record<string, Json> = { ...ref };
    for (const [key, value] of Object.entries(map)) {
      if (COPIED_KEYWORDS.has(key)) converted[key] = value;
      else if (SUBSCHEMA_KEYWORDS.has(key)) converted[key] = this.convert(value, [...path, key], depth + 1);
      else if (SCHEMA_LIST_KEYWORDS.has(key)) converted[key] = this.#convertList(value, [...path, key], depth + 1);
      else if (SCHEMA_MAP_KEYWORDS.has(key)) converted[key] = this.#convertMap(value, [...path, key], depth + 1);
    }
    this.#dropReadOnly(map, converted, path);
    return this.#document.isVersion30 ? upgradeFrom30(map, converted) : converted;
  }

  /** Converts all referenced schemas, and those that they refer to. */
  convertDefinitions(): JsonObject {
    const definitions: Record<string, Json> = {};
    for (let next = this.#pending.pop(); next !== undefined; next = this.#pending.pop()) {
      definitions[next.name] = this.convert(next.value, next.path);
    }
    return definitions;
  }

  #convertList(list: Json, path: DocumentPath, depth: number): Json[] {
    return this.#document.expectList(list, path).map((item, index) => this.convert(item, [...path, index], depth));
  }

  #convertMap(map: Json, path: DocumentPath, depth: number): JsonObject {
    const entries = Object.entries(this.#document.expectMap(map, path));
    return Object.fromEntries(entries.map(([name, item]) => [name, this.convert(item, [...path, name], depth)]));
  }

  /** The `$ref` inside the converted schema. */
  #toLocalRef(ref: Json, where: DocumentPath): string {
    const target = this.#document.resolveRef(ref, where);
    const id = JSON.stringify(target.path);
    let name = this.#names.get(id);
    if (name === undefined) {
      if (this.#names.size >= MAX_DEFINITIONS)
        throw new NotImportableError(`A schema must refer to at most ${MAX_DEFINITIONS} others.`);
      name = this.#uniqueName(String(target.path.at(-1) ?? 'document'));
      this.#names.set(id, name);
      this.#pending.push({ name, ...target });
    }
    return `#/$defs/${name}`;
  }

  #uniqueName(preferred: string): string {
    const plain = preferred.replaceAll(/[^\w.-]/g, '_').slice(0, 64);
    const taken = new Set(this.#names.values());
    let name = plain;
    for (let count = 2; taken.has(name); count++) name = `${plain}_${count}`;
    return name;
  }

  /** Removes read-only properties, because only answers have them. */
  #dropReadOnly(map: JsonObject, converted: Record<string, Json>, path: DocumentPath): void {
    if (!isJsonObject(map['properties'])) return;
    const readOnly = Object.keys(map['properties']).filter((name) => {
      const property = (map['properties'] as JsonObject)[name];
      const { value } = this.#document.dereference(property, [...path, 'properties', name]);
      return (
        (isJsonObject(property) && property['readOnly'] === true) || (isJsonObject(value) && value['readOnly'] === true)
      );
    });
    if (readOnly.length === 0) return;
    const properties = Object.entries(converted['properties'] as JsonObject);
    converted['properties'] = Object.fromEntries(properties.filter(([name]) => !readOnly.includes(name)));
    if (!Array.isArray(converted['required'])) return;
    converted['required'] = converted['required'].filter((name: Json) => !readOnly.includes(String(name)));
  }
}

/** Converts `nullable` and boolean exclusive bounds, which are specific to OpenAPI 3.0. */
function upgradeFrom30(schema: JsonObject, converted: Record<string, Json>): Json {
  if (schema['nullable'] === true && typeof converted['type'] === 'string') {
    converted['type'] = [converted['type'], 'null'];
    if (Array.isArray(converted['enum']) && !converted['enum'].includes(null))
      converted['enum'] = [...converted['enum'], null];
  }
  for (const [exclusive, bound] of [
    ['exclusiveMinimum', 'minimum'],
    ['exclusiveMaximum', 'maximum'],
  ] as const) {
    if (typeof converted[exclusive] !== 'boolean') continue;
    const limit = converted[bound];
    if (converted[exclusive] && limit !== undefined) {
      converted[exclusive] = limit;
      delete converted[bound];
    } else delete converted[exclusive];
  }
  return converted;
}
