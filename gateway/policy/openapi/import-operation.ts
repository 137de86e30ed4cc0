// biome-ignore-all lint/suspicious/noTemplateCurlyInString: templates are what is written here
import { isJsonObject, type Json, type JsonObject } from '../../domain/json.ts';
import { compileInputSchema } from '../compile/compile-input-schema.ts';
import { checkPathTemplate } from '../compile/compile-request.ts';
import type { DocumentPath, SourceLocation } from '../faults.ts';
import type { ToolDeclaration } from '../policy-file-schema.ts';
import { type OpenApiRequestBody, readRequestBody } from './import-body.ts';
import { type OpenApiParameter, readParameters, toArgumentExpression } from './import-parameters.ts';
import { SchemaConverter } from './import-schema.ts';
import { type LocatedValue, NotImportableError, type OpenApiDocument } from './openapi-document.ts';

export type HttpMethod = NonNullable<NonNullable<ToolDeclaration['request']>['method']>;

/** An operation as the document has it, before anything of it is read. */
export interface OpenApiOperation {
  readonly method: HttpMethod;
  readonly path: string;
  readonly id: string | undefined;
  readonly place: SourceLocation;
  readonly value: JsonObject;
  readonly where: DocumentPath;
  /** The parameters that its path gives to all operations. */
  readonly shared: LocatedValue;
}

/** What an operation gives to the tool of its name. What is absent cannot be imported, and `why` says why. */
export interface ImportedOperation {
  readonly tool: Pick<ToolDeclaration, 'description' | 'effect' | 'request' | 'input'>;
  readonly why?: string;
  /** The fault has been told already. */
  readonly broken?: boolean;
}

const MAX_DESCRIPTION_LENGTH = 8192;
/** Far more than a model should be told about one tool; compiling it takes tens of milliseconds. */
const MAX_INPUT_BYTES = 32_768;

/** `given` are the headers that somebody else writes: those of the upstream, and the one that carries the key. */
export function importOperation(
  document: OpenApiDocument,
  operation: OpenApiOperation,
  given: ReadonlySet<string>,
): ImportedOperation {
  const effect = operation.method === 'GET' || operation.method === 'HEAD' ? ('read' as const) : ('write' as const);
  const tool = { effect, ...readDescription(operation.value) };
  try {
    const { request, input } = readRequest(document, operation, given);
    const why = explainUnusableInput(input) ?? explainUnsupportedArgument(input, request);
    return why === undefined ? { tool: { ...tool, request, input } } : { tool: { ...tool, request }, why };
  } catch (error) {
    if (!(error instanceof NotImportableError)) throw error;
    return { tool, why: error.message, ...(error.broken && { broken: true }) };
  }
}

function readRequest(
  document: OpenApiDocument,
  { method, path, value, where, shared }: OpenApiOperation,
  given: ReadonlySet<string>,
): { request: NonNullable<ToolDeclaration['request']>; input: JsonObject } {
  const schemas = new SchemaConverter(document);
  const own = { value: value['parameters'] ?? [], path: [...where, 'parameters'] };
  const parameters = readParameters(document, [own, shared], given, schemas);
  const body = readOperationBody(document, method, value, where, parameters, schemas);
  if (value['servers'] !== undefined)
    document.addWarning([...where, 'servers'], 'these servers are ignored: requests go to the url of the upstream');
  const of = (place: OpenApiParameter['in']): Record<string, string> =>
    Object.fromEntries(parameters.filter((each) => each.in === place).map(({ name, template }) => [name, template]));
  const headers = of('header');
  if (body !== undefined && body.contentType !== 'application/json') headers['content-type'] = body.contentType;
  return {
    request: {
      method,
      path: buildPathTemplate(document, path, parameters, where),
      query: of('query'),
      headers,
      body: body?.template ?? null,
    },
    input: buildInputSchema(parameters, body, schemas.convertDefinitions()),
  };
}

function readOperationBody(
  document: OpenApiDocument,
  method: HttpMethod,
  value: JsonObject,
  where: DocumentPath,
  parameters: readonly OpenApiParameter[],
  schemas: SchemaConverter,
): OpenApiRequestBody | undefined {
  const path = [...where, 'requestBody'];
  if (method !== 'GET' && method !== 'HEAD')
    return readRequestBody(document, value['requestBody'], path, parameters, schemas);
  if (value['requestBody'] === undefined) return undefined;
  const { value: body } = document.dereference(value['requestBody'], path);
  if (isJsonObject(body) && body['required'] === true)
    throw new NotImportableError(`${method} has no body, and this one needs it`);
  document.addWarning(path, `${method} has no body; it is sent without one`);
  return undefined;
}

function buildInputSchema(
  parameters: readonly OpenApiParameter[],
  body: OpenApiRequestBody | undefined,
  definitions: JsonObject,
): JsonObject {
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
function buildPathTemplate(
  document: OpenApiDocument,
  path: string,
  parameters: readonly OpenApiParameter[],
  where: DocumentPath,
): string {
  const open = new Set(parameters.filter((each) => each.in === 'path').map(({ name }) => name));
  const used = new Set<string>();
  const template = path
    .split(/(\{[^{}]*\})/)
    .map((part) => {
      const name = /^\{([^{}]*)\}$/.exec(part)?.[1];
      if (name === undefined) return part.replaceAll('${', '$${');
      if (!open.has(name)) throw document.addError(where, `no path parameter is called ${JSON.stringify(name)}`);
      used.add(name);
      return `\${${toArgumentExpression(name)}}`;
    })
    .join('');
  const unused = [...open].find((name) => !used.has(name));
  if (unused !== undefined) throw document.addError(where, `there is no {${unused}} in the path of this parameter`);
  checkPathTemplate(template, (message) => {
    throw new NotImportableError(message);
  });
  return template;
}

export function measureInput(input: ToolDeclaration['input']): number {
  return JSON.stringify(input ?? null).length;
}

function readDescription(operation: JsonObject): { description?: string } {
  const texts = ['summary', 'description'].flatMap((key) => {
    const text: Json | undefined = operation[key];
    return typeof text === 'string' && text.trim() !== '' ? [text.trim()] : [];
  });
  const description = [...new Set(texts)].join('\n\n');
  return description === '' ? {} : { description: description.slice(0, MAX_DESCRIPTION_LENGTH) };
}

/** The CEL library takes an object with a `constructor` of its own for something it does not know. */
function explainUnsupportedArgument(
  input: JsonObject,
  request: NonNullable<ToolDeclaration['request']>,
): string | undefined {
  if (!Object.hasOwn(input['properties'] as JsonObject, 'constructor') || request.body === '${args}') return undefined;
  return 'an argument called "constructor" cannot be told from others';
}

function explainUnusableInput(input: JsonObject): string | undefined {
  if (measureInput(input) > MAX_INPUT_BYTES) return `its arguments take more than ${MAX_INPUT_BYTES} bytes to describe`;
  const compiled = compileInputSchema(input);
  if ('check' in compiled) return undefined;
  const [first] = compiled.faults;
  return `${first?.path.join('.') || 'input'}: ${first?.message}`;
}
