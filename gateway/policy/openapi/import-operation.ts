// biome-ignore-all lint/suspicious/noTemplateCurlyInString: this file writes templates
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

/** An operation of the document, before its parts are read. */
export interface OpenApiOperation {
  readonly method: HttpMethod;
  readonly path: string;
  readonly id: string | undefined;
  readonly location: SourceLocation;
  readonly value: JsonObject;
  readonly where: DocumentPath;
  /** The parameters of its path, which apply to all operations there. */
  readonly shared: LocatedValue;
}

/** The parts of a tool that an operation provides. `why` says in a sentence why a part is absent. */
export interface ImportedOperation {
  readonly tool: Pick<ToolDeclaration, 'description' | 'effect' | 'request' | 'input'>;
  readonly why?: string;
  /** The fault is reported already. */
  readonly isReported?: boolean;
}

const MAX_DESCRIPTION_LENGTH = 8192;
/** Far more than a model needs for one tool. Compiling a schema of this size takes tens of milliseconds. */
const MAX_INPUT_BYTES = 32_768;

export const IGNORED_SERVERS = 'servers is ignored, because requests go to the url of the upstream.';

/** `presetHeaders` are headers that are no arguments: those of the upstream, and the one that carries the key. */
export function importOperation(
  document: OpenApiDocument,
  operation: OpenApiOperation,
  presetHeaders: ReadonlySet<string>,
): ImportedOperation {
  const effect = operation.method === 'GET' || operation.method === 'HEAD' ? ('read' as const) : ('write' as const);
  const tool = { effect, ...readDescription(operation.value) };
  try {
    const { request, input } = readRequest(document, operation, presetHeaders);
    const why = explainUnusableInput(input) ?? explainUnsupportedArgument(input, request);
    return why === undefined ? { tool: { ...tool, request, input } } : { tool: { ...tool, request }, why };
  } catch (error) {
    if (!(error instanceof NotImportableError)) throw error;
    return { tool, why: error.message, ...(error.isReported && { isReported: true }) };
  }
}

function readRequest(
  document: OpenApiDocument,
  { method, path, value, where, shared }: OpenApiOperation,
  presetHeaders: ReadonlySet<string>,
): { request: NonNullable<ToolDeclaration['request']>; input: JsonObject } {
  const schemas = new SchemaConverter(document);
  const own = { value: value['parameters'] ?? [], path: [...where, 'parameters'] };
  const parameters = readParameters(document, [own, shared], presetHeaders, schemas);
  const body = readOperationBody(document, method, value, where, parameters, schemas);
  if (value['servers'] !== undefined) document.addWarning([...where, 'servers'], IGNORED_SERVERS);
  const templatesIn = (location: OpenApiParameter['in']): Record<string, string> =>
    Object.fromEntries(parameters.filter((each) => each.in === location).map(({ name, template }) => [name, template]));
  const headers = templatesIn('header');
  if (body !== undefined && body.contentType !== 'application/json') headers['content-type'] = body.contentType;
  return {
    request: {
      method,
      path: buildPathTemplate(document, path, parameters, where),
      query: templatesIn('query'),
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
    throw new NotImportableError(`A ${method} request must not have a body, and this operation requires one.`);
  document.addWarning(path, `A ${method} request must not have a body. It is sent without one.`);
  return undefined;
}

function buildInputSchema(
  parameters: readonly OpenApiParameter[],
  body: OpenApiRequestBody | undefined,
  definitions: JsonObject,
): JsonObject {
  const properties = Object.fromEntries(parameters.map(({ name, schema }) => [name, schema]));
  const required = parameters.filter((each) => each.required).map(({ name }) => name);
  const additional = body === undefined ? false : body.additionalProperties;
  return {
    type: 'object',
    properties: { ...properties, ...body?.properties },
    required: [...required, ...(body?.required ?? [])],
    ...(additional !== undefined && { additionalProperties: additional }),
    ...(Object.keys(definitions).length > 0 && { $defs: definitions }),
  };
}

/** Converts `/pets/{id}` to a template. Every variable must be a path parameter, and every path parameter a variable. */
function buildPathTemplate(
  document: OpenApiDocument,
  path: string,
  parameters: readonly OpenApiParameter[],
  where: DocumentPath,
): string {
  const pathParameters = new Set(parameters.filter((each) => each.in === 'path').map(({ name }) => name));
  const used = new Set<string>();
  const template = path
    .split(/(\{[^{}]*\})/)
    .map((part) => {
      const name = /^\{([^{}]*)\}$/.exec(part)?.[1];
      if (name === undefined) return part.replaceAll('${', '$${');
      if (!pathParameters.has(name))
        throw document.addError(
          where,
          `The path has {${name}}, but no path parameter has this name. Declare it in parameters.`,
        );
      used.add(name);
      return `\${${toArgumentExpression(name)}}`;
    })
    .join('');
  const unused = [...pathParameters].find((name) => !used.has(name));
  if (unused !== undefined)
    throw document.addError(
      where,
      `The path has no {${unused}}, but a path parameter has this name. Add it to the path.`,
    );
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

/** The CEL library fails on an object that has its own property `constructor`. */
function explainUnsupportedArgument(
  input: JsonObject,
  request: NonNullable<ToolDeclaration['request']>,
): string | undefined {
  if (!Object.hasOwn(input['properties'] as JsonObject, 'constructor') || request.body === '${args}') return undefined;
  return 'An argument must not be named "constructor".';
}

function explainUnusableInput(input: JsonObject): string | undefined {
  if (measureInput(input) > MAX_INPUT_BYTES)
    return `The schema of the arguments must have at most ${MAX_INPUT_BYTES} bytes (got ${measureInput(input)}).`;
  const compiled = compileInputSchema(input);
  if ('check' in compiled) return undefined;
  const [first] = compiled.faults;
  return `At ${first?.path.join('.') || 'input'} of its arguments: ${first?.message}`;
}
