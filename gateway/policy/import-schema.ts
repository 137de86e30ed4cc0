import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import type { Path } from './faults.ts';
import { type Located, NotImportable, type OpenApiDocument } from './import-document.ts';

const ONE = new Set([
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
const LISTS = new Set(['allOf', 'anyOf', 'oneOf', 'prefixItems']);
const MAPS = new Set(['properties', 'patternProperties', 'dependentSchemas']);
const PLAIN = new Set([
  ...['type', 'enum', 'const', 'required', 'title', 'description', 'default', 'format', 'deprecated', 'pattern'],
  ...['multipleOf', 'maximum', 'minimum', 'exclusiveMaximum', 'exclusiveMinimum', 'maxLength', 'minLength'],
  ...['maxItems', 'minItems', 'uniqueItems', 'maxContains', 'minContains', 'maxProperties', 'minProperties'],
  ...['dependentRequired', 'contentEncoding', 'contentMediaType'],
]);
/** They give a schema another base or meaning than the place it stands at. */
const REFUSED = ['$id', '$anchor', '$dynamicRef', '$dynamicAnchor', '$recursiveRef', '$recursiveAnchor', '$schema'];

const MOST_DEPTH = 60;
const MOST_DEFINITIONS = 300;

/**
 * The schemas of one operation as JSON Schema. What they refer to is gathered in `$defs`, so a schema that contains
 * itself stays one. Examples and the like are left out: a model pays for every word.
 */
export class SchemaReader {
  readonly #document: OpenApiDocument;
  readonly #names = new Map<string, string>();
  /** What was referred to and is not read yet: a chain of schemas may be long, and the stack is not. */
  readonly #waiting: ({ readonly name: string } & Located)[] = [];

  constructor(document: OpenApiDocument) {
    this.#document = document;
  }

  convert(schema: Json | undefined, path: Path, depth = 0): Json {
    if (typeof schema === 'boolean') return schema;
    const map = this.#document.map(schema, path);
    if (depth > MOST_DEPTH) throw new NotImportable('its schema is nested too deeply');
    const refused = REFUSED.find((key) => key in map);
    if (refused !== undefined) throw new NotImportable(`its schema uses ${refused}`);
    const ref = map['$ref'] === undefined ? undefined : { $ref: this.#refer(map['$ref'], [...path, '$ref']) };
    if (ref !== undefined && this.#document.old) return ref;
    const converted: Record<string, Json> = { ...ref };
    for (const [key, value] of Object.entries(map)) {
      if (PLAIN.has(key)) converted[key] = value;
      else if (ONE.has(key)) converted[key] = this.convert(value, [...path, key], depth + 1);
      else if (LISTS.has(key)) converted[key] = this.#each(value, [...path, key], depth + 1);
      else if (MAPS.has(key)) converted[key] = this.#all(value, [...path, key], depth + 1);
    }
    this.#dropReadOnly(map, converted, path);
    return this.#document.old ? modern(map, converted) : converted;
  }

  /** Everything that was referred to so far, and what that refers to. */
  definitions(): JsonObject {
    const read: Record<string, Json> = {};
    for (let next = this.#waiting.pop(); next !== undefined; next = this.#waiting.pop()) {
      read[next.name] = this.convert(next.value, next.path);
    }
    return read;
  }

  #each(list: Json, path: Path, depth: number): Json[] {
    return this.#document.list(list, path).map((item, index) => this.convert(item, [...path, index], depth));
  }

  #all(map: Json, path: Path, depth: number): JsonObject {
    const entries = Object.entries(this.#document.map(map, path));
    return Object.fromEntries(entries.map(([name, item]) => [name, this.convert(item, [...path, name], depth)]));
  }

  /** The reference inside our own schema. */
  #refer(ref: Json, where: Path): string {
    const target = this.#document.target(ref, where);
    const id = JSON.stringify(target.path);
    let name = this.#names.get(id);
    if (name === undefined) {
      if (this.#names.size >= MOST_DEFINITIONS) throw new NotImportable('its schema refers to too many others');
      name = this.#freeName(String(target.path.at(-1) ?? 'document'));
      this.#names.set(id, name);
      this.#waiting.push({ name, ...target });
    }
    return `#/$defs/${name}`;
  }

  #freeName(wanted: string): string {
    const plain = wanted.replaceAll(/[^\w.-]/g, '_').slice(0, 64);
    const taken = new Set(this.#names.values());
    let name = plain;
    for (let count = 2; taken.has(name); count++) name = `${plain}_${count}`;
    return name;
  }

  /** What only an answer has is neither asked for nor taken. */
  #dropReadOnly(map: JsonObject, converted: Record<string, Json>, path: Path): void {
    if (!isObject(map['properties'])) return;
    const readOnly = Object.keys(map['properties']).filter((name) => {
      const property = (map['properties'] as JsonObject)[name];
      const { value } = this.#document.follow(property, [...path, 'properties', name]);
      return (isObject(property) && property['readOnly'] === true) || (isObject(value) && value['readOnly'] === true);
    });
    if (readOnly.length === 0) return;
    const properties = Object.entries(converted['properties'] as JsonObject);
    converted['properties'] = Object.fromEntries(properties.filter(([name]) => !readOnly.includes(name)));
    if (!Array.isArray(converted['required'])) return;
    converted['required'] = converted['required'].filter((name: Json) => !readOnly.includes(String(name)));
  }
}

/** What 3.0 says in its own words. */
function modern(old: JsonObject, converted: Record<string, Json>): Json {
  if (old['nullable'] === true && typeof converted['type'] === 'string') {
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
