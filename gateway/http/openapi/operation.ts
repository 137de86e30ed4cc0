import { z } from 'zod';
import type { Json, JsonObject } from '../../domain/json.ts';

/** An answer: its description and, where it has a body, the schema and content type of the body. */
export type AnswerSpec = readonly [description: string, body?: z.ZodType, contentType?: string];

/** One operation of the API. The parameters in the path follow from `{name}`. */
export interface Operation {
  readonly summary: string;
  readonly description?: string;
  /** Names in `HEADERS`; a `!` marks a required header. */
  readonly headers?: readonly string[];
  readonly query?: Readonly<Record<string, z.ZodType>>;
  /** The schema that checks the body. */
  readonly body?: z.ZodType;
  /** Absent: the body is required if its schema refuses `{}`, because the gateway reads an empty body as `{}`. */
  readonly isBodyRequired?: boolean;
  /** By status. `default` replaces the problem that every operation may answer. */
  readonly answers: Readonly<Record<number, AnswerSpec>> | { readonly default: AnswerSpec };
}

type Method = 'get' | 'post' | 'put' | 'delete';
export type Operations = Readonly<Record<string, Readonly<Partial<Record<Method, Operation>>>>>;
type Extras = Omit<Operation, 'summary' | 'body' | 'answers'>;

export function get(summary: string, answer: AnswerSpec, extras: Extras = {}) {
  return { get: { summary, answers: { 200: answer }, ...extras } };
}

export function post(summary: string, body: z.ZodType, answers: Operation['answers'], extras: Extras = {}) {
  return { post: { summary, body, answers, ...extras } };
}

const PROBLEM: JsonObject = { $ref: '#/components/responses/Problem' };

/** Converts operations and zod schemas to OpenAPI 3.1, and collects the schemas that have an id as components. */
export class OpenApiWriter {
  readonly schemas: Record<string, Json> = {};
  readonly #headers: Readonly<Record<string, Json>>;

  /** `headers` are the parameters under `components.parameters`. */
  constructor(headers: Readonly<Record<string, Json>>) {
    this.#headers = headers;
  }

  paths(operations: Operations): JsonObject {
    return mapValues(operations, (methods, path) =>
      mapValues(methods as Record<string, Operation>, (operation) => this.operation(path, operation)),
    );
  }

  operation(path: string, operation: Operation): JsonObject {
    const { summary, description, headers = [], query = {}, body, answers } = operation;
    const parameters = [
      ...Array.from(path.matchAll(/\{(\w+)\}/g), ([, name = '']) => ({ ...parameter('path', name), required: true })),
      ...Object.entries(query).map(([name, schema]) => parameter('query', name, this.schema(schema))),
      ...headers.map((name) => this.#header(name)),
    ];
    const isRequired = operation.isBodyRequired ?? body?.safeParse({}).success === false;
    return {
      summary,
      ...(description === undefined ? {} : { description }),
      parameters,
      ...(body === undefined ? {} : { requestBody: { required: isRequired, content: this.#content(body) } }),
      responses: { default: PROBLEM, ...mapValues(answers, (answer) => this.answer(answer)) },
    };
  }

  answer([description, body, contentType]: AnswerSpec): JsonObject {
    return { description, ...(body === undefined ? {} : { content: this.#content(body, contentType) }) };
  }

  /** Schemas are inputs: members with a default are optional, and only strict objects forbid further members. */
  schema(schema: z.ZodType): JsonObject {
    const json = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any', override: simplify });
    const text = JSON.stringify(json).replaceAll('"#/$defs/', '"#/components/schemas/');
    const { $schema: _, $defs, ...own } = JSON.parse(text) as JsonObject;
    for (const [id, { id: __, ...component }] of Object.entries(($defs ?? {}) as Record<string, JsonObject>))
      this.schemas[id] = component;
    return own;
  }

  #content(schema: z.ZodType, contentType = 'application/json'): JsonObject {
    return { [contentType]: { schema: this.schema(schema) } };
  }

  #header(name: string): JsonObject {
    if (!name.endsWith('!')) return { $ref: `#/components/parameters/${name}` };
    return { ...(this.#headers[name.slice(0, -1)] as JsonObject), required: true };
  }
}

/** A parameter with the description of its schema. */
export function parameter(place: 'path' | 'query' | 'header', name: string, schema: JsonObject = { type: 'string' }) {
  const { description, ...own } = schema;
  return { name, in: place, schema: own, ...(description === undefined ? {} : { description }) };
}

/** Writes `type: [T, 'null']` for nullable types, and drops patterns and limits that a format or type implies. */
function simplify({ jsonSchema }: { jsonSchema: z.core.JSONSchema.BaseSchema }): void {
  const [value, none] = jsonSchema.anyOf ?? [];
  if (typeof value?.type === 'string' && none?.type === 'null') {
    delete jsonSchema.anyOf;
    const members = value.enum === undefined ? {} : { enum: [...value.enum, null] };
    Object.assign(jsonSchema, { ...value, ...jsonSchema, type: [value.type, 'null'], ...members });
  }
  if (jsonSchema.format !== undefined) delete jsonSchema.pattern;
  if (jsonSchema.maximum === Number.MAX_SAFE_INTEGER) delete jsonSchema.maximum;
  if (jsonSchema.minimum === Number.MIN_SAFE_INTEGER) delete jsonSchema.minimum;
}

function mapValues<T>(values: Readonly<Record<string, T>>, map: (value: T, key: string) => Json): JsonObject {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [key, map(value, key)]));
}
