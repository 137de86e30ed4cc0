import type { Json, JsonObject } from '../../domain/json.ts';
import { type Diagnostics, type DocumentPath, resolvePosition, type SourceFile } from '../faults.ts';
import { formatShortValue } from '../zod-issues.ts';
import { type HttpMethod, IGNORED_SERVERS, type OpenApiOperation } from './import-operation.ts';
import { NotImportableError, OpenApiDocument } from './openapi-document.ts';

const METHODS: Readonly<Record<string, HttpMethod>> = {
  get: 'GET',
  head: 'HEAD',
  post: 'POST',
  put: 'PUT',
  patch: 'PATCH',
  delete: 'DELETE',
};
const UNSUPPORTED_METHODS = ['options', 'trace'];
const MAX_OPERATIONS = 2_000;

/** Reads a document and its operations in the order of the file. Undefined when it is no OpenAPI document. */
export function readOpenApi(
  source: SourceFile,
  diagnostics: Diagnostics,
): { document: OpenApiDocument; operations: OpenApiOperation[] } | undefined {
  const document = OpenApiDocument.fromSource(source, diagnostics);
  if (document === undefined) return undefined;
  const operations: OpenApiOperation[] = [];
  collectOperations(document, operations);
  if (operations.length > MAX_OPERATIONS) {
    document.addError(
      ['paths'],
      `A document must have at most ${MAX_OPERATIONS} operations (got ${operations.length}). Remove those that are not needed.`,
    );
    return undefined;
  }
  reportDuplicateIds(document, operations);
  return { document, operations };
}

function collectOperations(document: OpenApiDocument, operations: OpenApiOperation[]): void {
  skipNotImportable(() => {
    for (const [path, item] of Object.entries(document.expectMap(document.root['paths'], ['paths']))) {
      if (path.startsWith('x-')) continue;
      skipNotImportable(
        () => collectPathOperations(document, path, item, operations),
        (reason) => document.addWarning(['paths', path], reason),
      );
    }
  });
}

function collectPathOperations(
  document: OpenApiDocument,
  path: string,
  item: Json,
  operations: OpenApiOperation[],
): void {
  const pathItem = document.dereference(item, ['paths', path]);
  const map = document.expectMap(pathItem.value, pathItem.path);
  const shared = { value: map['parameters'] ?? [], path: [...pathItem.path, 'parameters'] };
  if (map['servers'] !== undefined) document.addWarning([...pathItem.path, 'servers'], IGNORED_SERVERS);
  for (const key of UNSUPPORTED_METHODS)
    if (map[key] !== undefined)
      document.addWarning([...pathItem.path, key], `${key.toUpperCase()} operations are not imported.`);
  for (const [key, method] of Object.entries(METHODS)) {
    if (map[key] === undefined) continue;
    skipNotImportable(() => {
      const where = [...pathItem.path, key];
      const value = document.expectMap(map[key], where);
      const id = readOperationId(document, value, where);
      operations.push({ method, path, id, value, where, shared, location: { ...document.locate(where), key: true } });
    });
  }
}

function readOperationId(document: OpenApiDocument, operation: JsonObject, where: DocumentPath): string | undefined {
  const id = operation['operationId'];
  if (id !== undefined && (typeof id !== 'string' || id === ''))
    throw document.addError(
      [...where, 'operationId'],
      `operationId must be text, and not empty (got ${formatShortValue(id)}).`,
    );
  return id;
}

function reportDuplicateIds(document: OpenApiDocument, operations: readonly OpenApiOperation[]): void {
  const seen = new Map<string, OpenApiOperation>();
  for (const operation of operations) {
    if (operation.id === undefined) continue;
    const first = seen.get(operation.id);
    if (first !== undefined) {
      const { file, line, column } = resolvePosition(document.locate([...first.where, 'operationId']));
      document.addError(
        [...operation.where, 'operationId'],
        `The operationId ${JSON.stringify(operation.id)} is already used at ${file}:${line}:${column}. Rename one of them.`,
      );
    }
    seen.set(operation.id, first ?? operation);
  }
}

/** Skips a part that cannot be imported, so that the other parts are still read. `onUnsupported` gets a reason that is not reported yet. */
function skipNotImportable(read: () => void, onUnsupported?: (reason: string) => void): void {
  try {
    read();
  } catch (error) {
    if (!(error instanceof NotImportableError)) throw error;
    if (!error.isReported) onUnsupported?.(error.message);
  }
}
