// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are what is written here
import { isObject, type Json, type JsonObject } from '../domain/json.ts';
import { checkPath } from './compile-request.ts';
import type { Path, Place } from './faults.ts';
import { type Body, readBody } from './import-body.ts';
import { type Located, NotImportable, type OpenApiDocument } from './import-document.ts';
import { argument, type Parameter, readParameters } from './import-parameters.ts';
import { SchemaReader } from './import-schema.ts';
import { compileInput } from './input.ts';
import type { ToolFile } from './schema.ts';

export type Method = NonNullable<NonNullable<ToolFile['request']>['method']>;

/** An operation as the document has it, before anything of it is read. */
export interface Operation {
  readonly method: Method;
  readonly path: string;
  readonly id: string | undefined;
  readonly place: Place;
  readonly value: JsonObject;
  readonly where: Path;
  /** The parameters that its path gives to all operations. */
  readonly shared: Located;
}

/** What an operation gives to the tool of its name. What is absent cannot be imported, and `why` says why. */
export interface Offer {
  readonly tool: Pick<ToolFile, 'description' | 'effect' | 'request' | 'input'>;
  readonly why?: string;
  /** The fault has been told already. */
  readonly broken?: boolean;
}

const MOST_DESCRIPTION = 8192;
/** Far more than a model should be told about one tool; compiling it takes tens of milliseconds. */
const MOST_INPUT = 32_768;

/** `given` are the headers that somebody else writes: those of the upstream, and the one that carries the key. */
export function readOperation(document: OpenApiDocument, operation: Operation, given: ReadonlySet<string>): Offer {
  const effect = operation.method === 'GET' || operation.method === 'HEAD' ? ('read' as const) : ('write' as const);
  const tool = { effect, ...descriptionOf(operation.value) };
  try {
    const { request, input } = readRequest(document, operation, given);
    const why = unusable(input) ?? unreadable(input, request);
    return why === undefined ? { tool: { ...tool, request, input } } : { tool: { ...tool, request }, why };
  } catch (error) {
    if (!(error instanceof NotImportable)) throw error;
    return { tool, why: error.message, ...(error.broken && { broken: true }) };
  }
}

function readRequest(
  document: OpenApiDocument,
  { method, path, value, where, shared }: Operation,
  given: ReadonlySet<string>,
): { request: NonNullable<ToolFile['request']>; input: JsonObject } {
  const schemas = new SchemaReader(document);
  const own = { value: value['parameters'] ?? [], path: [...where, 'parameters'] };
  const parameters = readParameters(document, [own, shared], given, schemas);
  const body = bodyOf(document, method, value, where, parameters, schemas);
  if (value['servers'] !== undefined)
    document.warn([...where, 'servers'], 'these servers are ignored: requests go to the url of the upstream');
  const of = (place: Parameter['in']): Record<string, string> =>
    Object.fromEntries(parameters.filter((each) => each.in === place).map(({ name, template }) => [name, template]));
  const headers = of('header');
  if (body !== undefined && body.contentType !== 'application/json') headers['content-type'] = body.contentType;
  return {
    request: {
      method,
      path: pathTemplate(document, path, parameters, where),
      query: of('query'),
      headers,
      body: body?.template ?? null,
    },
    input: inputOf(parameters, body, schemas.definitions()),
  };
}

function bodyOf(
  document: OpenApiDocument,
  method: Method,
  value: JsonObject,
  where: Path,
  parameters: readonly Parameter[],
  schemas: SchemaReader,
): Body | undefined {
  const path = [...where, 'requestBody'];
  if (method !== 'GET' && method !== 'HEAD') return readBody(document, value['requestBody'], path, parameters, schemas);
  if (value['requestBody'] === undefined) return undefined;
  const { value: body } = document.follow(value['requestBody'], path);
  if (isObject(body) && body['required'] === true)
    throw new NotImportable(`${method} has no body, and this one needs it`);
  document.warn(path, `${method} has no body; it is sent without one`);
  return undefined;
}

function inputOf(parameters: readonly Parameter[], body: Body | undefined, definitions: JsonObject): JsonObject {
  const properties = Object.fromEntries(parameters.map(({ name, schema }) => [name, schema]));
  const required = parameters.filter((each) => each.required).map(({ name }) => name);
  const more = body === undefined ? false : body.additionalProperties;
  return {
    type: 'object',
    properties: { ...properties, ...body?.properties },
    required: [...required, ...(body?.required ?? [])],
    ...(more !== undefined && { additionalProperties: more }),
    ...(Object.keys(definitions).length > 0 && { $defs: definitions }),
  };
}

/** `/pets/{id}` as our own template; every variable must be a parameter, and every path parameter a variable. */
function pathTemplate(document: OpenApiDocument, path: string, parameters: readonly Parameter[], where: Path): string {
  const open = new Set(parameters.filter((each) => each.in === 'path').map(({ name }) => name));
  const used = new Set<string>();
  const template = path
    .split(/(\{[^{}]*\})/)
    .map((part) => {
      const name = /^\{([^{}]*)\}$/.exec(part)?.[1];
      if (name === undefined) return part.replaceAll('${', '$${');
      if (!open.has(name)) throw document.fault(where, `no path parameter is called ${JSON.stringify(name)}`);
      used.add(name);
      return `\${${argument(name)}}`;
    })
    .join('');
  const unused = [...open].find((name) => !used.has(name));
  if (unused !== undefined) throw document.fault(where, `there is no {${unused}} in the path of this parameter`);
  checkPath(template, (message) => {
    throw new NotImportable(message);
  });
  return template;
}

export function sizeOf(input: ToolFile['input']): number {
  return JSON.stringify(input ?? null).length;
}

function descriptionOf(operation: JsonObject): { description?: string } {
  const texts = ['summary', 'description'].flatMap((key) => {
    const text: Json | undefined = operation[key];
    return typeof text === 'string' && text.trim() !== '' ? [text.trim()] : [];
  });
  const description = [...new Set(texts)].join('\n\n');
  return description === '' ? {} : { description: description.slice(0, MOST_DESCRIPTION) };
}

/** The CEL library takes an object with a `constructor` of its own for something it does not know. */
function unreadable(input: JsonObject, request: NonNullable<ToolFile['request']>): string | undefined {
  if (!Object.hasOwn(input['properties'] as JsonObject, 'constructor') || request.body === '${args}') return undefined;
  return 'an argument called "constructor" cannot be told from others';
}

function unusable(input: JsonObject): string | undefined {
  if (sizeOf(input) > MOST_INPUT) return `its arguments take more than ${MOST_INPUT} bytes to describe`;
  const compiled = compileInput(input);
  if ('check' in compiled) return undefined;
  const [first] = compiled.faults;
  return `${first?.path.join('.') || 'input'}: ${first?.message}`;
}
